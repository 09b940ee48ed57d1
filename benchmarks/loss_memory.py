"""Memory and time of the loss at a large vocabulary: python benchmarks/loss_memory.py [tokens] [vocab] [dim]

Loss and gradients of the head's input and weight, in bf16 autocast, each kind in a process of its own that measures
the growth of its peak memory: all logits at once by torch's cross_entropy and logsumexp (for the z-loss), ours with
all at once and in chunks, and torch's linear_cross_entropy (which has no z-loss). Prints peaks and seconds beside
those of the first, and the largest relative difference of the gradients.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn import functional

from experiment.model.loss import training_loss

Z_LOSS = 1e-4


def naive(features: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    logits = (features @ head.T).float()
    return functional.cross_entropy(logits, targets) + Z_LOSS * torch.logsumexp(logits, dim=-1).square().mean()


def ours(chunk: int | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda features, head, targets: training_loss(features, head, targets, Z_LOSS, chunk)[0]


KINDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "all logits, torch": naive,
    "ours, all logits": ours(None),
    "ours, chunks of 1024": ours(1024),
    "ours, chunks of 256": ours(256),
    "torch, linear_cross_entropy": functional.linear_cross_entropy,
}


def measure(kind: str, tokens: int, vocab: int, dim: int, place: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(tokens, dim, generator=generator).to(device).requires_grad_()
    head = (torch.randn(vocab, dim, generator=generator) * 0.02).to(device).requires_grad_()
    targets = torch.randint(0, vocab, (tokens,), generator=generator).to(device)
    before = peak(device, anew=True)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = KINDS[kind](features, head, targets)
        gradients = torch.autograd.grad(loss, [features, head])
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    grown = peak(device) - before
    torch.save([gradient.cpu() for gradient in gradients], place / f"{kind}.pt")
    print(json.dumps({"megabytes": grown / 1e6, "seconds": min(seconds)}))


def peak(device: str, anew: bool = False) -> float:
    """Bytes of memory at the highest so far, or from now on."""
    if device == "cuda":
        if anew:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main(tokens: int, vocab: int, dim: int) -> None:
    from measuring import keep

    found = {}
    with TemporaryDirectory() as directory:
        for kind in KINDS:
            command = [sys.executable, __file__, "--kind", kind, str(tokens), str(vocab), str(dim), directory]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            found[kind] = json.loads(result.stdout.splitlines()[-1])
            gradients, wanted = (torch.load(Path(directory) / f"{k}.pt") for k in (kind, "all logits, torch"))
            found[kind]["difference"] = max(
                float((mine - right).norm() / right.norm()) for mine, right in zip(gradients, wanted, strict=True)
            )
    first = found["all logits, torch"]
    print(f"{tokens:,} tokens, {vocab:,} entries, width {dim:,}")
    for kind, figures in found.items():
        print(
            f"  {kind:28} {figures['megabytes']:7,.0f} MB ({figures['megabytes'] / first['megabytes']:.2f})  "
            f"{figures['seconds']:6.2f} s ({figures['seconds'] / first['seconds']:.2f})  "
            f"gradients differ by {figures['difference']:.1e}"
        )
    keep("loss_memory", {"tokens": tokens, "vocab": vocab, "dim": dim} | found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--kind"]:
        measure(sys.argv[2], *(int(a) for a in sys.argv[3:6]), Path(sys.argv[6]))
    else:
        main(*(int(a) for a in (*sys.argv[1:], *["4096", "65536", "1024"][len(sys.argv) - 1 :])))
