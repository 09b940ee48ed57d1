"""Artifacts: directories built once, named by a fingerprint of everything that went into them.

An artifact is made beside its place and renamed into it, so what exists is whole. The same
inputs find it again; other inputs make another one; nothing is overwritten.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from experiment.errors import Missing, RunRefused
from experiment.run_directory import sync_directory, write_atomically

MANIFEST = "manifest.json"
VERIFIED = ".verified.json"


@dataclass(frozen=True)
class Artifact:
    path: Path
    fingerprint: str
    """sha256 over kind, inputs and the parents' fingerprints (which are among the inputs)."""
    facts: dict[str, Any]
    """What the builder found out: counts, bytes, shares."""


def fingerprint_of(kind: str, inputs: dict[str, Any]) -> str:
    text = json.dumps({"kind": kind, "inputs": inputs}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def artifact(
    root: Path,
    kind: str,
    name: str,
    inputs: dict[str, Any],
    build: Callable[[Path], dict[str, Any]],
    may_build: bool = True,
    resumable: bool = False,
) -> Artifact:
    """The artifact for these inputs, built by `build(directory) -> facts` if it is missing.

    Two processes that want the same one wait for each other. What a `resumable` build leaves when it is stopped is
    given to the next one. Raises RunRefused if it is missing and may not be built, or if its files are not those that
    its manifest lists.
    """
    fingerprint = fingerprint_of(kind, inputs)
    place = root / kind / f"{name}-{fingerprint[:12]}"
    if (found := _open(place, fingerprint)) is not None:
        return found
    if not may_build:
        raise Missing(
            f"{place}: this artifact is missing, and data.missing=error; first run python -m experiment.prepare with "
            "the same settings",
            place,
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place):
        if (found := _open(place, fingerprint)) is not None:
            return found
        beside = building(place)
        if not resumable:
            shutil.rmtree(beside, ignore_errors=True)  # left by a process that died; the lock says nobody is at it
        beside.mkdir(exist_ok=True)
        print(f"building {kind}/{place.name}", flush=True)
        try:
            facts = build(beside)
            for left in beside.rglob(".*.tmp"):  # of a process that was killed while it wrote a file
                left.unlink()
            files = {str(p.relative_to(beside)): p for p in sorted(beside.rglob("*")) if p.is_file()}
            manifest = {
                "kind": kind,
                "fingerprint": fingerprint,
                "inputs": inputs,
                "facts": facts,
                "files": {rel: {"bytes": p.stat().st_size, "sha256": checksum(p)} for rel, p in files.items()},
            }
            for p in files.values():
                force_to_disk(p)
            write_atomically(beside / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
            stamps = {rel: [p.stat().st_size, p.stat().st_mtime_ns] for rel, p in files.items()}
            write_atomically(beside / VERIFIED, json.dumps(stamps) + "\n")
            os.rename(beside, place)
            sync_directory(place.parent)
        except BaseException as error:
            if not resumable:
                shutil.rmtree(beside, ignore_errors=True)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(beside)  # say where the disk is full
            raise
    found = _open(place, fingerprint)
    assert found is not None
    return found


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Hold the right to build at a place; another process that has it is waited for."""
    lock = FileLock(place.parent / f".{place.name}.lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for {place.parent.name}/{place.name}, which another process builds", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def building(place: Path) -> Path:
    """Where the artifact of this place is made before it is renamed into it."""
    return place.parent / f".{place.name}.building"


def recorded_artifact(root: Path, kind: str, fingerprint: str) -> Artifact:
    """The artifact that a run recorded by its fingerprint. Raises RunRefused if it is not there or is damaged."""
    for manifest in sorted((root / kind).glob(f"*-{fingerprint[:12]}/{MANIFEST}")):
        found = _open(manifest.parent, fingerprint)
        assert found is not None
        return found
    raise RunRefused(
        f"paths.artifacts: {root / kind} has none with the fingerprint {fingerprint[:12]} that the run was trained on"
    )


def _open(place: Path, fingerprint: str) -> Artifact | None:
    if not place.exists():
        return None
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if manifest["fingerprint"] != fingerprint:
            raise ValueError(f"it is another one, {manifest['fingerprint'][:12]}")
        if not isinstance(manifest["facts"], dict):
            raise ValueError("its manifest has no facts")
        _verify(place, manifest["files"])
        return Artifact(place, fingerprint, manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunRefused(
            f"{place}: this artifact is damaged ({error}); remove the directory to build it again"
        ) from error


def _verify(place: Path, files: dict[str, dict[str, Any]]) -> None:
    """Compare sizes and checksums with the manifest; files that have not changed since are not read again."""
    stamp_file = place / VERIFIED
    stamps: Any = {}
    with suppress(OSError, ValueError):  # only a note of what was verified
        stamps = json.loads(stamp_file.read_text(encoding="utf-8"))
    stamps = stamps if isinstance(stamps, dict) else {}
    if foreign := sorted(path.name for path in place.rglob("*") if _is_foreign(path, place, files)):
        raise ValueError(f"{foreign[0]} is not part of it")
    seen = {}
    for rel, said in files.items():
        facts = (place / rel).stat()
        seen[rel] = [facts.st_size, facts.st_mtime_ns]
        if facts.st_size != said["bytes"]:
            raise ValueError(f"{rel} has {facts.st_size} bytes, not {said['bytes']}")
        if stamps.get(rel) != seen[rel] and checksum(place / rel) != said["sha256"]:
            raise ValueError(f"{rel} does not have the content it was made with")
    if stamps != seen:
        with suppress(OSError):  # a read-only place is verified every time
            write_atomically(stamp_file, json.dumps(seen) + "\n")


def _is_foreign(path: Path, place: Path, files: dict[str, Any]) -> bool:
    own = path.name in (MANIFEST, VERIFIED) or path.name.startswith(f".{VERIFIED}") or path.name.startswith(".nfs")
    return path.is_file() and not own and str(path.relative_to(place)) not in files


def force_to_disk(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
