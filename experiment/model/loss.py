"""The training loss, and the per-token loss that evaluation sums."""

import torch
from torch import Tensor
from torch.nn import functional as F


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Next-token negative log-likelihood in nats, in fp32: logits [n, vocab], targets [n] -> [n]."""
    return F.cross_entropy(logits.float(), targets, reduction="none")


def training_loss(logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Mean loss to train on and, detached, mean NLL to report: logits [n, vocab], targets [n].

    The first adds `z_loss` times the mean squared log-partition, which keeps logits from drifting
    (PaLM, arXiv 2204.02311, section 5).
    """
    logits = logits.float()
    nll = F.cross_entropy(logits, targets)
    if not z_loss:
        return nll, nll.detach()
    return nll + z_loss * torch.logsumexp(logits, dim=-1).square().mean(), nll.detach()
