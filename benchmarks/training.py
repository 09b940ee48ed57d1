"""Our run against a bare loop: python benchmarks/training.py [tiny|pilot] [pairs]

A real run, with its callbacks, progress and metrics, trains one model; between any two of its updates a bare loop
trains a second model of the same shape on the same batch. Prints how much longer an update takes in the run, from
one callback to the next, and the 95% interval of the median of the pairs.
"""

import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from measuring import NOTHING_ELSE, SHAPES, keep, median_with_interval, run_with, timed

from experiment.data.datamodule import Batches
from experiment.data.prepare import Prepared
from experiment.matrix.identity import Run
from experiment.training.module import PretrainingModule

WARM = 5


class BareLoop(Callback):
    """One update of the bare loop after each update of the run."""

    def __init__(self, run: Run, prepared: Prepared):
        self.batches = Batches(run.config, prepared.shards, 0, 1)
        self.module = PretrainingModule(run.config, {})
        self.pairs: list[tuple[float, float]] = []

    def on_train_start(self, trainer: Trainer, module: PretrainingModule) -> None:
        self.module.to(module.device)
        self.optimizer = self.module.configure_optimizers()
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        ours = time.perf_counter() - self.since
        self.pairs.append((ours, timed(lambda: self.update(trainer.global_step - 1))))
        self.since = time.perf_counter()

    def update(self, number: int) -> None:
        batch = self.batches[number].to(self.module.device)
        micro_batches = batch.split(self.module.config.trainer.micro_batch or len(batch))
        for windows in micro_batches:
            objective, _ = self.module.losses(windows)
            (objective / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.module.config.optim.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main(shape: str, pairs: int) -> None:
    loops: list[BareLoop] = []

    def bare_loop(run: Run, prepared: Prepared) -> BareLoop:
        loops.append(BareLoop(run, prepared))
        return loops[0]

    run_with(bare_loop, [*SHAPES[shape], *NOTHING_ELSE], WARM + pairs + 1)
    measured = loops[0].pairs[WARM:-1]  # the last update also saves
    ratio, low, high = median_with_interval([ours / bare for ours, bare in measured])
    print(f"{shape}: an update of the run takes {ratio:.4f} times a bare one ({low:.4f} to {high:.4f}), {pairs} pairs")
    keep(f"training_{shape}", {"pairs": pairs, "run_over_bare": ratio, "interval": [low, high]})


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["tiny"]), int((sys.argv[2:3] or [100])[0]))
