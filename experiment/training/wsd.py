"""The WSD callback: warmup, stable, decay by tokens, and the permanent checkpoints of the stable phase."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from experiment.matrix.names import mark_name
from experiment.run_directory import RunDirectory
from experiment.schedule import Schedule
from experiment.training.module import PretrainingModule


class WSD(Callback):
    """Sets the rate of each update from its position and writes `stable_*` at the marks, exactly once."""

    def __init__(self, directory: RunDirectory, schedule: Schedule, marks: dict[int, float]):
        self.directory, self.schedule, self.marks = directory, schedule, marks
        self.missing: dict[int, float] = {}

    def on_train_start(self, trainer: Trainer, module: PretrainingModule) -> None:
        # decided before the first step and behind a barrier: every rank sees the same files
        self.missing = {
            step: mark for step, mark in self.marks.items() if not self.directory.checkpoint(mark_name(mark)).exists()
        }
        trainer.strategy.barrier("marks")

    def on_train_batch_start(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        rate = self.schedule.lr_of_step(trainer.global_step + 1)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        mark = self.missing.pop(trainer.global_step, None)
        if mark is None:
            return
        path = self.directory.checkpoint(mark_name(mark))
        with module.aside():
            module.mark = mark
            trainer.save_checkpoint(path)
            module.mark = None
        module.mark_saved_at[trainer.global_step] = path
