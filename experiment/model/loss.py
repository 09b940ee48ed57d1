"""The training loss with its gradient, and the per-token loss that evaluation sums."""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.nn import functional


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Next-token negative log-likelihood in nats, in fp32: logits [n, vocab], targets [n] -> [n]."""
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def training_loss(
    features: Tensor, head: Tensor, targets: Tensor, z_loss: float, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Mean loss to train on and, detached, mean NLL to report, of the logits `features @ head.T`.

    features [n, dim], head [vocab, dim], targets [n]. The first adds `z_loss` times the mean squared log-partition,
    which keeps logits from drifting (PaLM, arXiv 2204.02311, section 5). Logits are taken in autocast's precision,
    those of `chunk` tokens at a time (None: of all), and the rest in that of `head`.

    The gradient is taken with the loss, in the same memory and without a second pass over the logits: per token,
    softmax * (1 + 2 z_loss log-partition), less one at the target. It can be used once.
    """
    device = features.device.type
    compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.dtype
    objective, nll = _LossAndGradient.apply(features, head, targets, z_loss, chunk or len(features), compute)
    return objective, nll


class _LossAndGradient(Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        features: Tensor,
        head: Tensor,
        targets: Tensor,
        z_loss: float,
        chunk: int,
        compute: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        count, weight = len(features), head.to(compute)
        of_features, of_head = torch.empty_like(features), torch.zeros_like(head)
        nll, square = torch.zeros((2,), dtype=head.dtype, device=head.device)
        for start in range(0, count, chunk):
            inside = slice(start, start + chunk)
            some, wanted = features[inside].to(compute), targets[inside, None]
            logits = (some @ weight.T).to(head.dtype)
            log_probs = functional.log_softmax(logits, dim=-1)
            log_partition = logits[:, :1] - log_probs[:, :1]
            del logits
            nll -= log_probs.gather(1, wanted).sum()
            square += log_partition.square().sum()
            of_logits = log_probs.exp_().mul_((1 + 2 * z_loss * log_partition) / count)
            of_logits.scatter_add_(1, wanted, torch.full_like(log_partition, -1 / count))
            of_logits = of_logits.to(compute)
            of_features[inside] = of_logits @ weight
            of_head += of_logits.T @ some
        ctx.gradients = of_features, of_head
        nll = nll / count
        ctx.mark_non_differentiable(nll)
        return nll + z_loss * square / count, nll

    @staticmethod
    def backward(ctx: FunctionCtx, of_objective: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_features, of_head = ctx.gradients
        del ctx.gradients
        return of_features.mul_(of_objective), of_head.mul_(of_objective), None, None, None, None
