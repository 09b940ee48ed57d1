"""The run matrix equals the reference in every field."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.config.check import settings_of
from experiment.config.compose import compose
from experiment.matrix.identity import EXECUTION, SCIENCE, resolve
from experiment.matrix.names import mark_name, run_name, variant_suffix
from experiment.matrix.runs import matrix_runs, mixtures

REFERENCE = json.loads((Path(__file__).parent / "reference" / "run_matrix.json").read_text())


def listing(*options: str) -> list[dict]:
    command = [sys.executable, "-m", "experiment.runs", "output=json", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("options, name", [((), "all_runs"), (("only_30b=true",), "all_30b_runs")])
def test_listing_equals_the_reference(options, name):
    runs = listing("scale=main", "paths.runs=RUNS", *options)
    assert len(runs) == len(REFERENCE[name])
    for run, wanted in zip(runs, REFERENCE[name], strict=True):
        if "branch" in wanted:
            path = wanted["branch"]["from"].replace("<runs>", "RUNS/main").replace(".pt", ".ckpt")
            wanted = wanted | {"branch": wanted["branch"] | {"from": path}}
        assert {key: run.get(key) for key in wanted} == wanted
        assert "branch" in wanted or "branch" not in run
        assert run["state"] == "pending"


def test_kinds_and_dependencies():
    runs = {run["name"]: run for run in listing("scale=main", "flavor=bl")}
    kinds = [run["kind"] for run in runs.values()]
    assert (kinds.count("wsd"), kinds.count("trunk"), kinds.count("cooldown")) == (14, 4, 8)
    seen = set()
    for name, run in runs.items():
        assert set(run["depends_on"]) <= seen, "a trunk comes before its cooldowns"
        assert run["depends_on"] == ([run["branch"]["from"].split("/")[-3]] if run["kind"] == "cooldown" else [])
        seen.add(name)


@pytest.mark.parametrize(
    "overrides",
    [(), ("seed=1",), ("schedule.decay_shape=linear",), ("branch.load_optim=false",), ("schedule.peak_lr=1e-3",)],
    ids=lambda overrides: overrides[0] if overrides else "canonical",
)
def test_every_run_of_the_matrix_is_what_the_command_line_composes(overrides):
    for run in matrix_runs(overrides=["scale=main", *overrides]):
        if overrides and run.mixture not in ("en-ar", "zh"):
            continue
        # at main the canonical corpus is not the default of train.yaml
        rows = [f"{group}={option}" for group, option in run.choices]
        alone = resolve(compose(["scale=main", "data=fineweb", *rows, *overrides]))
        assert alone.resolved() == run.resolved()
        assert alone.science == run.science


def test_budget_of_the_design():
    runs = matrix_runs(overrides=["scale=main"])
    schedules = [run.config.schedule for run in runs]
    assert sum(s.warmup_tokens + s.stable_tokens + s.decay_tokens for s in schedules) == 844e9
    assert list(mixtures()) == ["en", "de", "fr", "ar", "zh", "en-de", "en-fr", "en-ar", "en-zh"]


def test_one_run_by_name_and_an_unknown_one():
    assert listing("run=en-ar__bl_starved__100b")["depends_on"] == ["en-ar__bl_starved__trunk"]
    command = [sys.executable, "-m", "experiment.runs", "run=en-xx__bl_starved"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "en-xx__bl_starved" in result.stderr and "zh__bl_destarved" in result.stderr


def test_rows_can_be_chosen():
    assert {run["name"] for run in listing("mixture=en-de", "tok=bl_starved")} == {
        "en-de__bl_starved__trunk",
        "en-de__bl_starved",
        "en-de__bl_starved__100b",
    }
    assert len(listing("schedule=cooldown_100b")) == 4
    assert {run["seed"] for run in listing("seed=3")} == {3}
    assert all(run["name"].endswith("__seed-3") for run in listing("seed=3"))


def test_listing_imports_no_torch():
    code = "import sys, experiment.runs; print([m for m in ('torch', 'lightning', 'datasets') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_every_setting_is_either_science_or_execution():
    for key in settings_of(compose().config):
        group = key.rpartition(".")[0]
        sides = [any(k in side for k in (key, group)) for side in (SCIENCE, EXECUTION)]
        assert sides in ([True, False], [False, True]), key


@pytest.mark.parametrize(
    "overrides, name",
    [
        ((), "en-ar__bl_destarved"),
        (("schedule=trunk",), "en-ar__bl_destarved__trunk"),
        (("schedule=cooldown_100b",), "en-ar__bl_destarved__100b"),
        (("schedule.peak_lr=1e-3",), "en-ar__bl_destarved__peak_lr-0.001"),
        (("schedule.peak_lr=0.001", "seed=2"), "en-ar__bl_destarved__peak_lr-0.001__seed-2"),
        (("seed=2", "schedule.peak_lr=1e-3"), "en-ar__bl_destarved__peak_lr-0.001__seed-2"),
        (("mixture.probs=[0.7,0.3]",), "en-ar__bl_destarved__probs-0.7-0.3"),
        (("mixture.probs=[0.5,0.5]",), "en-ar__bl_destarved"),
        (("batch.tokens=8192",), "en-ar__bl_destarved__batch-8192"),
        (("model.qk_norm=false",), "en-ar__bl_destarved__qk_norm-false"),
        (("schedule=trunk", "schedule.min_lr=1e-5"), "en-ar__bl_destarved__trunk"),
        (("trainer.devices=2", "trainer.micro_batch=1", "logger=wandb", "trainer.workers=2"), "en-ar__bl_destarved"),
        (("evaluation.every_tokens=1e9", "paths.runs=elsewhere", "scale.token_scale=1e-5"), "en-ar__bl_destarved"),
    ],
)
def test_science_names_a_run_and_execution_does_not(overrides, name):
    assert resolve(compose(overrides)).name == name


def test_names_are_safe_short_and_different():
    long = variant_suffix({f"model.setting{i}": i for i in range(30)})
    assert len(long) <= 80
    assert long != variant_suffix({f"model.setting{i}": i + (i == 29) for i in range(30)})
    assert variant_suffix({"data.corpus": "a/b"}) != variant_suffix({"data.corpus": "ab"})
    assert variant_suffix({"data.corpus": "A"}).lower() != variant_suffix({"data.corpus": "a"}).lower()
    assert run_name("en", "bl_starved", "", "") == "en__bl_starved"


def test_marks_are_named_in_millions_and_never_collide():
    assert mark_name(24e9) == "stable_24000M"
    assert mark_name(500e3) == "stable_500k"
    assert len({mark_name(x) for x in (1e6, 1.5e6, 1.4e6, 1e3, 1.0, 0.5, 2e9)}) == 7


def test_full_size_runs_have_their_plain_names_on_the_corpus_of_their_scale():
    assert resolve(compose(["mixture=en", "tok=bl_starved"], "cluster")).name == "en__bl_starved"
    assert resolve(compose(["mixture=en", "scale=pilot", "data=fineweb"])).name == "en__bl_destarved"
    named = resolve(compose(["mixture=en", "scale=main", "data=fineweb", "data.sample_bytes=1e8"])).name
    assert named == "en__bl_destarved__sample_bytes-100000000"
    assert {run.name for run in matrix_runs(overrides=["scale=main"])} == {
        run.name for run in matrix_runs(overrides=["scale=main", "data=fineweb"])
    }
