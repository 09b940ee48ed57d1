"""Files of this machine as documents: jsonl, parquet or text, compressed or not, read by `datasets`."""

import codecs
import glob
import io
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
COMPRESSIONS = ("gz", "xz", "zst", "bz2")


def source_files(data: Data, lang: str) -> list[Path]:
    """The files of `data.files` of one language, sorted. Raises ExperimentError if there is none."""
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


def raw_documents(data: Data, lang: str, paths: Sequence[Path]) -> Iterator[tuple[str | None, str]]:
    """(id or None, text) of every row of the files; a text file is one document."""
    setting = f"data.files.{lang}"
    texts = [path for path in paths if reader_of(path, setting) == "text"]
    for row in _streamed(setting, "text", [path for path in texts if not _is_zstd(path)], sample_by="document"):
        yield None, row["text"]
    for path in filter(_is_zstd, texts):
        yield None, "".join(_lines_of_zstd(path, setting))
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
        if path.stat().st_size == 0:
            return
        try:
            present = pq.read_schema(path).names
        except (OSError, pa.ArrowException) as error:
            raise ExperimentError(f"{setting}: {path} cannot be read: {one_line(error)}") from error
        wanted = [column for column in columns if column in present]
        yield from _streamed(setting, "parquet", [path], columns=wanted or present, batch_size=ROWS_AT_ONCE)
        return
    # lines are parsed here: a column of no interest may hold anything
    if _is_zstd(path):
        lines = _lines_of_zstd(path, setting)
    else:
        lines = (row["text"] for row in _streamed(setting, "text", [path], sample_by="line"))
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


def _is_zstd(path: Path) -> bool:
    return path.suffix.lower() == ".zst"


def _lines_of_zstd(path: Path, setting: str) -> Iterator[str]:
    """The lines of a zstd file, with their ends as a line feed. `datasets` reads the first frame only, and takes one
    that was cut short for whole. Raises ExperimentError for such a file."""
    import zstandard

    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    frame, begun, rest = zstandard.ZstdDecompressor().decompressobj(), False, ""
    try:
        with open(path, "rb") as file:
            while piece := file.read(2**20):
                while piece:
                    rest += decoder.decode(frame.decompress(piece))
                    piece, begun = b"", True
                    if frame.eof:
                        piece, begun = frame.unused_data, False
                        frame = zstandard.ZstdDecompressor().decompressobj()
                    *lines, rest = _cut(rest)
                    yield from lines
        rest += decoder.decode(b"", final=True)
    except (OSError, UnicodeDecodeError, zstandard.ZstdError) as error:
        raise ExperimentError(f"{setting}: {path} cannot be read: {one_line(error)}") from error
    if begun:
        raise ExperimentError(f"{setting}: {path} cannot be read: it ends inside a zstd frame, cut short")
    if rest:
        yield rest


def _cut(text: str) -> list[str]:
    """Lines with their ends, and what follows the last end."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + lines[-1:]


def _streamed(setting: str, reader: str, paths: Sequence[Path], **options: Any) -> Iterator[dict[str, Any]]:
    """What `datasets` reads from files; files without a byte have no rows. Raises ExperimentError in one line."""
    datasets = quiet_datasets()
    paths = [path for path in paths if path.stat().st_size]
    if not paths:
        return
    names = [glob.escape(str(path.absolute())) for path in paths]  # datasets would match patterns once more
    try:
        yield from datasets.load_dataset(reader, data_files=names, split="train", streaming=True, **options)
    except READING_ERRORS as error:
        which = paths[0] if len(paths) == 1 else f"{paths[0]} .. {paths[-1]}"
        raise ExperimentError(f"{setting}: {which} cannot be read: {one_line(error)}") from error


def quiet_datasets() -> Any:
    """The library `datasets`: a second of imports that only missing artifacts pay. What goes wrong we say ourselves."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # else every file that is read is counted by a server
    return datasets


def one_line(error: BaseException) -> str:
    return " ".join(str(error.__cause__ or error).split())[:300]
