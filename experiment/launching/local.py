"""Jobs on this machine: a process each, as many at a time as there are devices or shares of the CPU."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tqdm import tqdm

from experiment.errors import ConfigError, ExperimentError, Interrupted, RunLive, RunRefused
from experiment.launching.jobs import Job, check_jobs, clean_environment

POLL_SECONDS = 0.2
SECONDS_BETWEEN_LINES = 30.0  # where stderr is no terminal
PR_SET_PDEATHSIG = 1

FINISHED = ("done", "skipped", "failed", "diverged", "interrupted")
BAD = ("skipped", "failed", "diverged", "interrupted")


class SweepFailed(ExperimentError):
    """Some jobs did not end well; the others were not held up by it."""

    exit_code = 1


@dataclass
class Devices:
    """What jobs share: GPUs by number, or equal shares of the CPU."""

    free: list[str]
    on_gpu: bool
    threads: int
    """CPU threads of a share."""

    def take(self, count: int) -> list[str] | None:
        """`count` devices, or None if there are too few at the moment."""
        if count > len(self.free):
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def environment(self, taken: Sequence[str]) -> dict[str, str]:
        if self.on_gpu:
            return {"CUDA_VISIBLE_DEVICES": ",".join(taken)}
        return {"OMP_NUM_THREADS": str(self.threads), "CUDA_VISIBLE_DEVICES": ""}


def find_devices(n_jobs: int | None, accelerator: str) -> Devices:
    """The GPUs that this process may see, else CPU shares: `n_jobs` of them, or one per core."""
    gpus = _gpus() if accelerator != "cpu" else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if gpus:
        return Devices(gpus[:n_jobs], True, 1)
    shares = n_jobs or cores
    return Devices([str(i) for i in range(shares)], False, max(1, cores // shares))


def _gpus() -> list[str]:
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu.strip()]
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(i) for i, line in enumerate(line for line in listing.splitlines() if line.startswith("GPU "))]


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    devices: list[str]
    started: float = field(default_factory=time.monotonic)


class Scheduler:
    """Starts each job as soon as what it needs exists and devices are free; one failure stops nothing else."""

    def __init__(self, jobs: Sequence[Job], devices: Devices):
        self.jobs = {job.name: job for job in jobs}
        self.devices = devices
        self.capacity = len(devices.free)
        self.states = dict.fromkeys(self.jobs, "waiting")
        self.running: dict[str, Running] = {}
        self.waits: set[str] = set()
        self.stopping: int | None = None
        self.killed = False
        self.board = Board(self)

    def run(self) -> dict[str, str]:
        """Run all jobs. Returns name -> state; raises Interrupted after Ctrl-C or SIGTERM, with all runs saved."""
        previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while any(state not in FINISHED for state in self.states.values()):
                for name in list(self.running):
                    self._look_after(name)
                if self.stopping is None:
                    for name, state in list(self.states.items()):
                        if state == "waiting":
                            self._try(self.jobs[name])
                elif not self.running:
                    saved = "go on from their last checkpoints" if self.killed else "are saved"
                    raise Interrupted(f"the sweep was stopped; its runs {saved}. The same command continues it")
                self.board.show()
                if self.running or any(state == "waiting" for state in self.states.values()):
                    time.sleep(POLL_SECONDS)
        except BaseException:
            self._end_all(signal.SIGTERM)
            raise
        finally:
            self.board.close()
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self.states

    def _stop(self, number: int, frame: object) -> None:
        if self.stopping is not None:
            self._end_all(signal.SIGKILL)  # asked twice
            self.killed = True
        self.stopping = number
        self._end_all(signal.SIGTERM)

    def _end_all(self, number: int) -> None:
        for running in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, number)

    def _try(self, job: Job) -> None:
        """Start a waiting job if it can be started now, or settle it without starting."""
        try:
            if job.is_done():
                self._settle(job, "done", "finished already")
                return
            if job.directory.state() == "diverged":
                self._settle(job, "diverged", f"already; see {job.directory.path}")
                return
        except (RunRefused, OSError) as error:
            self._settle(job, "failed", str(error))
            return
        if not job.can_start:
            if self.states[job.needs or ""] in BAD:
                self._settle(job, "skipped", f"its trunk {job.needs} is {self.states[job.needs or '']}")
            elif self.states[job.needs or ""] == "done":
                self._settle(job, "failed", f"{job.needs} is done but {job.run.branch_from} is missing")
            return
        if job.directory.is_held():
            self._wait_for(job)
            return
        wanted = job.run.config.trainer.devices or 1
        if wanted > self.capacity:
            self._settle(job, "failed", f"trainer.devices: got {wanted}, but the sweep has {self.capacity} to hand out")
            return
        if (devices := self.devices.take(wanted)) is not None:
            try:
                self._start(job, devices)
            except OSError as error:
                self.devices.free += devices
                self._settle(job, "failed", f"{error.filename}: {error.strerror}")

    def _wait_for(self, job: Job) -> None:
        """Another process is at this run: when it is done, so is this job; when it dies, this sweep goes on with it."""
        if job.name not in self.waits:
            self.waits.add(job.name)
            self.board.say(f"waits     {job.name}  {job.directory.holder()} is at it")

    def _start(self, job: Job, devices: list[str]) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment() | self.devices.environment(devices),
                start_new_session=True,  # Ctrl-C reaches the sweep, which hands it on
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self.running[job.name] = Running(process, devices)
        self.states[job.name] = "running"
        self.board.say(f"started   {job.name}  (log: {job.log})")

    def _look_after(self, name: str) -> None:
        running, job = self.running[name], self.jobs[name]
        code = running.process.poll()
        if code is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)  # no rank of a job outlives it
        self.devices.free += running.devices
        del self.running[name]
        if code == RunLive.exit_code:  # another sweep was a moment faster
            self.states[name] = "waiting"
            self._wait_for(job)
            return
        minutes = (time.monotonic() - running.started) / 60
        state = {0: "done", 3: "diverged", Interrupted.exit_code: "interrupted"}.get(code, "failed")
        if self.stopping is not None and code in (-signal.SIGTERM, -signal.SIGKILL):
            state = "interrupted"  # before it could tell that it was
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        told = f"{minutes:.1f} min" if code == 0 else f"{how}: {_last_line(job)}  (log: {job.log})"
        self._settle(job, state, told)

    def _settle(self, job: Job, state: str, told: str) -> None:
        self.states[job.name] = state
        self.board.say(f"{state:9} {job.name}  {told}")


def _die_with_parent() -> None:
    """Ask Linux to end this process, with time to save, when the sweep dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _last_line(job: Job) -> str:
    try:
        lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


class Board:
    """One line per running job on a terminal, refreshed; elsewhere a summary line now and then."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.live = sys.stderr.isatty()
        self.bars: dict[str, tqdm] = {}
        self.shown = time.monotonic()

    def say(self, text: str) -> None:
        with tqdm.external_write_mode(file=sys.stderr):
            print(text, flush=True)

    def show(self) -> None:
        s = self.scheduler
        if not self.live:
            if time.monotonic() - self.shown >= SECONDS_BETWEEN_LINES:
                self.shown = time.monotonic()
                done = sum(state == "done" for state in s.states.values())
                now = "; ".join(f"{name} {_percent(s.jobs[name]):.0%}" for name in s.running)
                self.say(f"{done} of {len(s.jobs)} done; running: {now or 'none'}")
            return
        for name in list(self.bars):
            if name not in s.running:
                self.bars.pop(name).close()
        for name in s.running:
            progress = s.jobs[name].directory.progress()
            if name not in self.bars:
                self.bars[name] = tqdm(desc=name, unit="tok", unit_scale=True, leave=False, file=sys.stderr)
            bar = self.bars[name]
            if progress:
                bar.total = progress["stop_step"] * s.jobs[name].run.config.batch.tokens
                bar.n = progress["tokens"]
                bar.set_postfix_str(f"{progress['phase']}, loss {progress['loss']:.3f}")
            bar.refresh()

    def close(self) -> None:
        for bar in self.bars.values():
            bar.close()


def _percent(job: Job) -> float:
    progress = job.directory.progress()
    return progress["step"] / max(1, progress["stop_step"]) if progress else 0.0


def check_n_jobs(n_jobs: object, setting: str) -> None:
    """Raises ConfigError unless it is a whole number of at least 1, or None."""
    if n_jobs is not None and (isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs < 1):
        raise ConfigError([f"{setting}: got {n_jobs!r}; must be a whole number of at least 1, or null"])


def run_jobs(jobs: Sequence[Job], n_jobs: int | None, accelerator: str) -> dict[str, str]:
    """Run jobs and say how they ended. Raises SweepFailed if one of them did not end well, Interrupted if stopped."""
    check_jobs(jobs)
    states = Scheduler(jobs, find_devices(n_jobs, accelerator)).run()
    counts = {state: list(states.values()).count(state) for state in FINISHED if state in states.values()}
    print(f"{len(states)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items()), flush=True)
    if bad := [f"{name} ({state})" for name, state in states.items() if state in BAD]:
        raise SweepFailed(f"{len(bad)} of {len(states)} runs did not finish: {', '.join(bad)}")
    return states
