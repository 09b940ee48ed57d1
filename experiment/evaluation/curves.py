"""A loss curve over tokens: made non-increasing, read at a token count, inverted at a loss.

The estimator is the same for every curve, so that others can reproduce it: BPB in order of tokens,
isotonic regression with equal weights, piecewise linear in log tokens, inverse by first crossing.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


def monotone(bpb: np.ndarray) -> np.ndarray:
    """Non-increasing isotonic regression with equal weights along the last axis: [..., points] -> the same."""
    from sklearn.isotonic import isotonic_regression  # most of a second of imports, for reports only

    rows = bpb.reshape(-1, bpb.shape[-1])
    return np.stack([isotonic_regression(row, increasing=False) for row in rows]).reshape(bpb.shape)


@dataclass(frozen=True)
class Curve:
    """BPB over tokens; leading axes are replicates of the same curve."""

    tokens: np.ndarray
    """float64 [points], increasing."""
    bpb: np.ndarray
    """float64 [..., points], non-increasing along the last axis."""

    @classmethod
    def fitted(cls, tokens: np.ndarray, bpb: np.ndarray) -> "Curve":
        """Raises ValueError unless there is a point and `tokens` increase."""
        tokens = np.asarray(tokens, dtype=np.float64)
        if not len(tokens) or (np.diff(tokens) <= 0).any() or tokens[0] <= 0:
            raise ValueError("a curve needs points at increasing tokens above 0")
        return cls(tokens, monotone(np.asarray(bpb, dtype=np.float64)))

    @cached_property
    def _log(self) -> np.ndarray:
        return np.log(self.tokens)

    def covers(self, tokens: float) -> bool:
        return bool(self.tokens[0] <= tokens <= self.tokens[-1])

    def at(self, tokens: float) -> np.ndarray:
        """BPB at a token count [...]; NaN outside the measured range: nothing is extrapolated."""
        if not self.covers(tokens):
            return np.full(self.bpb.shape[:-1], np.nan)
        if len(self.tokens) == 1:
            return self.bpb[..., 0]
        right = min(max(int(np.searchsorted(self.tokens, tokens)), 1), len(self.tokens) - 1)
        share = (np.log(tokens) - self._log[right - 1]) / (self._log[right] - self._log[right - 1])
        return self.bpb[..., right - 1] * (1 - share) + self.bpb[..., right] * share

    def first_crossing(self, level: np.ndarray) -> np.ndarray:
        """Tokens at which the curve first comes down to `level` [...].

        +inf where it never does (right-censored), 0 where it starts below (left-censored), NaN for a NaN level.
        """
        level = np.asarray(level, dtype=np.float64)
        reached = self.bpb <= level[..., None]
        index = reached.argmax(-1)
        before = np.maximum(index - 1, 0)
        upper, lower = (np.take_along_axis(self.bpb, i[..., None], -1)[..., 0] for i in (before, index))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(index > 0, (upper - level) / (upper - lower), 0.0)
        crossing = np.exp(self._log[before] + share * (self._log[index] - self._log[before]))
        crossing = np.where(level > self.bpb[..., 0], 0.0, crossing)
        crossing = np.where(reached.any(-1), crossing, np.inf)
        return np.where(np.isnan(level), np.nan, crossing)
