"""Large artifacts in parts: each built by one process, renamed as a whole, found again after a kill."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiment.data.artifacts import force_to_disk
from experiment.errors import ExperimentError

SECONDS_BETWEEN_LINES = 30.0  # of progress, where stderr is no terminal
SHOWN_FROM_SECONDS = 2.0
POLL_SECONDS = 0.2
SLOTS = 1024  # of counters, more than there are workers

Advance = Callable[[int], None]
"""Tells how many more bytes a part has dealt with."""

measured: dict[str, list[float]] = {}
"""Kind of artifact (the first word of a label) -> bytes dealt with by this process and its workers, and seconds."""

_done: Any = None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build_parts(
    out: Path,
    jobs: Sequence[Any],
    build: Callable[[Any, Path, Advance], None],
    workers: int,
    label: str,
    total_bytes: int | None = None,
    may_start: Callable[[int], bool] = lambda started: True,
) -> Iterator[tuple[int, Path]]:
    """(number, directory) of the part of each job, in the order of jobs, until the caller stops asking.

    `build(job, directory, advance)` fills a directory; it must be a function of the job alone, and importable, since
    with more than one worker it runs in another process. `may_start(k)` is asked before part k is begun ahead of time.
    Parts that an earlier process finished are taken as they are.
    """
    with _Progress(label, total_bytes) as progress:
        if workers == 1 or len(jobs) == 1:
            for number, job in enumerate(jobs):
                if not (place := _place(out, number)).exists():
                    _build_one(build, job, place, progress.advance)
                yield number, place
            return
        yield from _in_processes(out, jobs, build, min(workers, len(jobs)), progress, may_start)


def _in_processes(
    out: Path,
    jobs: Sequence[Any],
    build: Callable[[Any, Path, Advance], None],
    workers: int,
    progress: "_Progress",
    may_start: Callable[[int], bool],
) -> Iterator[tuple[int, Path]]:
    context = multiprocessing.get_context("spawn")  # threads of pyarrow and of the hub's client do not survive a fork
    # nothing with a lock, which a worker that is killed would keep: progress may miscount, and that is all
    done, stop = context.RawArray("q", SLOTS), context.RawValue("b", 0)
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (done, stop, os.getpid()))
    running: dict[int, Future[None]] = {}
    next_job = 0
    try:
        for number in range(len(jobs)):
            while True:
                while next_job < len(jobs) and len(running) < workers and (next_job <= number or may_start(next_job)):
                    if not (place := _place(out, next_job)).exists():
                        running[next_job] = pool.submit(_build_in_worker, build, jobs[next_job], place)
                    next_job += 1
                for finished in [k for k, future in running.items() if future.done()]:
                    if finished == number or running[finished].exception() is None:  # others may not be needed
                        running.pop(finished).result()
                if number not in running and number < next_job:
                    break
                wait(running.values(), timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
                progress.show(sum(done))
            yield number, _place(out, number)
    except BrokenProcessPool as error:
        raise ExperimentError(
            f"{progress.label}: a worker process was killed, perhaps for memory; what is finished is kept, and the "
            "same command goes on; try fewer workers"
        ) from error
    finally:
        stop.value = 1
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(done: Any, stop: Any, parent: int) -> None:
    global _done
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells us to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a pool of threads in every worker would be one too many

    def leave() -> None:
        """When the parent has died, or wants no more: what is half done is made again, from the start of its part."""
        while os.getppid() == parent and not stop.value:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


def _build_in_worker(build: Callable[[Any, Path, Advance], None], job: Any, place: Path) -> None:
    slot = os.getpid() % SLOTS

    def advance(count: int) -> None:
        _done[slot] += count

    _build_one(build, job, place, advance)


def _build_one(build: Callable[[Any, Path, Advance], None], job: Any, place: Path, advance: Advance) -> None:
    beside = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    for left in place.parent.glob(f"{place.name}.*"):  # of a process that died: the artifact's lock is ours
        dead = left.with_suffix(".dead")
        with suppress(OSError):  # first out of the way of a worker that has not noticed yet that its parent is gone
            os.rename(left, dead)
        shutil.rmtree(dead, ignore_errors=True)
    beside.mkdir()
    try:
        build(job, beside, advance)
        for path in beside.iterdir():
            force_to_disk(path)
        if not place.exists():  # or a worker whose parent was just killed was faster: the same job, the same part
            os.rename(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _place(out: Path, number: int) -> Path:
    return out / f"part-{number:05d}"


class _Progress:
    """A bar of bytes with rate and time left; quiet where the work is done in a moment."""

    def __init__(self, label: str, total: int | None):
        self.label = label
        self._started = time.monotonic()
        on_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            desc=label,
            unit="B",
            unit_scale=True,
            delay=SHOWN_FROM_SECONDS,
            mininterval=0.5 if on_terminal else SECONDS_BETWEEN_LINES,
            dynamic_ncols=on_terminal,
        )

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        totals = measured.setdefault(self.label.split()[0], [0.0, 0.0])
        totals[0] += self._bar.n
        totals[1] += time.monotonic() - self._started
        self._bar.close()

    def advance(self, count: int) -> None:
        self._bar.update(count)

    def show(self, done: int) -> None:
        self._bar.update(done - self._bar.n)
