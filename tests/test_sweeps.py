"""Sweeps: one command for many runs, which a crash cannot confuse."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiment.launching.jobs import Job, clean_environment, jobs_of
from experiment.launching.local import Devices, Scheduler, SweepFailed, run_jobs
from experiment.launching.sweeps import points_of
from experiment.matrix.runs import matrix_runs
from experiment.run_directory import RunDirectory
from tests.conftest import Finished, Launcher, assert_same_weights
from tests.test_report import ask, check_page

MATRIX = "hydra/sweeper=matrix"


def states(launcher: Launcher) -> dict[str, str]:
    """State of every run, by its name without the settings that make the tests' runs small."""
    place = launcher.resolve().scale_directory
    small = re.compile(r"__batch-512__context.*?(?=__seed|__x|$)")
    return {small.sub("", path.name): RunDirectory(path).state() for path in sorted(place.iterdir())}


def test_values_of_a_sweep_multiply():
    assert points_of(["seed=0,1", "mixture=en", "schedule.peak_lr=1e-3,3e-3"]) == [
        ["seed=0", "mixture=en", "schedule.peak_lr=0.001"],
        ["seed=0", "mixture=en", "schedule.peak_lr=0.003"],
        ["seed=1", "mixture=en", "schedule.peak_lr=0.001"],
        ["seed=1", "mixture=en", "schedule.peak_lr=0.003"],
    ]


def test_a_job_inherits_nothing_that_makes_it_a_rank(monkeypatch):
    polluted = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "NODE_RANK"]
    polluted += ["GROUP_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_NTASKS", "EXPERIMENT_STAGE_STORE"]
    for name in polluted:
        monkeypatch.setenv(name, "1")
    environment = clean_environment()
    assert not set(polluted) & set(environment)
    assert environment["PATH"] == os.environ["PATH"]


def test_a_plain_sweep_of_seeds_and_cells_then_again(launcher):
    points = ("mixture=en,zh", "tok=bl_destarved", "seed=0,1")
    environment = os.environ | {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}  # of another job
    first = launcher.sweep(*points, env=environment)
    assert first.returncode == 0, first.stderr + first.stdout
    assert "4 runs: 4 done" in first.stdout
    assert list(states(launcher).values()) == ["done"] * 4
    again = launcher.sweep(*points)
    assert again.returncode == 0 and again.stdout.count("finished already") == 4
    assert "started" not in again.stdout, "no process is needed to find that a run is finished"
    (log,) = {path.name for path in launcher.resolve("mixture=en").directory.glob("*.txt")}
    assert "BPB" in (launcher.resolve("mixture=en").directory / log).read_text()


def test_every_point_is_checked_before_the_first_one_starts(launcher):
    result = launcher.sweep("mixture=en,en-fr", "schedule=wsd,trunk")
    assert result.returncode == 2
    assert result.stderr.count("error: ") == 2 and "budget" in result.stderr
    assert not launcher.resolve().scale_directory.exists()
    result = launcher.sweep("mixture=en,en-dx", "seed=0,x")
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == [" mixture", " seed"]


def test_a_sweep_in_one_process_mixes_up_its_jobs_and_is_refused_here(launcher, tmp_path):
    """HAZARDS 1: Lightning starts the command line again, and under -m in one process that is the whole sweep.

    A rank that failed in one job goes on to the next one and there joins a rank that is still in the first.
    """
    script = Path(__file__).parent / "hazards" / "one_process_sweep.py"
    command = [sys.executable, str(script), "-m", "+job=0,1"]
    mixed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "rank 0 of job 0 met the ranks of jobs [0, 1]" in mixed.stdout, mixed.stdout + mixed.stderr
    result = launcher.sweep("hydra/launcher=basic", "mixture=en,zh", "trainer.devices=2")
    assert result.returncode == 2
    assert "use hydra/launcher=process" in result.stderr


def test_the_matrix_in_dependency_order(launcher):
    """A cell with a trunk, its two cooldowns, and a self-contained cell; the trunk's end is not waited for."""
    result = launcher.sweep(MATRIX, "mixture=en-ar,en-fr", "tok=bl_starved")
    assert result.returncode == 0, result.stderr + result.stdout
    assert "4 runs: 4 done" in result.stdout
    assert states(launcher) == dict.fromkeys(
        ("en-ar__bl_starved", "en-ar__bl_starved__100b", "en-ar__bl_starved__trunk", "en-fr__bl_starved"), "done"
    )
    again = launcher.sweep(MATRIX, "mixture=en-ar,en-fr", "tok=bl_starved")
    assert again.returncode == 0 and again.stdout.count("finished already") == 4


def test_a_failure_skips_what_depends_on_it_and_nothing_else(launcher):
    trunk = launcher.resolve("mixture=en-ar", "tok=bl_starved", "schedule=trunk")
    trunk.directory.mkdir(parents=True)
    (trunk.directory / "run.json").write_text('{"state": "interrupted"}')  # of no run
    result = launcher.sweep(MATRIX, "mixture=en-ar,zh", "tok=bl_starved")
    assert result.returncode == 1
    assert "failed    en-ar__bl_starved__trunk" in result.stdout
    assert (
        "skipped   en-ar__bl_starved__100b" in result.stdout and "skipped   en-ar__bl_starved__batch" in result.stdout
    )
    assert "3 of 4 runs did not finish" in result.stderr
    assert states(launcher)["zh__bl_starved"] == "done"


def test_a_job_that_fails_by_itself_is_told_with_its_reason(launcher, tmp_path):
    (tmp_path / "en.jsonl").write_text("no JSON\n")
    result = launcher.sweep("mixture=en,zh", f"data.files.en={tmp_path}/en.jsonl", "tok.langs=[zh]")
    assert result.returncode == 1
    en = launcher.resolve("mixture=en", "tok.langs=[zh]")
    (told,) = [line for line in result.stdout.splitlines() if line.startswith("failed")]
    assert "exit code 2: error: data.files.en: line 1 of" in told and "is not JSON" in told
    assert "Traceback" not in (en.directory / "log.txt").read_text()
    assert "1 failed" in result.stdout and "1 done" in result.stdout


def test_a_run_that_diverges_holds_up_no_other(launcher):
    points = ("mixture=en", "schedule.peak_lr=3e-3,1e38")
    result = launcher.sweep(*points)
    assert result.returncode == 1 and "2 runs: 1 done, 1 diverged" in result.stdout
    assert "exit code 3: error: en__" in result.stdout and "the update was not applied" in result.stdout
    again = launcher.sweep(*points)
    assert again.returncode == 1 and "started" not in again.stdout
    assert sorted(states(launcher).values()) == ["diverged", "done"]


def jobs_for(launcher: Launcher, *overrides: str) -> list[Job]:
    runs = matrix_runs(overrides=[*launcher.base, *overrides], corpus_of_scale=False)
    cell = [run for run in runs if run.mixture == "en-de" and run.tok_name == "bl_starved"]
    return jobs_of(cell, [*launcher.base, *overrides], (), [])


def test_a_job_that_diverges_or_crashes_is_told_by_its_exit_code(launcher, monkeypatch):
    codes = iter([3, 75, 9])
    monkeypatch.setattr(Job, "command", property(lambda self: ["sh", "-c", f"echo the reason; exit {next(codes)}"]))
    monkeypatch.setattr(Job, "can_start", property(lambda self: True))
    with pytest.raises(SweepFailed) as caught:
        run_jobs(jobs_for(launcher), 1, "cpu")
    for state in ("diverged", "interrupted", "failed"):
        assert f"({state})" in str(caught.value)


def test_a_damaged_directory_holds_up_no_other(launcher):
    place = launcher.resolve("mixture=fr").directory
    (place / "run.json").mkdir(parents=True)
    other = launcher.resolve("mixture=de").directory
    other.parent.mkdir(exist_ok=True)
    other.write_text("a file in a directory's place")
    third = launcher.resolve("mixture=zh").directory
    third.mkdir()
    (third / "run.json").write_bytes(b"\xff")
    result = launcher.sweep("mixture=en,fr,de,zh")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for name, reason in ((place.name, "directory"), (other.name, "directory"), (third.name, "utf-8")):
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"failed    {name}")]
        assert reason in line
    assert "4 runs: 1 done, 3 failed" in result.stdout
    board = subprocess.run(
        [sys.executable, "-m", "experiment.runs", "view=status", "only_30b=true", *launcher.base],
        capture_output=True,
        text=True,
    )
    assert board.returncode == 0 and "3 other" in board.stdout, board.stderr + board.stdout


def test_two_sweeps_at_once_finish_the_same_runs(launcher):
    words = launcher.command("mixture=en,zh", "hydra.launcher.n_jobs=1", sweep=True)
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    for process in both:
        told, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and "2 runs: 2 done" in told, told
    assert list(states(launcher).values()) == ["done", "done"]


def test_words_of_a_sweep_without_m_are_refused(launcher):
    result = launcher.start("hydra/sweeper=matrix", "mixture=en")
    assert result.returncode == 2 and "add -m" in result.stderr


def test_a_run_cannot_take_another_ones_name(launcher):
    for override in ("schedule.suffix=100b", "scale.name=main", "data.corpus=mine__seed-1", "branch.trunk=../../x"):
        result = launcher.start("mixture=en-ar", override)
        assert result.returncode == 2 and override.split("=")[0] in result.stderr, result.stderr


def test_devices_are_handed_out_and_given_back(launcher, monkeypatch):
    seen: list[str] = []
    script = 'test "$CUDA_VISIBLE_DEVICES" != "" && echo "$CUDA_VISIBLE_DEVICES" >> '
    record = Path(launcher.resolve().scale_directory).parent / "seen"
    record.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(Job, "command", property(lambda self: ["sh", "-c", f"{script} {record}; sleep 0.5"]))
    monkeypatch.setattr(Job, "can_start", property(lambda self: True))
    jobs = jobs_for(launcher, "trainer.devices=2")
    devices = Devices(["4", "5", "6"], True, 1)
    Scheduler(jobs, devices).run()
    seen = record.read_text().split()
    assert len(seen) == 3 and all(len(set(pair.split(",")) & {"4", "5", "6"}) == 2 for pair in seen)
    assert sorted(devices.free) == ["4", "5", "6"]
    with pytest.raises(SweepFailed, match="failed"):
        run_jobs(jobs_for(launcher, "trainer.devices=8"), 2, "cpu")


def test_a_run_that_another_process_holds_is_waited_for(launcher, monkeypatch):
    (job,) = [job for job in jobs_for(launcher) if job.run.kind == "trunk"]
    scheduler = Scheduler([job], Devices(["0"], False, 1))
    with job.directory.held():
        scheduler._try(job)
        assert scheduler.states == {job.name: "waiting"}
    monkeypatch.setattr(Job, "command", property(lambda self: ["true"]))
    assert scheduler.run() == {job.name: "done"}


@pytest.mark.slow
def test_ctrl_c_stops_all_jobs_saved_and_the_same_command_goes_on(launchers):
    points = ("mixture=en,zh", "tok=bl_destarved", "scale.token_scale=1e-5", "batch.tokens=256")
    launcher = launchers("stopped")
    process = subprocess.Popen(
        launcher.command(*points, sweep=True), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    runs = [launcher.resolve(*points[1:], f"mixture={mixture}") for mixture in ("en", "zh")]
    while process.poll() is None and not all((run.directory / "progress.json").exists() for run in runs):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 75, message
    assert "its runs are saved" in message
    assert {RunDirectory(run.directory).state() for run in runs} == {"interrupted"}
    again = launcher.sweep(*points)
    assert again.returncode == 0, again.stderr + again.stdout
    whole = launchers("whole")
    assert whole.sweep(*points).returncode == 0
    for run in runs:
        other = Finished(whole.resolve(*points[1:], f"mixture={run.mixture}"))
        assert_same_weights(Finished(run).checkpoint(), other.checkpoint())


@pytest.mark.slow
def test_devices_2_1_2_in_one_sweep(launcher):
    result = launcher.sweep("mixture=en", "trainer.devices=2,1,2", "seed=0")
    assert result.returncode == 2 and "3 points of this sweep are this one run" in result.stderr
    result = launcher.sweep("mixture=en", "seed=0,1", "trainer.devices=2", "hydra.launcher.n_jobs=2")
    assert result.returncode == 0, result.stderr + result.stdout
    result = launcher.sweep("mixture=en", "seed=2,3", "trainer.devices=1")
    assert result.returncode == 0, result.stderr + result.stdout
    assert list(states(launcher).values()) == ["done"] * 4


@pytest.mark.slow
def test_a_killed_rank_fails_its_job_and_no_other(launcher):
    command = launcher.command(
        "mixture=en,zh", "trainer.devices=2", "scale.token_scale=2e-5", "hydra.launcher.n_jobs=4", sweep=True
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = [launcher.resolve("scale.token_scale=2e-5", f"mixture={mixture}") for mixture in ("en", "zh")]
    while process.poll() is None and not all((run.directory / "progress.json").exists() for run in runs):
        time.sleep(0.05)
    ranks = subprocess.run(["pgrep", "-f", "train_ddp_process_1"], capture_output=True, text=True).stdout.split()
    mine = [pid for pid in ranks if "mixture=en" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(mine[0]), signal.SIGKILL)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 1, out + error
    assert "1 of 2 runs did not finish: en__" in error
    assert RunDirectory(runs[1].directory).state() == "done"
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.slow
def test_eighteen_cells_then_the_matrix_that_shares_four_of_them(launcher):
    cells = ("mixture=en,de,fr,ar,zh,en-de,en-fr,en-ar,en-zh", "tok=bl_starved,bl_destarved", "schedule=wsd")
    first = launcher.sweep(*cells)
    assert first.returncode == 0, first.stderr + first.stdout
    assert "18 runs: 18 done" in first.stdout
    again = launcher.sweep(*cells)
    assert again.stdout.count("finished already") == 18 and "started" not in again.stdout
    before = {
        path: path.stat().st_mtime_ns for path in launcher.resolve().scale_directory.glob("*/checkpoints/final.ckpt")
    }
    matrix = launcher.sweep(MATRIX)
    assert matrix.returncode == 0, matrix.stderr + matrix.stdout
    assert "26 runs: 26 done" in matrix.stdout
    # 14 self-contained runs and the four 30B cells of the extended mixtures
    assert matrix.stdout.count("finished already") == 18
    assert {path: path.stat().st_mtime_ns for path in before} == before, "none was trained over"
    # and what it all is for
    places = (f"paths.runs={launcher.runs}", f"paths.artifacts={launcher.artifacts}")
    result = ask(*places, "budgets=[8e9]", "replicates=100")
    assert result.returncode == 0, result.stderr
    out = launcher.runs / "reports" / "tiny"
    report = json.loads((out / "report.json").read_text())
    assert report["excluded"] == [] and len(report["runs"]) == 26
    for matching in ("tokens", "content"):
        rows = [row for row in report["transfer"] if row["matching"] == matching and row["source"] == "parallel"]
        assert len(rows) == 8 and all(row["budget_tokens"] > 0 for row in rows)
    assert {tuple(row["same"] + row["cross"]) for row in report["interaction"]} >= {("de", "fr", "ar", "zh")}
    assert all(row["value"] is not None for row in report["final_difference"])
    if shutil.which("chromium"):
        check_page(out / "index.html", report)


@pytest.mark.slow
def test_a_matrix_killed_three_times_ends_like_an_undisturbed_one(launchers):
    part = (MATRIX, "mixture=en-ar,en-de", "tok=bl_starved", "scale.token_scale=2e-6")
    undisturbed = launchers("undisturbed")
    result = undisturbed.sweep(*part)
    assert result.returncode == 0, result.stderr + result.stdout
    launcher = launchers("killed")
    chance = random.Random(1)
    for _ in range(3):
        process = subprocess.Popen(
            launcher.command(*part, sweep=True), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(5, 12))
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        for pid in children[:1]:
            os.kill(int(pid), signal.SIGKILL)
        process.send_signal(signal.SIGKILL)
        process.wait()
    result = launcher.sweep(*part)
    assert result.returncode == 0, result.stderr + result.stdout
    for one in undisturbed.resolve().scale_directory.iterdir():
        other = launcher.resolve().scale_directory / one.name
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            assert (one / name).read_bytes() == (other / name).read_bytes(), one.name
        final = "checkpoints/final.ckpt"
        from experiment.training.checkpoints import load

        assert_same_weights(load(one / final), load(other / final))
    shutil.rmtree(launcher.resolve().scale_directory)
