"""Where a run was made: versions, code, machine. Facts for the reader of run.json; nothing depends on them."""

import platform
import socket
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from experiment.config.schema import Config

PACKAGES = ("cross-script-penalty", "torch", "lightning", "tokenizers", "datasets", "numpy", "hydra-core")


def provenance(config: Config) -> dict[str, Any]:
    """Versions of what computes, the commit of the code, and the machine of this start of the run."""
    gpu = torch.cuda.is_available() and config.trainer.accelerator != "cpu"
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": _commit(),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "precision": config.trainer.precision,
    }


def _commit() -> str | None:
    """The commit of the checkout that runs, with `+changes` if it was edited; None in an installed package."""
    place = Path(__file__).parent
    command = ["git", "-C", str(place), "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        inside = subprocess.run(
            ["git", "-C", str(place), "ls-files", "--error-unmatch", __file__],
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None if result.returncode == inside.returncode == 0 else None
