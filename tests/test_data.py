"""Corpora, artifacts and shards: whole, found again, never silently another."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiment.config.compose import compose
from experiment.config.schema import Data
from experiment.data.artifacts import Artifact, artifact
from experiment.data.corpus import corpus, is_holdout, read_split
from experiment.data.parallel import parallel_segments
from experiment.data.prepare import prepare
from experiment.data.shards import TokenStream
from experiment.errors import ExperimentError, RunRefused
from experiment.matrix.languages import LANGUAGES
from experiment.tokenizers.amounts import destarved_amounts, temperature_amounts
from experiment.tokenizers.sample import training_text
from experiment.tokenizers.tokenizer import BOS, EOS, load_tokenizer

EMBEDDED = compose().config.data
LANGS = ("en", "de", "fr", "ar", "zh")


def local(path: Path, **settings) -> Data:
    return Data(**{"corpus": "mine", "files": {"en": str(path)}, "holdout_fraction": 0.3} | settings)


def test_no_translation_of_a_holdout_document_is_trained_on(artifacts):
    found = {lang: corpus(EMBEDDED, lang, artifacts) for lang in LANGS}
    ids = {split: [{i for i, _ in read_split(found[lang], split)} for lang in LANGS] for split in ("train", "holdout")}
    assert not set.union(*ids["train"]) & set.union(*ids["holdout"])
    assert all(len(held) > 50 for held in ids["holdout"])
    for lang in LANGS:
        facts = found[lang].facts
        assert facts["train"]["bytes"] == sum(len(text.encode()) for _, text in read_split(found[lang], "train"))


def test_holdout_is_a_fixed_function_of_the_key():
    keys = [f"doc-{i}" for i in range(20_000)]
    held = [is_holdout(key, 0.05) for key in keys]
    assert 0.045 < np.mean(held) < 0.055
    assert all(is_holdout(key, 0.1) for key, h in zip(keys, held, strict=True) if h), "a larger fraction holds out more"


def test_parallel_text_has_no_overlap_with_training(artifacts):
    segments = parallel_segments(EMBEDDED, list(LANGS))
    assert len(segments) == 1301
    trained = {text for lang in LANGS for _, text in read_split(corpus(EMBEDDED, lang, artifacts), "train")}
    assert not trained & {row[lang] for row in segments for lang in LANGS}


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "txt"])
def test_local_files_of_every_kind_give_the_same_documents(tmp_path, kind):
    import gzip

    texts = [f"document {i}\nالعربية 中文 \t{i}" for i in range(50)] + ["document 3\nالعربية 中文 \t3", ""]
    rows = [{"text": text, "url": "x"} for text in texts]
    path = tmp_path / f"en.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        for i, text in enumerate(texts):
            (tmp_path / f"en-{i:03d}.txt").write_text(text, encoding="utf-8")
        path = tmp_path / "en-*.txt"
    found = corpus(local(path), "en", tmp_path / "artifacts")
    got = {text for split in ("train", "holdout") for _, text in read_split(found, split)}
    assert got == set(texts[:50])
    assert found.facts["duplicates"] == 1
    assert found.facts["empty"] == 1


@pytest.mark.parametrize(
    "content, settings, message",
    [
        (b'{"text": "a"}\n{"text": ', {}, "line 2 of"),
        (b'{"body": "a"}\n', {}, "data.text_column: en.jsonl has no column 'text' in row 0; it has body"),
        (b'{"text": 5}\n', {}, "row 0 of en.jsonl holds a int, not text"),
        (b"[1]\n", {}, "line 1 of"),
        (b'{"text": "a"}\n{"text": "b"}\n', {"holdout_by": "id"}, "document 0 has no id"),
        (b'{"text": "a"}\n', {}, "no document for the"),
        (b'{"text": "\\ud800"}\n', {}, "data.files.en"),
        (b'{"text": "\xff\xfe"}\n', {}, "is not UTF-8"),
        (b"", {}, "data.files.en"),
    ],
)
def test_a_bad_file_is_one_clear_error_and_leaves_nothing(tmp_path, content, settings, message):
    path = tmp_path / "en.jsonl"
    path.write_bytes(content)
    with pytest.raises(ExperimentError, match="en") as caught:
        corpus(local(path, **settings), "en", tmp_path / "artifacts")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    kept = [p for p in (tmp_path / "artifacts").rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert kept == []


def test_nul_characters_survive(tmp_path):
    path = tmp_path / "en.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"a\0b {i}\0"}) for i in range(30)))
    found = corpus(local(path), "en", tmp_path / "artifacts")
    texts = [text for split in ("train", "holdout") for _, text in read_split(found, split)]
    assert sorted(texts) == sorted(f"a\0b {i}\0" for i in range(30))


def test_an_artifact_is_built_once_and_found_again(tmp_path):
    built = []

    def build(out: Path) -> dict:
        built.append(out)
        (out / "x").write_text("whole")
        return {"n": 1}

    first = artifact(tmp_path, "things", "a", {"p": 1}, build)
    assert artifact(tmp_path, "things", "a", {"p": 1}, build) == first
    other = artifact(tmp_path, "things", "a", {"p": 2}, build)
    assert len(built) == 2 and other.path != first.path and other.fingerprint != first.fingerprint
    with pytest.raises(RunRefused, match=r"data\.missing=error"):
        artifact(tmp_path, "things", "a", {"p": 3}, build, may_build=False)


def test_a_failed_build_leaves_nothing_and_two_builders_build_once(tmp_path):
    def fail(out: Path) -> dict:
        (out / "half").write_text("...")
        raise OSError("disk full")

    with pytest.raises(OSError):
        artifact(tmp_path, "things", "a", {}, fail)
    assert not [p for p in (tmp_path / "things").iterdir() if p.suffix != ".lock"]
    built: list[int] = []
    barrier = threading.Barrier(4)

    def build(out: Path) -> dict:
        built.append(1)
        (out / "x").write_text("whole")
        return {}

    def ask() -> None:
        barrier.wait()
        artifact(tmp_path, "things", "b", {}, build)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert built == [1]


def test_a_builder_killed_half_way_is_replaced(tmp_path):
    code = (
        "import os, pathlib\n"
        "from experiment.data.artifacts import artifact\n"
        "def build(out):\n"
        "    (out / 'half').write_text('...')\n"
        f"    os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        f"artifact(pathlib.Path({str(tmp_path)!r}), 'things', 'a', {{}}, build)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -signal.SIGKILL

    def build(out: Path) -> dict:
        assert not (out / "half").exists()
        (out / "x").write_text("whole")
        return {}

    assert (artifact(tmp_path, "things", "a", {}, build).path / "x").read_text() == "whole"


def test_a_damaged_artifact_is_refused_by_name(tmp_path):
    made = artifact(tmp_path, "things", "a", {}, lambda out: {"n": (out / "x").write_text("whole")})
    (made.path / "x").write_text("whol")
    with pytest.raises(RunRefused, match="x has 4 bytes, not 5"):
        artifact(tmp_path, "things", "a", {}, lambda out: {})
    os.remove(made.path / "manifest.json")
    with pytest.raises(RunRefused, match="damaged"):
        artifact(tmp_path, "things", "a", {}, lambda out: {})


def test_shards_hold_every_document_between_bos_and_eos(launcher):
    config = launcher.compose("mixture=ar").config
    prepared = prepare(config)
    tokenizer = load_tokenizer(prepared.tokenizer)
    found = prepared.shards["ar"]
    tokens = np.concatenate([np.fromfile(p, dtype=np.uint16) for p in sorted(found.path.glob("*/part-*/shard.bin"))])
    documents = np.load(found.path / "fast" / "part-00000" / "documents.npy")
    texts = [text for _, text in read_split(prepared.corpora["ar"], "train")]
    assert len(texts) == len(documents) == found.facts["docs"]
    position = 0
    for text, (length, size) in zip(texts, documents, strict=True):
        ids = tokens[position : position + length]
        assert (ids[0], ids[-1]) == (BOS, EOS)
        assert tokenizer.decode(ids[1:-1]) == text
        assert size == len(text.encode())
        position += length
    assert position == len(tokens) == found.facts["tokens"]


def test_windows_read_across_shard_borders_and_leave_no_token_out(tmp_path):
    tokens = np.arange(1000, dtype=np.uint16)
    for number, (start, stop) in enumerate(((0, 300), (300, 317), (317, 1000))):
        (tmp_path / f"part-{number:05d}").mkdir()
        tokens[start:stop].tofile(tmp_path / f"part-{number:05d}" / "shard.bin")
    facts = {"tokens": 1000, "shards": [300, 17, 683], "parts": [f"part-{i:05d}" for i in range(3)]}
    stream = TokenStream(Artifact(tmp_path, "", facts))
    for context in (7, 64, 333, 999):
        windows = [stream.window(i, context) for i in range(stream.windows(context))]
        targets = np.concatenate([window[1:] for window in windows])
        assert np.array_equal(targets, tokens[1 : 1 + len(targets)])
        assert len(tokens) - 1 - len(targets) < context
        assert all(np.array_equal(w, tokens[i * context : i * context + context + 1]) for i, w in enumerate(windows))
    with pytest.raises(RunRefused, match=r"1001 tokens, but the corpus has 1000"):
        stream.windows(1000)


def test_destarved_amounts_hold_equal_content():
    premiums = {lang: language.byte_premium for lang, language in LANGUAGES.items()}
    available = {"en": 1000, "ar": 1000, "zh": 10**6}
    assert destarved_amounts(available, premiums) == {"en": 624, "ar": 1000, "zh": 578}
    assert destarved_amounts(available, premiums, 352.6) == {"en": 100, "ar": 160, "zh": 92}
    assert destarved_amounts(available, dict.fromkeys(premiums, 1.0)) == dict.fromkeys(available, 1000)


def test_temperature_sampling_is_nearly_uniform_and_gives_shortfalls_to_the_others():
    available = {"a": 10**6, "b": 10**3, "c": 100}
    amounts = temperature_amounts(available, 3000, 100.0)
    assert amounts["c"] == 100 and amounts["b"] == 1000
    assert sum(amounts.values()) == pytest.approx(3000, abs=3)
    proportional = temperature_amounts({"a": 3000, "b": 1000}, 400, 1.0)
    assert proportional == {"a": 300, "b": 100}
    assert temperature_amounts(available, 10**9, 100.0) == available


def test_starved_and_destarved_text_have_the_same_size_and_no_holdout(artifacts):
    held = set()
    sizes = {}
    for condition in ("starved", "destarved"):
        config = compose([f"tok=bl_{condition}"]).config
        corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
        held = {
            line for found in corpora.values() for _, text in read_split(found, "holdout") for line in text.splitlines()
        }
        texts, facts = training_text(config, corpora, None)
        sizes[condition] = sum(facts["bytes"].values())
        assert len(facts["bytes"]) == (471 if condition == "starved" else 5)
        whole = {text.rstrip("\r\n") for read in texts.values() for text in read()}
        assert not {line for line in held if len(line) > 200} & whole
    assert sizes["starved"] == pytest.approx(sizes["destarved"], rel=0.02)


def test_file_names_with_pattern_characters_are_read_once_each(tmp_path):
    for name, word in (("g1.jsonl", "one"), ("g[1].jsonl", "two")):
        (tmp_path / name).write_text("\n".join(json.dumps({"text": f"{word} {i}"}) for i in range(30)))
    found = corpus(local(tmp_path / "g*1*.jsonl"), "en", tmp_path / "artifacts")
    assert found.facts["duplicates"] == 0
    assert sum(found.facts[split]["docs"] for split in ("train", "holdout")) == 60


def test_the_same_bytes_as_another_kind_of_file_are_another_corpus(tmp_path):
    for name in ("a.jsonl", "b.txt"):
        (tmp_path / name).write_text("\n".join(json.dumps({"text": f"text {i}"}) for i in range(30)))
    corpus(local(tmp_path / "a.jsonl"), "en", tmp_path / "artifacts")
    with pytest.raises(ExperimentError, match="no document for the"):
        corpus(local(tmp_path / "b.txt"), "en", tmp_path / "artifacts")


def test_columns_of_no_interest_may_hold_anything(tmp_path):
    rows = [
        {"text": f"text {i}", "meta": None if i < 20 else {"a": [i]}, "id": i if i % 2 else None} for i in range(40)
    ]
    (tmp_path / "en.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = corpus(local(tmp_path / "en.jsonl"), "en", tmp_path / "artifacts")
    assert sum(found.facts[split]["docs"] for split in ("train", "holdout")) == 40


def test_shards_overwritten_with_other_content_of_equal_size_are_refused(launcher, tmp_path):
    config = launcher.compose("mixture=zh", f"paths.artifacts={tmp_path}/own").config
    (shard,) = prepare(config).shards["zh"].path.glob("*/part-*/shard.bin")
    shard.write_bytes(b"\x05\x00" * (shard.stat().st_size // 2))
    with pytest.raises(RunRefused, match=r"fast/part-00000/shard\.bin does not have the content it was made with"):
        prepare(config)


@pytest.mark.parametrize("path", ["/nowhere/en.jsonl", "/dev", "/dev/null"])
def test_what_is_no_regular_file_is_refused(path, tmp_path):
    with pytest.raises(ExperimentError, match=r"no file matches|not a regular file"):
        corpus(local(Path(path)), "en", tmp_path)


def test_of_many_text_files_the_bad_one_is_named(tmp_path):
    for i in range(30):
        (tmp_path / f"{i:02d}.txt").write_bytes(b"good" if i != 17 else b"not \xff good")
    with pytest.raises(ExperimentError, match=r"17\.txt is not UTF-8: byte 0xff at position 4"):
        corpus(local(tmp_path / "*.txt"), "en", tmp_path / "a")


def test_the_line_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "en.jsonl").write_bytes(b'{"text": "x"}\n' * 400 + b'{"text": "\xff"}\n')
    with pytest.raises(ExperimentError, match="line 401 of"):
        corpus(local(tmp_path / "en.jsonl"), "en", tmp_path / "a")


@pytest.mark.parametrize("name", ["en.parquet", "en.jsonl.gz", "en.jsonl.zst", "en.txt.xz", "en.txt.bz2"])
def test_a_file_without_a_byte_that_must_have_some_is_refused_by_name(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ExperimentError, match=f"{name} cannot be read"):
        corpus(local(tmp_path / name), "en", tmp_path / "a")


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_a_byte_order_mark_is_no_text(tmp_path, kind):
    for i in range(40):
        text = f"text {i}"
        content = text if kind == "txt" else json.dumps({"text": text})
        (tmp_path / f"{i}.{kind}").write_text(content, encoding="utf-8-sig")
    found = corpus(local(tmp_path / f"*.{kind}"), "en", tmp_path / "a")
    got = {text for split in ("train", "holdout") for _, text in read_split(found, split)}
    assert got == {f"text {i}" for i in range(40)}


def test_a_file_whose_name_looks_like_a_pattern_is_found(tmp_path):
    path = tmp_path / "a [1] b.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(40)))
    assert corpus(local(path), "en", tmp_path / "a").facts["train"]["docs"] > 20


def test_a_fault_in_a_parquet_file_ends_the_program_in_one_line(tmp_path):
    path = tmp_path / "en.parquet"
    pq.write_table(pa.table({"content": [f"text {i}" for i in range(5000)]}), path)
    command = [sys.executable, "-m", "experiment.prepare", "data=local", "data.corpus=mine", f"data.files.en={path}"]
    command += ["mixture=en", "tok.langs=[en]", "until=corpus", "workers=1", f"paths.runs={tmp_path / 'runs'}"]
    for _ in range(3):
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("ending", ["gz", "xz", "zst", "bz2"])
def test_a_compressed_file_that_was_cut_short_is_refused_by_name(tmp_path, ending):
    import bz2
    import gzip
    import lzma

    import zstandard

    compress = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress, "bz2": bz2.compress}[ending]
    content = compress("".join(json.dumps({"text": f"text {i} {i**7}"}) + "\n" for i in range(3000)).encode())
    path = tmp_path / f"en.jsonl.{ending}"
    path.write_bytes(content)
    assert corpus(local(path), "en", tmp_path / "whole").facts["train"]["docs"] > 2000
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ExperimentError, match=rf"data\.files\.en: .*en\.jsonl\.{ending}") as caught:
        corpus(local(path), "en", tmp_path / "artifacts")
    assert "\n" not in str(caught.value)
    assert not [p for p in (tmp_path / "artifacts").rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_all_frames_of_a_zstd_file_are_read(tmp_path):
    import zstandard

    lines = [json.dumps({"text": f"قصة {i}\r\n終 {i**9}"}, ensure_ascii=False) + "\n" for i in range(400)]
    frames = [zstandard.compress("".join(lines[i : i + 7]).encode()) for i in range(0, 400, 7)]
    (tmp_path / "en.jsonl.zst").write_bytes(b"".join(frames))
    (tmp_path / "en.jsonl").write_text("".join(lines))
    zipped, plain = (corpus(local(tmp_path / f"en.jsonl{end}"), "en", tmp_path / f"a{end}") for end in (".zst", ""))
    assert list(read_split(zipped, "train")) == list(read_split(plain, "train"))
    for i in range(30):
        (tmp_path / f"{i}.txt.zst").write_bytes(zstandard.compress(f"eins {i}\r\nzwei".encode()))
    texts = corpus(local(tmp_path / "*.txt.zst"), "en", tmp_path / "t")
    assert "eins 7\nzwei" in {text for split in ("train", "holdout") for _, text in read_split(texts, split)}


def test_a_document_of_100_megabytes_is_left_out_named_and_counted(tmp_path):
    with open(tmp_path / "en.jsonl", "w") as file:
        file.writelines(json.dumps({"text": f"short {i}"}) + "\n" for i in range(40))
        file.write(json.dumps({"text": "long " * 20_000_000}) + "\n")
        file.writelines(json.dumps({"text": f"after {i}"}) + "\n" for i in range(40))
    facts = corpus(local(tmp_path / "en.jsonl"), "en", tmp_path / "artifacts").facts
    assert facts["train"]["docs"] + facts["holdout"]["docs"] == 80
    assert facts["too_long"] == 1 and facts["skipped"] == ["document 40 of en.jsonl: too_long, 100000000 bytes"]
