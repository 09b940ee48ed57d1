"""Packing against bare encoding on all cores: python benchmarks/packing.py [megabytes] [rounds]

The same documents and workers, both ways in turn: the encoder alone over texts in memory, and shards written from a
corpus on disk (reading, encoding, concatenating, writing, forcing to disk). Prints the ratio of the medians.
"""

import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from experiment.config.compose import compose
from experiment.data.corpus import SCHEMA, corpus, part_batches, read_split
from experiment.data.parts import cores
from experiment.data.shards import ShardPart, write_shard
from experiment.tokenizers.encoder import Encoder
from experiment.tokenizers.tokenizer import tokenizer_artifact

JOINED = 3  # of the embedded documents, which have 1 kB: pages of the web are longer


def encode_part(tokenizer: Path, place: Path) -> float:
    """Seconds to encode the texts of a part that are in memory already."""
    texts = [batch["text"].to_pylist() for batch in part_batches(place, ["text"])]
    start = time.perf_counter()
    encoder = Encoder(tokenizer)
    for batch in texts:
        encoder.encode_batch(batch)
    return time.perf_counter() - start


def pack_part(tokenizer: Path, place: Path, out: Path) -> float:
    """Seconds to make a shard from a part on disk."""
    out.mkdir(exist_ok=True)
    start = time.perf_counter()
    write_shard(ShardPart(place, tokenizer, 1, True), out, lambda count: None)
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
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), place / "train.parquet", compression="zstd")
        outs = [root / f"out-{i}" for i in range(workers)]
        bare, packed = [], []
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            for _ in range(rounds):
                bare.append(max(pool.map(encode_part, [tokenizer] * workers, places)))
                packed.append(max(pool.map(pack_part, [tokenizer] * workers, places, outs)))
        total = repeats * size * workers / 1e6
        rate = statistics.median(bare) / statistics.median(packed)
        kilobytes = size / len(texts) / 1e3
        print(f"{total:.0f} MB, documents of {kilobytes:.1f} kB, {workers} workers, {rounds} rounds, 65,536 entries")
        print(f"  packing runs at {rate:.2f} of the encoder's own rate ({total / statistics.median(packed):.1f} MB/s)")


if __name__ == "__main__":
    main(*(int(a) for a in (sys.argv[1:] + ["40", "3"][len(sys.argv) - 1 :])))
