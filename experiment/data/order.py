"""The order of samples: a pure function from slot number to language and window.

Slot g is the g-th window of training, counted over the whole run. Nothing here knows about
devices, micro-batches or how far a run is, so none of these can change what is trained on.
All arithmetic is on integers and exact fractions: the same on every machine, for ever.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from experiment.config.schema import Config
from experiment.schedule import exact

BLOCK = 256
"""Slots per block. Each block holds the languages in exact proportion, shuffled."""
ROUNDS = 6


def key_of(*parts: int | str) -> np.uint64:
    """A 64-bit key for a tuple of names and numbers."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8")).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def mix(values: np.ndarray) -> np.ndarray:
    """A bijective scrambling of uint64 (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(index: np.ndarray, size: int, key: np.uint64) -> np.ndarray:
    """Where a keyed permutation of 0 .. size-1 sends each index: uint64 [n] -> int64 [n].

    A Feistel network on the smallest even number of bits that holds `size`, walked until the image
    is below `size` (cycle walking; Black and Rogaway 2002). O(1) in time and memory per index.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    round_keys = mix(key + np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    result = np.array(index, dtype=np.uint64)
    outside = np.arange(len(result))
    while len(outside):
        values = result[outside]
        left, right = values >> half, values & mask
        for round_key in round_keys:
            left, right = right, left ^ (mix(right + round_key) & mask)
        walked = (left << half) | right
        result[outside] = walked
        outside = outside[walked >= size]
    return result.astype(np.int64)


def shares(probs: Sequence[float] | None, count: int) -> tuple[Fraction, ...]:
    """Exact shares that sum to 1; None is uniform."""
    if probs is None:
        return (Fraction(1, count),) * count
    written = [exact(p) for p in probs]
    return tuple(p / sum(written) for p in written)


@dataclass(frozen=True)
class SampleOrder:
    """Which window every slot holds.

    `windows[i]` is the number of windows of language `langs[i]`, `shares[i]` its part of the slots.
    """

    langs: tuple[str, ...]
    windows: tuple[int, ...]
    shares: tuple[Fraction, ...]
    data_seed: int

    def counts_before(self, slot: int) -> list[int]:
        """Slots of each language in the first `slot` slots, at block borders: cumulative rounding.

        One language after the other takes its rounded part of what the earlier ones left, so
        counts never fall and always sum to `slot`.
        """
        counts, left, share_left = [], slot, Fraction(1)
        for share in self.shares:
            part = share / share_left if share_left else Fraction(0)
            taken = (2 * left * part.numerator + part.denominator) // (2 * part.denominator)
            counts.append(taken)
            left -= taken
            share_left -= share
        return counts

    def slots(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Language number, window number and epoch of the slots start .. stop-1, int64 [stop-start] each."""
        parts = []
        for block in range(start // BLOCK, (stop - 1) // BLOCK + 1):
            first = block * BLOCK
            langs, ranks = _block(self, block)
            inside = slice(max(start - first, 0), min(stop - first, BLOCK))
            parts.append((langs[inside], ranks[inside]))
        langs = np.concatenate([part[0] for part in parts])
        ranks = np.concatenate([part[1] for part in parts])
        window, epoch = np.empty_like(ranks), np.empty_like(ranks)
        for number, (lang, size) in enumerate(zip(self.langs, self.windows, strict=True)):
            mine = np.flatnonzero(langs == number)
            epoch[mine], within = np.divmod(ranks[mine], size)
            for e in np.unique(epoch[mine]):
                here = epoch[mine] == e
                key = key_of("epoch", self.data_seed, lang, int(e))
                window[mine[here]] = permute(within[here].astype(np.uint64), size, key)
        return langs, window, epoch

    def counts(self, slots: int) -> dict[str, int]:
        """Windows of each language in the first `slots` slots."""
        full, rest = divmod(slots, BLOCK)
        counts = np.array(self.counts_before(full * BLOCK))
        if rest:
            counts += np.bincount(_block(self, full)[0][:rest], minlength=len(self.langs))
        return {lang: int(n) for lang, n in zip(self.langs, counts, strict=True)}

    def epochs(self, slots: int) -> dict[str, float]:
        """Passes over each language's windows after the first `slots` slots."""
        return {lang: n / size for (lang, n), size in zip(self.counts(slots).items(), self.windows, strict=True)}


def tokens_by_language(config: Config, updates: int) -> dict[str, int]:
    """Tokens of each language that a run is trained on in its first updates."""
    langs, context = config.mixture.langs, config.model.context
    any_size = (1,) * len(langs)  # how many windows there are does not change whose turn it is
    order = SampleOrder(tuple(langs), any_size, shares(config.mixture.probs, len(langs)), config.data_seed)
    counts = order.counts(updates * (config.batch.tokens // context))
    return {lang: n * context for lang, n in counts.items()}


@lru_cache(maxsize=4)
def _block(order: SampleOrder, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Language number and rank within that language of each slot of a block, int64 [BLOCK] each."""
    before, after = order.counts_before(block * BLOCK), order.counts_before((block + 1) * BLOCK)
    langs = np.repeat(np.arange(len(before)), [b - a for a, b in zip(before, after, strict=True)])
    noise = mix(key_of("mixture", order.data_seed, block) + np.arange(BLOCK, dtype=np.uint64))
    langs = langs[np.argsort(noise, kind="stable")]
    ranks = np.empty(BLOCK, dtype=np.int64)
    for number, start in enumerate(before):
        mine = langs == number
        ranks[mine] = start + np.arange(mine.sum())
    return langs, ranks
