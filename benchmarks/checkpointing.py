"""What a checkpoint costs the training loop: python benchmarks/checkpointing.py [tiny|pilot] [saves]

In a real run every fifth update is followed by a save, in turn of two kinds: ours, and a plain `torch.save` of the
same state over a file. Prints how long the loop stands still for either, how much slower the updates after it are
than the others (ours is still being written during them), and the ratios of the first and of both together.
"""

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from measuring import NOTHING_ELSE, SHAPES, keep, run_with

from experiment.training.checkpoints import CheckpointWriter
from experiment.training.module import PretrainingModule

EVERY = 5
WARM = 10


class Saves(Callback):
    """Seconds that the loop stood still, and seconds of each update by how long ago a save of which kind was."""

    def __init__(self, place: Path):
        self.place, self.writer = place, CheckpointWriter()
        self.stood: dict[str, list[float]] = {"ours": [], "plain": []}
        self.after: dict[str, list[list[float]]] = {"ours": [], "plain": []}
        self.kind: str | None = None

    def on_train_start(self, *_: Any) -> None:
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        now = time.perf_counter()
        if self.kind is not None:
            self.after[self.kind][-1].append(now - self.since)
        if trainer.global_step >= WARM and trainer.global_step % EVERY == 0:
            self.writer.finish()
            self.kind = "plain" if self.kind == "ours" else "ours"
            state = trainer._checkpoint_connector.dump_checkpoint()
            start = time.perf_counter()
            if self.kind == "ours":
                self.writer.save_checkpoint(state, self.place / "ours.ckpt")
            else:
                torch.save(state, self.place / "plain.ckpt")
            self.stood[self.kind].append(time.perf_counter() - start)
            self.after[self.kind].append([])
        self.since = time.perf_counter()


def main(shape: str, saves: int) -> None:
    with TemporaryDirectory() as directory:
        callbacks: list[Saves] = []

        def make(*_: Any) -> Saves:
            callbacks.append(Saves(Path(directory)))
            return callbacks[0]

        run_with(make, [*SHAPES[shape], *NOTHING_ELSE], WARM + EVERY * (2 * saves + 1))
        found = callbacks[0]
        found.writer.finish()
        size = (Path(directory) / "plain.ckpt").stat().st_size / 1e6
    usual = median(seconds for group in found.after["plain"][1:] for seconds in group[1:])
    lost = {}
    for kind in ("ours", "plain"):
        stood = median(found.stood[kind][1:])  # the first takes memory that the later ones use again
        slower = median(sum(group) - usual * len(group) for group in found.after[kind][1:-1])
        lost[kind] = {"stood_still_s": stood, "slower_after_s": slower}
    ratio = lost["ours"]["stood_still_s"] / lost["plain"]["stood_still_s"]
    in_all = sum(lost["ours"].values()) / sum(lost["plain"].values())
    print(f"{shape}, {size:.0f} MB, {saves} saves of each kind, an update takes {usual:.3f} s")
    for kind, seconds in lost.items():
        print(
            f"  {kind:6} the loop stands still {seconds['stood_still_s']:.3f} s; "
            f"the {EVERY} updates after it take {seconds['slower_after_s']:+.3f} s more"
        )
    print(f"  ours / plain: {ratio:.2f} standing still, {in_all:.2f} in all")
    figures = {"megabytes": size, "update_s": usual, "standing_still": ratio, "in_all": in_all}
    keep(f"checkpointing_{shape}", lost | figures)


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["tiny"]), int((sys.argv[2:3] or [10])[0]))
