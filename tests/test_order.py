"""The sample order is a pure function with exact proportions."""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiment.data.order import BLOCK, SampleOrder, _block, permute, shares

GOLDEN = ([1, 0, 0, 1, 0, 0], [652, 423, 999, 631, 716, 428], [386100, 700000, 700000, 386100, 700000, 700000])


def order(langs=("en", "ar"), windows=(1000, 777), probs=None, seed=0) -> SampleOrder:
    return SampleOrder(tuple(langs), tuple(windows), shares(probs, len(langs)), seed)


@st.composite
def mixtures(draw):
    parts = draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    probs = None if draw(st.booleans()) else [float(Fraction(p, sum(parts))) for p in parts]
    langs = ["en", "de", "fr", "ar", "zh"][: len(parts)]
    return order(langs, [draw(st.integers(1, 5000)) for _ in parts], probs, draw(st.integers(0, 3)))


@given(mixtures(), st.integers(0, 10**7))
@settings(deadline=None)
def test_counts_are_exact_in_every_block(mixture, block):
    langs, _, _ = mixture.slots(block * BLOCK, (block + 1) * BLOCK)
    counts = np.bincount(langs, minlength=len(mixture.langs))
    before, after = mixture.counts_before(block * BLOCK), mixture.counts_before((block + 1) * BLOCK)
    assert list(counts) == [b - a for a, b in zip(before, after, strict=True)]
    assert sum(after) == (block + 1) * BLOCK
    for share, count in zip(mixture.shares, after, strict=True):
        assert abs(count - (block + 1) * BLOCK * share) < len(mixture.shares)


@given(mixtures(), st.integers(0, 10**9), st.integers(1, 700))
@settings(deadline=None)
def test_a_slot_is_the_same_whoever_asks_for_it(mixture, start, count):
    whole = mixture.slots(start, start + count)
    for g in (start, start + count // 2, start + count - 1):
        alone = mixture.slots(g, g + 1)
        assert [part[0] for part in alone] == [part[g - start] for part in whole]


@pytest.mark.parametrize("probs", [None, [0.7, 0.3]])
def test_each_window_once_per_epoch(probs):
    mixture = order(windows=(300, 211), probs=probs)
    langs, windows, epochs = mixture.slots(0, 20 * BLOCK)
    for number, size in enumerate(mixture.windows):
        mine = langs == number
        for epoch in range(epochs[mine].max()):
            assert sorted(windows[mine & (epochs == epoch)]) == list(range(size))
        assert list(epochs[mine]) == sorted(epochs[mine])
    one, two = (windows[(langs == 0) & (epochs == epoch)].tolist() for epoch in (0, 1))
    assert one != two, "epochs have orders of their own"


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_permutation_is_one_to_one(size, key):
    image = permute(np.arange(size, dtype=np.uint64), size, np.uint64(key))
    assert sorted(image) == list(range(size))


def test_permutation_looks_random():
    """Neighbours do not stay neighbours, and every place is as likely: chi-square over 16 bins."""
    size, table = 10_000, np.zeros((16, 16))
    for key in range(20):
        image = permute(np.arange(size, dtype=np.uint64), size, np.uint64(key))
        np.add.at(table, (np.arange(size) * 16 // size, image * 16 // size), 1)
        assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.05
    expected = 20 * size / 256
    chi_square = ((table - expected) ** 2 / expected).sum()
    assert 150 < chi_square < 330  # 225 degrees of freedom


@pytest.mark.parametrize("probs", [None, [0.7, 0.3], [0.1, 0.9]])
def test_english_is_read_in_the_same_order_alone_and_in_a_pair(probs):
    alone = order(("en",), (1000,))
    pair = order(("en", "ar"), (1000, 777), probs)
    langs, windows, epochs = pair.slots(0, 3000)
    mine = langs == 0
    _, alone_windows, alone_epochs = alone.slots(0, int(mine.sum()))
    assert np.array_equal(windows[mine], alone_windows)
    assert np.array_equal(epochs[mine], alone_epochs)


def test_languages_seeds_and_epochs_have_different_orders():
    first = order(("en",), (5000,)).slots(0, 500)[1]
    assert not np.array_equal(first, order(("de",), (5000,)).slots(0, 500)[1])
    assert not np.array_equal(first, order(("en",), (5000,), seed=1).slots(0, 500)[1])


def test_the_order_never_changes():
    """Values that runs of years to come must reproduce."""
    langs, windows, epochs = order(probs=[0.7, 0.3]).slots(10**9, 10**9 + 6)
    assert (langs.tolist(), windows.tolist(), epochs.tolist()) == GOLDEN


@pytest.mark.parametrize("slot", [0, 10**9, 10**12])
def test_seeking_looks_at_one_block_however_far_and_however_large_the_corpus(slot):
    """How long that takes: benchmarks/sample_order.py."""
    huge = order(windows=(10**8, 10**9))
    _block.cache_clear()
    tracemalloc.start()
    huge.slots(slot, slot + 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert _block.cache_info().misses == 1
    assert peak < 100_000, "no table that grows with the corpus"


def test_epochs_are_counted():
    mixture = order(windows=(300, 211), probs=[0.7, 0.3])
    for slots in (0, 1, BLOCK, 1000, 12345):
        langs, _, _ = mixture.slots(0, slots) if slots else (np.array([], dtype=int),) * 3
        counts = np.bincount(langs, minlength=2)
        assert mixture.counts(slots) == {"en": counts[0], "ar": counts[1]}
        assert mixture.epochs(slots) == {"en": counts[0] / 300, "ar": counts[1] / 211}
