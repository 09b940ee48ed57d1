"""Encoding at speed: Encoder against tokenizers' encode_batch_fast: python benchmarks/encoding.py [MB]

The same embedded training documents of five languages, repeated up to so many megabytes, under byte-level BPE of up to
65,536 entries that is learned from them. Encoders take turns, with one thread and with all cores; every one of them
ends with uint16 arrays. Prints medians, their ratios and whether the ids are equal.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import Tokenizer

from experiment.config.compose import compose
from experiment.data.corpus import corpus, read_split
from experiment.tokenizers.byte_level import train_byte_level
from experiment.tokenizers.encoder import Encoder

ENTRIES = 65_536
ROUNDS = 5
AT_ONCE = 512  # documents


def main(megabytes: float) -> None:
    cores = len(os.sched_getaffinity(0))
    with TemporaryDirectory() as directory:
        root = Path(directory)
        data = compose().config.data
        documents = [
            t for lang in ("en", "de", "fr", "ar", "zh") for _, t in read_split(corpus(data, lang, root), "train")
        ]
        learned = train_byte_level(documents, ENTRIES)
        learned.save(str(root / "tokenizer.json"))
        start = time.perf_counter()
        encoders = {threads: Encoder(root / "tokenizer.json", threads) for threads in {1, cores}}
        ready = time.perf_counter() - start
    texts = repeated(documents, megabytes * 1e6)
    size = sum(len(text.encode("utf-8")) for text in texts) / 1e6
    learned.encode_special_tokens = True
    cases = {
        (name, threads): encode
        for threads in encoders
        for name, encode in (("Encoder", encoders[threads].encode_batch), ("tokenizers", reference(learned, threads)))
    }
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(ROUNDS + 1):
        results = []
        for case, encode in cases.items():
            start = time.perf_counter()
            results.append([ids for i in range(0, len(texts), AT_ONCE) for ids in encode(texts[i : i + AT_ONCE])])
            if number:  # the first round warms
                seconds[case].append(time.perf_counter() - start)
        equal = all(all(map(np.array_equal, results[0], result)) for result in results[1:])
    print(
        f"{len(texts):,} documents, {size:.1f} MB, {learned.get_vocab_size():,} entries, {cores} cores, {ROUNDS} rounds"
    )
    print(f"  made ready in {ready:.2f} s: {encoders[1].facts}")
    for threads in encoders:
        fast, slow = (statistics.median(seconds[name, threads]) for name in ("Encoder", "tokenizers"))
        rates = f"Encoder {size / fast:.1f} MB/s, tokenizers {size / slow:.1f} MB/s, x {slow / fast:.2f}"
        print(f"  {threads} threads: {rates}")
    print(f"  ids equal: {equal}")


def repeated(documents: list[str], size: float) -> list[str]:
    """Documents in turn until they hold `size` bytes."""
    mean = sum(len(text.encode("utf-8")) for text in documents) / len(documents)
    return list(islice(cycle(documents), max(1, round(size / mean))))


def reference(tokenizer: Tokenizer, threads: int) -> Callable[[list[str]], list[np.ndarray]]:
    def encode(texts: list[str]) -> list[np.ndarray]:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint16) for encoding in encodings]

    return encode


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
