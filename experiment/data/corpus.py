"""Corpora: documents of one language, split into training text and holdout by hash, without duplicates."""

import glob
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiment.config.schema import Data
from experiment.data.artifacts import Artifact, artifact, checksum
from experiment.errors import ExperimentError

BATCH = 1024
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
READERS = {"jsonl": "json", "json": "json", "parquet": "parquet", "txt": "text", "text": "text"}
COMPRESSIONS = ("gz", "xz", "zst", "bz2")


def is_holdout(key: str, fraction: float) -> bool:
    """Whether the document with this id (or text) is held out: a fixed function of the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big") < fraction * 2**64


def corpus(data: Data, lang: str, root: Path) -> Artifact:
    """`train.parquet` and `holdout.parquet` (columns id, text) of one language.

    The hash that splits is over the id where ids are parallel across languages, so that no
    translation of a holdout document is trained on. Raises ExperimentError for files that are
    missing, of unknown type, without the column, or not UTF-8.
    """
    paths = source_files(data, lang)
    inputs = {
        "corpus": data.corpus,
        "lang": lang,
        "files": [[_reader(path, f"data.files.{lang}"), checksum(path)] for path in paths],
        "text_column": data.text_column,
        "holdout_by": data.holdout_by,
        "holdout_fraction": data.holdout_fraction,
    }
    return artifact(
        root,
        "corpora",
        f"{data.corpus}-{lang}",
        inputs,
        lambda out: _split(data, lang, paths, out),
        data.missing == "build",
    )


def source_files(data: Data, lang: str) -> list[Path]:
    pattern = data.files.get(lang)
    assert pattern, lang
    paths = [Path(path) for path in sorted(glob.glob(pattern, recursive=True))]
    if not paths:
        raise ExperimentError(f"data.files.{lang}: no file matches {pattern}")
    for path in paths:
        require_file(path, f"data.files.{lang}")
    return paths


def require_file(path: Path | str, setting: str) -> Path:
    """The path of an existing regular file. Raises ExperimentError, naming the setting, for anything else."""
    if not Path(path).is_file():
        what = "is not a regular file" if Path(path).exists() else "there is no such file"
        raise ExperimentError(f"{setting}: {path}: {what}")
    return Path(path)


def _split(data: Data, lang: str, paths: list[Path], out: Path) -> dict[str, Any]:
    seen: set[bytes] = set()
    counts: dict[str, Any] = {"train": {"docs": 0, "bytes": 0}, "holdout": {"docs": 0, "bytes": 0}}
    counts |= {"duplicates": 0, "empty": 0}
    writers = {
        split: pq.ParquetWriter(out / f"{split}.parquet", SCHEMA, compression="zstd") for split in ("train", "holdout")
    }
    pending: dict[str, list[dict[str, str]]] = {split: [] for split in writers}
    for number, (doc_id, text) in enumerate(raw_documents(data, lang, paths)):
        if not text:
            counts["empty"] += 1
            continue
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        if digest in seen:
            counts["duplicates"] += 1
            continue
        seen.add(digest)
        if data.holdout_by == "id" and doc_id is None:
            raise ExperimentError(f"data.files.{lang}: document {number} has no id, but data.holdout_by=id; use text")
        key = doc_id if data.holdout_by == "id" else text
        assert key is not None
        split = "holdout" if is_holdout(key, data.holdout_fraction) else "train"
        counts[split]["docs"] += 1
        counts[split]["bytes"] += len(text.encode("utf-8"))
        pending[split].append({"id": doc_id if doc_id is not None else digest.hex()[:16], "text": text})
        if len(pending[split]) == BATCH:
            writers[split].write_table(pa.Table.from_pylist(pending[split], SCHEMA))
            pending[split].clear()
    for split, writer in writers.items():
        writer.write_table(pa.Table.from_pylist(pending[split], SCHEMA))
        writer.close()
    for split in writers:
        if not counts[split]["docs"]:
            docs = counts["train"]["docs"] + counts["holdout"]["docs"]
            raise ExperimentError(
                f"data.files.{lang}: no document for the {split} split of {docs} documents at "
                f"data.holdout_fraction={data.holdout_fraction:g}"
            )
    return counts


def raw_documents(data: Data, lang: str, paths: list[Path]) -> Iterator[tuple[str | None, str]]:
    """(id or None, text) of every row of `source_files`; a text file is one document."""
    setting = f"data.files.{lang}"
    texts = [path for path in paths if _reader(path, setting) == "text"]
    for row in _streamed(setting, "text", texts, sample_by="document"):
        yield None, row["text"]
    for path in paths:
        if path in texts:
            continue
        for number, row in enumerate(_rows(setting, path, (data.text_column, "id"))):
            if data.text_column not in row:
                raise ExperimentError(
                    f"data.text_column: {path.name} has no column {data.text_column!r} in row {number}; "
                    f"it has {', '.join(sorted(row))}"
                )
            yield _id(row.get("id")), _text(row[data.text_column], f"{setting}: row {number} of {path.name}")


def _text(value: Any, where: str) -> str:
    """A text of valid Unicode; null counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ExperimentError(f"{where} holds a {type(value).__name__}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ExperimentError(f"{where} is not valid Unicode: {error.reason}") from error
    return value


def _id(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with gaps is read as floats
        value = int(value)
    return None if value is None else str(value)


def _reader(path: Path, setting: str) -> str:
    suffixes = [suffix.lstrip(".").lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    reader = READERS.get(suffixes[-1] if suffixes else "")
    if reader is None:
        raise ExperimentError(f"{setting}: {path.name} is not jsonl, parquet or txt (or one of these compressed)")
    return reader


def _rows(setting: str, path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The rows of a jsonl or parquet file, of the latter those of the columns that exist."""
    if _reader(path, setting) == "parquet":
        if path.stat().st_size == 0:
            return
        try:
            present = pq.read_schema(path).names
        except (OSError, pa.ArrowException) as error:
            raise ExperimentError(f"{setting}: {path} cannot be read: {_one_line(error)}") from error
        wanted = [column for column in columns if column in present]
        yield from _streamed(setting, "parquet", [path], columns=wanted or present)
        return
    # lines are parsed here: a column of no interest may hold anything
    for number, row in enumerate(_streamed(setting, "text", [path], sample_by="line")):
        if not row["text"].strip():
            continue
        try:
            parsed = json.loads(row["text"])
        except ValueError as error:
            raise ExperimentError(f"{setting}: line {number + 1} of {path} is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ExperimentError(
                f"{setting}: line {number + 1} of {path} holds a {type(parsed).__name__}, not an object"
            )
        yield parsed


def _streamed(setting: str, reader: str, paths: list[Path], **options: Any) -> Iterator[dict[str, Any]]:
    """What `datasets` reads from files; files without a byte have no rows. Raises ExperimentError in one line."""
    import datasets  # a second of imports that only a missing corpus pays

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what goes wrong is said below, in one line
    paths = [path for path in paths if path.stat().st_size]
    if not paths:
        return
    names = [glob.escape(str(path.absolute())) for path in paths]  # datasets would match patterns once more
    try:
        yield from datasets.load_dataset(reader, data_files=names, split="train", streaming=True, **options)
    except (OSError, ValueError, TypeError, RuntimeError, EOFError, pa.ArrowException) as error:
        which = paths[0] if len(paths) == 1 else f"{paths[0]} .. {paths[-1]}"
        raise ExperimentError(f"{setting}: {which} cannot be read: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error.__cause__ or error).split())[:300]


def read_split(found: Artifact, split: str) -> Iterator[tuple[str, str]]:
    """(id, text) of every document of `train` or `holdout`, in corpus order, in constant memory."""
    for batch in pq.ParquetFile(found.path / f"{split}.parquet").iter_batches(batch_size=BATCH):
        yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def parallel_segments(data: Data, langs: list[str]) -> list[dict[str, str]]:
    """The aligned segments with an `id` and each of the languages; empty where the data has none."""
    if data.parallel is None:
        return []
    rows = list(_records(data.parallel, "data.parallel", ("id", *langs)))
    if not rows:
        raise ExperimentError(f"data.parallel: {data.parallel} has no rows")
    return rows


def world_texts(data: Data) -> dict[str, str]:
    """Language tag -> text of the world corpus."""
    assert data.world is not None
    texts: dict[str, str] = {}
    for row in _records(data.world, "data.world", ("lang", "text")):
        texts[row["lang"]] = texts.get(row["lang"], "") + row["text"]
    return texts


def _records(path: str, setting: str, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for number, row in enumerate(_rows(setting, require_file(path, setting), columns)):
        for column in columns:
            if not _text(row.get(column), f"{setting}: row {number} of {path}, column {column!r},"):
                raise ExperimentError(f"{setting}: row {number} of {path} has no text in column {column!r}")
        yield row
