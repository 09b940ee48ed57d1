"""A run's directory: what the run is and how far it got, who holds it, and its records.

    run.json            resolved science settings, fingerprints, versions, state (written atomically)
    progress.json       how far it is, rewritten while it trains
    checkpoints/        last.ckpt, stable_*.ckpt, final.ckpt
    snapshots/          weights at evaluation points
    scores/             per-document scores at evaluation points
    metrics.jsonl       one line per logged update; evaluations.jsonl: one per point, source, language
    .hydra/             the config as composed and the overrides as given
Imports no torch: the listing of runs reads these files.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from experiment.errors import RunLive, RunRefused

STATES = ("pending", "running", "interrupted", "diverged", "failed", "done")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` as a whole: written beside it, forced to disk, renamed. A kill leaves old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def place_for(out: Path, own: Collection[str], what: str) -> Path:
    """The directory `out`, if it can be made or holds nothing but files named as `own`. Raises RunRefused."""
    place = out.resolve()
    if not place.name:
        raise RunRefused(f"out: {out} is no place for {what}; name a directory")
    if place.exists():
        foreign = sorted({path.name for path in place.iterdir()} - set(own)) if place.is_dir() else [place.name]
        if foreign:
            raise RunRefused(f"out: {out} exists and is not {what}: it holds {foreign[0]}; name another directory")
    return place


@contextmanager
def replaced_as_a_whole(place: Path) -> Iterator[Path]:
    """A directory to fill; at the end it takes the place of what is at `place`, and after an error it is gone.

    One at a time; what a killed process left is cleared away, and an old directory that it had moved is put back.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    beside, old = (place.with_name(f".{place.name}.{end}") for end in ("tmp", "old"))
    lock = place.with_name(f".{place.name}.lock")
    lock.touch()  # where no file can be made, FileLock would wait for ever
    with FileLock(lock):
        if old.exists() and not place.exists():
            os.rename(old, place)
        for left in (beside, old):
            shutil.rmtree(left, ignore_errors=True)
        try:
            beside.mkdir()
            yield beside
            if place.exists():
                os.rename(place, old)
            os.rename(beside, place)
        finally:
            for left in (beside, old):
                shutil.rmtree(left, ignore_errors=True)
    sync_directory(place.parent)


def sync_directory(path: Path) -> None:
    """Force a rename in this directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Append JSON lines and force them to disk, so that no checkpoint is ahead of its records."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete JSON lines of a file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    records = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RunRefused(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            record["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunRefused(f"{path}: line {number} is no record of a run; remove that line") from error
        records.append(record)
    return records


def keep_lines_up_to(path: Path, step: int) -> None:
    """Drop the lines after `step`: what a resumed run is about to write again."""
    if path.exists():
        kept = [record for record in read_lines(path) if record["step"] <= step]
        write_atomically(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "evaluations.jsonl"
        self.snapshots = self.path / "snapshots"
        self.scores = self.path / "scores"
        self.last = self.checkpoint("last")
        self.final = self.checkpoint("final")
        self._lock_file = self.path / ".lock"
        self._holder_file = self.path / ".holder.json"

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.ckpt"

    def read(self) -> dict[str, Any] | None:
        """run.json, or None where no run has started. Raises RunRefused if it is not readable."""
        return _read_json(self.path / "run.json")

    def write(self, record: dict[str, Any]) -> None:
        write_atomically(self.path / "run.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    def set_state(self, state: str, **facts: Any) -> None:
        assert state in STATES
        if (record := self.read()) is not None:  # a directory that was removed meanwhile gets no half of a record
            self.write(record | {"state": state} | facts)

    def write_progress(self, **facts: Any) -> None:
        write_atomically(self.path / "progress.json", json.dumps(facts | {"written_at": time.time()}) + "\n")

    def progress(self) -> dict[str, Any]:
        """How far a live run is; empty where that is not known. Nothing depends on this file."""
        try:
            facts = _read_json(self.path / "progress.json") or {}
        except RunRefused:
            return {}
        numbers = ("step", "tokens", "stop_step", "written_at")
        return facts if all(isinstance(facts.get(name), (int, float)) for name in numbers) else {}

    def state(self) -> str:
        """pending, running, interrupted, diverged, failed or done; a run whose process has died is interrupted."""
        record = self.read()
        if record is None:
            return "pending"
        state = record.get("state")
        if state not in STATES:
            raise RunRefused(f"{self.path}: run.json holds no state of a run; remove the directory to start again")
        return "interrupted" if state == "running" and not self.is_held() else state

    def is_held(self) -> bool:
        """Whether a living process holds this run."""
        if not self._lock_file.exists():
            return False
        lock = FileLock(self._lock_file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        except OSError:  # a place where nothing can be locked is a place where nothing is written
            return False
        lock.release()
        return False

    def holder(self) -> str:
        facts = _read_json(self._holder_file) or {}
        if not facts:
            return "another process"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["since"]))
        return f"process {facts['pid']} on {facts['host']} since {since}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run for this process; the system frees it when the process dies, however it dies.

        Raises RunLive, naming the holder, if another process has it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._lock_file)
        try:
            lock.acquire(timeout=1)  # one who only looks (is_held) has it for a moment
        except Timeout:
            raise RunLive(f"{self.path}: this run is live, held by {self.holder()}") from None
        try:
            facts = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
            write_atomically(self._holder_file, json.dumps(facts) + "\n")
            yield
        finally:
            self._holder_file.unlink(missing_ok=True)
            lock.release()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunRefused(f"{path}: cannot be read ({reason}); mend or remove it to start this run again") from error
    try:
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError(f"holds a {type(record).__name__}, not an object")
    except ValueError as error:
        raise RunRefused(f"{path}: cannot be read ({error}); remove the directory to start this run again") from error
    return record
