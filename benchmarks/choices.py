"""What each choice brings: python benchmarks/choices.py [tiny|pilot] [rounds]

One model per choice, each differing from the default in one thing; an update of each in turn. Prints how many times
the tokens per second of the default each reaches, with the 95% interval of the median over the rounds.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from measuring import SHAPES, keep, median_with_interval, timed

from experiment.config.compose import compose
from experiment.training.devices import keep_freed_memory
from experiment.training.module import PretrainingModule

WARM = 3


def update_of(shape: str, choice: dict[str, Any]) -> Callable[[], None]:
    settings = {key: value for key, value in choice.items() if key != "fused"}
    config = compose(SHAPES[shape]).config
    config = replace(config, trainer=replace(config.trainer, **settings))
    module = PretrainingModule(config, {})
    optimizer = module.configure_optimizers()
    if not choice.get("fused", True):
        optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
    windows = config.batch.tokens // config.model.context
    batch = torch.randint(0, config.tok.vocab_size, (windows, config.model.context + 1))

    def update() -> None:
        micro_batches = batch.split(config.trainer.micro_batch or windows)
        for some in micro_batches:
            (module.losses(some)[0] / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), config.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return update


def main(shape: str, rounds: int) -> None:
    keep_freed_memory()
    choices: dict[str, dict[str, Any]] = {
        "default": {},
        "fp32": {"precision": "fp32"},
        "compiled blocks": {"compile": True},
        "optimizer not fused": {"fused": False},
        "loss of all tokens at once": {"loss_chunk": None},
        "loss in chunks of 256": {"loss_chunk": 256},
        "micro-batch of 1": {"micro_batch": 1},
        "micro-batch of 4": {"micro_batch": 4},
    }
    updates = {name: update_of(shape, choice) for name, choice in choices.items()}
    seconds: dict[str, list[float]] = {name: [] for name in choices}
    for _ in range(rounds + WARM):
        for name, update in updates.items():
            seconds[name].append(timed(update))
    figures = {}
    for name in choices:
        pairs = zip(seconds["default"][WARM:], seconds[name][WARM:], strict=True)
        figures[name] = median_with_interval([default / other for default, other in pairs])
        print(f"  {name:28} x {figures[name][0]:.2f} ({figures[name][1]:.2f} to {figures[name][2]:.2f})")
    keep(f"choices_{shape}", figures)


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["tiny"]), int((sys.argv[2:3] or [20])[0]))
