"""Whether updates are finite, decided on the device: the host learns it later and never waits for a running step."""

import torch
from torch import Tensor

from experiment.errors import Diverged


class Health:
    """Keeps every update from being applied from the first one on whose gradient is not finite."""

    def __init__(self) -> None:
        self.loss: float | None = None
        """This rank's mean NLL in the last update that the host has heard of, in nats per token; None before it has."""
        self._first: Tensor | None = None  # float64 [3]: number of the first bad update or 0, its loss, its norm
        self._arriving: list[_HostCopy] = []

    def observe(self, update: int, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """1.0 if this update must not be applied, else 0.0, on the device, as fused optimizers take for `found_inf`.

        Raises Diverged for a bad update before the last one, whose numbers have had a whole step to arrive. The norm
        is the same on all ranks, so they raise together.
        """
        now = torch.stack([torch.full_like(grad_norm, update), loss, grad_norm]).double()
        nothing = torch.zeros_like(now)
        first = nothing if self._first is None else self._first
        bad = ~torch.isfinite(grad_norm)
        self._first = torch.where(first[0] > 0, first, torch.where(bad, now, nothing))
        self._arriving.append(_HostCopy(torch.cat([self._first, now[1:2]])))
        if len(self._arriving) > 1:
            self._hear(self._arriving.pop(0))
        return (self._first[0] > 0).float()

    def check(self) -> None:
        """Raises Diverged if any update so far was bad. Waits for the device."""
        while self._arriving:
            self._hear(self._arriving.pop(0))

    def _hear(self, copy: "_HostCopy") -> None:
        update, loss, grad_norm, self.loss = copy.read()
        if update:
            raise Diverged(
                f"update {update:.0f}: the gradient norm is {grad_norm} and the loss {loss:g}; "
                "the update was not applied"
            )


class _HostCopy:
    """A small tensor on its way to the host."""

    def __init__(self, tensor: Tensor):
        self._event = torch.cuda.Event() if tensor.is_cuda else None
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._host.copy_(tensor, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def read(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
