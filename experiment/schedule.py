"""Learning rate and marks: pure functions of the position on the token axis.

Positions, never lengths, round to steps, so that a trunk's mark and the start of its branch
are the same step, and a branch follows the rate that an uninterrupted run would have had.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment.config.schema import Config

DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    # Haegele et al., arXiv 2405.18392
    "1-sqrt": lambda p: 1.0 - math.sqrt(p),
    "linear": lambda p: 1.0 - p,
    "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
}
"""Share of (peak - floor) that is left when the fraction p of the decay is done."""


def exact(number: float) -> Fraction:
    """The decimal number that was written, without the error of its binary form."""
    return Fraction(repr(number))


def step_at(tokens: float | Fraction, batch_tokens: int, token_scale: float) -> int:
    """The step nearest to a nominal token position, half up."""
    position = tokens if isinstance(tokens, Fraction) else exact(tokens)
    return math.floor(position * exact(token_scale) / batch_tokens + Fraction(1, 2))


def steps_of_marks(marks: Sequence[float], batch_tokens: int, token_scale: float) -> dict[int, float]:
    """Step of each mark -> the mark in nominal tokens.

    Raises ValueError if a mark falls on step 0 or two marks fall on the same step.
    """
    steps: dict[int, float] = {}
    for mark in marks:
        step = step_at(mark, batch_tokens, token_scale)
        where = f"at scale.token_scale={token_scale:g} and batch.tokens={batch_tokens}"
        if step == 0:
            raise ValueError(f"{mark:g} is step 0 {where}")
        if step in steps:
            raise ValueError(f"{steps[step]:g} and {mark:g} are both step {step} {where}")
        steps[step] = mark
    return steps


@dataclass(frozen=True)
class Schedule:
    """Warmup, stable, decay. Lengths and the start are in nominal tokens; rates are per update.

    `start_tokens` is 0, or the trunk's mark for a branch.
    """

    peak_lr: float
    min_lr: float
    warmup_tokens: float
    stable_tokens: float
    decay_tokens: float
    decay_shape: str
    batch_tokens: int
    token_scale: float = 1.0
    start_tokens: float = 0.0

    @classmethod
    def from_config(cls, config: "Config") -> "Schedule":
        s = config.schedule
        return cls(
            peak_lr=s.peak_lr,
            min_lr=s.min_lr,
            warmup_tokens=s.warmup_tokens,
            stable_tokens=s.stable_tokens,
            decay_tokens=s.decay_tokens,
            decay_shape=s.decay_shape,
            batch_tokens=config.batch.tokens,
            token_scale=config.scale.token_scale,
            start_tokens=config.branch.mark or 0.0,
        )

    def _step_after(self, *lengths: float) -> int:
        position = exact(self.start_tokens) + sum(map(exact, lengths))
        return step_at(position, self.batch_tokens, self.token_scale)

    @cached_property
    def start_step(self) -> int:
        return self._step_after()

    @cached_property
    def warmup_end_step(self) -> int:
        return self._step_after(self.warmup_tokens)

    @cached_property
    def stable_end_step(self) -> int:
        return self._step_after(self.warmup_tokens, self.stable_tokens)

    @cached_property
    def decay_end_step(self) -> int:
        return self._step_after(self.warmup_tokens, self.stable_tokens, self.decay_tokens)

    @property
    def end_step(self) -> int:
        """The last update of the run."""
        return self.decay_end_step

    def lr_at(self, tokens: int) -> float:
        """The rate of the update that ends at `tokens` (real tokens, a multiple of the batch).

        Warmup is linear and above 0 from the first update; it ends at the peak. The decay ends
        at the floor exactly. Raises ValueError outside the run or inside a batch.
        """
        step, rest = divmod(tokens, self.batch_tokens)
        if rest:
            raise ValueError(f"{tokens} tokens are no multiple of the batch of {self.batch_tokens}")
        return self.lr_of_step(step)

    def lr_of_step(self, step: int) -> float:
        """The rate of update number `step`; the first update of a run is `start_step + 1`."""
        if not self.start_step < step <= self.end_step:
            raise ValueError(f"update {step} is outside {self.start_step + 1} .. {self.end_step}")
        if step <= self.warmup_end_step:
            return self.peak_lr * ((step - self.start_step) / (self.warmup_end_step - self.start_step))
        if step <= self.stable_end_step:
            return self.peak_lr
        done = (step - self.stable_end_step) / (self.decay_end_step - self.stable_end_step)
        if done == 1.0:
            return self.min_lr
        return self.min_lr + (self.peak_lr - self.min_lr) * DECAY_SHAPES[self.decay_shape](done)

    def phase_of_step(self, step: int) -> str:
        """`warmup`, `stable` or `decay`: the phase that update number `step` belongs to."""
        if step <= self.warmup_end_step and self.warmup_end_step > self.start_step:
            return "warmup"
        return "stable" if step <= self.stable_end_step else "decay"

    def is_due(self, step: int, every_tokens: float) -> bool:
        """Whether a multiple of the nominal distance `every_tokens` rounds to `step`."""
        every = exact(every_tokens) * exact(self.token_scale) / self.batch_tokens
        multiple = math.ceil((step - Fraction(1, 2)) / every)
        return multiple > 0 and multiple * every < step + Fraction(1, 2)
