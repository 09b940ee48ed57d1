"""The questions of speed that only a GPU answers, in one call of under 8 minutes: python benchmarks/gpu.py

For the 1B model (scale=main) on one device: the ceiling of matrix multiplication at its shapes, attention backends,
compiling per block or whole, micro-batch and loss chunk, fp8 linears, then 60 seconds of the best configuration with
tok/s and MFU, the run against a bare loop, and whether bf16 and fp8 losses follow fp32. What was found is written
after each part to results/gpu.json, so that a call that is cut short has said what it knew. On a machine without a
GPU everything runs on a model of a few thousand weights, to show that the script works: its figures mean nothing.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from measuring import NOTHING_ELSE, keep, median_with_interval, run_with, timed
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import BareLoop

from experiment.config.compose import compose
from experiment.config.schema import Config
from experiment.model.size import flops_per_token
from experiment.training.devices import peak_flops
from experiment.training.module import PretrainingModule

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SECONDS = 440.0 if GPU else 120.0
SMALL = ["model.dim=64", "model.layers=2", "model.heads=2", "model.ffn_dim=128", "model.context=64"]
SHAPE = ["scale=main", "data=embedded"] if GPU else ["scale=main", "data=embedded", *SMALL, "scale.vocab_size=512"]
MICRO_BATCHES = (8, 16, 32, 64) if GPU else (2, 4)
CHUNKS = (None, 32768, 8192, 2048) if GPU else (None, 64)
FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def main() -> None:
    found: dict[str, Any] = {"reduced": not GPU}
    started = time.monotonic()
    for part in (ceiling, attention, steps, best_for_a_minute, run_against_bare, losses_follow):
        if time.monotonic() - started > SECONDS:
            found.setdefault("left out for want of time", []).append(part.__name__)
            continue
        start = time.monotonic()
        try:
            part(found)
        except Exception as error:  # the other parts have something to say as well
            found[part.__name__] = f"failed: {type(error).__name__}: {error}"[:400]
        print(f"{part.__name__} ({time.monotonic() - start:.0f} s): {found.get(part.__name__)}", flush=True)
        keep("gpu" if GPU else "gpu_reduced", found)


def config_of(*overrides: str) -> Config:
    return compose([*SHAPE, *overrides]).config


def fast(work: Callable[[], Any], repeats: int = 10) -> float:
    """Median seconds, the first two calls left out."""
    return median([timed(work) for _ in range(repeats + 2)][2:])


def ceiling(found: dict[str, Any]) -> None:
    """TFLOP/s of the model's multiplications, in bf16 and fp8, 16 windows at once."""
    model, tokens = config_of().model, 16 * config_of().model.context
    widths = {"qkv": 3 * model.dim, "gate_up": 2 * model.ffn_dim, "head": config_of().tok.vocab_size}
    rates = {}
    for name, width in widths.items():
        a = torch.randn(tokens, model.dim, device=DEVICE, dtype=torch.bfloat16)
        b = torch.randn(width, model.dim, device=DEVICE, dtype=torch.bfloat16)
        flops = 2e-12 * tokens * model.dim * width
        rates[name] = {"bf16": flops / fast(lambda a=a, b=b: a @ b.T)}
        if GPU:
            (a8, sa), (b8, sb) = (to_fp8(x, torch.float8_e4m3fn) for x in (a, b))
            work = lambda a=a8, b=b8, sa=sa, sb=sb: scaled_mm(a, b.T, sa, sb)  # noqa: E731
            rates[name]["fp8"] = flops / fast(work)
    found["ceiling"] = rates


def attention(found: dict[str, Any]) -> None:
    """Milliseconds of forward and backward of one layer, by backend."""
    model = config_of().model
    shape = (MICRO_BATCHES[1], model.heads, model.context, model.dim // model.heads)
    q, k, v, gradient = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    times: dict[str, Any] = {}
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    for backend in backends if GPU else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]:

        def both(backend: SDPBackend = backend) -> None:
            with sdpa_kernel(backend):
                y = functional.scaled_dot_product_attention(*inputs, is_causal=True)
            torch.autograd.grad(y, inputs, gradient)

        try:
            times[backend.name] = 1e3 * fast(both)
        except RuntimeError as error:
            times[backend.name] = str(error).splitlines()[0][:120]
    times["default"] = 1e3 * fast(
        lambda: torch.autograd.grad(functional.scaled_dot_product_attention(*inputs, is_causal=True), inputs, gradient)
    )
    found["attention"] = times


class Step:
    """An update of the bare loop on random tokens."""

    def __init__(self, config: Config, compile_as: str, fp8: bool = False):
        config.trainer.compile = compile_as == "block"
        torch.manual_seed(0)
        self.module = PretrainingModule(config, {}).to(DEVICE)
        if fp8:
            use_fp8(self.module.decoder.blocks)
        if compile_as == "whole":
            self.module.decoder.features = torch.compile(self.module.decoder.features, dynamic=False)
        self.optimizer = self.module.configure_optimizers()
        for group in self.optimizer.param_groups:
            group["lr"] = 3e-4
        self.windows = config.trainer.micro_batch or 1
        self.shape = (self.windows, config.model.context + 1)
        self.tokens = self.windows * config.model.context
        self.generator = torch.Generator().manual_seed(1)
        self.vocab = config.tok.vocab_size

    def __call__(self) -> Tensor:
        # Zipf-like tokens: something to learn
        uniform = torch.rand(self.shape, generator=self.generator)
        batch = (self.vocab**uniform - 1).long().clamp_(0, self.vocab - 1).to(DEVICE)
        objective, nll = self.module.losses(batch)
        objective.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return nll


@contextmanager
def room() -> Iterator[None]:
    """Compiled code and cached memory of what came before are dropped."""
    torch._dynamo.reset()
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    yield


def rate(**settings: Any) -> dict[str, Any]:
    """tok/s and peak memory of one way to train; the message of what stopped it."""
    compile_as, fp8 = settings.pop("compile_as"), settings.pop("fp8", False)
    config = config_of()
    config = replace(config, trainer=replace(config.trainer, **settings))
    with room():
        try:
            step = Step(config, compile_as, fp8)
            seconds = fast(step, 6)
            peak = torch.cuda.max_memory_allocated() / 2**30 if GPU else 0.0
            return {"tok_per_s": step.tokens / seconds, "GiB": peak}
        except (RuntimeError, torch.OutOfMemoryError) as error:
            return {"tok_per_s": 0.0, "stopped_by": str(error).splitlines()[0][:120]}


def steps(found: dict[str, Any]) -> None:
    """One choice after the other, each from the best so far."""
    tried: dict[str, Any] = {}
    best: dict[str, Any] = {"compile_as": "block", "micro_batch": MICRO_BATCHES[1], "loss_chunk": CHUNKS[-2]}

    found["steps"], found["best"] = tried, best
    until = time.monotonic() + SECONDS / 2

    def choose(name: str, values: tuple[Any, ...]) -> None:
        for value in values:
            if time.monotonic() > until:
                tried[f"{name}={value}"] = {"tok_per_s": 0.0, "stopped_by": "want of time"}
                continue
            tried[f"{name}={value}"] = rate(**best | {name: value})
            print(f"  {name}={value}: {tried[f'{name}={value}']}", flush=True)
        if any(tried[f"{name}={value}"]["tok_per_s"] for value in values):
            best[name] = max(values, key=lambda value: tried[f"{name}={value}"]["tok_per_s"])

    choose("compile_as", ("no", "block", "whole"))
    choose("micro_batch", MICRO_BATCHES)
    choose("loss_chunk", CHUNKS)
    if GPU:
        tried["fp8"] = rate(**best, fp8=True)


def best_for_a_minute(found: dict[str, Any]) -> None:
    """tok/s and MFU of the best configuration, in one minute without a pause."""
    settings = dict(found["best"])
    config = config_of()
    compile_as = settings.pop("compile_as")
    config = replace(config, trainer=replace(config.trainer, **settings))
    with room():
        step = Step(config, compile_as)
        for _ in range(3):
            timed(step)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < (60 if GPU else 3):
            step()
            count += 1
            if count % 10 == 0 and GPU:
                torch.cuda.synchronize()
        if GPU:
            torch.cuda.synchronize()
        speed = count * step.tokens / (time.perf_counter() - start)
    peak = peak_flops(DEVICE)
    mfu = speed * flops_per_token(config.model, config.tok.vocab_size) / peak if peak else None
    found["best_for_a_minute"] = {"tok_per_s": speed, "mfu": mfu, "updates": count}


def run_against_bare(found: dict[str, Any]) -> None:
    """How much longer an update takes in a run than in a bare loop; two layers, so that little hides it."""
    loops: list[BareLoop] = []

    def loop(run: Any, prepared: Any) -> BareLoop:
        loops.append(BareLoop(run, prepared))
        return loops[0]

    small = ["model.layers=2", "scale.vocab_size=8192"] if GPU else ["scale.vocab_size=512"]
    batch = 16 * config_of().model.context
    pairs = 60 if GPU else 10
    run_with(loop, [*SHAPE, *small, *NOTHING_ELSE, f"batch.tokens={batch}"], pairs + 6)
    ratio, low, high = median_with_interval([run / bare for run, bare in loops[0].pairs[5:-1]])
    found["run_against_bare"] = {"ratio": ratio, "interval": [low, high], "pairs": pairs}


def losses_follow(found: dict[str, Any]) -> None:
    """Mean difference from fp32 over the last 50 of 200 updates of the same model on the same tokens, in nats."""
    shape = ["model.layers=4", "model.dim=512", "model.heads=8", "model.ffn_dim=1408"] if GPU else []
    updates = 200 if GPU else 20
    last: dict[str, float] = {}
    for name in ("fp32", "bf16", *(["fp8"] if GPU else [])):
        config = config_of(*shape, f"trainer.precision={'fp32' if name == 'fp32' else 'bf16'}", "scale.vocab_size=8192")
        config = replace(config, trainer=replace(config.trainer, micro_batch=4))
        with room():
            step = Step(config, "no", fp8=name == "fp8")
            losses = [step().item() for _ in range(updates)]
        last[name] = sum(losses[-updates // 4 :]) / (updates // 4)
    found["losses_follow"] = {name: value - last["fp32"] for name, value in last.items()} | {"fp32": last["fp32"]}


def to_fp8(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor in fp8 and the factor that brings it back."""
    scale = x.abs().amax().float().clamp(min=1e-12) / FP8_MAX[kind]
    return (x.float() / scale).to(kind), scale


def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """a @ b of fp8 matrices, b column by column in memory."""
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


class _Fp8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        (x8, sx), (w8, sw) = to_fp8(x, torch.float8_e4m3fn), to_fp8(weight, torch.float8_e4m3fn)
        return scaled_mm(x8, w8.T, sx, sw)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        g8, sg = to_fp8(gradient, torch.float8_e5m2)
        w8, sw = to_fp8(weight.T.contiguous(), torch.float8_e4m3fn)
        x8, sx = to_fp8(x.T.contiguous(), torch.float8_e4m3fn)
        return scaled_mm(g8, w8.T, sg, sw), scaled_mm(g8.T.contiguous(), x8.T, sg, sx)


def use_fp8(blocks: nn.ModuleList) -> None:
    """Linear layers of the blocks multiply in fp8, with one factor per tensor."""
    for module in blocks.modules():
        if isinstance(module, nn.Linear):

            def forward(x: Tensor, module: nn.Linear = module) -> Tensor:
                flat = x.reshape(-1, x.shape[-1]).bfloat16()
                return _Fp8Matmul.apply(flat, module.weight.bfloat16()).view(*x.shape[:-1], -1)

            module.forward = forward


if __name__ == "__main__":
    main()
