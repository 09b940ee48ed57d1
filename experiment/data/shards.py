"""Shards: a language's training documents as one stream of uint16 token ids, `<bos> doc <eos>` each."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, artifact
from experiment.data.corpus import part_batches
from experiment.data.parts import Advance, build_parts, cores
from experiment.errors import RunRefused
from experiment.matrix.names import tok_name
from experiment.run_directory import write_atomically
from experiment.tokenizers.encoder import Encoder, EncoderMismatch
from experiment.tokenizers.tokenizer import BOS, EOS

SHARD, DOCUMENTS = "shard.bin", "documents.npy"
BETWEEN = np.array([EOS, BOS], dtype=np.uint16)  # documents
FAST, REFERENCE = "fast", "reference"  # which encoder the shards in a directory are from


def shards(config: Config, lang: str, corpus: Artifact, tokenizer: Artifact, root: Path, workers: int = 1) -> Artifact:
    """Packed training tokens of a language under a tokenizer, made if missing: a shard per part of the corpus.

    Facts: `tokens`, `docs`, `bytes` (UTF-8, of the documents); `shards`, the tokens of each of `parts`; the `encoder`,
    whether it was `proven` to give the ids of `tokenizers`, and on how many documents it was `checked`. Beside a shard,
    `documents.npy` holds tokens and bytes of each of its documents, uint32 [documents, 2].
    """
    inputs = {"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint, "layout": "bos-doc-eos-uint16"}
    name = f"{config.data.corpus}-{lang}-{tok_name(config.tok.flavor, config.tok.condition)}"

    def build(out: Path) -> dict[str, Any]:
        if not (out / REFERENCE).exists():
            try:
                return _pack(corpus, tokenizer, out / FAST, workers, f"shards {name}", fast=True)
            except EncoderMismatch as error:
                print(f"{name}: {error}; encoding all of it again with the reference encoder", flush=True)
                (out / REFERENCE).mkdir()
        shutil.rmtree(out / FAST, ignore_errors=True)
        return _pack(corpus, tokenizer, out / REFERENCE, workers, f"shards {name}", fast=False)

    return artifact(root, "shards", name, inputs, build, config.data.missing == "build", resumable=True)


@dataclass(frozen=True)
class ShardPart:
    """A part of a corpus and what encodes it."""

    place: Path
    tokenizer: Path
    threads: int
    fast: bool


def _pack(corpus: Artifact, tokenizer: Artifact, out: Path, workers: int, label: str, fast: bool) -> dict[str, Any]:
    places = [corpus.path / part for part in corpus.facts["parts"]]
    workers = min(workers, len(places))
    threads = max(1, cores() // workers)
    jobs = [ShardPart(place, tokenizer.path / "tokenizer.json", threads, fast) for place in places]
    out.mkdir(exist_ok=True)
    facts: dict[str, Any] = {"tokens": 0, "docs": 0, "bytes": 0, "shards": [], "parts": []}
    facts |= {"encoder": "", "proven": True, "checked": 0}
    for _, place in build_parts(out, jobs, write_shard, workers, label, corpus.facts["train"]["bytes"]):
        counts = json.loads((place / "counts.json").read_text(encoding="utf-8"))
        for name in ("tokens", "docs", "bytes"):
            facts[name] += counts[name]
        facts["shards"].append(counts["tokens"])
        facts["parts"].append(f"{out.name}/{place.name}")
        facts["encoder"] = counts["encoder"]
        facts["proven"] &= counts["proven"]
        facts["checked"] += counts["checked"]
    return facts


def write_shard(job: ShardPart, out: Path, advance: Advance) -> None:
    """Encode the training documents of one part of a corpus."""
    encoder = Encoder(job.tokenizer, threads=job.threads, fast=job.fast)
    sizes: list[np.ndarray] = [np.empty((0, 2), dtype=np.uint32)]
    with open(out / SHARD, "wb") as file:
        for batch in part_batches(job.place, ["text"]):
            sizes.append(write_documents(encoder, batch["text"], file))
            advance(int(sizes[-1][:, 1].sum(dtype=np.int64)))
    documents = np.concatenate(sizes)
    np.save(out / DOCUMENTS, documents)
    total, size = (int(n) for n in documents.sum(axis=0, dtype=np.int64))
    counts = {"tokens": total, "docs": len(documents), "bytes": size} | encoder.facts
    write_atomically(out / "counts.json", json.dumps(counts))


def write_documents(encoder: Encoder, texts: pa.StringArray, file: BinaryIO) -> np.ndarray:
    """Append documents to a shard. Returns tokens and UTF-8 bytes of each, uint32 [documents, 2]."""
    encoded = encoder.encode_batch(texts.to_pylist())
    if encoded:
        file.write(BETWEEN[1:].tobytes() + BETWEEN.tobytes().join(encoded) + BETWEEN[:1].tobytes())
    lengths = np.fromiter(map(len, encoded), np.uint32, len(encoded)) + 2
    return np.array([lengths, pc.binary_length(texts).to_numpy()], dtype=np.uint32).T


class TokenStream:
    """The shards of one language as one sequence of tokens, memory-mapped."""

    def __init__(self, found: Artifact):
        sizes = found.facts["shards"]
        self.tokens = int(found.facts["tokens"])
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._files = [
            np.empty(0, np.uint16)
            if not size
            else np.memmap(found.path / part / SHARD, dtype=np.uint16, mode="r", shape=(int(size),))
            for part, size in zip(found.facts["parts"], sizes, strict=True)
        ]

    def windows(self, context: int) -> int:
        """How many windows there are: they start every `context` tokens and read one more.

        Raises RunRefused if there is not a single one.
        """
        count = (self.tokens - 1) // context
        if count < 1:
            raise RunRefused(f"model.context: {context} needs {context + 1} tokens, but the corpus has {self.tokens}")
        return count

    def window(self, index: int, context: int) -> np.ndarray:
        """uint16 [context + 1]: window number `index`, of which all but the first token are targets."""
        start, end = index * context, index * context + context + 1
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        if end <= self._starts[shard + 1]:
            offset = start - self._starts[shard]
            return self._files[shard][offset : offset + context + 1]
        parts = []
        while start < end:
            stop = min(end, int(self._starts[shard + 1]))
            parts.append(self._files[shard][start - self._starts[shard] : stop - self._starts[shard]])
            start, shard = stop, shard + 1
        return np.concatenate(parts)
