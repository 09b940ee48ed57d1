"""The LightningModule: one Lightning batch is one update of the global batch."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from experiment.config.schema import Config
from experiment.model.decoder import Decoder
from experiment.model.loss import training_loss
from experiment.training.health import Health


class PretrainingModule(LightningModule):
    """Manual optimisation: micro-batches are a loop inside the step, so that Lightning's count of
    batches, its `global_step` and our updates are one number on any number of devices."""

    def __init__(self, config: Config, identity: dict[str, Any]):
        """`identity` says in plain values whose weights these are; it travels in every checkpoint."""
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.identity = identity
        self.decoder = Decoder(config.model, config.tok.vocab_size)
        self.decoder.initialise(config.seed)
        if config.trainer.compile:
            for block in self.decoder.blocks:
                block.compile(dynamic=False)
        self.health = Health()
        self.loss = torch.tensor(float("nan"))
        """Mean NLL of the last update's batch on this rank, in nats per token."""
        self.grad_norm = torch.tensor(float("nan"))
        """Global gradient norm of the last update, before clipping; the same on every rank."""
        self.seconds_aside = 0.0
        """Time this process has spent on evaluation and saving instead of training."""
        self.mark: float | None = None
        """The nominal mark of the permanent checkpoint that is being written."""
        self.mark_saved_at: dict[int, Path] = {}
        """Step -> permanent checkpoint written at it by this process."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What happens in here does not count as training time, and garbage is collected after it.

        Raises Diverged instead of saving or scoring weights that have stood still since a bad update.
        """
        self.health.check()
        start = time.perf_counter()
        try:
            yield
        finally:
            gc.collect()
            self.seconds_aside += time.perf_counter() - start

    def autocast(self) -> torch.autocast:
        """Compute precision; weights, gradients and the optimizer stay fp32."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.trainer.precision == "bf16")

    def features(self, ids: Tensor) -> Tensor:
        """The decoder's, in the compute precision."""
        with self.autocast():
            return self.decoder.features(ids)

    def logits(self, features: Tensor) -> Tensor:
        """The decoder's, in the compute precision."""
        with self.autocast():
            return self.decoder.logits(features)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """`batch`: int64 [windows of this rank, context + 1]. An update with a gradient that is not finite is not
        applied (a loss that is not finite has no finite gradient), nor is any after it; Diverged is raised one
        update later, when the device has told."""
        micro_batches = batch.split(self.config.trainer.micro_batch or len(batch))
        loss = torch.zeros((), device=self.device)
        for number, windows in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else self._without_sync():
                objective, nll = self.losses(windows)
                self.manual_backward(objective / len(micro_batches))
                loss += nll / len(micro_batches)
        self.loss = loss
        self.grad_norm = nn.utils.clip_grad_norm_(self.parameters(), self.config.optim.clip_norm)
        optimizer = self.optimizers()
        optimizer.optimizer.found_inf = self.health.observe(self.trainer.global_step + 1, loss, self.grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    def losses(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """What to train on and the mean NLL, of windows int64 [n, context + 1]."""
        targets, z_loss, chunk = windows[:, 1:].flatten(), self.config.model.z_loss, self.config.trainer.loss_chunk
        with self.autocast():
            features = self.decoder.features(windows[:, :-1]).flatten(0, 1)
            return training_loss(features, self.decoder.head.weight, targets, z_loss, chunk)

    def _without_sync(self) -> Any:
        model = self.trainer.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW; no weight decay on norms and on the embedding. The WSD callback sets the rate."""
        o = self.config.optim
        plain = {id(self.decoder.embedding.weight)}
        decayed = [p for p in self.parameters() if p.ndim >= 2 and id(p) not in plain]
        kept = [p for p in self.parameters() if p.ndim < 2 or id(p) in plain]
        groups = [{"params": decayed, "weight_decay": o.weight_decay}, {"params": kept, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.0, betas=(o.beta1, o.beta2), eps=o.eps, fused=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        tokens = self.trainer.global_step * self.config.batch.tokens
        checkpoint["run"] = self.identity | {"step": self.trainer.global_step, "tokens": tokens, "mark": self.mark}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        branches_here = checkpoint["run"]["name"] != self.identity["name"]
        if branches_here and not self.config.branch.load_optim:
            for state in checkpoint["optimizer_states"]:
                state["state"] = {}
