"""What the tests share: a model of a few thousand weights on the embedded corpus, and ways to start a run."""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # tests may run side by side
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiment.config.compose import Composed, compose
from experiment.matrix.identity import Run, resolve
from experiment.run_directory import RunDirectory, read_lines

# 30B nominal tokens are 29 updates, the mark at 24B is between two evaluation points
SMALL = (
    "model.dim=32",
    "model.layers=2",
    "model.heads=2",
    "model.ffn_dim=64",
    "model.context=64",
    "batch.tokens=512",
    "scale.vocab_size=512",
    "scale.token_scale=5e-7",
    "train.log_every_steps=3",
    "train.checkpoint_every_tokens=3e9",
    "evaluation.every_tokens=7e9",
    "evaluation.parallel_segments=8",
    "evaluation.holdout_docs=4",
    "evaluation.batch_tokens=1024",
)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests of a session keep corpora, tokenizers and shards; each is built once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "artifacts"


class Launcher:
    """Starts runs in one directory of runs."""

    def __init__(self, runs: Path, artifacts: Path):
        self.runs, self.artifacts = runs, artifacts
        self.base = [*SMALL, f"paths.runs={runs}", f"paths.artifacts={artifacts}"]

    def compose(self, *overrides: str) -> Composed:
        return compose([*self.base, *overrides])

    def resolve(self, *overrides: str) -> Run:
        return resolve(self.compose(*overrides))

    def train(self, *overrides: str) -> "Finished":
        """Train in this process."""
        from experiment.train import train

        composed = self.compose(*overrides)
        assert train(composed) == 0
        return Finished(resolve(composed))

    def command(self, *overrides: str, sweep: bool = False) -> list[str]:
        return [sys.executable, "-m", "experiment.train", *(["-m"] if sweep else []), *self.base, *overrides]

    def sweep(self, *overrides: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Start a sweep in a process of its own."""
        command = self.command(*overrides, sweep=True)
        return subprocess.run(command, capture_output=True, text=True, timeout=900, **options)

    def start(self, *overrides: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Train in a process of its own, as a user would."""
        return subprocess.run(self.command(*overrides), capture_output=True, text=True, timeout=300, **options)


class Finished:
    """What a run left behind."""

    def __init__(self, run: Run):
        self.run = run
        self.directory = RunDirectory(run.directory)

    @property
    def record(self) -> dict[str, Any]:
        record = self.directory.read()
        assert record is not None
        return record

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.directory.metrics)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        return read_lines(self.directory.evaluations)

    def checkpoint(self, name: str = "final") -> dict[str, Any]:
        from experiment.training.checkpoints import load

        return load(self.directory.checkpoint(name))


@pytest.fixture
def launcher(tmp_path: Path, artifacts: Path) -> Launcher:
    return Launcher(tmp_path / "runs", artifacts)


@pytest.fixture
def launchers(tmp_path: Path, artifacts: Path) -> Callable[[str], Launcher]:
    """Launchers with directories of runs of their own, for runs that are compared."""
    return lambda name: Launcher(tmp_path / name, artifacts)


def assert_same_weights(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    import torch

    assert mine["state_dict"].keys() == theirs["state_dict"].keys()
    for name, tensor in mine["state_dict"].items():
        assert torch.equal(tensor, theirs["state_dict"][name]), name
    for mine_state, theirs_state in zip(mine["optimizer_states"], theirs["optimizer_states"], strict=True):
        for key, values in mine_state["state"].items():
            for name, value in values.items():
                assert torch.equal(value, theirs_state["state"][key][name]), (key, name)
