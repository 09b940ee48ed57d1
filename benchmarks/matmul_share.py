"""Share of the machine's peak in matrix multiplication that blocks reach: python benchmarks/matmul_share.py [rounds]

Forward and backward of pilot-shaped blocks in bf16 autocast, eager and compiled, between runs of the bf16 matrix
multiplications that the blocks consist of, each at its own shape, and of one large square one: the peak is the best
rate of any of these. Prints FLOP/s over the peak, and where the time of the eager stack goes.
"""

import sys
from statistics import median

import torch
from measuring import keep, timed
from torch import nn
from torch.profiler import ProfilerActivity, profile

from experiment.config.compose import compose
from experiment.model.decoder import Block, rotary_table

LAYERS = 2
WINDOWS = 1


def main(rounds: int) -> None:
    model = compose(["scale=pilot", "data=embedded", "scale.vocab_size=8192"]).config.model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = WINDOWS * model.context
    blocks, compiled = (nn.ModuleList(Block(model) for _ in range(LAYERS)).to(device) for _ in range(2))
    for block in compiled:
        block.compile(dynamic=False)
    cos, sin = (table.to(device) for table in rotary_table(model.context, model.dim // model.heads, model.rope_base))
    x = torch.randn(WINDOWS, model.context, model.dim, device=device, requires_grad=True)
    gradient = torch.randn_like(x)

    def stack(layers: nn.ModuleList) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            y = x
            for block in layers:
                y = block(y, cos, sin)
        y.backward(gradient)
        for parameter in layers.parameters():
            parameter.grad = None

    dense = 6 * tokens * LAYERS * (4 * model.dim**2 + 3 * model.dim * model.ffn_dim)
    attention = 6 * tokens * LAYERS * model.context * model.dim  # of the causal half, which is all that is computed
    shapes = {"square": (2048, 2048, 2048)}
    shapes |= {
        name: (tokens, model.dim, width)
        for name, width in (("qkv", 3 * model.dim), ("out", model.dim), ("gate_up", 2 * model.ffn_dim))
    }
    shapes["down"] = (tokens, model.ffn_dim, model.dim)
    pairs = {
        name: (
            torch.randn(n, k, device=device, dtype=torch.bfloat16),
            torch.randn(m, k, device=device, dtype=torch.bfloat16),
        )
        for name, (n, k, m) in shapes.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*shapes, "eager", "compiled")}
    for _ in range(rounds + 2):
        for name, (a, b) in pairs.items():
            seconds[name].append(timed(lambda a=a, b=b: a @ b.T))
        seconds["eager"].append(timed(lambda: stack(blocks)))
        seconds["compiled"].append(timed(lambda: stack(compiled)))
    rates = {name: 2 * n * k * m / median(seconds[name][2:]) for name, (n, k, m) in shapes.items()}
    peak = max(rates.values())
    print(f"peak {peak / 1e12:.3f} TFLOP/s in bf16: " + ", ".join(f"{n} {r / peak:.0%}" for n, r in rates.items()))
    figures = {"peak_tflops": peak / 1e12}
    for name in ("eager", "compiled"):
        rate = (dense + attention) / median(seconds[name][2:])
        figures[name] = rate / peak
        print(f"  {LAYERS} blocks, forward and backward, {name}: {rate / peak:.0%} of the peak")
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        stack(blocks)
    if device.type == "cpu":
        events = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in events)
        figures["where"] = {event.key: event.self_cpu_time_total / total for event in events[:8]}
        print("  eager: " + ", ".join(f"{name} {share:.0%}" for name, share in figures["where"].items()))
    keep("matmul_share", figures)


if __name__ == "__main__":
    main(int((sys.argv[1:2] or [7])[0]))
