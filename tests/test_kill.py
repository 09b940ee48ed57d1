"""SIGKILL at any moment: the resumed run is the run that was never killed."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiment.run_directory import RunDirectory, read_lines
from tests.conftest import Finished, assert_same_weights

KILLS = int(os.environ.get("TEST_KILLS", "20"))
# long enough to be killed many times, a checkpoint at every update, so that many kills fall into a save
LONG = (
    "scale.token_scale=6e-6",
    "train.checkpoint_every_tokens=1e8",
    "train.log_every_steps=1",
    "schedule=cooldown_30b",
)


def newest_checkpoint(directories: list[RunDirectory]) -> float:
    return max((d.last.stat().st_mtime for d in directories if d.last.exists()), default=0.0)


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_as_if_it_had_not_been(launchers):
    whole = launchers("whole").train(*LONG)
    launcher = launchers("killed")
    run = launcher.resolve(*LONG)
    assert run.trunk is not None
    directories = [RunDirectory(run.directory), RunDirectory(run.trunk.directory)]
    chance = random.Random(0)
    kills = torn = 0
    while kills < KILLS:
        before = newest_checkpoint(directories)
        process = subprocess.Popen(launcher.command(*LONG), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        anywhere = chance.random() < 0.2  # also while it starts
        deadline = time.monotonic() + (chance.uniform(0, 6) if anywhere else 120)
        while process.poll() is None and time.monotonic() < deadline and newest_checkpoint(directories) == before:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read().decode()
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        torn += any(list((d.path / "checkpoints").glob(".*.tmp")) for d in directories if d.path.exists())
    assert kills >= KILLS, f"the run was over after {kills} kills: make it longer"
    last = launcher.start(*LONG)
    assert last.returncode == 0, last.stderr
    killed = Finished(run)
    assert_same_weights(whole.checkpoint(), killed.checkpoint())
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        for one, other in ((whole.run, run), (whole.run.trunk, run.trunk)):
            assert (one.directory / name).read_bytes() == (other.directory / name).read_bytes()
    print(f"{kills} kills, {torn} of them inside a checkpoint's write")


def test_a_signal_before_training_is_told_by_its_exit_code_too(launcher):
    process = subprocess.Popen(
        launcher.command("schedule=wsd"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()  # the first artifact is being built, or training begins
    process.send_signal(signal.SIGUSR1)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 75, message
    assert "The same command continues the run" in message
    assert launcher.start("schedule=wsd").returncode == 0


def test_a_signal_saves_the_run_and_the_same_command_goes_on(launchers):
    whole = launchers("whole").train("schedule=wsd", "scale.token_scale=2e-6")
    launcher = launchers("stopped")
    command = ("schedule=wsd", "scale.token_scale=2e-6")
    run = launcher.resolve(*command)
    process = subprocess.Popen(launcher.command(*command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = Path(run.directory) / "metrics.jsonl"
    while not read_lines(metrics) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    message = process.stderr.read()
    assert process.wait() == 75, message
    assert "The same command continues the run" in message
    assert RunDirectory(run.directory).state() == "interrupted"
    again = launcher.start(*command)
    assert again.returncode == 0, again.stderr
    assert_same_weights(whole.checkpoint(), Finished(run).checkpoint())
    assert whole.metrics == Finished(run).metrics
