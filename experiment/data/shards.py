"""Shards: a language's training documents as one stream of uint16 token ids, `<bos> doc <eos>` each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, artifact
from experiment.data.corpus import read_split
from experiment.errors import RunRefused
from experiment.matrix.names import tok_name
from experiment.tokenizers.tokenizer import BOS, EOS, Tokenizer, load_tokenizer

SHARD_TOKENS = 2**28
DOCS_AT_ONCE = 512


def shards(config: Config, lang: str, corpus: Artifact, tokenizer: Artifact, root: Path) -> Artifact:
    """Packed training tokens of one language under one tokenizer, made if missing.

    Facts: `tokens`, `docs`, `bytes` (UTF-8, of the documents), and `shards`, the tokens of each file.
    `documents.npy` holds tokens and bytes of each document.
    """
    inputs = {"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint, "layout": "bos-doc-eos-uint16"}
    name = f"{config.data.corpus}-{lang}-{tok_name(config.tok.flavor, config.tok.condition)}"
    return artifact(
        root,
        "shards",
        name,
        inputs,
        lambda out: _pack(corpus, load_tokenizer(tokenizer), out),
        config.data.missing == "build",
    )


def _pack(corpus: Artifact, tokenizer: Tokenizer, out: Path) -> dict[str, Any]:
    lengths: list[tuple[int, int]] = []
    shard_tokens: list[int] = []
    for ids, size in _encoded(corpus, tokenizer):
        if not shard_tokens or shard_tokens[-1] + len(ids) > SHARD_TOKENS:
            shard_tokens.append(0)
        with open(out / _shard_name(len(shard_tokens) - 1), "ab") as file:
            # a list of ids beyond 65,535 raises here, where astype would wrap in silence
            file.write(np.asarray(ids, dtype=np.uint16).tobytes())
        shard_tokens[-1] += len(ids)
        lengths.append((len(ids), size))
    np.save(out / "documents.npy", np.asarray(lengths, dtype=np.int64).reshape(-1, 2))
    return {
        "tokens": sum(shard_tokens),
        "docs": len(lengths),
        "bytes": sum(size for _, size in lengths),
        "shards": shard_tokens,
    }


def _encoded(corpus: Artifact, tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    texts: list[str] = []

    def flush() -> Iterator[tuple[list[int], int]]:
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            yield [BOS, *ids, EOS], len(text.encode("utf-8"))
        texts.clear()

    for _, text in read_split(corpus, "train"):
        texts.append(text)
        if len(texts) == DOCS_AT_ONCE:
            yield from flush()
    yield from flush()


def _shard_name(number: int) -> str:
    return f"shard_{number:05d}.bin"


class TokenStream:
    """The shards of one language as one sequence of tokens, memory-mapped."""

    def __init__(self, found: Artifact):
        sizes = found.facts["shards"]
        self.tokens = int(found.facts["tokens"])
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._files = [
            np.memmap(found.path / _shard_name(i), dtype=np.uint16, mode="r", shape=(int(size),))
            for i, size in enumerate(sizes)
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
