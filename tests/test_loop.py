"""What the training loop waits for and what it does not: health, checkpoints, garbage, threads."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from experiment.config.front_door import spin_briefly
from experiment.errors import Diverged, ExperimentError
from experiment.training import checkpoints
from experiment.training.checkpoints import CheckpointWriter, load
from experiment.training.fit import garbage_collected_aside
from experiment.training.health import Health


def test_no_update_is_applied_from_the_first_bad_one_on():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    health, seen = Health(), []
    with pytest.raises(Diverged, match="update 4: the gradient norm is inf and the loss 2;"):
        for update in range(1, 10):
            weight.grad = torch.full((3,), float("inf") if update == 4 else 1.0)
            norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.found_inf = health.observe(update, torch.tensor(2.0), norm)
            optimizer.step()
            seen.append((update, weight.detach().clone(), optimizer.state[weight]["step"].clone()))
    assert [update for update, _, _ in seen] == [1, 2, 3, 4]  # heard of when update 5 came
    assert torch.equal(seen[3][1], seen[2][1]) and seen[3][2] == seen[2][2] == 3
    assert not torch.equal(seen[2][1], seen[1][1])


def test_what_the_host_has_not_heard_of_yet_is_asked_for_before_weights_are_kept():
    health = Health()
    health.observe(1, torch.tensor(3.0), torch.tensor(1.0))
    assert health.loss is None
    health.check()
    assert health.loss == 3.0
    health.observe(2, torch.tensor(float("nan")), torch.tensor(float("nan")))
    with pytest.raises(Diverged, match="update 2"):
        health.check()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    may_write = threading.Event()
    write = checkpoints.write_checkpoint

    def waits(staged, path):
        assert may_write.wait(60)
        write(staged, path)

    monkeypatch.setattr(checkpoints, "write_checkpoint", waits)
    writer, state = CheckpointWriter(), {"step": 1, "weights": [torch.ones(5)]}
    writer.save_checkpoint(state, tmp_path / "a.ckpt")
    state["weights"][0] += 1  # as the next update does
    linked = []
    writer.then(lambda: linked.append((tmp_path / "a.ckpt").exists()))
    writer.check()
    assert not (tmp_path / "a.ckpt").exists() and not linked
    may_write.set()
    writer.finish()
    assert torch.equal(load(tmp_path / "a.ckpt")["weights"][0], torch.ones(5)) and linked == [True]
    writer.save_checkpoint(state, tmp_path / "a.ckpt")  # in the same memory
    writer.finish()
    assert torch.equal(load(tmp_path / "a.ckpt")["weights"][0], torch.full((5,), 2.0))


def test_nothing_follows_a_checkpoint_that_could_not_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    may_write, done = threading.Event(), []
    write = checkpoints.write_checkpoint

    def waits(staged, path):
        assert may_write.wait(60)
        write(staged, path)

    monkeypatch.setattr(checkpoints, "write_checkpoint", waits)
    writer = CheckpointWriter()
    writer.save_checkpoint({"x": torch.ones(1)}, tmp_path / "file" / "a.ckpt")
    writer.then(lambda: done.append(1))
    may_write.set()
    with pytest.raises(ExperimentError, match=r"a\.ckpt: the checkpoint could not be written"):
        writer.finish()
    assert not done


def test_garbage_waits_until_training_is_over():
    assert gc.isenabled()
    with garbage_collected_aside():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_lightning_still_has_what_is_taken_from_it():
    assert callable(_TrainingEpochLoop._broadcast_sigterm_tensor)


def test_threads_spin_briefly_unless_the_user_has_said_otherwise(monkeypatch):
    for said in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        monkeypatch.setenv(said, "7")
        spin_briefly()
        assert os.environ[said] == "7"
        assert os.environ.get("GOMP_SPINCOUNT") in (None, "7")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


@pytest.mark.slow
def test_a_run_does_not_grow_while_garbage_waits(tmp_path: Path):
    """Peak memory of 40 and of 400 updates of the tiny model."""
    code = (
        "import resource, sys; from experiment.config.compose import compose; from experiment.train import train; "
        "assert train(compose(sys.argv[1:])) == 0; "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    peaks = []
    for name, stable in (("short", 1e9), ("long", 73e9)):
        overrides = ["batch.tokens=1024", f"paths.runs={tmp_path / name}", "evaluation.every_tokens=1e18"]
        overrides += ["scale.token_scale=5.12e-6", "schedule=wsd", f"schedule.stable_tokens={stable}"]
        overrides += ["train.stable_marks=[]", "train.checkpoint_every_tokens=1e18"]
        result = subprocess.run([sys.executable, "-c", code, *overrides], capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stderr
        peaks.append(float(result.stdout.splitlines()[-1]))
    assert peaks[1] < peaks[0] + 100, peaks
