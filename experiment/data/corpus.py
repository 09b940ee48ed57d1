"""Corpora: documents of one language, split into training text and holdout by hash, without duplicates.

A corpus is made in parts, a part from each source file (all text files are one), and put together in their order:
`part-00000/train.parquet` and so on, with the numbers of the rows that repeat another document in `repeated.npy` beside
it where there are such, and one `holdout.parquet`.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiment.config.schema import Data
from experiment.data.artifacts import Artifact, artifact, checksum
from experiment.data.files import raw_documents, reader_of, source_files
from experiment.data.parts import Advance, build_parts
from experiment.data.sources import Pinned, SourceFile, read_column
from experiment.errors import ExperimentError
from experiment.run_directory import write_atomically

BATCH = 1024
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
STORAGE: dict[str, Any] = {"compression": "lz4", "use_dictionary": False}
"""Of parquet files: 1.4 times the size of zstd, which would cost packing 1% more of its time."""
NAMED = 5  # skipped documents of a kind that are named, per part
SAMPLED_FILES = 16  # that a sample has equal shares of, if each has enough
FACTS = "facts.json"  # while a corpus is being made


def is_holdout(key: str, fraction: float) -> bool:
    """Whether the document with this id (or text) is held out: a fixed function of the key alone."""
    return _in_holdout(hashlib.sha256(key.encode("utf-8")).digest(), fraction)


def _in_holdout(digest: bytes, fraction: float) -> bool:
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


@dataclass(frozen=True)
class CorpusPart:
    """What a part is made from, and by which rules."""

    data: Data
    lang: str
    source: SourceFile | tuple[Path, ...]
    limit: int | None = None
    """UTF-8 bytes of training text after which reading stops."""


def corpus(data: Data, lang: str, root: Path, workers: int = 1) -> Artifact:
    """The corpus of one language from `data.files`, made if it is missing.

    Facts: `train` and `holdout` (documents and UTF-8 bytes), and what was left out (`duplicates`, `empty`, `too_long`,
    `not_utf8`). The hash that splits is over the id where ids are parallel across languages, so that no translation
    of a holdout document is trained on. Raises ExperimentError for files that are missing, damaged, of unknown type,
    without the column, or not UTF-8.
    """
    paths = source_files(data, lang)
    inputs = _rules(data, lang) | {"files": [[reader_of(path, f"data.files.{lang}"), checksum(path)] for path in paths]}
    jobs = _local_parts(data, lang, paths)
    name = f"{data.corpus}-{lang}"

    def build(out: Path) -> dict[str, Any]:
        facts = _build(jobs, out, None, workers, f"corpora {name}")
        _require_documents(facts, f"data.files.{lang}", data.holdout_fraction)
        return facts

    return artifact(root, "corpora", name, inputs, build, data.missing == "build")


def hub_corpus(data: Data, lang: str, root: Path, pinned: Pinned, workers: int, sample: bool = False) -> Artifact:
    """The corpus from pinned files of `data.hub`: file after file in their order until the budget is reached.

    A `sample` is drawn in equal shares across many files. Facts as of `corpus`,
    and whether the sources were `exhausted` before the budget was reached. Stopped at any point, it is gone on with.
    """
    name = f"{data.corpus}-{'sample-' if sample else ''}{lang}"
    inputs = _rules(data, lang) | pinned.identity | ({"drawn": "across files"} if sample else {})

    def build(out: Path) -> dict[str, Any]:
        most = min(SAMPLED_FILES, len(pinned.files)) if sample else 1
        facts = _build_to_budget(data, lang, pinned, out, workers, f"{'samples' if sample else 'corpora'} {name}", most)
        splits = ("train",) if sample else ("train", "holdout")
        _require_documents(facts, f"data.hub.{lang}", data.holdout_fraction, splits)
        return facts

    return artifact(root, "corpora", name, inputs, build, data.missing == "build", resumable=True)


def _rules(data: Data, lang: str) -> dict[str, Any]:
    return {
        "corpus": data.corpus,
        "lang": lang,
        "text_column": data.text_column,
        "holdout_by": data.holdout_by,
        "holdout_fraction": data.holdout_fraction,
        "max_document_bytes": data.max_document_bytes,
    }


def _local_parts(data: Data, lang: str, paths: Sequence[Path]) -> list[CorpusPart]:
    texts = tuple(path for path in paths if reader_of(path, f"data.files.{lang}") == "text")
    groups = ([texts] if texts else []) + [(path,) for path in paths if path not in texts]
    return [CorpusPart(data, lang, group) for group in groups]


def _build_to_budget(
    data: Data, lang: str, pinned: Pinned, out: Path, workers: int, label: str, shares: int
) -> dict[str, Any]:
    """No file gives more than the budget over `shares`, unless all of them together give too little so."""
    limit = -(-pinned.budget_bytes // shares)
    final = out / "parts"
    while not final.exists():
        beside = out / f"limit-{limit}"  # parts of another limit are other parts
        beside.mkdir(exist_ok=True)
        jobs = [CorpusPart(data, lang, file, limit) for file in pinned.files]
        facts = _build(jobs, beside, pinned.budget_bytes, workers, label)
        if facts["train"]["bytes"] < pinned.budget_bytes and facts["cut"]:
            limit *= 4
        else:
            os.rename(beside, final)
    for left in out.glob("limit-*"):
        shutil.rmtree(left)
    facts = json.loads((final / FACTS).read_text(encoding="utf-8"))
    exhausted = facts["train"]["bytes"] < pinned.budget_bytes
    return facts | {"parts": [f"parts/{part}" for part in facts["parts"]], "exhausted": exhausted}


def _build(jobs: Sequence[CorpusPart], out: Path, budget: int | None, workers: int, label: str) -> dict[str, Any]:
    """Parts until the budget is reached, then what they hold together. What a killed process left is gone on with."""
    if not (out / FACTS).exists():
        together = _Together(out)

        def may_start(number: int) -> bool:
            """Whether part `number` will be needed, going by the mean size of those that are there."""
            if budget is None or not together.parts:
                return True
            return together.facts["train"]["bytes"] / len(together.parts) * number < budget

        for number, place in build_parts(out, jobs, write_part, workers, label, budget, may_start):
            together.add(number, place)
            if budget is not None and together.facts["train"]["bytes"] >= budget:
                break
        facts = together.facts | {"parts": together.parts}
        together.close()
        write_atomically(out / FACTS, json.dumps(facts))
    facts = json.loads((out / FACTS).read_text(encoding="utf-8"))
    for place in out.glob("part-*"):
        if place.name not in facts["parts"]:
            shutil.rmtree(place)
    for name in ("holdout.parquet", "*.digests.npy", "*.sizes.npy", "counts.json"):
        for left in out.glob(f"part-*/{name}"):
            left.unlink()
    return facts


class _Together:
    """The parts of a corpus put together: which documents repeat another, how much there is, the holdout of all."""

    def __init__(self, out: Path):
        self._out = out
        self._writer = pq.ParquetWriter(out / "holdout.parquet", SCHEMA, **STORAGE)
        self._seen = np.empty(0, dtype=np.uint64)
        self.parts: list[str] = []
        self.facts: dict[str, Any] = {"train": {"docs": 0, "bytes": 0}, "holdout": {"docs": 0, "bytes": 0}}
        self.facts |= {"duplicates": 0, "empty": 0, "too_long": 0, "not_utf8": 0, "skipped": [], "cut": 0}

    def add(self, number: int, place: Path) -> None:
        counts = json.loads((place / "counts.json").read_text(encoding="utf-8"))
        for name in ("empty", "too_long", "not_utf8", "skipped", "cut"):
            self.facts[name] += counts[name]
        for split in ("holdout", "train"):  # of a document in both (by id), the part keeps it in the holdout
            repeated = self._repeats(np.load(place / f"{split}.digests.npy"))
            sizes = np.load(place / f"{split}.sizes.npy")
            self.facts["duplicates"] += int(repeated.sum())
            self.facts[split]["docs"] += int((~repeated).sum())
            self.facts[split]["bytes"] += int(sizes[~repeated].sum())
            if split == "holdout":
                self._write_holdout(place / "holdout.parquet", ~repeated)
            elif repeated.any():
                np.save(place / "repeated.npy", np.flatnonzero(repeated))
        self.parts.append(place.name)

    def _write_holdout(self, path: Path, kept: np.ndarray) -> None:
        row = 0
        for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH):
            self._writer.write_batch(batch.filter(pa.array(kept[row : row + len(batch)])))
            row += len(batch)

    def _repeats(self, digests: np.ndarray) -> np.ndarray:
        """bool [documents]: whether a document stands earlier in the part or in the corpus.

        By 64 bits of sha256: among n documents some two differ and are taken for one with probability n^2 / 2^65,
        1 in 7,500 for 70 million. 8 bytes of memory for each document, 16 while a part is added.
        """
        repeated = np.ones(len(digests), dtype=bool)
        unique, first = np.unique(digests, return_index=True)
        places = np.searchsorted(self._seen, unique)
        known = np.zeros(len(unique), dtype=bool)
        inside = places < len(self._seen)
        known[inside] = self._seen[places[inside]] == unique[inside]
        repeated[first[~known]] = False
        self._seen = np.insert(self._seen, places[~known], unique[~known])
        return repeated

    def close(self) -> None:
        self._writer.close()


def write_part(job: CorpusPart, out: Path, advance: Advance) -> None:
    """Split the documents of one source into `train.parquet` and `holdout.parquet`, with a digest of each."""
    data, setting = job.data, f"data.files.{job.lang}"
    counts: dict[str, Any] = {"empty": 0, "too_long": 0, "not_utf8": 0, "skipped": [], "cut": 0}
    splits = {split: _Split(out, split) for split in ("train", "holdout")}
    for number, (doc_id, content) in enumerate(_documents(job)):
        advance(len(content))
        text, fault = _usable(content, data.max_document_bytes)
        if text is None:
            counts[fault] += 1
            if fault != "empty" and counts[fault] <= NAMED:
                counts["skipped"].append(f"document {number} of {_name(job)}: {fault}, {len(content)} bytes")
            continue
        digest = hashlib.sha256(content).digest()
        if data.holdout_by == "text":
            held = _in_holdout(digest, data.holdout_fraction)
        elif doc_id is None:
            raise ExperimentError(f"{setting}: document {number} has no id, but data.holdout_by=id; use text")
        else:
            held = is_holdout(doc_id, data.holdout_fraction)
        name = digest.hex()[:16] if doc_id is None else doc_id
        splits["holdout" if held else "train"].add(name, text, digest, len(content))
        if job.limit is not None and splits["train"].bytes >= job.limit:
            counts["cut"] = 1
            break
    for split in splits.values():
        split.close()
    write_atomically(out / "counts.json", json.dumps(counts))


def _usable(content: bytes, longest: int) -> tuple[str | None, str]:
    """The text, or None and what is wrong with it."""
    if not content:
        return None, "empty"
    if len(content) > longest:
        return None, "too_long"
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError:
        return None, "not_utf8"


class _Split:
    """One side of the split of a part, written as it comes."""

    def __init__(self, out: Path, name: str):
        self._out, self._name = out, name
        self._writer = pq.ParquetWriter(out / f"{name}.parquet", SCHEMA, **STORAGE)
        self._rows: list[dict[str, str]] = []
        self._pending = 0
        self._digests = bytearray()
        self._sizes: list[int] = []
        self.bytes = 0

    def add(self, doc_id: str, text: str, digest: bytes, size: int) -> None:
        self._rows.append({"id": doc_id, "text": text})
        self._digests += digest[:8]
        self._sizes.append(size)
        self.bytes += size
        self._pending += size
        if len(self._rows) == BATCH or self._pending > 2**26:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMA))
        self._rows.clear()
        self._pending = 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        np.save(self._out / f"{self._name}.digests.npy", np.frombuffer(bytes(self._digests), dtype=np.uint64))
        np.save(self._out / f"{self._name}.sizes.npy", np.array(self._sizes, dtype=np.int64))


def _documents(job: CorpusPart) -> Iterator[tuple[str | None, bytes]]:
    if isinstance(job.source, SourceFile):
        for batch in read_column(job.source, job.data.text_column, f"data.hub.{job.lang}"):
            for content in batch:
                yield None, content or b""
    else:
        for doc_id, text in raw_documents(job.data, job.lang, job.source):
            yield doc_id, text.encode("utf-8")


def _name(job: CorpusPart) -> str:
    if isinstance(job.source, SourceFile):
        return job.source.name
    return job.source[0].name if len(job.source) == 1 else f"the {len(job.source)} text files"


def read_split(found: Artifact, split: str) -> Iterator[tuple[str, str]]:
    """(id, text) of every document of `train` or `holdout`, in corpus order, in constant memory."""
    if split == "train":
        for part in found.facts["parts"]:
            yield from read_part(found.path / part)
    else:
        holdout = found.path / Path(found.facts["parts"][0]).parent / "holdout.parquet"
        for batch in pq.ParquetFile(holdout).iter_batches(batch_size=BATCH):
            yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def read_part(place: Path) -> Iterator[tuple[str, str]]:
    """(id, text) of the training documents of one part, repeated ones left out."""
    for batch in part_batches(place, ["id", "text"]):
        yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def part_batches(place: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The same as batches of at most BATCH documents."""
    repeated = np.load(place / "repeated.npy") if (place / "repeated.npy").exists() else np.empty(0, dtype=np.int64)
    row = 0
    file = pq.ParquetFile(place / "train.parquet", memory_map=True)
    for batch in file.iter_batches(batch_size=BATCH, columns=list(columns), use_threads=False):  # parts go side by side
        first, last = repeated.searchsorted([row, row + len(batch)])
        kept = np.ones(len(batch), dtype=bool)
        kept[repeated[first:last] - row] = False
        yield batch if first == last else batch.filter(pa.array(kept))
        row += len(batch)


def _require_documents(
    found: dict[str, Any], setting: str, fraction: float, splits: Sequence[str] = ("train", "holdout")
) -> None:
    """Raises ExperimentError for a corpus that has nothing to train on or nothing held out."""
    for split in splits:
        if not found[split]["docs"]:
            docs = found["train"]["docs"] + found["holdout"]["docs"]
            left_out = [f"{found[key]} {key}" for key in ("duplicates", "empty", "too_long", "not_utf8") if found[key]]
            also = f"; left out: {', '.join(left_out)}" if left_out else ""
            raise ExperimentError(
                f"{setting}: no document for the {split} split of {docs} documents at "
                f"data.holdout_fraction={fraction:g}{also}"
            )
