"""The texts that evaluation points score: holdout documents and parallel segments, as tokens."""

import hashlib
from typing import TypeVar

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact
from experiment.data.corpus import parallel_segments, read_split
from experiment.evaluation.bpb import Document
from experiment.tokenizers.tokenizer import BOS, EOS, Tokenizer

T = TypeVar("T")
Sources = dict[str, dict[str, list[Document]]]
"""Source -> language -> documents."""


def evaluation_sources(config: Config, corpora: dict[str, Artifact], tokenizer: Tokenizer) -> Sources:
    """Holdout and parallel text of the run's languages. Where fewer are wanted than there are, the hash
    of their id chooses, so parallel segments are the same ones in every language, run and tokenizer."""
    langs, wanted = config.mixture.langs, config.evaluation.holdout_docs
    sources: Sources = {"holdout": {}, "parallel": {}}
    for lang in langs:
        texts = [text for _, text in _chosen(list(read_split(corpora[lang], "holdout")), wanted)]
        sources["holdout"][lang] = documents(texts, tokenizer)
    segments = parallel_segments(config.data, langs)
    ordered = _chosen([(row["id"], row) for row in segments], None)
    for lang in langs:
        sources["parallel"][lang] = documents([row[lang] for _, row in ordered], tokenizer)
    return {source: by_lang for source, by_lang in sources.items() if any(by_lang.values())}


def documents(texts: list[str], tokenizer: Tokenizer) -> list[Document]:
    encoded = tokenizer.encode_batch(texts)
    return [Document([BOS, *ids, EOS], len(text.encode("utf-8"))) for text, ids in zip(texts, encoded, strict=True)]


def _chosen(items: list[tuple[str, T]], wanted: int | None) -> list[tuple[str, T]]:
    """Items in the order of their keys' hashes, the first `wanted` of them."""
    return sorted(items, key=lambda item: hashlib.sha256(item[0].encode("utf-8")).digest())[:wanted]
