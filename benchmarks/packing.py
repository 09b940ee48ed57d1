"""Packing against bare encoding on all cores: python benchmarks/packing.py [megabytes] [rounds]

Every worker has a part of a corpus on disk and its texts in memory. It takes one batch of documents after the other
both ways, in alternating order: the encoder alone, and all that a shard needs (reading, encoding, joining, writing).
Prints the median of the batches' ratios with its 95% interval, by bootstrap.
"""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import keep

from experiment.config.compose import compose
from experiment.data.corpus import SCHEMA, STORAGE, corpus, part_batches, read_split
from experiment.data.parts import cores
from experiment.data.shards import write_documents
from experiment.tokenizers.encoder import Encoder
from experiment.tokenizers.tokenizer import tokenizer_artifact

JOINED = 3  # of the embedded documents, which have 1 kB: pages of the web are longer


def pairs(tokenizer: Path, place: Path, shard: Path, rounds: int) -> list[tuple[float, float]]:
    """Seconds of each batch of a part: the encoder's alone, and those of packing."""
    encoder = Encoder(tokenizer)
    seconds = []
    for round_number in range(rounds):
        texts = [batch["text"].to_pylist() for batch in part_batches(place, ["text"])]  # anew: a str keeps its UTF-8
        batches = part_batches(place, ["text"])
        with open(shard, "wb") as file:
            for number, batch in enumerate(texts):
                encode = partial(encoder.encode_batch, batch)
                pack = partial(pack_next, encoder, batches, file)
                if (number + round_number) % 2:
                    seconds.append((timed(encode), timed(pack)))
                else:
                    seconds.append((timed(pack), timed(encode))[::-1])
    return seconds


def pack_next(encoder: Encoder, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    write_documents(encoder, next(batches)["text"], file)


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(megabytes: int, rounds: int) -> None:
    workers = cores()
    with TemporaryDirectory() as directory:
        root = Path(directory)
        config = compose(["scale.vocab_size=65536"]).config
        corpora = {lang: corpus(config.data, lang, root) for lang in config.tok.langs}
        tokenizer = tokenizer_artifact(config, corpora, root).path / "tokenizer.json"
        pieces = [text for found in corpora.values() for _, text in read_split(found, "train")]
        texts = ["\n".join(pieces[i : i + JOINED]) for i in range(0, len(pieces), JOINED)]
        size = sum(len(text.encode("utf-8")) for text in texts)
        repeats = max(1, round(megabytes * 1e6 / workers / size))
        places = [root / f"part-{i}" for i in range(workers)]
        for place in places:
            place.mkdir()
            rows = [{"id": str(i), "text": f"{i} {text}"} for i in range(repeats) for text in texts]
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), place / "train.parquet", **STORAGE)
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            jobs = [pool.submit(pairs, tokenizer, place, place / "shard.bin", rounds) for place in places]
            seconds = np.array([pair for job in jobs for pair in job.result()])
    rates = seconds[:, 0] / seconds[:, 1]
    draws = np.random.default_rng(0).choice(rates, (2000, len(rates)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    keep("packing", {"rate_over_encoder": float(np.median(rates)), "interval": [float(low), float(high)]})
    megabytes_packed = repeats * size * workers * rounds / 1e6
    print(f"{workers} workers, {len(rates)} batches, documents of {size / len(texts) / 1e3:.1f} kB, 65,536 entries")
    print(
        f"  packing runs at {np.median(rates):.3f} ({low:.3f} to {high:.3f}) of the encoder's own rate, "
        f"{megabytes_packed / seconds[:, 1].sum() * workers:.1f} MB/s"
    )


if __name__ == "__main__":
    main(*(int(a) for a in (sys.argv[1:] + ["40", "3"][len(sys.argv) - 1 :])))
