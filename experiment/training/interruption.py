"""Signals: finish the update, save, hand over."""

import signal
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import distributed

from experiment.errors import Interrupted
from experiment.training.checkpoints import RollingCheckpoint
from experiment.training.module import PretrainingModule

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Interruption(Callback):
    """Turns a signal into a saved run and `Interrupted`. The same signal again kills at once.

    Our handlers replace Lightning's, which would raise in the middle of things. With several ranks the signal may
    reach one of them only, so they vote after each update, on the host and in the background: the vote is counted
    after the next one, and no rank waits for its device.
    """

    def __init__(self, checkpoint: RollingCheckpoint):
        self.checkpoint = checkpoint
        self.received: int | None = None
        self.previous: dict[int, Any] = {}
        self.group: Any = None
        self.vote: tuple[torch.Tensor, Any] | None = None

    def on_train_start(self, trainer: Trainer, module: PretrainingModule) -> None:
        if trainer.world_size > 1:
            self.group, self.vote = distributed.new_group(backend="gloo"), None
        for number in SIGNALS:
            self.previous[number] = signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, signal.SIG_DFL)

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        if trainer.global_step == self.checkpoint.stop_step or not self._agreed(trainer):
            return
        self.checkpoint.writer.at_once = True
        self.checkpoint.save(trainer, module)
        self.checkpoint.writer.finish()
        trainer.strategy.barrier("saved")  # who leaves early may have the others killed
        before = self.previous.get(self.received or 0)
        if self.received == signal.SIGUSR2 and callable(before):
            before(self.received, None)  # submitit's: it queues the job again and leaves
        raise Interrupted(
            f"stopped by a signal after update {trainer.global_step}; saved. The same command continues the run"
        )

    def _agreed(self, trainer: Trainer) -> bool:
        if trainer.world_size == 1:
            return self.received is not None
        last, votes = self.vote, torch.tensor([float(self.received is not None)])
        self.vote = votes, distributed.all_reduce(votes, group=self.group, async_op=True)
        if last is None:
            return False
        counted, work = last
        work.wait()
        return bool(counted.item())

    def teardown(self, trainer: Trainer, module: PretrainingModule, stage: str) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous.clear()
