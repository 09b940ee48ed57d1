"""From run directories and tables to a report: what takes part, what is left out and why, and what is written."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiment.errors import ExperimentError
from experiment.evaluation.findings import Findings, Settings
from experiment.evaluation.points import Cell, points_from_runs, points_from_table
from experiment.evaluation.scores import DocumentScores, scores_file, write_scores
from experiment.reporting.figures import figures
from experiment.reporting.page import headline
from experiment.reporting.tables import tables

PUBLIC = Path(__file__).parent / "reference" / "public_points.csv"
BATCH, SCALE = 1000, 1e-6  # 1B nominal tokens are one update
DOCS = 40


def law(billions: float) -> float:
    return 0.8 + 0.3 * billions**-0.3


def make_run(
    place: Path,
    mixture: str,
    condition: str,
    seed: int = 0,
    kind: str = "wsd",
    state: str = "done",
    t: float = 0.2,
    docs: int = DOCS,
    end: int = 30,
    name_suffix: str = "",
    **changes,
) -> Path:
    """A run's directory as training leaves it: 24 stable points, six of decay; a bilingual run transfers by `t`."""
    langs, tok = mixture.split("-"), f"bl_{condition}"
    name = (
        f"{mixture}__{tok}" + ("__trunk" if kind == "trunk" else "") + (f"__seed-{seed}" if seed else "") + name_suffix
    )
    record = {
        "name": name,
        "kind": kind,
        "scale": "tiny",
        "langs": langs,
        "probs": None,
        "tok_name": tok,
        "variant": "",
        "seed": seed,
        "state": state,
        "end_step": end,
        "schedule": {"peak_lr": 3e-3, "warmup_tokens": 0.0, "stable_tokens": 24e9, "decay_tokens": 6e9},
        "science": {"scale.token_scale": SCALE, "batch.tokens": BATCH},
        "fingerprints": {
            "tokenizer": f"tokenizer of {condition}",
            "corpora": {lang: f"corpus {lang}" for lang in langs},
            "shards": {lang: f"shards {lang} {condition}" for lang in langs},
            "parallel": "parallel",
        },
    } | changes
    run = place / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(record))
    (run / "evaluations.jsonl").write_text("")
    ids = tuple(f"doc {i}" for i in range(docs))
    sizes = np.arange(100, 100 + docs)
    hardness = np.random.default_rng(7).normal(1.0, 0.1, docs)
    for step in range(1, end + 1):
        phase = "stable" if step <= 24 or kind == "trunk" else "decay"
        scores, lines = {}, []
        for lang in langs:
            x = step if len(langs) == 1 else step / (2 - t)
            bits = sizes * law(x) * hardness * (0.97 if phase == "decay" else 1.0)
            found = DocumentScores(ids, bits * np.log(2), sizes)
            scores["parallel", lang] = found
            lr = 3e-3 if phase == "stable" else 1e-3
            line = {"run": name, "mixture": mixture, "tok": tok, "seed": seed, "tokens": step * BATCH, "step": step}
            line |= {"lr": lr, "phase": phase, "lang_tokens": step * BATCH // len(langs), "source": "parallel"}
            line |= {"lang": lang, "nll_nats": found.nll_nats, "bytes": int(sizes.sum()), "docs": docs}
            lines.append(line | {"bpb": found.bpb})
        write_scores(scores_file(run, step), lines, scores)
        with open(run / "evaluations.jsonl", "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return run


MIXTURES = ["en", "de", "fr", "ar", "zh", "en-de", "en-fr", "en-ar", "en-zh"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """All 18 cells, without transfer to languages of another script under the starved tokenizer."""
    place = tmp_path_factory.mktemp("runs") / "tiny"
    for mixture in MIXTURES:
        for condition in ("starved", "destarved"):
            cross = mixture in ("en-ar", "en-zh") and condition == "starved"
            make_run(place, mixture, condition, t=0.0 if cross else 0.4)
    return place


@pytest.fixture
def runs(finished, tmp_path) -> Path:
    """A copy to spoil."""
    shutil.copytree(finished, tmp_path / "tiny")
    return tmp_path / "tiny"


def found(place: Path, **settings) -> dict:
    return Findings(points_from_runs(place, place / "artifacts"), Settings((8e9,), 200, **settings)).report()


def change(run: Path, **facts) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | facts))


def designed(report: dict, score: str = "atlas") -> dict:
    (row,) = [
        row
        for row in report["interaction"]
        if (row["score"], row["designed"]) == (score, True) and row["matching"] in ("tokens", "total tokens")
    ]
    return row


def test_the_planted_interaction_comes_out_with_intervals_for_documents_and_checkpoints(finished):
    row = designed(found(finished))
    assert row["value"] == pytest.approx(0.4, abs=0.03)
    assert [i["covers"] for i in row["intervals"]] == [["documents"], ["documents", "checkpoints"]]
    for interval in row["intervals"]:
        assert interval["low"] <= row["value"] <= interval["high"]
        assert interval["conditional_on"] == "one training run"


def test_the_same_documents_for_every_model_cancel_in_differences(finished):
    """Documents differ by 10% in hardness and every model finds the same ones hard: BTS does not move with them."""
    row = next(r for r in found(finished)["transfer"] if (r["lang"], r["condition"]) == ("de", "destarved"))
    (documents,) = [i for i in row["intervals"]["relative"] if i["covers"] == ["documents"]]
    assert documents["high"] - documents["low"] < 1e-9


def test_finals_are_the_ends_of_finished_decays(finished):
    report = found(finished)
    row = next(r for r in report["final_difference"] if (r["partner"], r["condition"]) == ("ar", "starved"))
    assert row["value"] == pytest.approx((law(30) - law(15)) / law(30))
    assert designed(report, "final_difference")["value"] == pytest.approx(
        ((law(30) - law(30 / 1.6)) - (law(30) - law(15))) / law(30)
    )


@pytest.mark.parametrize(
    "state, facts", [("diverged", {"error": "update 7: nan"}), ("failed", {"error": "disk"}), ("interrupted", {})]
)
def test_a_run_that_did_not_end_well_takes_no_part_and_the_page_says_why(runs, state, facts):
    change(runs / "fr__bl_starved", state=state, **facts)
    report = found(runs)
    (excluded,) = report["excluded"]
    assert excluded["name"] == "fr__bl_starved" and excluded["reason"].startswith(state)
    row = designed(report)
    assert row["value"] is None and "fr" in row["reason"] and state in row["reason"]
    (left,) = [
        r for r in report["interaction"] if not r["designed"] and r["score"] == "atlas" and r["matching"] == "tokens"
    ]
    assert (left["same"], left["cross"]) == (["de"], ["ar", "zh"]) and left["value"] is not None


def test_a_run_whose_process_died_is_no_finished_one(runs):
    change(runs / "fr__bl_starved", state="running")
    assert found(runs)["excluded"] == [{"name": "fr__bl_starved", "reason": "interrupted"}]


def test_a_trunk_that_stands_where_it_was_needed_takes_part(runs):
    shutil.rmtree(runs / "en-de__bl_starved")
    trunk = make_run(runs, "en-de", "starved", kind="trunk", t=0.4, end=40)
    change(trunk, state="interrupted", note="as far as it was needed; schedule=trunk goes on")
    report = found(runs)
    assert report["excluded"] == [] and designed(report)["value"] == pytest.approx(0.4, abs=0.03)
    assert all(
        point[2] == "stable"
        for row in report["curves"]
        if row["cell"] == "en-de__bl_starved"
        for point in row["points"]
    )


def test_a_trunk_above_its_cooled_branch_has_not_diverged(runs):
    """The branch ends lower than the trunk goes on: one cell, two runs, no rise in either."""
    trunk = make_run(runs, "en-de", "starved", kind="trunk", t=0.4, end=60)
    branch = runs / "en-de__bl_starved"
    lines = [json.loads(line) for line in (branch / "evaluations.jsonl").read_text().splitlines()]
    cooled = [line | {"bpb": line["bpb"] * (0.8 if line["phase"] == "decay" else 1)} for line in lines]
    shutil.rmtree(branch / "scores")
    (branch / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in cooled))
    report = found(runs)
    assert not [row for row in report["excluded"] if "diverged" in row["reason"]] and trunk.exists()


def test_runs_under_different_tokenizers_or_texts_are_refused(runs):
    record = json.loads((runs / "zh__bl_starved" / "run.json").read_text())
    for change_of, message in [
        ({"tokenizer": "another"}, "fingerprint of tokenizer bl_starved"),
        ({"corpora": {"zh": "another"}}, "fingerprint of corpus zh"),
        ({"parallel": "another"}, "fingerprint of parallel text"),
    ]:
        change(runs / "zh__bl_starved", fingerprints=record["fingerprints"] | change_of)
        with pytest.raises(ExperimentError) as error:
            found(runs)
        assert message in str(error.value) and "\n" not in str(error.value)


def test_another_token_scale_or_rubbish_is_left_out_with_its_reason(runs):
    change(runs / "zh__bl_starved", science={"scale.token_scale": 2e-6, "batch.tokens": BATCH})
    (runs / "rubbish").mkdir()
    (runs / "rubbish" / "run.json").write_text("{")
    reasons = {row["name"]: row["reason"] for row in found(runs)["excluded"]}
    assert (
        "scale.token_scale is 2e-06, elsewhere 1e-06" in reasons["zh__bl_starved"]
        and "cannot be read" in reasons["rubbish"]
    )


def test_points_on_other_documents_are_not_mixed_in(runs):
    shutil.rmtree(runs / "zh__bl_starved")
    make_run(runs, "zh", "starved", docs=DOCS // 2)
    report = found(runs)
    assert "other documents" in next(
        row["reason"] for row in report["excluded"] if row["name"].startswith("zh__bl_starved")
    )
    assert designed(report)["value"] is None


def test_seeds_of_a_cell_are_averaged(runs):
    for mixture in MIXTURES:
        for condition in ("starved", "destarved"):
            make_run(runs, mixture, condition, seed=1, t=0.1 if mixture == "en-de" else 0.2)
    row = next(r for r in found(runs)["transfer"] if (r["lang"], r["condition"]) == ("de", "destarved"))
    assert row["seeds"] == [0, 1] and row["atlas"] == pytest.approx(0.25, abs=0.02)
    assert any("seeds" in i["covers"] for i in row["intervals"]["atlas"])


def test_two_flavors_are_two_lines_and_two_sentences(tmp_path):
    with open(PUBLIC, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    both = rows + [row | {n: row[n].replace("unigram", "other") for n in ("run", "tok")} for row in rows]
    with open(tmp_path / "two.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(both)
    report = Findings(points_from_table(tmp_path / "two.csv"), Settings((2e9,), 100)).report()
    for figure in figures(report):
        assert "nominal" not in figure.x_title, "a table's tokens are real"
        for line in figure.lines:
            assert line.x == sorted(set(line.x)), (figure.name, line.label)
    assert [sentence.split(",")[1] for sentence in headline(report)] == [" other", " other", " unigram", " unigram"]


def test_an_empty_place_and_cells_of_one_language(tmp_path):
    with pytest.raises(ExperimentError, match="there are no runs in"):
        points_from_runs(tmp_path, tmp_path)
    make_run(tmp_path / "tiny", "en", "starved")
    report = found(tmp_path / "tiny")
    assert report["transfer"] == [] and report["curves"][0]["cell"] == Cell("en", "bl_starved").name


def test_scores_of_another_run_or_that_do_not_add_up_are_not_taken(runs):
    source, target = runs / "ar__bl_destarved" / "scores", runs / "ar__bl_starved" / "scores"
    for path in source.iterdir():
        shutil.copy(path, target / path.name)
    (excluded,) = found(runs)["excluded"]
    assert excluded["name"] == "ar__bl_starved" and "holds points of ar__bl_destarved" in excluded["reason"]
    shutil.rmtree(runs / "ar__bl_starved")
    path = make_run(runs, "ar", "starved", t=0.0) / "scores" / "step_0000003.parquet"
    table = pq.read_table(path)
    worse = pa.array([-1.0] * len(table), pa.float64())
    pq.write_table(table.set_column(table.schema.get_field_index("nll_nats"), "nll_nats", worse), path)
    with pytest.raises(ExperimentError, match="do not sum up"):
        found(runs)


def test_stable_phases_at_different_rates_are_not_compared(runs):
    for path in (runs / "zh__bl_starved").rglob("evaluations.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {"lr": line["lr"] / 3}) + "\n" for line in lines))
    shutil.rmtree(runs / "zh__bl_starved" / "scores")
    row = designed(found(runs))
    assert row["value"] is None and "different rates" in row["reason"]


def test_a_cell_is_one_trajectory(runs):
    """A trunk and a self-contained run of a cell: the points of one of them count, and nothing is left out by that."""
    make_run(runs, "en-de", "starved", kind="trunk", t=0.4, end=60)
    report = found(runs)
    assert report["excluded"] == [] and designed(report)["value"] == pytest.approx(0.4, abs=0.03)


def test_shares_are_compared_with_the_baseline_under_its_own_tokenizer_only(runs):
    for partner in ("de", "fr", "ar", "zh"):
        for condition in ("starved", "destarved"):
            run = make_run(runs, f"en-{partner}", condition, seed=0, name_suffix="__probs-0.3-0.7")
            change(run, variant="probs-0.3-0.7", probs=[0.3, 0.7])
    report = found(runs)
    rows = [row for row in report["transfer"] if row["variant"] and row["matching"] == "tokens"]
    assert len(rows) == 8 and all(row["relative"] is not None for row in rows)
    record = json.loads((run / "run.json").read_text())
    change(run, fingerprints=record["fingerprints"] | {"tokenizer": "another"})
    with pytest.raises(ExperimentError, match="fingerprint of tokenizer"):
        found(runs)


@pytest.mark.parametrize(
    "facts", [{"seed": "a"}, {"langs": ["en", "xx"]}, {"probs": [1.0, 2.0]}, {"fingerprints": {}}, {"schedule": None}]
)
def test_a_damaged_record_leaves_out_its_run_only(runs, facts):
    change(runs / "zh__bl_starved", **facts)
    report = found(runs)
    assert [row["name"] for row in report["excluded"]] == ["zh__bl_starved"]
    assert tables(report), "what is left can be shown"
    with open(runs / "ar__bl_starved" / "evaluations.jsonl", "a") as file:
        file.write('{"step": 3}\n')
    assert "ar__bl_starved" in [row["name"] for row in found(runs)["excluded"]]


def test_one_run_of_another_scale_leaves_out_only_itself(runs):
    change(runs / "ar__bl_destarved", science={"scale.token_scale": 1.0, "batch.tokens": BATCH})
    assert [row["name"] for row in found(runs)["excluded"]] == ["ar__bl_destarved"]


# --- the command


def test_a_place_with_anything_else_in_it_is_kept(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.json").write_text("{}")
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    result = ask(f"points={PUBLIC}", f"out={tmp_path / 'mine'}", "replicates=100")
    assert result.returncode == 2 and "it holds thesis.txt" in result.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old" / "report.json").write_text("{}")  # a kill between the two renames
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "there")
    assert ask(f"points={PUBLIC}", f"out={tmp_path / 'out'}", "replicates=100").returncode == 0
    assert (tmp_path / "there" / "report.json").exists() and (tmp_path / "out").is_symlink()


def ask(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiment.report", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_table_becomes_a_report(tmp_path):
    out = tmp_path / "out ü"
    result = ask(f"points={PUBLIC}", f"out='{out}'", "replicates=100")
    assert result.returncode == 0, result.stderr
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    keys = {"transfer", "penalty", "interaction", "excluded", "final_difference", "english", "measurable", "curves"}
    assert keys <= report.keys()
    row = report["transfer"][0]
    assert {
        "tok",
        "lang",
        "source",
        "matching",
        "budget_tokens",
        "relative",
        "atlas",
        "censored",
        "phase",
    } <= row.keys()
    for kind in ("csv", "md", "tex"):
        names = {path.stem for path in (out / "tables").glob(f"*.{kind}")}
        assert {"transfer", "penalty", "interaction", "english", "excluded", "measurable"} <= names
    with open(out / "tables" / "transfer.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report["transfer"])
    assert [float(row["relative"] or "nan") for row in rows] == pytest.approx(
        [float("nan") if row["relative"] is None else row["relative"] for row in report["transfer"]], nan_ok=True
    )
    assert "+0.0296" in (out / "tables" / "transfer.md").read_text(encoding="utf-8")
    assert len(list((out / "figures").glob("*.svg"))) == len(list((out / "figures").glob("*.png"))) > 5
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "de__unigram_starved flores/de" in page and "http://" not in page.split("<script>")[0]
    assert "needs de in both conditions" in page
    assert (
        "{fr} against {ar, zh}" in result.stdout
        and "measurable: a neutral score in every cell from 1B to 11.4B" in result.stdout
    )
    again = ask(f"points={PUBLIC}", f"out='{out}'", "replicates=100")
    assert again.returncode == 0
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == report
    assert sorted(os.listdir(tmp_path)) == [f".{out.name}.lock", out.name], "nothing half-written is left"


@pytest.mark.parametrize(
    "options, message",
    [
        (["points=nowhere.csv"], "points: nowhere.csv: there is no such file"),
        ([f"points={PUBLIC}", "budgets=[]"], "budgets: got []"),
        ([f"points={PUBLIC}", "budgets=[0]"], "budgets: got [0.0]"),
        ([f"points={PUBLIC}", "budgets=[2e9,2e9]"], "each of them once"),
        ([f"points={PUBLIC}", "replicates=5"], "replicates: got 5"),
        ([f"points={PUBLIC}", "level=95"], "level: got 95"),
        ([f"points={PUBLIC}", "seed=-1"], "seed: got -1"),
        ([f"points={PUBLIC}", f"out={Path(__file__).parent}"], "is not a report"),
        ([f"points={PUBLIC}", "+what=1"], "there is no such setting"),
        (["paths.runs=nowhere"], "there are no runs in nowhere/tiny"),
    ],
)
def test_a_wrong_request_is_one_line(options, message):
    result = ask(*options)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- the page


def look_at(page: Path, act) -> list[str]:
    """Open a page from disk in headless Chromium, without a network, and act on it; the console's errors."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
        tab, errors = context.new_page(), []
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page.resolve().as_uri())
        plots = "document.querySelectorAll('.js-plotly-plot .main-svg').length"
        tab.wait_for_function(f"{plots} > 0 && {plots} >= document.querySelectorAll('.plotly-graph-div').length")
        act(tab)
        browser.close()
    return errors


SHOWN = "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.data.filter(t => t.visible !== false).length)"


def check_page(page: Path, report: dict) -> None:
    """No console error, a curve for each run, source and language, switches that switch, no sideways scrolling."""

    def act(tab) -> None:
        names = tab.evaluate("[...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data.map(t => t.name))")
        for row in report["curves"]:
            for run in {point[3] for point in row["points"]}:
                assert run in names
        before = tab.evaluate(SHOWN)
        for kind, name in (("condition", "starved"), ("mixture", "en-ar")):
            tab.locator(f"input[data-kind='{kind}'][value='{name}']").uncheck()
        fewer = tab.evaluate(SHOWN)
        assert sum(fewer) < sum(before)
        visible = tab.evaluate(
            "[...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data.filter(t => t.visible !== false)"
            ".map(t => [t.meta.mixture, t.meta.condition]))"
        )
        assert not [pair for pair in visible if pair[0] == "en-ar" or pair[1] == "starved"]
        for box in tab.locator(".switches input").all():
            box.check()
        assert tab.evaluate(SHOWN) == before
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390

    assert look_at(page, act) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_the_page_works_in_a_browser_without_a_network(tmp_path):
    table = shutil.copy(PUBLIC, tmp_path / ("a-long-name" * 10 + ".csv"))
    assert ask(f"points={table}", f"out={tmp_path / 'out'}", "replicates=100").returncode == 0
    check_page(tmp_path / "out" / "index.html", json.loads((tmp_path / "out" / "report.json").read_text()))
