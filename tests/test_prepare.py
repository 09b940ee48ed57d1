"""Staging: sources pinned, samples drawn across files, corpora in budgets, nothing twice and nothing lost."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiment.config.compose import compose
from experiment.config.schema import Data
from experiment.data import parallel
from experiment.data.artifacts import Artifact, artifact, building
from experiment.data.corpus import hub_corpus, read_split
from experiment.data.inventory import inventory
from experiment.data.parts import build_parts
from experiment.data.prepare import Stages
from experiment.data.sources import Pinned, list_files, read_column
from experiment.errors import ExperimentError, Missing
from experiment.matrix.budget import measured_text
from experiment.matrix.languages import LANGUAGES
from experiment.tokenizers.encoder import EncoderMismatch
from tests.standin import FILES, INVALID, Hub, hub_settings, make_hub, write_file

SMALLER = ("scale.vocab_size=600", "scale.token_scale=1e-6")


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Path:
    return make_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def staged(hub, tmp_path_factory) -> Callable[..., Stages]:
    """Stages over the stand-in with artifacts that the module's tests share."""
    artifacts = tmp_path_factory.mktemp("staged")

    def stages(*overrides: str) -> Stages:
        config = compose([*SMALLER, f"paths.artifacts={artifacts}", *hub_settings(hub), *overrides]).config
        return Stages(replace(config, data=replace(config.data, missing="build")))

    return stages


def a_corpus(place: Path, files: list[list[str | bytes | None]], budget: int, **settings) -> Artifact:
    """The corpus that files with these texts give."""
    directory = place / "hub" / "data" / "deu_Latn" / "train"
    directory.mkdir(parents=True)
    for number, texts in enumerate(files):
        write_file(directory / f"{number:03d}.parquet", texts, "deu_Latn")
    (place / "hub" / "README.md").write_text(card("deu_Latn", "data/deu_Latn/train/*"))
    data = Data(corpus="web", hub={"de": [f"{place}/hub/deu_Latn"]}, holdout_fraction=0.2, **settings)
    found = list_files(data.hub["de"], "data.hub.de")
    return hub_corpus(data, "de", place / "artifacts", Pinned(found, budget), 1)


def card(config: str, pattern: str) -> str:
    return f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: train\n    path: '{pattern}'\n---\n"


def texts_of(found: Artifact) -> dict[str, list[str]]:
    return {split: [text for _, text in read_split(found, split)] for split in ("train", "holdout")}


def test_a_sample_is_drawn_from_every_file_and_a_corpus_from_whole_files(hub, staged):
    stages = staged()
    files = stages.files("de")
    assert len(files) == FILES
    assert [file.name for file in files] != sorted(file.name for file in files), "an order of its own"
    by_file = {file.name: set(pq.read_table(file.url)["text"].to_pylist()) for file in files}
    sample = set(texts_of(stages.text("de"))["train"])
    assert all(len(sample & texts) > 0.1 * len(sample) for texts in by_file.values())
    train = texts_of(staged("data.budget_bytes.de=600e3").corpus("de"))
    whole = [name for name, texts in by_file.items() if texts <= {*train["train"], *train["holdout"]}]
    assert len(whole) == 2 and not any(
        set(train["train"]) & texts for name, texts in by_file.items() if name not in whole
    )


def test_a_corpus_holds_what_the_matrix_needs(staged):
    stages = staged()
    rate = stages.tokenizer().facts["bytes_per_token"]["de"]
    budget = stages.budget("de")
    assert budget["budget_bytes"] == int(50e9 * 1e-6 * rate * 1.1), "half of the 100B of en-de"
    assert stages.corpus("de").facts["train"]["bytes"] >= budget["budget_bytes"]
    assert not stages.corpus("de").facts["exhausted"] and len(stages.corpus("de").facts["parts"]) == 1
    assert stages.corpus("de").facts["train"]["bytes"] < 1.1 * budget["budget_bytes"], "not all of a large file"
    larger = staged("data.budget_bytes.de=1e9")
    assert larger.corpus("de").fingerprint != stages.corpus("de").fingerprint
    assert larger.corpus("de").facts["exhausted"]
    tokens = stages.shards("de").facts["tokens"]
    assert tokens > 50e9 * 1e-6, "no epoch is begun twice"
    assert measured_text(stages.config, "de", "bl_destarved")[0] == tokens
    found, measured_rate = measured_text(larger.config, "de", "bl_destarved")
    assert measured_rate == rate and found == pytest.approx(larger.corpus("de").facts["train"]["bytes"] / rate)
    assert measured_text(staged("scale.vocab_size=601").config, "de", "bl_destarved") == (None, None)


def test_the_budget_is_worked_out_once(staged, hub):
    stages = staged()
    before = stages.budget("fr")
    again = staged("scale.vocab_size=700")
    assert again.budget("fr") == before, "another tokenizer does not change the corpus in silence"
    assert again.corpus("fr").fingerprint == stages.corpus("fr").fingerprint


def test_starved_text_has_the_world_in_nearly_equal_shares_and_the_total_of_the_destarved(staged):
    starved, destarved = staged("tok=bl_starved").tokenizer().facts, staged().tokenizer().facts
    assert len(starved["bytes"]) == 24
    assert sum(starved["bytes"].values()) == pytest.approx(sum(destarved["bytes"].values()), rel=0.1)
    enough = [size for lang, size in starved["bytes"].items() if lang not in starved["short"]]
    assert max(enough) < 1.2 * min(enough)
    assert starved["short"], "the stand-in's small languages have less, which is said"
    premiums = {lang: size / destarved["bytes"]["en"] for lang, size in destarved["bytes"].items()}
    for lang, language in LANGUAGES.items():
        assert premiums[lang] == pytest.approx(language.byte_premium, rel=0.05)


def test_samples_can_be_matched_by_bytes_and_premiums_measured(staged):
    facts = staged("tok.match=bytes").tokenizer().facts
    assert max(facts["bytes"].values()) < 1.05 * min(facts["bytes"].values())
    measured = staged("tok.byte_premium=parallel").tokenizer().facts["byte_premium"]
    assert measured["from"] == "parallel" and measured["en"] == 1.0
    assert measured["ar"] > 1.2 and measured != staged().tokenizer().facts["byte_premium"]


def test_what_cannot_be_used_is_left_out_named_and_counted(tmp_path):
    good = [f"Dokument {i} mit genug Text" for i in range(60)]
    long = "x" * 5000
    files = [[*good[:30], "", None, INVALID, long], [*good[20:], good[0], long + "y", INVALID]]
    found = a_corpus(tmp_path, files, 10**6, max_document_bytes=4000)
    facts = found.facts
    assert (facts["empty"], facts["too_long"], facts["not_utf8"], facts["duplicates"]) == (2, 2, 2, 11)
    assert any("too_long, 5000 bytes" in line for line in facts["skipped"])
    assert any("not_utf8" in line for line in facts["skipped"])
    got = texts_of(found)
    assert sorted(got["train"] + got["holdout"]) == sorted(good)
    assert facts["train"]["docs"] + facts["holdout"]["docs"] == 60
    assert facts["exhausted"]


def test_duplicates_do_not_end_a_source_before_its_budget(tmp_path):
    """A file that is read up to the budget has less than the budget without its duplicates; then it is read further."""
    texts = [f"Dokument {i:06d}" for i in range(500)]
    facts = a_corpus(tmp_path, [texts[:20] * 5 + texts], 4000).facts
    assert facts["train"]["bytes"] >= 4000 and not facts["exhausted"]


def test_a_source_that_tops_up_another_brings_nothing_in_twice(tmp_path, hub):
    """The smaller set is part of the larger one: its holdout must not come back as training text."""
    small, large = tmp_path / "hq", hub / "fineweb-2"
    directory = small / "data" / "deu_Latn" / "train"
    directory.mkdir(parents=True)
    texts = [t for p in sorted((large / "data/deu_Latn/train").iterdir()) for t in pq.read_table(p)["text"].to_pylist()]
    write_file(directory / "000.parquet", texts[::3], "deu_Latn")
    (small / "README.md").write_text((large / "README.md").read_text())
    data = Data(corpus="hq", hub={"de": [f"{small}/deu_Latn", f"{large}/deu_Latn"]}, holdout_fraction=0.2)
    files = list_files(data.hub["de"], "data.hub.de")
    assert str(small) in files[0].url
    got = texts_of(hub_corpus(data, "de", tmp_path / "artifacts", Pinned(files, 10**9), 2))
    assert len(set(got["train"])) == len(got["train"]) and len(set(got["holdout"])) == len(got["holdout"])
    assert not set(got["train"]) & set(got["holdout"])
    assert {*got["train"], *got["holdout"]} == set(texts)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-500]), "has changed since it was pinned"),
        (lambda path: path.unlink(), "it is pinned as a source"),
        (lambda path: pq.write_table(pa.table({"text": ["other"]}), path), "has changed since it was pinned"),
    ],
)
def test_a_pinned_file_that_changed_is_refused_by_name(tmp_path, damage, message):
    path = tmp_path / "a.parquet"
    write_file(path, ["ein Text"] * 50, "deu_Latn")
    (file,) = _files(tmp_path)
    damage(path)
    with pytest.raises(ExperimentError, match=message) as caught:
        list(read_column(file, "text", "data.hub.de"))
    assert "a.parquet" in str(caught.value) and "\n" not in str(caught.value)


def _files(place: Path) -> tuple:
    (place / "README.md").write_text(card("d", "*.parquet"))
    return list_files([f"{place}/d"], "data.hub.de")


def test_a_file_without_the_column_or_cut_short_before_it_was_pinned_is_refused(tmp_path):
    write_file(tmp_path / "a.parquet", ["ein Text"] * 50, "deu_Latn")
    (file,) = _files(tmp_path)
    with pytest.raises(ExperimentError, match=r"a\.parquet has no column 'body'"):
        list(read_column(file, "body", "data.hub.de"))
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    (file,) = _files(tmp_path)
    with pytest.raises(ExperimentError, match=r"a\.parquet cannot be read"):
        list(read_column(file, "text", "data.hub.de"))


@pytest.mark.parametrize("spec, message", [("nothing", "must be OWNER"), ("{hub}/fineweb-2/xyz", "'xyz' not found")])
def test_a_source_that_there_is_not_is_one_line(hub, spec, message):
    with pytest.raises(ExperimentError, match=message) as caught:
        list_files([spec.format(hub=hub)], "data.hub.de")
    assert str(caught.value).startswith("data.hub.de: ") and "\n" not in str(caught.value)


def test_one_process_or_many_make_the_same_bytes(hub, tmp_path):
    config = compose([*SMALLER, *hub_settings(hub), "data.budget_bytes.zh=1e9"]).config
    config.data.missing = "build"
    found = {}
    for workers in (1, 3):
        paths = replace(config.paths, artifacts=str(tmp_path / str(workers)))
        found[workers] = contents(Stages(replace(config, paths=paths), workers).corpus("zh").path)
    assert found[1] == found[3] and len(found[1]) == FILES + 3


def contents(place: Path) -> dict[str, bytes]:
    """Relative path -> content of what artifacts hold; not locks, rates and the marks of what was verified."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name not in (".verified.json", "rates.json") and path.suffix != ".lock"
    }


def test_flores_is_known_by_its_counts_and_bytes(tmp_path, monkeypatch):
    """Rows made up here have the right number of sentences; only those with FLORES+'s number of bytes are taken."""
    made_up: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for lang, language in LANGUAGES.items():
        left, rows = language.flores_bytes, []
        for number in range(2009):
            size = left if number == 2008 else left // (2009 - number)
            rows.append("x" * size)
            left -= size
        made_up[lang, "dev"] = list(zip(map(str, range(997)), rows[:997], strict=True))
        made_up[lang, "devtest"] = list(zip(map(str, range(1012)), rows[997:], strict=True))
    monkeypatch.setattr(parallel, "flores", lambda lang, split, *_: made_up[lang, split])
    data = Data(parallel=str(tmp_path / "flores.jsonl"), flores=True)
    parallel.fetch_flores(data)
    assert len(parallel.parallel_segments(data, list(LANGUAGES))) == 2009
    assert len(parallel.development_segments(data, ["en"])) == 997
    path = tmp_path / "flores.jsonl"
    path.write_text(path.read_text().replace('"ar": "xx', '"ar": "x', 1))
    with pytest.raises(ExperimentError, match=r"is not FLORES.*411838 bytes of ar, not 411839"):
        parallel.parallel_segments(data, ["en", "ar"])
    made_up["de", "dev"][0] = ("0", "ein anderer Satz")
    with pytest.raises(ExperimentError, match="what the hub gave is not FLORES"):
        parallel.fetch_flores(Data(parallel=str(tmp_path / "other.jsonl"), flores=True))
    assert not (tmp_path / "other.jsonl").exists()


def prepare(*overrides: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiment.prepare", *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_prepare_shows_what_is_missing_and_a_run_names_it(hub, tmp_path, launcher):
    settings = [*hub_settings(hub), f"paths.artifacts={tmp_path}/staged", "mixture=zh"]
    dry = prepare(*launcher.base, *settings, "all=true", "data.lang=zh", "dry_run=true", "output=json")
    assert dry.returncode == 0, dry.stderr
    assert {piece["state"] for piece in json.loads(dry.stdout)} == {"missing"}
    refused = launcher.start(*settings)
    assert refused.returncode == 2 and "python -m experiment.prepare" in refused.stderr
    assert "Traceback" not in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert not list((tmp_path / "staged").rglob("*.parquet"))


@pytest.mark.slow
def test_prepare_builds_what_a_run_needs_and_then_nothing(hub, tmp_path, launcher):
    settings = [*hub_settings(hub), f"paths.artifacts={tmp_path}/staged", "mixture=zh", "data.budget_bytes.zh=300e3"]
    built = prepare(*launcher.base, *settings, "all=true", "data.lang=zh")
    assert built.returncode == 0, built.stderr
    assert "all 11 are there" in built.stdout
    again = prepare(*launcher.base, *settings, "all=true", "data.lang=zh", "output=json")
    assert {piece["state"] for piece in json.loads(again.stdout)} == {"ready"} and "building" not in again.stderr
    trained = launcher.start(*settings)
    assert trained.returncode == 0, trained.stderr
    assert "building" not in trained.stdout


def test_parallel_text_that_is_fetched_later_does_not_stop_the_listing(hub, tmp_path):
    settings = [*hub_settings(hub), f"paths.artifacts={tmp_path}", "tok.byte_premium=parallel", "dry_run=true"]
    result = prepare(*settings, "data.flores=true", f"data.parallel={tmp_path}/flores.jsonl", "output=json")
    assert result.returncode == 0, result.stderr
    pieces = {piece["name"]: piece for piece in json.loads(result.stdout)}
    assert pieces["FLORES+"]["state"] == "missing" and "gated" in pieces["FLORES+"]["note"]


@pytest.mark.parametrize(
    "override, message",
    [
        ("until=nothing", "until: got 'nothing'; must be one of text, tokenizer, corpus, shards"),
        ("data.lang=xx", "data.lang: unknown language 'xx'"),
        ("workers=0", "workers: got 0; must be at least 1"),
        ("data.hub.de=[]", "data.hub.de: got []"),
        ("data.sample_bytes=null", "data.sample_bytes: null"),
        ("data.holdout_by=id", "data.holdout_by: got 'id'"),
        ("data.budget_bytes.de=-1", "data.budget_bytes.de: got -1; must be above 0"),
        ("data.world=x.jsonl", "data.world_hub: set, and data.world as well"),
    ],
)
def test_bad_settings_are_one_line_before_anything_starts(hub, tmp_path, override, message):
    result = prepare(*hub_settings(hub), f"paths.artifacts={tmp_path}", override)
    assert result.returncode == 2 and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def over_http(root: Path, home: Path, code: str, busy: Callable[[str], int | None]) -> subprocess.CompletedProcess[str]:
    """Run code with the hub's own client against the stand-in."""
    with Hub(root, busy) as server:
        environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


READ = """
import hashlib
from experiment.data.sources import list_files, read_column
file = list_files(["owner/fineweb-2/deu_Latn"], "data.hub.de")[0]
rows = [text for batch in read_column(file, "text", "data.hub.de") for text in batch]
print(len(rows), len(set(rows)), file.url)
"""


@pytest.mark.slow
def test_a_busy_hub_is_waited_for_and_is_no_exhausted_source(hub, tmp_path):
    listed, asked = Counter[str](), Counter[str]()

    def busy(path: str) -> int | None:
        if "/tree/" in path:
            listed[path] += 1
            return 429 if listed[path] == 1 else None
        asked[path] += 1
        return 503 if path.endswith(".parquet") and 1 < asked[path] < 9 else None

    result = over_http(hub, tmp_path, READ, busy)
    assert result.returncode == 0, result.stderr
    assert "trying again in" in result.stdout
    rows, unique, url = result.stdout.splitlines()[-1].split()
    assert rows == unique and url.startswith(f"hf://datasets/owner/fineweb-2@{Hub.COMMIT}/data/deu_Latn/train/")
    listing = Counter[str]()

    def readme_is_busy(path: str) -> int | None:
        listing[path] += 1
        return 503 if "README" in path and listing[path] < 15 else None

    assert over_http(hub, tmp_path, READ, readme_is_busy).returncode == 0
    refused = over_http(hub, tmp_path, READ, lambda path: 404 if path.endswith(".parquet") else None)
    assert "cannot be read" in refused.stderr and "404" in refused.stderr and "trying again" not in refused.stdout


@pytest.mark.slow
def test_the_path_through_the_hubs_client_makes_the_same_corpora(hub, tmp_path):
    settings = [*SMALLER, "data.lang=de", "tok=bl_starved", "until=corpus"]
    local = prepare(*settings, *hub_settings(hub), f"paths.artifacts={tmp_path}/local")
    assert local.returncode == 0, local.stderr
    with Hub(hub) as server:
        environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": f"{tmp_path}/home", "HF_HUB_DISABLE_XET": "1"}
        remote = prepare(*settings, *hub_settings(Path("owner")), f"paths.artifacts={tmp_path}/remote", env=environment)
    assert remote.returncode == 0, remote.stderr
    parquet = {
        place: sorted(path.read_bytes() for path in (tmp_path / place).rglob("*.parquet"))
        for place in ("local", "remote")
    }
    assert parquet["local"] == parquet["remote"] and len(parquet["local"]) > 5


@pytest.mark.slow
def test_ten_kills_at_random_moments_leave_the_same_artifacts(hub, tmp_path):
    settings = [*SMALLER, *hub_settings(hub), "all=true", "workers=2", "data.budget_bytes.zh=1e9"]
    calm = time.monotonic()
    assert prepare(*settings, f"paths.artifacts={tmp_path}/calm").returncode == 0
    calm = time.monotonic() - calm
    command = [sys.executable, "-m", "experiment.prepare", *settings, f"paths.artifacts={tmp_path}/killed"]
    chance, kills = random.Random(0), 0
    kills_wanted = int(os.environ.get("TEST_KILLS", "10"))
    while kills < kills_wanted:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0.08, 0.25) * calm)
        if process.poll() is None:
            kills += 1
        elif process.returncode == 0:  # all there before the last kill: some of it once more
            shutil.rmtree(tmp_path / "killed" / chance.choice(["shards", "corpora", "tokenizers"]))
        process.send_signal(signal.SIGKILL)
        process.wait()
    print(f"{kills} kills, {calm:.0f} s uninterrupted")
    last = prepare(*settings, f"paths.artifacts={tmp_path}/killed")
    assert last.returncode == 0, last.stderr
    calm_files, killed_files = contents(tmp_path / "calm"), contents(tmp_path / "killed")
    assert calm_files.keys() == killed_files.keys()
    assert [name for name in calm_files if calm_files[name] != killed_files[name]] == []


def test_other_sources_or_another_scale_are_another_corpus_never_the_old_one(hub, staged):
    """What was listed once holds for the same data sets only."""
    german = staged("data.budget_bytes.de=100e3").corpus("de")
    french = staged("data.budget_bytes.de=100e3", f"data.hub.de=[{hub}/fineweb-2/fra_Latn]").corpus("de")
    assert german.fingerprint != french.fingerprint
    assert not set(texts_of(german)["train"]) & set(texts_of(french)["train"])
    with pytest.raises(ExperimentError, match=r"data\.hub\.de: .*xx.* cannot be had"):
        staged(f"data.hub.de=[{hub}/fineweb-2/xx]").corpus("de")
    small, large = staged().budget("de"), staged("scale.token_scale=2e-6").budget("de")
    assert large["budget_bytes"] == pytest.approx(2 * small["budget_bytes"], rel=0.01)
    with pytest.raises(ExperimentError, match=r"data\.world_languages: got 419, but .* has only 26 beside"):
        staged("data.world_languages=419", "tok=bl_starved").world()
    assert staged("data.world_languages=20", "tok=bl_starved").world().fingerprint != (
        staged("tok=bl_starved").world().fingerprint
    )


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"files": []}', '{"files": [{"name": 1}]}', "{", ""])
def test_a_damaged_pin_is_refused_by_name(hub, tmp_path, content):
    config = compose([*SMALLER, f"paths.artifacts={tmp_path}", *hub_settings(hub)]).config
    config.data.missing = "build"
    Stages(config).files("de")
    (path,) = (tmp_path / "sources").glob("fineweb-de-*.json")
    path.write_text(content)
    with pytest.raises(ExperimentError, match=rf"{path.name}: cannot be read .* remove it"):
        Stages(config).files("de")


def test_names_with_pattern_characters_are_read_once_each(tmp_path):
    place = tmp_path / "at@here"
    place.mkdir()
    for name in ("a[1].parquet", "a1.parquet", "a*.parquet"):
        write_file(place / name, [f"{name} {i}" for i in range(60)], "d")
    files = _files(place)
    texts = [text for file in files for batch in read_column(file, "text", "data.hub.de") for text in batch]
    assert len(files) == 3 and len(set(texts)) == len(texts) == 180


def test_a_file_without_rows_has_no_documents_and_one_without_text_is_refused(tmp_path):
    write_file(tmp_path / "a.parquet", [], "d")
    table = pa.table({"text": ["ein Text"] * 3})
    with pq.ParquetWriter(tmp_path / "b.parquet", table.schema) as writer:
        writer.write_table(table.slice(0, 0))  # a first row group without rows
        writer.write_table(table)
    read = {file.name: [x for batch in read_column(file, "text", "s") for x in batch] for file in _files(tmp_path)}
    assert read == {"a.parquet": [], "b.parquet": [b"ein Text"] * 3}
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    (file,) = [file for file in _files(tmp_path) if file.name == "a.parquet"]
    with pytest.raises(ExperimentError, match="column 'text' holds int64, not text"):
        list(read_column(file, "text", "s"))


class Slow:
    """Jobs of test_parts: importable, so that another process can build them."""

    @staticmethod
    def build(job: float, out: Path, advance: Callable[[int], None]) -> None:
        (out / "pid").write_text(str(os.getpid()))
        end = time.monotonic() + job
        while time.monotonic() < end:
            advance(1)


def test_a_worker_that_is_killed_ends_the_command_in_one_line(tmp_path):
    def kill_first() -> None:
        while not (found := [p for p in tmp_path.glob("part-*.tmp/pid") if p.read_text()]):
            time.sleep(0.01)
        os.kill(int(found[0].read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill_first)
    killer.start()
    with pytest.raises(ExperimentError, match="a worker process was killed, perhaps for memory"):
        list(build_parts(tmp_path, [3.0] * 4, Slow.build, 2, "corpora x"))
    killer.join()


def test_parts_that_are_not_wanted_any_more_are_not_waited_for(tmp_path):
    start = time.monotonic()
    for _ in build_parts(tmp_path, [0.1, 300.0], Slow.build, 2, "corpora x"):
        break
    assert time.monotonic() - start < 60


def test_what_a_kill_left_half_written_is_no_part_of_the_artifact(tmp_path):
    def build(out: Path) -> dict:
        (out / "x").write_text("whole")
        return {}

    place = tmp_path / "things" / "a"
    made = artifact(tmp_path, "things", "a", {}, build, resumable=True)
    shutil.rmtree(made.path)
    beside = building(place.with_name(made.path.name))
    beside.mkdir()
    (beside / ".facts.json.123.tmp").write_text("half")
    again = artifact(tmp_path, "things", "a", {}, build, resumable=True)
    assert sorted(path.name for path in again.path.iterdir() if path.name != ".verified.json") == ["manifest.json", "x"]
    (again.path / ".verified.json").write_text("[]")
    assert artifact(tmp_path, "things", "a", {}, build).facts == {}, "only a note of what was verified"


def test_a_world_sample_goes_on_after_a_kill_while_it_clears_up(staged, tmp_path, monkeypatch):
    stages = staged("tok=bl_starved", f"paths.artifacts={tmp_path}")
    removed = shutil.rmtree

    def killed(place, *args, **kwargs):
        if Path(place).name.startswith("round-") and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            next(Path(place).rglob("texts.parquet")).unlink()
            raise KeyboardInterrupt
        return removed(place, *args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        stages.world()
    again = staged("tok=bl_starved", f"paths.artifacts={tmp_path}").world()
    assert again.facts["bytes"] and not list(again.path.glob("round-*"))


def test_a_fast_encoder_that_differs_leaves_nothing_of_its_own(staged, tmp_path, monkeypatch):
    from experiment.data import shards as room

    expected = staged().shards("zh")
    real = room.Encoder.encode_batch

    def differs(self, texts):
        if self.name == "tiktoken":
            raise EncoderMismatch("tiktoken and tokenizers differ from token 1 of a document")
        return real(self, texts)

    monkeypatch.setattr(room.Encoder, "encode_batch", differs)
    corpus, tokenizer = staged().corpus("zh"), staged().tokenizer()
    found = room.shards(staged().config, "zh", corpus, tokenizer, tmp_path)
    assert found.facts["tokens"] == expected.facts["tokens"]
    assert {path.relative_to(found.path).parts[0] for path in found.path.rglob("shard.bin")} == {"reference"}
    for mine, theirs in zip(found.facts["parts"], expected.facts["parts"], strict=True):
        assert (found.path / mine / "shard.bin").read_bytes() == (expected.path / theirs / "shard.bin").read_bytes()


def test_shards_of_a_damaged_or_foreign_kind_are_refused_by_name(staged):
    found = staged().shards("zh")
    assert np.fromfile(found.path / "fast" / "part-00000" / "shard.bin", np.uint16)[0] == 1
    foreign = found.path / "part-00009"
    foreign.mkdir()
    (foreign / "shard.bin").write_bytes(b"\1\0")
    with pytest.raises(ExperimentError, match=r"shard\.bin is not part of it"):
        staged().shards("zh")
    (foreign / "shard.bin").unlink()
    foreign.rmdir()
    assert staged().shards("zh").fingerprint == found.fingerprint


def test_the_text_that_tokenizers_learn_from_is_listed_with_a_language(tmp_path):
    config = compose(["mixture=de", f"paths.artifacts={tmp_path}"]).config
    pieces = [(piece.stage, piece.name) for piece in inventory([config], ["de"], "shards")]
    texts = [("text", f"embedded-{lang}") for lang in ("en", "de", "fr", "ar", "zh")]
    assert pieces == [*texts, ("tokenizer", "bl_destarved 4,096"), ("shards", "de bl_destarved")]


def test_what_was_begun_is_told_and_gone_on_with(staged, tmp_path, monkeypatch):
    from experiment.data import corpus as room

    stages, real, begun = staged(f"paths.artifacts={tmp_path}", "data.budget_bytes.zh=1e9"), room.write_part, []

    def interrupted(job, out, advance):
        begun.append(job.source.name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        real(job, out, advance)

    monkeypatch.setattr(room, "write_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stages.corpus("zh")
    states = {piece.name: piece.state for piece in inventory([stages.config], ["zh"], "corpus")}
    assert (states["fineweb-zh"], states["fineweb-sample-zh"]) == ("begun", "missing")
    stages.corpus("zh")
    assert len(begun) == FILES + 1, "the two parts that were there were not made again"


def test_nothing_is_built_where_it_must_be_there(hub, tmp_path):
    config = compose([*SMALLER, f"paths.artifacts={tmp_path}", *hub_settings(hub)]).config
    assert config.data.missing == "error"
    with pytest.raises(Missing, match="the sources of en are not listed yet"):
        Stages(config).text("en")
    assert not list(tmp_path.iterdir())
