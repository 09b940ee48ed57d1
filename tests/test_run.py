"""One run: its directory, its records, and what it refuses."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch

from experiment.errors import Diverged, ExperimentError, RunRefused
from experiment.run_directory import RunDirectory, append_lines, keep_lines_up_to, read_lines
from experiment.training.checkpoints import CheckpointWriter, load, verify
from experiment.training.module import PretrainingModule
from tests.conftest import assert_same_weights


def test_what_a_run_leaves_behind(launcher):
    done = launcher.train("schedule=wsd", "train.stable_marks=[10e9]", "evaluation.snapshots=true")
    directory, schedule = done.run.directory, done.run.schedule
    assert sorted(p.name for p in (directory / "checkpoints").iterdir()) == ["final.ckpt", "stable_10000M.ckpt"]
    assert done.record["state"] == "done" and done.directory.state() == "done"
    assert done.record["science"]["schedule.peak_lr"] == 3e-3
    assert set(done.record["fingerprints"]) == {"corpora", "tokenizer", "shards", "parallel"}
    assert {"torch", "lightning", "tokenizers"} < set(done.record["versions"])
    for name in ("config.yaml", "overrides.yaml"):
        assert (directory / ".hydra" / name).exists()
    fields = ["run", "mixture", "tok", "seed", "tokens", "lang_tokens", "step", "lr", "phase", "source", "lang"]
    fields += ["nll_nats", "bytes", "docs", "bpb"]
    assert sorted(done.evaluations[0]) == sorted(fields)
    steps = sorted({line["step"] for line in done.evaluations})
    assert steps == [7, 14, 21, 27, 29]  # every 7e9 tokens, rounded to updates, and the end
    assert sorted(p.name for p in (directory / "snapshots").iterdir()) == [f"step_{s:07d}.safetensors" for s in steps]
    last = [line for line in done.evaluations if line["step"] == 29]
    assert {(line["source"], line["lang"]) for line in last} == {
        (s, x) for s in ("holdout", "parallel") for x in ("en", "ar")
    }
    assert {line["docs"] for line in last if line["source"] == "parallel"} == {1301}
    assert {line["docs"] for line in done.evaluations if line["step"] < 29 and line["source"] == "parallel"} == {8}
    assert sum(line["lang_tokens"] for line in last if line["source"] == "holdout") == last[0]["tokens"] == 29 * 512
    assert [line["step"] for line in done.metrics] == [3, 6, 9, 12, 15, 18, 21, 24, 27, 29]
    for line in done.metrics:
        assert line["lr"] == schedule.lr_of_step(line["step"])
    assert [line["phase"] for line in done.metrics] == ["stable"] * 7 + ["decay"] * 3
    assert done.metrics[-1]["loss"] < done.metrics[0]["loss"]


def test_the_optimizer_was_given_the_rate_of_the_schedule(launcher, monkeypatch):
    seen = []
    step = torch.optim.AdamW.step

    def remember(self, *args, **kwargs):
        seen.append({group["lr"] for group in self.param_groups})
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", remember)
    done = launcher.train("schedule=wsd", "scale.token_scale=1e-6")
    schedule = done.run.schedule
    assert seen == [{schedule.lr_of_step(k)} for k in range(1, schedule.end_step + 1)]
    assert min(seen[0]) > 0 and seen[-1] == {schedule.min_lr}


def test_the_same_command_on_a_finished_run_says_so(launcher, capsys):
    done = launcher.train("schedule=wsd")
    before = done.directory.final.stat().st_mtime_ns
    launcher.train("schedule=wsd")
    assert "is finished already" in capsys.readouterr().out
    assert done.directory.final.stat().st_mtime_ns == before


def test_a_directory_of_another_experiment_is_refused_naming_the_difference(launcher):
    launcher.train("schedule=wsd")
    with pytest.raises(RunRefused, match=r"scale\.token_scale is 5e-07 there and 1e-06 here"):
        launcher.train("schedule=wsd", "scale.token_scale=1e-6")


def test_other_data_under_the_same_name_is_refused(launcher, tmp_path):
    def place(words: str) -> tuple[str, ...]:
        for lang in ("en", "ar"):
            rows = [json.dumps({"text": f"{words} {lang} {i} " * 60}) for i in range(30)]
            (tmp_path / f"{lang}.jsonl").write_text("\n".join(rows))
        files = [f"data.files.{lang}={tmp_path}/{lang}.jsonl" for lang in ("en", "ar")]
        return ("data=local", "tok.langs=[en,ar]", "scale.vocab_size=270", "data.holdout_fraction=0.3", *files)

    launcher.train("schedule=wsd", *place("some words"))
    with pytest.raises(RunRefused, match="the corpora en differ"):
        launcher.train("schedule=wsd", *place("other words"))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": "done"}'])
def test_a_run_json_that_is_none_is_refused_by_name(launcher, text):
    run = launcher.resolve("schedule=wsd")
    run.directory.mkdir(parents=True)
    (run.directory / "run.json").write_text(text)
    with pytest.raises(RunRefused, match=r"run\.json"):
        launcher.train("schedule=wsd")
    assert (run.directory / "run.json").read_text() == text


def test_a_variant_does_not_touch_the_canonical_run(launcher):
    canonical = launcher.train("schedule=wsd")
    variant = launcher.train("schedule=wsd", "schedule.peak_lr=1e-3")
    assert variant.run.directory != canonical.run.directory
    assert canonical.metrics != variant.metrics
    assert launcher.resolve("schedule=wsd", "trainer.devices=2").directory == canonical.run.directory


def test_a_live_run_is_refused_naming_its_holder(launcher):
    run = launcher.resolve("schedule=wsd")
    directory = RunDirectory(run.directory)
    with directory.held():
        assert directory.is_held()
        result = launcher.start("schedule=wsd")
        assert result.returncode == 4
        assert f"held by process {os.getpid()} on" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert not directory.is_held()


def test_a_lock_left_by_a_dead_process_is_no_hindrance(launcher):
    run = launcher.resolve("schedule=wsd")
    code = (
        "import os, pathlib\nfrom experiment.run_directory import RunDirectory\n"
        f"d = RunDirectory(pathlib.Path({str(run.directory)!r}))\n"
        "with d.held():\n    d.write({'state': 'running'})\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60)
    directory = RunDirectory(run.directory)
    assert directory.read() == {"state": "running"}
    assert directory.state() == "interrupted"
    with directory.held():
        assert directory.state() == "running"


def test_an_update_whose_gradient_is_not_finite_is_not_applied_and_ends_the_run(launcher, monkeypatch):
    healthy = launcher.train("schedule=trunk", "schedule.stable_tokens=23e9", "train.stable_marks=[]", "seed=1")
    losses = PretrainingModule.losses

    def poisoned(self, windows):
        objective, nll = losses(self, windows)
        return (objective * float("nan"), nll) if self.trainer.global_step == 20 else (objective, nll)

    monkeypatch.setattr(PretrainingModule, "losses", poisoned)
    run = launcher.resolve("schedule=wsd", "seed=1")
    with pytest.raises(Diverged, match="update 21: the gradient norm is nan") as caught:
        launcher.train("schedule=wsd", "seed=1")
    assert caught.value.exit_code == 3
    directory = RunDirectory(run.directory)
    assert directory.state() == "diverged"
    kept = load(directory.last)
    assert kept["run"]["step"] == 18  # every 3e9 tokens: 3, 6, .. 18 (17.58 rounds up)
    assert all(torch.isfinite(tensor).all() for tensor in kept["state_dict"].values())
    assert [line["loss"] for line in read_lines(directory.metrics)] == [
        line["loss"] for line in healthy.metrics if line["step"] <= 18
    ]
    monkeypatch.undo()
    with pytest.raises(RunRefused, match="has diverged"):
        launcher.train("schedule=wsd", "seed=1")


def test_a_crash_is_recorded_and_the_next_start_goes_on(launchers, monkeypatch):
    whole = launchers("whole").train("schedule=wsd")
    launcher = launchers("crashed")
    losses = PretrainingModule.losses

    def crash(self, windows):
        if self.trainer.global_step == 10:
            raise ZeroDivisionError("planted")
        return losses(self, windows)

    monkeypatch.setattr(PretrainingModule, "losses", crash)
    with pytest.raises(ZeroDivisionError):
        launcher.train("schedule=wsd")
    record = RunDirectory(launcher.resolve("schedule=wsd").directory).read()
    assert record["state"] == "failed" and "planted" in record["error"]
    monkeypatch.undo()
    again = launcher.train("schedule=wsd")
    assert_same_weights(whole.checkpoint(), again.checkpoint())
    assert whole.metrics == again.metrics and whole.evaluations == again.evaluations
    assert again.record["state"] == "done" and "error" not in again.record


@pytest.mark.parametrize("damage", ["truncated", "one bit", "empty", "not a checkpoint"])
def test_a_damaged_checkpoint_is_refused_by_name(launcher, damage):
    done = launcher.train("schedule=wsd")
    path = done.directory.last
    shutil.move(done.directory.final, path)
    done.directory.set_state("interrupted")
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "one bit":
        with zipfile.ZipFile(path) as archive:
            record = max(archive.infolist(), key=lambda info: info.file_size)
        data[record.header_offset + 1000] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:
        data = bytearray(b"something else")
    path.write_bytes(data)
    with pytest.raises(RunRefused, match=r"last\.ckpt"):
        launcher.train("schedule=wsd")
    assert path.read_bytes() == data


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    writer = CheckpointWriter()
    writer.save_checkpoint({"x": torch.ones(10)}, path)
    writer.finish()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExperimentError, match="No space left"):
        writer.save_checkpoint({"x": torch.zeros(10)}, path)
        writer.finish()
    verify(path)
    assert torch.equal(load(path)["x"], torch.ones(10))
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_lines_after_a_checkpoint_are_dropped_and_a_torn_line_is_no_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_lines(path, [{"step": step, "x": "é中"} for step in (1, 2, 3)])
    with open(path, "a") as file:
        file.write('{"step": 4, "x"')
    assert [line["step"] for line in read_lines(path)] == [1, 2, 3]
    keep_lines_up_to(path, 2)
    append_lines(path, [{"step": 3, "x": "again"}])
    assert [(line["step"], line["x"]) for line in read_lines(path)] == [(1, "é中"), (2, "é中"), (3, "again")]


def test_weights_and_optimizer_are_grouped_for_weight_decay(launcher):
    done = launcher.train("schedule=wsd")
    groups = done.checkpoint()["optimizer_states"][0]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    # qkv, out, gate_up, down in each of 2 blocks, and the head; norms and the embedding are the rest
    assert [len(group["params"]) for group in groups] == [9, 10]


def test_compiled_blocks_keep_the_names_of_the_weights(launcher):
    from experiment.model.decoder import Decoder

    config = launcher.compose("trainer.compile=true").config
    module = PretrainingModule(config, {"name": "x"})
    plain = Decoder(config.model, config.tok.vocab_size)
    assert {f"decoder.{name}" for name in plain.state_dict()} == set(module.state_dict())


def test_a_finished_run_without_its_checkpoint_is_refused_and_starts_nothing(launcher):
    done = launcher.train("schedule=wsd")
    done.directory.final.unlink()
    with pytest.raises(RunRefused, match=r"final\.ckpt: missing, though the run is marked as finished"):
        launcher.train("schedule=wsd")
    trunk = launcher.train("schedule=trunk")
    shutil.rmtree(trunk.run.directory / "checkpoints")
    with pytest.raises(RunRefused, match="missing, though"):
        launcher.train("schedule=cooldown_100b")


def test_a_trunk_that_stands_beyond_the_end_asked_for_is_refused(launcher):
    done = launcher.train("schedule=trunk")
    shutil.move(done.directory.final, done.directory.last)
    done.directory.set_state("interrupted", end_step=90)
    with pytest.raises(RunRefused, match="beyond the end asked for"):
        launcher.train("schedule=trunk", "schedule.stable_tokens=40e9", "train.stable_marks=[24e9]")


def test_a_longer_trunk_writes_the_records_of_one_trained_in_one_go(launchers):
    once = launchers("once").train("schedule=trunk")
    launcher = launchers("twice")
    launcher.train("schedule=trunk", "schedule.stable_tokens=30.3e9", "train.stable_marks=[24e9]")
    twice = launcher.train("schedule=trunk")
    assert once.metrics == twice.metrics and once.evaluations == twice.evaluations
    assert_same_weights(once.checkpoint(), twice.checkpoint())


def test_a_checkpoint_of_another_update_is_no_branching_point(launcher):
    trunk = launcher.train("schedule=trunk")
    shutil.copy(trunk.directory.checkpoint("stable_24000M"), trunk.directory.checkpoint("stable_80000M"))
    with pytest.raises(RunRefused, match=r"stable_80000M\.ckpt: is of update 23, but"):
        launcher.train("schedule=cooldown_100b")


def test_other_parallel_text_under_the_same_name_is_refused(launcher, tmp_path):
    row = {"id": "a", "en": "one sentence", "ar": "جملة"}
    (tmp_path / "parallel.jsonl").write_text(json.dumps(row))
    place = ("schedule=wsd", f"data.parallel={tmp_path}/parallel.jsonl")
    launcher.train(*place)
    (tmp_path / "parallel.jsonl").write_text(json.dumps(row | {"en": "another sentence"}))
    with pytest.raises(RunRefused, match="the parallel differ"):
        launcher.train(*place)


def test_what_cannot_be_used_is_found_before_a_run_directory_is_made(launcher, tmp_path):
    (tmp_path / "bad.jsonl").write_text(json.dumps({"id": "a", "en": "no Arabic"}))
    large = (
        "model.context=1048576",
        "batch.tokens=1048576",
        "evaluation.batch_tokens=1048576",
        "scale.token_scale=1e-3",
    )
    for place in ((f"data.parallel={tmp_path}/bad.jsonl",), ("data.parallel=/nowhere.jsonl",), large):
        with pytest.raises(ExperimentError, match=r"data\.parallel|model\.context"):
            launcher.train("schedule=wsd", *place)
        assert not launcher.resolve("schedule=wsd", *place).directory.exists()


def test_a_finished_run_with_damaged_records_says_where(launcher, capsys):
    done = launcher.train("schedule=wsd")
    done.directory.metrics.unlink()
    launcher.train("schedule=wsd")
    assert str(done.directory.final) in capsys.readouterr().out
    done.directory.evaluations.write_text("rubbish\n")
    with pytest.raises(RunRefused, match=r"evaluations\.jsonl: line 1 is no record"):
        launcher.train("schedule=wsd")
