"""Checkpoints: written atomically, verified, rolling or permanent."""

import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_flatten, tree_unflatten

from experiment.errors import ExperimentError, RunRefused
from experiment.run_directory import RunDirectory, sync_directory
from experiment.schedule import Schedule
from experiment.training.module import PretrainingModule

NICE = 19  # the lowest priority: what is written while training goes on may take its time
REMEDY = "put a good copy in its place, or remove the run's directory to start it again"


def verify(path: Path) -> None:
    """Read the whole file against the CRC of each of its records. Raises RunRefused if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise RunRefused(f"{path}: this checkpoint is damaged ({error}); {REMEDY}") from error
    if broken is not None:
        raise RunRefused(f"{path}: this checkpoint is damaged (checksum of {broken}); {REMEDY}")


def load(path: Path, mmap: bool = False) -> dict[str, Any]:
    """The checkpoint as plain tensors and numbers, on the CPU; no code in it is run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise RunRefused(f"{path}: there is no such checkpoint") from None
    except Exception as error:  # torch.load raises many kinds for what is not a checkpoint
        reason = " ".join(str(error).split())[:200]
        raise RunRefused(f"{path}: cannot be read as a checkpoint ({reason}); {REMEDY}") from error


@dataclass(frozen=True)
class Weights:
    """The decoder of one run at one step."""

    path: Path
    run: str
    step: int
    state: dict[str, torch.Tensor]


def find_weights(directory: RunDirectory, which: str) -> list[Path]:
    """The files of a checkpoint by name: `final`, `last`, a mark, a snapshot `step_N`, or `all` that are kept.

    Raises RunRefused, naming what there is, where there is none.
    """
    snapshots = {path.stem: path for path in sorted(directory.snapshots.glob("step_*.safetensors"))}
    checkpoints = {path.stem: path for path in sorted((directory.path / "checkpoints").glob("[!.]*.ckpt"))}
    if which == "all":
        kept = [path for name, path in checkpoints.items() if name == "final" or name.startswith("stable_")]
        found = [*snapshots.values(), *kept]
    else:
        name = f"step_{int(which[5:]):07d}" if which.startswith("step_") and which[5:].isdecimal() else which
        found = [path for path in (checkpoints.get(name), snapshots.get(name)) if path is not None]
    if not found:
        there = ", ".join([*checkpoints, *snapshots]) or "none"
        raise RunRefused(f"checkpoint: {directory.path.name} has no {which!r}; there: {there}")
    return found


def step_in(path: Path) -> int:
    """The step of a checkpoint or snapshot, without reading its weights."""
    if path.suffix != ".ckpt":
        return int(_snapshot_facts(path)["step"])
    try:
        return int(load(path, mmap=True)["run"]["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunRefused(f"{path}: is not a checkpoint of a run ({error!r}); {REMEDY}") from error


def load_weights(path: Path) -> Weights:
    """The decoder's weights, fp32 on the CPU, of a checkpoint or a snapshot. Raises RunRefused if it is neither."""
    if path.suffix != ".ckpt":
        facts = _snapshot_facts(path)
        return Weights(path, facts["run"], int(facts["step"]), load_file(path))
    checkpoint = load(path, mmap=True)
    try:
        state = {name.removeprefix("decoder."): tensor for name, tensor in checkpoint["state_dict"].items()}
        return Weights(path, checkpoint["run"]["name"], int(checkpoint["run"]["step"]), state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunRefused(f"{path}: is not a checkpoint of a run ({error!r}); {REMEDY}") from error


def _snapshot_facts(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
        return {"run": facts["run"], "step": str(int(facts["step"]))}
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunRefused(f"{path}: cannot be read as a snapshot ({error}); remove it") from error


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor], facts: dict[str, str]) -> None:
    """Write beside the place, force to disk, rename."""
    beside = path.with_name(f".{path.name}.tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, metadata=facts)
    os.chmod(beside, 0o666 & ~_umask())  # safetensors makes files that only their owner can read
    with open(beside, "rb") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class CheckpointWriter(CheckpointIO):
    """Copies the state to host memory and lets training go on, while a thread writes it, one thing after the other.

    A file is written beside its place, forced to disk, verified and renamed: a kill leaves the old one or the new one.
    What went wrong in the thread is raised by the next call, as ExperimentError.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=_yield_to_training)
        self._pending: list[Future[None]] = []
        self._staging = Staging()
        self.at_once = False
        """Whether what is saved from now on is written before the call returns, at full priority: the run stops."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.finish()  # staging is about to be used again
        staged = self._staging.copy(checkpoint)
        self.then(lambda: write_checkpoint(staged, Path(path)))

    def then(self, action: Callable[[], object]) -> None:
        """Do this in the thread, when all before it is done."""
        if self.at_once:
            self.finish()
            self._unless_failed([], action)
            return
        self.check()
        self._pending.append(self._thread.submit(self._unless_failed, list(self._pending), action))

    @staticmethod
    def _unless_failed(earlier: list[Future[None]], action: Callable[[], object]) -> None:
        if all(future.exception() is None for future in earlier):
            try:
                action()
            except OSError as error:
                raise ExperimentError(f"the checkpoint could not be put in its place ({error})") from error

    def check(self) -> None:
        """Raises what went wrong so far. Does not wait."""
        for future in [future for future in self._pending if future.done()]:
            self._pending.remove(future)
            future.result()

    def finish(self) -> None:
        """Wait until everything is on disk. Raises what went wrong."""
        wait(self._pending)
        self.check()

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        verify(Path(path))
        return load(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)

    def teardown(self) -> None:
        self._thread.shutdown(wait=True)
        for future in self._pending:  # another error is on its way
            if (error := future.exception()) is not None:
                print(f"not saved: {error}", file=sys.stderr, flush=True)
        self._pending.clear()


def _yield_to_training() -> None:
    """This thread takes less of the CPU than the others; only Linux gives threads priorities of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


class Staging:
    """Host memory that a state is copied to: pinned for a GPU's tensors, and kept for the next time."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def copy(self, tree: Any) -> Any:
        """The same tree of containers with its tensors on the host. The copy before it is overwritten."""
        leaves, spec = tree_flatten(tree)
        old, self._buffers = iter(self._buffers), []
        staged = [self._stage(leaf, next(old, None)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return tree_unflatten(staged, spec)

    def _stage(self, tensor: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor:
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._buffers.append(buffer)
        return buffer.copy_(tensor.detach(), non_blocking=True)


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Raises ExperimentError, with the file that was there still in place, if it cannot be written."""
    beside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(checkpoint, beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        verify(beside)
        os.replace(beside, path)
    except (OSError, RuntimeError, RunRefused) as error:  # torch raises RuntimeError where the disk is full
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        free = ""
        with suppress(OSError):
            free = f"; {shutil.disk_usage(path.parent).free / 1e6:,.0f} MB are free"
        raise ExperimentError(
            f"{path}: the checkpoint could not be written ({reason}{free}). The one before is kept"
        ) from error
    finally:
        with suppress(OSError):  # the same fault once more
            beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def same_file(source: Path, target: Path) -> None:
    """Give `source` the second name `target`, replacing what was there: no copy where links work."""
    beside = target.with_name(f".{target.name}.tmp")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:
        shutil.copyfile(source, beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
    os.replace(beside, target)
    sync_directory(target.parent)


class RollingCheckpoint(Callback):
    """`last.ckpt` every so many tokens and where the run stops; `final.ckpt` at its end.

    It comes after evaluation, so that a checkpoint never is ahead of the run's records.
    """

    def __init__(
        self,
        directory: RunDirectory,
        schedule: Schedule,
        every_tokens: float,
        stop_step: int,
        writer: CheckpointWriter,
    ):
        self.directory, self.schedule, self.writer = directory, schedule, writer
        self.every_tokens, self.stop_step = every_tokens, stop_step

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        step = trainer.global_step
        self.writer.check()
        self.writer.at_once = step == self.stop_step
        if step == self.stop_step or self.schedule.is_due(step, self.every_tokens):
            self.save(trainer, module)
        if step == self.stop_step:
            self.writer.finish()

    def save(self, trainer: Trainer, module: PretrainingModule) -> None:
        step = trainer.global_step
        with module.aside():
            at_end = step == self.schedule.end_step
            target = self.directory.final if at_end else self.directory.last
            if (mark := module.mark_saved_at.get(step)) is None:
                trainer.save_checkpoint(target)
            elif trainer.is_global_zero:
                self.writer.then(lambda: same_file(mark, target))
            if at_end and trainer.is_global_zero:
                self.writer.then(lambda: self.directory.last.unlink(missing_ok=True))
