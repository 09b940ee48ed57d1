"""The benchmarks run; what they measure is not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
KEPT = {
    ("training.py", "tiny", "3"): "training_tiny",
    ("choices.py", "tiny", "1"): "choices_tiny",
    ("checkpointing.py", "tiny", "3"): "checkpointing_tiny",
    ("loss_memory.py", "4096", "8192", "64"): "loss_memory",
    ("matmul_share.py", "1"): "matmul_share",
    ("start_up.py", "1"): "start_up",
    ("evaluation.py", "1"): "evaluation",
    ("sample_order.py",): "sample_order",
    ("gpu.py",): "gpu_reduced",
}
OTHERS = [
    ("packing.py", "2", "1"),
    ("encoding.py", "1"),
    ("interval_coverage.py", "2"),
    ("parity_aware.py", "1", "512"),
]


def run(command: tuple[str, ...], results: Path) -> str:
    environment = os.environ | {"BENCHMARK_RESULTS": str(results)}
    script, *arguments = command
    result = subprocess.run(
        [sys.executable, BENCHMARKS / script, *arguments], capture_output=True, text=True, env=environment, timeout=600
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", KEPT, ids=lambda command: command[0])
def test_a_benchmark_runs_and_keeps_its_figures(command, tmp_path):
    run(command, tmp_path)
    kept = json.loads((tmp_path / f"{KEPT[command]}.json").read_text())
    assert kept["figures"] and kept["versions"]["torch"] and kept["device"]
    if command[0] == "gpu.py":
        assert "failed" not in json.dumps(kept), kept


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHERS, ids=lambda command: command[0])
def test_a_benchmark_runs(command, tmp_path):
    assert run(command, tmp_path)


def test_the_list_of_benchmarks_is_whole():
    listed = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in BENCHMARKS.glob("*.py")}
    assert {name for name in scripts if f"`{name}`" not in listed} == set()
    needs_other_environment = {"rivals.py", "measuring.py"}
    assert scripts - needs_other_environment == {command[0] for command in [*KEPT, *OTHERS]}
