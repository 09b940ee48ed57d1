"""What the benchmarks share: real runs with a callback inside, ratios with intervals, results kept as json."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiment.config.front_door import spin_briefly

if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    spin_briefly()  # as the front doors do; OpenMP may have been loaded already, and reads it only then
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

import experiment.training.fit as fitting
from experiment.config.compose import compose
from experiment.data.prepare import Prepared, prepare
from experiment.matrix.belonging import identity_of
from experiment.matrix.identity import Run, resolve
from experiment.training.devices import find_processes

RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", Path(__file__).parent / "results"))
PACKAGES = ("torch", "lightning", "numpy", "transformers", "accelerate", "litgpt")
SHAPES = {
    "tiny": ["scale=tiny", "scale.token_scale=1"],
    # two layers of the pilot model; its vocabulary cut to 8,192, which the embedded corpus can fill
    "pilot": [
        "scale=pilot",
        "data=embedded",
        "scale.token_scale=1",
        "model.layers=2",
        "scale.vocab_size=8192",
        "batch.tokens=8192",
    ],
}
NOTHING_ELSE = ["evaluation.every_tokens=1e18", "train.checkpoint_every_tokens=1e18", "train.stable_marks=[]"]
"""No evaluation and no checkpoint before the end."""


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write figures to results/NAME.json with the machine and the versions they come from."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    facts = {"date": time.strftime("%Y-%m-%d"), "device": device, "cores": len(os.sched_getaffinity(0))}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(facts | {"versions": versions, "figures": figures}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95% interval by bootstrap."""
    numbers = np.asarray(values)
    draws = np.random.default_rng(0).choice(numbers, (4000, len(numbers)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(numbers)), float(low), float(high)


def timed(work: Callable[[], Any]) -> float:
    """Seconds; those of the device included."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def run_with(
    callback: Callable[[Run, Prepared], Callback], overrides: Sequence[str], updates: int, place: Path | None = None
) -> None:
    """Train the run of these overrides for some updates, as `experiment.train` does, with a callback as its last.

    Runs go to a directory that is removed; corpora and tokenizers go to `place`, if it is given.
    """
    with TemporaryDirectory() as directory:
        paths = [f"paths.runs={directory}", *([f"paths.artifacts={place}"] if place else [])]
        run = resolve(compose([*overrides, *paths]))
        run.directory.mkdir(parents=True)
        prepared = prepare(run.config)

        class WithCallback(Trainer):
            def __init__(self, callbacks: list[Callback], **options: Any):
                super().__init__(callbacks=[*callbacks, callback(run, prepared)], **options)

        fitting.Trainer = WithCallback  # type: ignore[misc]
        try:
            identity = identity_of(run, prepared.fingerprints)
            fitting.fit(run, identity, prepared, find_processes(run.config), None, updates)
        finally:
            fitting.Trainer = Trainer  # type: ignore[misc]
