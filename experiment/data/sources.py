"""Data sets of the Hugging Face hub (or directories laid out like them), pinned file by file and read with patience."""

import glob
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from filelock import FileLock

from experiment.data.files import one_line, quiet_datasets
from experiment.errors import ExperimentError, Missing, RunRefused
from experiment.run_directory import write_atomically

ROWS_AT_ONCE = 1024
ATTEMPTS = 8  # on top of those of the hub's own client
ATTEMPTS_OFFLINE = 2  # to list what there is, where no server answers: each takes the client half a minute
LONGEST_WAIT = 120.0
FOOTER_BYTES = 2**16
TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
NETWORK_MODULES = ("aiohttp", "requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub")

T = TypeVar("T")


@dataclass(frozen=True)
class SourceFile:
    """One parquet file of a data set, in one version."""

    name: str
    """Its path in the data set."""
    url: str
    """Where it is: `hf://datasets/<repository>@<commit>/...`, or a path."""
    version: str
    """The commit; of a file here, a checksum of its size and last 64 KiB (in parquet the footer, or most of it)."""
    bytes: int

    @property
    def identity(self) -> list[str]:
        return [self.name, self.version]


@dataclass(frozen=True)
class Pinned:
    """The files that a corpus is read from, in reading order, and how much of them."""

    files: tuple[SourceFile, ...]
    budget_bytes: int
    """UTF-8 bytes of training text that are wanted."""

    @property
    def identity(self) -> dict[str, Any]:
        files = json.dumps([file.identity for file in self.files]).encode("utf-8")
        return {"files": hashlib.sha256(files).hexdigest(), "budget_bytes": self.budget_bytes}


def pinned(
    root: Path,
    name: str,
    about: Any,
    what: str,
    find: Callable[[], dict[str, Any]],
    read: Callable[[dict[str, Any]], T],
    may_find: bool,
) -> T:
    """What was found out once about a source, and is kept from then on: `read` of the answer of `find()`, or of the
    file's. Another `about` (plain values) is another file.

    Raises RunRefused if it is not known and may not be found out, or if the file is damaged.
    """
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode("utf-8")).hexdigest()[:8]
    path = root / "sources" / f"{name}-{digest}.json"
    if not path.exists():
        if not may_find:
            raise Missing(
                f"{path}: {what}, and data.missing=error; run python -m experiment.prepare with the same settings first"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                write_atomically(path, json.dumps({"about": about} | find(), indent=1) + "\n")
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise RunRefused(f"{path}: cannot be read ({error!r}); remove it to find it out again") from error


def files_of(records: Any) -> tuple[SourceFile, ...]:
    """The files of a pin. Raises ValueError, TypeError or KeyError if there are none or they are no such records."""
    files = tuple(SourceFile(str(r["name"]), str(r["url"]), str(r["version"]), int(r["bytes"])) for r in records)
    if not files:
        raise ValueError("it lists no files")
    return files


def list_files(specs: Sequence[str], setting: str) -> tuple[SourceFile, ...]:
    """The train files of data sets, each in an order of its own: by the hash of the name, so that no part of the
    pool is one crawl. `specs`: `<repository or directory>/<config>[@<revision>]`; a later one tops up an earlier."""
    found: list[SourceFile] = []
    for spec in specs:
        repository, config, revision = parse(spec, setting)
        files = _asked(lambda r=repository, c=config, v=revision: _resolve(r, c, v), f"{setting}: {spec}")
        if not files:
            raise ExperimentError(f"{setting}: {spec} has no files in its train split")
        found += sorted(files, key=lambda file: hashlib.sha256(file.name.encode("utf-8")).digest())
    return tuple(found)


def parse(spec: str, setting: str) -> tuple[str, str, str | None]:
    """`owner/name/config@revision` -> (owner/name, config, revision or None); owner/name may be a directory."""
    path, revision = (spec, None) if Path(spec).parent.is_dir() else split_revision(spec)
    repository, _, config = path.rpartition("/")
    if not repository or not config:
        raise ExperimentError(f"{setting}: got {spec!r}; must be OWNER/NAME/CONFIG[@REVISION] or DIRECTORY/CONFIG")
    return repository, config, revision


def split_revision(name: str) -> tuple[str, str | None]:
    """`name@revision` -> (name, revision); in the path of a directory here an @ is part of the name."""
    if Path(name).is_dir():
        return name, None
    name, _, revision = name.partition("@")
    return name, revision or None


def config_names(repository: str, setting: str) -> list[str]:
    """The configurations of a data set: of FineWeb2, one per language and script (and `_removed`, left out here)."""
    repository, _, revision = repository.partition("@")
    names = _asked(
        lambda: quiet_datasets().get_dataset_config_names(repository, revision=revision or None),
        f"{setting}: {repository}",
    )
    return sorted(name for name in names if not name.endswith("_removed"))


def _resolve(repository: str, config: str, revision: str | None) -> list[SourceFile]:
    from fsspec.core import url_to_fs

    builder = quiet_datasets().load_dataset_builder(repository, config, revision=revision)
    urls = list((builder.config.data_files or {}).get("train", ()))
    found = []
    for url in urls:
        if url.startswith("hf://"):
            filesystem, path = url_to_fs(url)  # its listing is cached since the patterns were resolved
            commit, _, name = url.partition("@")[2].partition("/")
            found.append(SourceFile(name, url, commit, int(filesystem.info(path)["size"])))
        else:
            path = Path(url)
            name = os.path.relpath(path, repository)
            found.append(SourceFile(name, url, _footer_checksum(path), path.stat().st_size))
    return found


def _footer_checksum(path: Path) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - FOOTER_BYTES))
        return hashlib.sha256(f"{size}:".encode() + file.read()).hexdigest()


def read_column(file: SourceFile, column: str, setting: str) -> Iterator[list[bytes | None]]:
    """Batches of one column, nothing else of the file is read. Network errors are waited out, and reading goes on
    at the row where it stopped. Raises ExperimentError for a file that changed, lacks the column or is damaged."""
    where = f"{setting}: {file.url}"
    if not file.url.startswith("hf://") and "://" not in file.url:
        try:
            unchanged = _footer_checksum(Path(file.url)) == file.version
        except OSError as error:
            raise ExperimentError(f"{where}: {error.strerror}, but it is pinned as a source") from error
        if not unchanged:
            raise ExperimentError(
                f"{where}: has changed since it was pinned as a source; remove its list in artifacts/sources "
                "to pin it anew, as another corpus"
            )
    rows = 0
    attempt = 0
    while True:
        try:
            for batch in _batches(file.url, column, rows):
                yield batch
                rows += len(batch)
                attempt = 0
            return
        except Exception as error:
            attempt = _wait_or_raise(error, attempt, where, column)


def _batches(url: str, column: str, skip: int) -> Iterator[list[bytes | None]]:
    datasets = quiet_datasets()
    # a parquet file is read by its row groups, the column's pages only
    place = url if "://" in url else glob.escape(url)  # datasets would match patterns
    options: dict[str, Any] = {
        "columns": [column],
        "batch_size": ROWS_AT_ONCE,
    }  # else the first row group's size, be it 0
    table = datasets.load_dataset("parquet", data_files=[place], split="train", streaming=True, **options)
    for batch in table.skip(skip).with_format("arrow").iter(batch_size=ROWS_AT_ONCE):
        values = batch.column(column)
        try:
            content = values.cast(pa.large_binary())  # as bytes: parquet promises UTF-8 and does not check it
        except pa.ArrowNotImplementedError as error:  # there is no such cast: numbers, lists, ...
            raise ExperimentError(f"{url}: column {column!r} holds {values.type}, not text") from error
        yield content.to_pylist()


def _asked(ask: Callable[[], T], where: str) -> T:
    """What `ask()` returns; a busy server is waited for. Raises ExperimentError, in one line."""
    attempt = 0
    while True:
        try:
            return ask()
        except Exception as error:  # the client raises many kinds for no network, no access and no such data set
            status = status_of(error)
            if not is_passing(error) or attempt + 1 >= (ATTEMPTS if status else ATTEMPTS_OFFLINE):
                said = f" (status {status})" if status else ""
                raise ExperimentError(
                    f"{where} cannot be had{said}: {one_line(error)}; is there such a data set, and a network?"
                ) from error
            attempt = _wait(error, attempt, where)


def _wait_or_raise(error: Exception, attempt: int, where: str, column: str) -> int:
    if isinstance(error, ExperimentError):
        raise error
    if not is_passing(error):
        missing = f"FieldRef.Name({column})" in str(error)
        said = f"has no column {column!r}" if missing else f"cannot be read: {one_line(error)}"
        raise ExperimentError(f"{where} {said}") from error
    if attempt + 1 >= ATTEMPTS:
        raise ExperimentError(
            f"{where} cannot be had now, after {ATTEMPTS} attempts: {one_line(error)}. What is finished is kept; "
            "the same command goes on"
        ) from error
    return _wait(error, attempt, where)


def _wait(error: Exception, attempt: int, where: str) -> int:
    seconds = min(LONGEST_WAIT, 2.0**attempt) * random.uniform(0.5, 1.0)
    print(f"{where}: {one_line(error)[:120]}; trying again in {seconds:.0f} s", flush=True)
    time.sleep(seconds)
    return attempt + 1


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, if a server answered."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(seen, "status", None) or getattr(getattr(seen, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        seen = seen.__cause__ or seen.__context__
    return None


def is_passing(error: BaseException) -> bool:
    """Whether an error is of the network or of a server that is busy: later the same request may succeed."""
    if (status := status_of(error)) is not None:
        return status in TRY_AGAIN
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionError | TimeoutError):
            return True
        module = type(seen).__module__.partition(".")[0]
        if module in NETWORK_MODULES and any(
            word in type(seen).__name__ for word in ("Connect", "Timeout", "Disconnect", "Protocol", "Payload", "Read")
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
