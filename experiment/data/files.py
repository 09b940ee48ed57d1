"""Files of this machine as documents: jsonl, parquet or text, compressed or not.

Not read by `datasets`: it takes a zstd file that was cut short for whole, reads the first of several frames, names no
file where one of many is damaged, and its reading ahead can abort the interpreter after an error.
"""

import bz2
import glob
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiment.config.schema import Data
from experiment.errors import ExperimentError

ROWS_AT_ONCE = 1024
READERS = {"jsonl": "json", "json": "json", "parquet": "parquet", "txt": "text", "text": "text"}
READING_ERRORS = (
    *(OSError, ValueError, TypeError, RuntimeError, EOFError),
    *(pa.ArrowException, lzma.LZMAError, zlib.error),
)
OPENERS: dict[str, Any] = {"gz": gzip.open, "xz": lzma.open, "bz2": bz2.open}
COMPRESSIONS = (*OPENERS, "zst")
PIECE = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def source_files(data: Data, lang: str) -> list[Path]:
    """The files of `data.files` of one language, sorted. Raises ExperimentError if there is none."""
    pattern = data.files.get(lang)
    assert pattern, lang
    found = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
    paths = [Path(path) for path in found]
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


def raw_documents(data: Data, lang: str, paths: Sequence[Path]) -> Iterator[tuple[str | None, str]]:
    """(id or None, text) of every row of the files; a text file is one document."""
    setting = f"data.files.{lang}"
    texts = [path for path in paths if reader_of(path, setting) == "text"]
    for path in texts:
        content = b"".join(_pieces(path, setting))
        yield None, _decoded(content, f"{setting}: {path}").replace("\r\n", "\n").replace("\r", "\n")
    for path in paths:
        if path in texts:
            continue
        for number, row in enumerate(_rows(setting, path, (data.text_column, "id"))):
            if data.text_column not in row:
                raise ExperimentError(
                    f"data.text_column: {path.name} has no column {data.text_column!r} in row {number}; "
                    f"it has {', '.join(sorted(row))}"
                )
            where = f"{setting}: row {number} of {path.name}"
            yield _id(row.get("id"), where), _text(row[data.text_column], where)


def records(path: str, setting: str, columns: Sequence[str], also: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a jsonl or parquet file, `also` columns where it has them.

    Raises ExperimentError where one of `columns` holds no text.
    """
    for number, row in enumerate(_rows(setting, require_file(path, setting), (*columns, *also))):
        row["id"] = _id(row.get("id"), f"{setting}: row {number} of {path}")
        for column in columns:
            if not _text(row.get(column), f"{setting}: row {number} of {path}, column {column!r},"):
                raise ExperimentError(f"{setting}: row {number} of {path} has no text in column {column!r}")
        yield row


def reader_of(path: Path, setting: str) -> str:
    """`json`, `parquet` or `text`, by the name's ending. Raises ExperimentError for any other."""
    suffixes = [suffix.lstrip(".").lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    reader = READERS.get(suffixes[-1] if suffixes else "")
    if reader is None:
        raise ExperimentError(f"{setting}: {path.name} is not jsonl, parquet or txt (or one of these compressed)")
    return reader


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


def _id(value: Any, where: str) -> str | None:
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with gaps is read as floats
        value = int(value)
    return None if value is None else _text(str(value), f"{where}: id")


def _rows(setting: str, path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a jsonl or parquet file, of the latter those of the columns that exist."""
    if reader_of(path, setting) == "parquet":
        yield from _rows_of_parquet(setting, path, columns)
        return
    # lines are parsed here: a column of no interest may hold anything
    lines = (_decoded(line, f"{setting}: line {k} of {path}") for k, line in enumerate(_lines(path, setting), start=1))
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ExperimentError(f"{setting}: line {number + 1} of {path} is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ExperimentError(
                f"{setting}: line {number + 1} of {path} holds a {type(parsed).__name__}, not an object"
            )
        yield parsed


def _rows_of_parquet(setting: str, path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    read = 0
    try:
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow.names
            wanted = [column for column in columns if column in present] or present
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted, use_threads=False):
                yield from batch.to_pylist()
                read += len(batch)
    except READING_ERRORS as error:
        after = f" after row {read}" if read else ""
        raise ExperimentError(f"{setting}: {path} cannot be read{after}: {one_line(error)}") from error


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise ExperimentError(f"{where} is not UTF-8: byte 0x{byte:02x} at position {error.start}") from error


def _lines(path: Path, setting: str) -> Iterator[bytes]:
    """The lines of a file without their ends."""
    begun: list[bytes] = []
    for piece in _pieces(path, setting):
        first, *others = piece.split(b"\n")
        begun.append(first)
        if others:
            yield b"".join(begun)
            yield from others[:-1]
            begun = [others[-1]]
    if last := b"".join(begun):
        yield last


def _pieces(path: Path, setting: str) -> Iterator[bytes]:
    """The content of a file, decompressed, without a byte order mark. Raises ExperimentError if it is damaged."""
    ending = path.suffix[1:].lower()
    first = True
    try:
        if ending in COMPRESSIONS and not path.stat().st_size:
            raise EOFError(f"it has not a single byte, so it is no {ending} file")
        for piece in _pieces_of_zstd(path) if ending == "zst" else _pieces_by(OPENERS.get(ending, open), path):
            yield piece.removeprefix(BYTE_ORDER_MARK) if first else piece
            first = False
    except READING_ERRORS as error:
        raise ExperimentError(f"{setting}: {path} cannot be read: {one_line(error)}") from error


def _pieces_by(opener: Any, path: Path) -> Iterator[bytes]:
    with opener(path, "rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _pieces_of_zstd(path: Path) -> Iterator[bytes]:
    """All frames, one after the other."""
    import zstandard

    frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    try:
        for compressed in _pieces_by(open, path):
            while compressed:
                if piece := frame.decompress(compressed):
                    yield piece
                compressed, begun = b"", True
                if frame.eof:
                    compressed, begun = frame.unused_data, False
                    frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if begun:
        raise EOFError("it ends inside a zstd frame, cut short")


def quiet_datasets() -> Any:
    """The library `datasets`: a second of imports that only missing artifacts pay. What goes wrong we say ourselves."""
    import datasets
    from huggingface_hub.utils import logging

    for library in (datasets.logging, logging):
        library.set_verbosity(library.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # else every file that is read is counted by a server
    return datasets


def one_line(error: BaseException) -> str:
    return " ".join(str(error.__cause__ or error).split())[:300]
