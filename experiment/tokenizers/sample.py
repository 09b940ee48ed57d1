"""The text a tokenizer is learned from: the difference between starved and destarved."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact
from experiment.data.corpus import read_split
from experiment.data.parallel import byte_premiums
from experiment.matrix.languages import LANGUAGES
from experiment.tokenizers.amounts import destarved_amounts, temperature_amounts
from experiment.tokenizers.world import world_pieces

Texts = dict[str, Callable[[], Iterator[str]]]
"""Language -> its texts, read anew by each call."""


def premiums_of(config: Config) -> dict[str, float]:
    """UTF-8 bytes for the same content, English = 1: those of the table, or measured on the data's parallel text."""
    if config.tok.byte_premium == "parallel":
        return byte_premiums(config.data, config.tok.langs)
    return {lang: LANGUAGES[lang].byte_premium for lang in config.tok.langs}


def weights_of(config: Config) -> dict[str, float]:
    """How a destarved sample is shared out, before it is scaled to its size."""
    return premiums_of(config) if config.tok.match == "content" else dict.fromkeys(config.tok.langs, 1.0)


def taken(pieces: Callable[[], Iterable[tuple[str, str]]], amount: int) -> tuple[Callable[[], Iterator[str]], int]:
    """The texts among (key, text) whose keys' hashes are smallest, until they have `amount` bytes, and their bytes.

    Reads twice and holds some 40 bytes for each piece, never the texts.
    """
    found = ((_key(key), len(text.encode("utf-8"))) for key, text in pieces())
    facts = np.fromiter(found, dtype=[("key", np.uint64), ("bytes", np.int64)])
    order = np.argsort(facts["key"], kind="stable")
    sizes = facts["bytes"][order]
    chosen = order[np.cumsum(sizes) - sizes < amount]
    wanted = np.zeros(len(facts), dtype=bool)
    wanted[chosen] = True

    def texts() -> Iterator[str]:
        for number, (_, text) in enumerate(pieces()):
            if wanted[number]:
                yield text

    return texts, int(facts["bytes"][chosen].sum())


def _key(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big")


def sample_amounts(config: Config, corpora: Mapping[str, Artifact]) -> dict[str, int]:
    """UTF-8 bytes of each study language in the destarved sample; the starved one has the same total."""
    available = {lang: corpora[lang].facts["train"]["bytes"] for lang in config.tok.langs}
    return destarved_amounts(available, weights_of(config), config.data.sample_bytes)


def training_text(
    config: Config, corpora: Mapping[str, Artifact], world: Artifact | None
) -> tuple[Texts, dict[str, Any]]:
    """The texts one tokenizer is learned from, and facts: UTF-8 `bytes` of each language, and which of them have
    given all they had (`short`), so that the others give more.

    Destarved: training documents of the study languages, matched by content or bytes. Starved: the world's languages
    by temperature sampling, in the same total of bytes. Nothing of the holdout is among them.
    """
    amounts = sample_amounts(config, corpora)
    facts: dict[str, Any] = {}
    if config.tok.condition == "destarved":
        pieces = {lang: _documents(corpora[lang]) for lang in amounts}
        if config.tok.match == "content":
            facts["byte_premium"] = {"from": config.tok.byte_premium, **weights_of(config)}
    else:
        pieces, sizes = world_pieces(config, corpora, world)
        available = {lang: sum(len(text.encode("utf-8")) for _, text in read()) for lang, read in pieces.items()}
        amounts = temperature_amounts(available, sum(amounts.values()), config.tok.temperature, sizes)
        facts["short"] = sorted(lang for lang in amounts if amounts[lang] >= available[lang])
    texts, sizes_taken = {}, {}
    for lang in sorted(amounts):
        texts[lang], sizes_taken[lang] = taken(pieces[lang], amounts[lang])
    return texts, {"bytes": sizes_taken} | facts


def _documents(found: Artifact) -> Callable[[], Iterator[tuple[str, str]]]:
    return lambda: read_split(found, "train")
