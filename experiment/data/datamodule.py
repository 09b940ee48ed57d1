"""The windows of each update, read at the position where training stands."""

import gc
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact
from experiment.data.order import SampleOrder, shares
from experiment.data.shards import TokenStream
from experiment.errors import RunRefused

HORIZON = 2**40
"""Updates after the position that the loader offers; training stops by itself long before."""


class Batches(Dataset):
    """Item k: the windows of update k (counted from 0) that belong to one rank, int64 [windows, context + 1]."""

    def __init__(self, config: Config, packed: dict[str, Artifact], rank: int, world_size: int):
        langs = config.mixture.langs
        self.context = config.model.context
        self.streams = [TokenStream(packed[lang]) for lang in langs]
        self.order = SampleOrder(
            langs=tuple(langs),
            windows=tuple(stream.windows(self.context) for stream in self.streams),
            shares=shares(config.mixture.probs, len(langs)),
            data_seed=config.data_seed,
        )
        self.windows_per_batch = config.batch.tokens // self.context
        self.share = self.windows_per_batch // world_size
        self.rank = rank

    def __getitem__(self, update: int) -> Tensor:
        first = update * self.windows_per_batch + self.rank * self.share
        langs, windows, _ = self.order.slots(first, first + self.share)
        batch = np.empty((self.share, self.context + 1), dtype=np.int64)
        for row, (lang, window) in enumerate(zip(langs, windows, strict=True)):
            batch[row] = self.streams[lang].window(int(window), self.context)
        return torch.from_numpy(batch)


def _collect_garbage(worker: int) -> None:
    gc.enable()  # which is off in the process that trains


class MixtureDataModule(LightningDataModule):
    """Reads on from `next_slot`, its whole state; a checkpoint of 2 ranks is read on by 1 or 4."""

    def __init__(self, config: Config, packed: dict[str, Artifact], rank: int, world_size: int):
        super().__init__()
        self.batches = Batches(config, packed, rank, world_size)
        self.workers = config.trainer.workers
        self.next_slot = 0

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {"next_slot": self.trainer.global_step * self.batches.windows_per_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_slot = int(state["next_slot"])

    def train_dataloader(self) -> DataLoader:
        update, rest = divmod(self.next_slot, self.batches.windows_per_batch)
        if rest:
            raise RunRefused(f"batch.tokens: slot {self.next_slot} of the checkpoint is inside a batch of this size")
        return DataLoader(
            self.batches,
            batch_size=None,  # an item is a batch
            sampler=range(update, update + HORIZON),
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_collect_garbage,
        )

    def epochs(self, updates: int) -> dict[str, float]:
        """Passes over each language's windows after this many updates."""
        return self.batches.order.epochs(updates * self.batches.windows_per_batch)
