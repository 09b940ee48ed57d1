"""Bilingual transfer scores, the penalty for crossing scripts, and its interaction with the tokenizer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiment.evaluation.curves import Curve


@dataclass(frozen=True)
class Estimate:
    """A number with what is known of its error, or the reason why there is none."""

    value: float | None = None
    bound: tuple[str, float] | None = None
    """(`below`, x) or (`above`, x) where a censored member leaves only a bound: the truth is on that side of x."""
    reason: str | None = None
    """Why there is neither."""
    replicates: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What is resampled -> float64 [replicates]; +-inf where a replicate is censored, never dropped."""

    @classmethod
    def missing(cls, reason: str) -> "Estimate":
        return cls(reason=reason)


def relative_bts(mono: Curve, bi: Curve, share: float, budget: float) -> np.ndarray:
    """(BPB_mono(d) - BPB_bi(d / p)) / BPB_mono(d) [...]: 0 is neutral, above 0 the other language helps.

    d = `budget`, tokens of the language in either run; p = `share`, its share of the bilingual mix.
    """
    loss = mono.at(budget)
    return (loss - bi.at(budget / share)) / loss


def atlas_bts(mono: Curve, bi: Curve, share: float, budget: float) -> np.ndarray:
    """(1/p - sigma/d) / (1/p - 1) [...], sigma the total tokens at which the bilingual run has BPB_mono(d).

    ATLAS (arXiv 2510.22037, section 4 and appendix B.5.1) at p = 1/2: 2 - sigma/d. 0 is neutral, 1: the
    second language is free. -inf where sigma is beyond the run (right-censored), +inf where it is before
    its first point (left-censored).
    """
    sigma = bi.first_crossing(mono.at(budget))
    return np.where(sigma == 0.0, np.inf, _atlas(sigma, share, budget))


def atlas_bound(bi: Curve, share: float, budget: float, censored: str) -> float:
    """What a censored score is below (`right`: the last point) or above (`left`: the first point)."""
    return float(_atlas(bi.tokens[-1] if censored == "right" else bi.tokens[0], share, budget))


def _atlas(sigma: np.ndarray | float, share: float, budget: float) -> np.ndarray | float:
    return (1 / share - sigma / budget) / (1 / share - 1)


def combine(terms: Sequence[tuple[float, Estimate]]) -> Estimate:
    """The sum of weight x estimate. A missing member makes it missing, a censored one a bound.

    Bounds in opposite directions leave nothing.
    """
    if reasons := [estimate.reason for _, estimate in terms if estimate.reason]:
        return Estimate.missing("; ".join(dict.fromkeys(reasons)))
    total, sides = 0.0, set()
    for weight, estimate in terms:
        if estimate.bound is not None:
            side, number = estimate.bound
            sides.add(side if weight > 0 else {"below": "above", "above": "below"}[side])
        else:
            assert estimate.value is not None
            number = estimate.value
        total += weight * number
    kinds = set.intersection(*(set(estimate.replicates) for _, estimate in terms))
    with np.errstate(invalid="ignore"):  # inf - inf: NaN, a replicate that says nothing
        replicates = {
            kind: np.sum([weight * estimate.replicates[kind] for weight, estimate in terms], axis=0)
            for kind in sorted(kinds)
        }
    if len(sides) > 1:
        return Estimate.missing("members are censored in opposite directions")
    if sides:
        return Estimate(bound=(sides.pop(), total), replicates=replicates)
    return Estimate(total, replicates=replicates)


def mean(estimates: Sequence[Estimate]) -> list[tuple[float, Estimate]]:
    return [(1 / len(estimates), estimate) for estimate in estimates]


def penalty(same: Sequence[Estimate], cross: Sequence[Estimate]) -> Estimate:
    """Mean over same-script partners minus mean over cross-script partners: above 0, crossing scripts costs."""
    return combine([*mean(same), *((-weight, estimate) for weight, estimate in mean(cross))])


def interaction(starved: Estimate, destarved: Estimate) -> Estimate:
    """penalty(starved) - penalty(destarved): what of the penalty the tokenizer accounts for."""
    return combine([(1.0, starved), (-1.0, destarved)])


def interval(replicates: np.ndarray, level: float) -> tuple[float, float]:
    """Central percentile interval. A replicate that says nothing (NaN) counts at both ends."""
    tail = (1 - level) / 2
    low = np.quantile(np.where(np.isnan(replicates), -np.inf, replicates), tail, method="inverted_cdf")
    high = np.quantile(np.where(np.isnan(replicates), np.inf, replicates), 1 - tail, method="inverted_cdf")
    return float(low), float(high)


def seed_interval(values: Sequence[float], within: np.ndarray | None, level: float) -> tuple[float, float]:
    """Student interval for the mean over seeds, widened by what all seeds share (`within`: documents [replicates])."""
    from scipy.stats import t

    n = len(values)
    between = t.ppf((1 + level) / 2, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    shared = 0.0
    if within is not None:
        if not np.isfinite(within).all():
            return -math.inf, math.inf
        low, high = interval(within, level)
        shared = (high - low) / 2
    half = math.hypot(between, shared)
    centre = float(np.mean(values))
    return centre - half, centre + half
