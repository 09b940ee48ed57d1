"""However many processes carry a run, it is the same experiment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiment.config.check import check_batch_divides
from experiment.data.datamodule import Batches
from experiment.data.prepare import prepare
from experiment.errors import ConfigError
from experiment.run_directory import RunDirectory, read_lines
from experiment.training.checkpoints import load
from tests.conftest import Finished, assert_same_weights


@pytest.mark.parametrize("probs", ["null", "[0.7,0.3]"])
def test_a_batch_is_the_same_windows_in_the_same_order_for_1_2_and_4_processes(launcher, probs):
    config = launcher.compose(f"mixture.probs={probs}").config
    prepared = prepare(config)
    for update in (0, 1, 41, 10**6):
        whole = Batches(config, prepared.shards, 0, 1)[update]
        for world_size in (2, 4, 8):
            shares = [Batches(config, prepared.shards, rank, world_size)[update] for rank in range(world_size)]
            assert np.array_equal(whole, np.concatenate(shares))


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_micro_batches_change_the_losses_by_float_error_only(launchers, micro_batch):
    whole = launchers("whole").train("trainer.precision=fp32")
    split = launchers("split").train("trainer.precision=fp32", f"trainer.micro_batch={micro_batch}")
    assert whole.run.name == split.run.name
    for one, other in zip(whole.metrics, split.metrics, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=2e-5)


def test_a_batch_that_does_not_divide_names_the_nearest_that_do(launcher):
    config = launcher.compose("trainer.micro_batch=3").config
    with pytest.raises(ConfigError, match=r"512 is 8 windows, which 1 devices x micro-batch 3 .* 384 or 576"):
        check_batch_divides(config, 1)
    with pytest.raises(ConfigError, match="nearest valid: 320 or 640"):
        check_batch_divides(launcher.compose().config, 5)


def close(one: list[dict], other: list[dict], key: str) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert mine["step"] == theirs["step"]
        assert mine[key] == pytest.approx(theirs[key], rel=5e-5)


FP32 = "trainer.precision=fp32"


@pytest.mark.slow
def test_two_processes_train_the_same_run_as_one(launchers):
    one = launchers("one").train("schedule=wsd", FP32)
    launcher = launchers("two")
    result = launcher.start("schedule=wsd", FP32, "trainer.devices=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("  BPB  ") == 1, "one rank speaks"
    two = Finished(launcher.resolve("schedule=wsd"))
    assert two.run.name == one.run.name
    close(one.metrics, two.metrics, "loss")
    close(one.evaluations, two.evaluations, "bpb")


@pytest.mark.slow
@pytest.mark.parametrize("trunk_devices, branch_devices", [(2, 1), (1, 2)])
def test_a_trunk_of_some_processes_is_branched_by_others(launchers, trunk_devices, branch_devices):
    one = launchers("one").train("schedule=cooldown_30b", FP32)
    launcher = launchers("changing")
    trunk = ("schedule=trunk", "schedule.stable_tokens=23e9", "train.stable_marks=[24e9]")
    for command in (
        (*trunk, f"trainer.devices={trunk_devices}"),
        ("schedule=cooldown_30b", f"trainer.devices={branch_devices}"),
    ):
        result = launcher.start(FP32, *command)
        assert result.returncode == 0, result.stderr
    changing = Finished(launcher.resolve("schedule=cooldown_30b"))
    close(one.metrics, changing.metrics, "loss")


@pytest.mark.slow
def test_torchrun_carries_trunk_and_branch_on_every_rank(launchers):
    launcher = launchers("torchrun")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "experiment.train",
    ]
    result = subprocess.run(
        [*command, *launcher.base, FP32, "schedule=cooldown_30b"], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    under_torchrun = Finished(launcher.resolve("schedule=cooldown_30b"))
    lightning = launchers("lightning")
    result = lightning.start(FP32, "schedule=cooldown_30b", "trainer.devices=2")
    assert result.returncode == 0, result.stderr
    by_lightning = Finished(lightning.resolve("schedule=cooldown_30b"))
    assert_same_weights(under_torchrun.checkpoint(), by_lightning.checkpoint())
    assert under_torchrun.evaluations == by_lightning.evaluations


@pytest.mark.slow
def test_a_rank_that_stays_behind_does_not_hang_the_others(launchers):
    """A run that is finished already ends on every rank, with nothing started."""
    launcher = launchers("again")
    launcher.train("schedule=wsd", FP32)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "experiment.train",
    ]
    result = subprocess.run(
        [*command, *launcher.base, FP32, "schedule=wsd"], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert result.returncode == 0, result.stderr
    assert "is finished already" in result.stdout
    json.loads((launcher.resolve("schedule=wsd").directory / "run.json").read_text())


@pytest.mark.slow
def test_a_signal_to_two_ranks_is_over_when_the_checkpoint_is_written_however_long_that_takes(launcher):
    overrides = [FP32, "schedule=wsd", "schedule.stable_tokens=90e9", "train.checkpoint_every_tokens=1e18"]
    overrides += ["evaluation.every_tokens=1e18", "trainer.devices=2", "scale.token_scale=1e-4"]
    directory = RunDirectory(launcher.resolve(*overrides).directory)
    script = Path(__file__).parent / "hazards" / "slow_write.py"
    command = [sys.executable, script, *launcher.base, *overrides]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        waiting_until = time.monotonic() + 120
        while len(read_lines(directory.metrics)) < 5:
            assert process.poll() is None and time.monotonic() < waiting_until
            time.sleep(0.1)
        seen = read_lines(directory.metrics)[-1]["step"]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 75, said.decode()
    record = directory.read()
    assert record is not None and record["state"] == "interrupted"
    assert load(directory.last)["run"]["step"] >= seen
