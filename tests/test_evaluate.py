"""Checkpoints scored after training: the same numbers as in the loop, per document, once, on any number of devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.evaluation.scores import read_points, read_scores, scores_file
from tests.conftest import Finished, Launcher


def evaluate(launcher: Launcher, *options: str, **more) -> subprocess.CompletedProcess[str]:
    places = [f"paths.runs={launcher.runs}", f"paths.artifacts={launcher.artifacts}"]
    command = [sys.executable, "-m", "experiment.evaluate", *places, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, artifacts) -> tuple[Launcher, Finished]:
    """A bilingual run with all its snapshots; the tests of this module only read its weights."""
    launcher = Launcher(tmp_path_factory.mktemp("evaluate") / "runs", artifacts)
    return launcher, launcher.train("mixture=en-ar", "evaluation.snapshots=true", "evaluation.holdout_docs=null")


def test_the_loop_keeps_the_scores_of_each_document(trained):
    _, done = trained
    for step in sorted({line["step"] for line in done.evaluations}):
        path = scores_file(done.directory.path, step)
        lines = [line for line in done.evaluations if line["step"] == step]
        assert read_points(path) == lines
        scores = read_scores(path)
        for line in lines:
            found = scores[line["source"], line["lang"]]
            assert (found.nll_nats, found.bpb) == (line["nll_nats"], line["bpb"])
            assert (int(found.bytes.sum()), len(found.ids)) == (line["bytes"], line["docs"])
    parallel = [scores["parallel", lang].ids for lang in ("en", "ar")]
    assert parallel[0] == parallel[1] and len(set(parallel[0])) == 1301


def test_scores_afterwards_are_those_of_the_loop(trained):
    launcher, done = trained
    result = evaluate(launcher, f"run={done.run.name}", "output=json")
    assert result.returncode == 0, result.stderr
    points = {(p["source"], p["lang"]): p for p in json.loads(result.stdout)}
    last = {(line["source"], line["lang"]): line for line in done.evaluations if line["step"] == 29}
    assert points.keys() == last.keys()
    for key, point in points.items():
        assert point == last[key] | {name: pytest.approx(last[key][name], rel=1e-9) for name in ("bpb", "nll_nats")}


def test_snapshots_are_scored_once(trained):
    launcher, done = trained
    steps = sorted({line["step"] for line in done.evaluations})
    options = ("run=en-ar*", "checkpoint=all", "sources=[parallel]", "precision=fp32")
    first = evaluate(launcher, *options)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("parallel: en ") == len(steps)
    files = [scores_file(done.directory.path, step, "parallel") for step in steps]
    written = [path.stat().st_mtime_ns for path in files]
    files[0].unlink()
    again = evaluate(launcher, *options)
    assert again.stdout.count("parallel: en ") == 1 and again.stdout.count("is scored already: en ") == len(steps) - 1
    assert [path.stat().st_mtime_ns for path in files][1:] == written[1:]
    other = evaluate(launcher, *options[:1], "checkpoint=step_29", *options[2:3], "precision=bf16")
    assert other.stdout.count("parallel: en ") == 1, "another precision is another score"


def test_a_file_of_ones_own_in_any_script(trained, tmp_path):
    launcher, done = trained
    texts = ["plain", "naïve café 😀", "a\u0000b", " leading", "中文与العربية", "<eos> spelled out", "x" * 3000]
    with open(tmp_path / "mine ü.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"n{i}", "text": text}) + "\n" for i, text in enumerate(texts))
    result = evaluate(
        launcher, "run=en-ar*", "sources=[files]", f"data.files.en='{tmp_path}/mine ü.jsonl'", "output=json"
    )
    assert result.returncode == 0, result.stderr
    (point,) = json.loads(result.stdout)
    assert (point["source"], point["lang"], point["docs"]) == ("files", "en", len(texts))
    assert point["bytes"] == sum(len(text.encode()) for text in texts)
    (path,) = (done.directory.path / "scores").glob("step_0000029__files-*.parquet")
    scores = read_scores(path)["files", "en"]
    assert scores.ids == tuple(f"n{i}" for i in range(len(texts))) and (scores.nll > 0).all()


def test_mistakes_are_one_line_and_write_nothing(trained, tmp_path):
    launcher, done = trained
    (tmp_path / "twice.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    (tmp_path / "other.jsonl").write_text('{"id": "1", "en": "a", "ar": "b"}\n')
    before = sorted((done.directory.path / "scores").iterdir())
    name = f"run={done.run.name}"
    for options, message in [
        (["run=nothing"], f"there: {done.run.name}"),
        ([name, "checkpoint=stable_24000M"], "there: final, step_0000007"),
        ([name, "sources=[holdouts]"], "sources: got holdouts"),
        ([name, "sources=[]"], "sources: got none"),
        ([name, "sources=[files]"], "set data.files.<language>=PATH"),
        ([name, "sources=[files]", "data.files.en=nowhere.txt"], "no file matches nowhere.txt"),
        ([name, "sources=[files]", f"data.files.en={tmp_path}/twice.jsonl"], "same id"),
        ([name, f"data.parallel={tmp_path}/other.jsonl"], "is not the parallel text"),
        ([name, "paths.artifacts=elsewhere"], "paths.artifacts"),
        ([name, "devices=0"], "devices: got 0"),
        ([name, "precision=fp8"], "precision: got 'fp8'"),
        ([name, "accelerator=tpu"], "accelerator: got 'tpu'"),
        ([name, "output=csv"], "output: got 'csv'"),
        ([name, "sources=[flores]", "data.flores_split=test"], "must be dev or devtest"),
        ([name, "sources=[flores]"], "accepting its terms"),
        ([name, "sources=[files]", f"data.files.zh={tmp_path}/other.jsonl"], "there is no text of files in ar, en"),
        ([name, "+batch=3"], "there is no such setting"),
        ([], "run"),
    ]:
        result = evaluate(launcher, *options, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        assert result.returncode == 2, (options, result.stdout, result.stderr)
        assert message in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
    assert sorted((done.directory.path / "scores").iterdir()) == before


@pytest.mark.slow
def test_two_devices_give_the_scores_of_one(trained):
    launcher, done = trained
    options = (f"run={done.run.name}", "checkpoint=step_7", "sources=[parallel]", "precision=fp32", "output=json")
    path = scores_file(done.directory.path, 7, "parallel")
    path.unlink(missing_ok=True)
    one = json.loads(evaluate(launcher, *options).stdout)
    path.unlink()
    both = evaluate(launcher, *options, "devices=2", "batch_tokens=4096")
    assert both.returncode == 0, both.stderr
    for mine, theirs in zip(one, json.loads(both.stdout), strict=True):
        assert mine == theirs | {name: pytest.approx(theirs[name], rel=1e-6) for name in ("bpb", "nll_nats")}


def test_places_that_were_moved_are_found_again(trained, tmp_path):
    launcher, done = trained
    moved = Launcher(tmp_path / "moved", launcher.artifacts)
    moved.runs.mkdir()
    target = moved.runs / "tiny" / done.run.name
    target.parent.mkdir()
    subprocess.run(["cp", "-r", str(done.directory.path), str(target)], check=True)
    result = evaluate(moved, f"run={done.run.name}", "sources=[holdout]")
    assert result.returncode == 0 and str(Path("moved")) in result.stdout
