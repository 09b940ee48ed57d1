"""The matrix on a real Slurm: dependencies between jobs, requeue at the time limit. Needs a running cluster."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiment.config.compose import compose
from experiment.launching.jobs import jobs_of
from experiment.launching.slurm import SlurmSettings, batches_of, script_of
from experiment.matrix.runs import matrix_runs
from experiment.run_directory import RunDirectory
from tests.conftest import Finished, Launcher, assert_same_weights
from tests.standin import hub_settings, make_hub

MATRIX = ("hydra/sweeper=matrix", "hydra.sweeper.where=slurm")


def cluster_is_up() -> bool:
    if shutil.which("sinfo") is None:
        return False
    return subprocess.run(["sinfo", "-h"], capture_output=True, timeout=30).returncode == 0


slurm = pytest.mark.skipif(not cluster_is_up(), reason="no Slurm here; .ci/run starts one")


def wait_for_the_queue(seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip():
        assert time.monotonic() < deadline, subprocess.run(["squeue"], capture_output=True, text=True).stdout
        time.sleep(1)


def scripts_of(launcher: Launcher, *overrides: str) -> dict[str, str]:
    base = [*launcher.base, *overrides]
    runs = [r for r in matrix_runs(overrides=base, corpus_of_scale=False) if r.mixture == "en-ar"][:3]
    jobs = jobs_of(runs, base, ("--config-name=train",), [])
    settings = SlurmSettings(partition="gpus", time="1:00:00", options=["--mem=10G"], setup=["module load x"])
    return {f"{b.name} after {b.after}": script_of(b, settings) for b in batches_of(jobs)}


def test_a_trunk_is_cut_at_its_marks_and_cooldowns_wait_for_their_own(launcher):
    scripts = scripts_of(launcher, "trainer.devices=2")
    trunk = launcher.resolve("mixture=en-ar", "tok=bl_starved", "schedule=trunk").name
    short = launcher.resolve("mixture=en-ar", "tok=bl_starved", "schedule=cooldown_30b").name
    long = launcher.resolve("mixture=en-ar", "tok=bl_starved", "schedule=cooldown_100b").name
    assert list(scripts) == [
        f"{trunk}@stable_24000M after None",
        f"{trunk}@stable_80000M after {trunk}@stable_24000M",
        f"{short} after {trunk}@stable_24000M",
        f"{long} after {trunk}@stable_80000M",
    ]
    first, second, *_ = scripts.values()
    assert "schedule.stable_tokens=23000000000.0 'train.stable_marks=[2.4e+10]'" in first
    assert "schedule.stable_tokens" not in second
    for line in (
        "--ntasks-per-node=2",
        "--partition=gpus",
        "--time=1:00:00",
        "--mem=10G",
        "--signal=USR1@120",
        "--requeue",
    ):
        assert f"#SBATCH {line}" in first
    assert "set -e\nmodule load x\nset +e\nsrun " in first and "scontrol requeue" in first
    composed = compose(["schedule=trunk", "schedule.stable_tokens=23000000000.0", "train.stable_marks=[2.4e+10]"])
    assert composed.config.schedule.stable_tokens == 23e9


def test_scripts_can_be_written_without_a_cluster(launcher):
    result = launcher.sweep("hydra/sweeper=matrix", "hydra.sweeper.where=scripts", "mixture=en-ar", "tok=bl_starved")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("written  ") == 5
    (submit,) = launcher.runs.glob("sweeps/*/submit.sh")
    lines = submit.read_text().splitlines()
    assert [line.split("=")[0] for line in lines[3:]] == ["job_000", "job_001", "job_002", "job_003"]
    assert "--dependency=afterok:$job_000 --kill-on-invalid-dep=yes" in lines[5]  # the cooldown from 24B
    for script in submit.parent.glob("*.sbatch"):
        (log,) = [line for line in script.read_text().splitlines() if "--output=" in line]
        assert Path(log.split("--output=")[1]).parent.is_dir(), "Slurm makes no directory for a log"
    assert not list(launcher.resolve().scale_directory.glob("*/run.json"))


@pytest.mark.parametrize(
    "options, message",
    [
        (["hydra.sweeper.slurm.tim=1"], "tim"),
        (["hydra.sweeper.slurm.nodes=0"], "nodes: got 0; must be at least 1"),
        (["hydra.sweeper.slurm.partition=''"], "partition: got ''"),
        (["trainer.num_nodes=2"], "set hydra.sweeper.slurm.nodes"),
        (["trainer.devices=3"], "3 devices do not divide"),
        (["paths.runs='with space'"], "takes no space"),
        (["hydra.sweeper.only_30b=maybe"], "must be true or false"),
        (["hydra.sweeper.n_jobs=1.5"], "must be a whole number"),
        (["hydra.launcher.n_jobs=1"], "hydra.sweeper.where"),
        (["hydra.sweeper.flavor=pa"], "pa_starved cannot exist"),
        (["tok=bl_starved,bl_starfed"], "no run of the matrix has 'bl_starfed'; did you mean bl_starved?"),
        (["seed=glob(*)"], "no finite list"),
        (["data.files.en=nowhere.jsonl"], "no file matches nowhere.jsonl"),
        (["train.stable_marks=[1e9,2e9]"], "schedule="),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line_and_writes_nothing(launcher, options, message):
    result = launcher.sweep("hydra/sweeper=matrix", "hydra.sweeper.where=scripts", *options)
    assert result.returncode == 2, result.stdout
    assert message in result.stderr and len(result.stderr.splitlines()) <= 3 and "Traceback" not in result.stderr
    assert not list(launcher.runs.glob("sweeps/*/*.sbatch"))


def test_a_refusal_in_the_middle_says_what_is_queued_and_a_repetition_submits_nothing_twice(launcher, tmp_path):
    """With a stand-in for sbatch that refuses its third job, and for squeue."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text(
        f"""#!/bin/bash
count=$(cat {tmp_path}/count 2>/dev/null || echo 0); echo $((count + 1)) > {tmp_path}/count
env > {tmp_path}/environment
if [ "$count" -eq 2 ]; then echo no >&2; exit 1; fi
name=$(sed -n 's/#SBATCH --job-name=//p' "${{@: -1}}"); place=$(sed -n 's/#SBATCH --comment=//p' "${{@: -1}}")
echo "$((40 + count))|$name|$place" >> {tmp_path}/queue; echo $((40 + count))
"""
    )
    (tools / "squeue").write_text(f"#!/bin/bash\ncat {tmp_path}/queue 2>/dev/null || true\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "RANK": "1", "WORLD_SIZE": "2"}
    words = (*MATRIX, "mixture=en-ar", "tok=bl_starved")
    first = launcher.sweep(*words, env=environment)
    assert first.returncode == 2 and "queued before it: 40, 41. The same command goes on" in first.stderr
    assert "RANK=" not in (tmp_path / "environment").read_text(), "a job would take itself for a rank"
    again = launcher.sweep(*words, env=environment)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("already, as job") == 2 and again.stdout.count("submitted") == 2
    assert "after" in again.stdout.splitlines()[-1]


@slurm
@pytest.mark.slow
def test_cells_and_a_trunk_with_its_cooldowns_on_two_tasks_each(launcher):
    result = launcher.sweep(*MATRIX, "mixture=en-ar,zh", "tok=bl_starved", "trainer.devices=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("submitted") == 5
    wait_for_the_queue()
    for schedule in ("trunk", "cooldown_30b", "cooldown_100b"):
        run = launcher.resolve("mixture=en-ar", "tok=bl_starved", f"schedule={schedule}")
        assert RunDirectory(run.directory).state() == "done", (run.directory / "log.txt").read_text()
    again = launcher.sweep(*MATRIX, "mixture=en-ar,zh", "tok=bl_starved", "trainer.devices=2")
    assert again.stdout.count("finished already") == 5 and "submitted" not in again.stdout


@slurm
@pytest.mark.slow
def test_a_job_that_slurm_tells_to_save_is_queued_again_and_ends_like_one_that_was_not(launchers):
    """The signal that --signal=USR1@120 sends before the time limit, here sent by hand: Slurm's clock is coarse."""
    cell = ("mixture=zh", "tok=bl_starved", "scale.token_scale=2.5e-5")
    whole = launchers("whole").train(*cell)
    launcher = launchers("limited")
    result = launcher.sweep(*MATRIX, *cell)
    assert result.returncode == 0, result.stderr
    (number,) = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("submitted")]
    run = launcher.resolve(*cell)
    deadline = time.monotonic() + 600
    while not (run.directory / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    subprocess.run(["scancel", "--signal=USR1", number], check=True)
    while RunDirectory(run.directory).state() != "done" and time.monotonic() < deadline:
        time.sleep(1)  # Slurm waits two minutes before it starts a job again
    log = (run.directory / "log.txt").read_text()
    assert RunDirectory(run.directory).state() == "done", log
    assert "stopped by a signal" in log
    assert_same_weights(whole.checkpoint(), Finished(run).checkpoint())
    assert whole.metrics == Finished(run).metrics


@slurm
@pytest.mark.slow
def test_a_plain_sweep_through_submitit(launcher):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    tasks = ("hydra/launcher=submitit_slurm", "hydra.launcher.tasks_per_node=2", "hydra.launcher.cpus_per_task=1")
    result = launcher.sweep(*tasks, "mixture=en,zh", "trainer.devices=2")
    assert result.returncode == 0, result.stderr
    for mixture in ("en", "zh"):
        record = json.loads((launcher.resolve(f"mixture={mixture}").directory / "run.json").read_text())
        assert record["state"] == "done"


@slurm
@pytest.mark.slow
def test_languages_are_staged_by_jobs_side_by_side(tmp_path):
    """What both need (samples, tokenizers) one of them builds, and the other waits for."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    hub = make_hub(tmp_path / "hub")
    command = [sys.executable, "-m", "experiment.prepare", "-m", "hydra/launcher=submitit_slurm"]
    command += ["hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=20", "data.lang=de,zh", "all=true"]
    command += [*hub_settings(hub), "scale.token_scale=1e-6", "scale.vocab_size=600", f"paths.runs={tmp_path}/runs"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    shards = (tmp_path / "runs/artifacts/shards").glob("*/manifest.json")
    assert sorted(path.parent.name.rsplit("-", 1)[0] for path in shards) == [
        f"fineweb-{lang}-bl_{condition}" for lang in ("de", "zh") for condition in ("destarved", "starved")
    ]
