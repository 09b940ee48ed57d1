"""What finding a sample costs: near and far slots, small and large corpora, and whole batches with reading.

    python benchmarks/sample_order.py

Ratios are between measurements that take turns in one process; the times beside them are this machine's.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measuring import keep

from experiment.data.artifacts import Artifact
from experiment.data.order import BLOCK, SampleOrder, shares
from experiment.data.shards import SHARD, TokenStream

REPEATS = 200
CONTEXT = 2048
TOKENS = 50_000_000


def order(windows: int) -> SampleOrder:
    return SampleOrder(("en", "ar"), (windows, windows), shares(None, 2), 0)


def medians(cases: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """Median seconds of each case; the cases take turns, and each call gets a number of its own."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for i in range(REPEATS):
        for name, case in cases.items():
            start = time.perf_counter()
            case(i)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def seek(mixture: SampleOrder, start: int) -> Callable[[int], object]:
    return lambda i: mixture.slots(start + i * BLOCK, start + i * BLOCK + 1)  # a block of its own: nothing is cached


def main() -> None:
    found = medians(
        {
            "slot 0, 10^4 windows": seek(order(10**4), 0),
            "slot 10^9, 10^4 windows": seek(order(10**4), 10**9),
            "slot 10^9, 10^9 windows": seek(order(10**9), 10**9),
            "slot 10^12, 10^9 windows": seek(order(10**9), 10**12),
        }
    )
    far = found["slot 10^9, 10^9 windows"]
    base = found["slot 0, 10^4 windows"]
    for name, seconds in found.items():
        print(f"{name:28} {seconds * 1e6:8.0f} us   x {seconds / base:.2f}")
    with tempfile.TemporaryDirectory() as place:
        tokens = np.random.default_rng(0).integers(0, 65536, TOKENS, dtype=np.uint16)
        (Path(place) / "part").mkdir()
        tokens.tofile(Path(place) / "part" / SHARD)
        stream = TokenStream(Artifact(Path(place), "", {"tokens": TOKENS, "shards": [TOKENS], "parts": ["part"]}))
        mixture = order(stream.windows(CONTEXT))

        def batch(i: int) -> None:
            _, windows, _ = mixture.slots(i * 64, i * 64 + 64)
            for window in windows:
                np.asarray(stream.window(int(window), CONTEXT), dtype=np.int64)

        seconds = medians({"batch": batch})["batch"]
    rate = 64 * CONTEXT / seconds
    print(f"order and reading, 64 windows of {CONTEXT}: {rate / 1e6:.0f}M tokens per second")
    keep("sample_order", {"order_and_reading_tok_per_s": rate, "seek_to_slot_1e9_s": far})


if __name__ == "__main__":
    main()
