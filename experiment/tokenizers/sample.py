"""The text a tokenizer is learned from: the difference between starved and destarved."""

import hashlib
from collections.abc import Iterable
from typing import Any

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, checksum
from experiment.data.corpus import read_split, require_file, world_texts
from experiment.matrix.languages import LANGUAGES


def destarved_amounts(available: dict[str, int]) -> dict[str, int]:
    """Bytes to take of each language so that all hold the same content (byte premiums, FACTS: FLORES+).

    The language that has least content for its premium gives all it has.
    """
    content = min(size / LANGUAGES[lang].byte_premium for lang, size in available.items())
    return {lang: int(content * LANGUAGES[lang].byte_premium) for lang in available}


def temperature_amounts(available: dict[str, int], total: int, temperature: float) -> dict[str, int]:
    """Bytes to take of each language: shares p ~ n^(1/T), and what a language lacks goes to the others.

    Raises no error where all of it is less than `total`: then everything is taken.
    """
    amounts: dict[str, int] = {}
    open_langs = sorted(available)
    left = total
    while open_langs:
        weights = {lang: available[lang] ** (1 / temperature) for lang in open_langs}
        norm = sum(weights.values())
        short = [lang for lang in open_langs if available[lang] <= left * weights[lang] / norm]
        if not short:
            return amounts | {lang: int(left * weights[lang] / norm) for lang in open_langs}
        for lang in short:
            amounts[lang] = available[lang]
            left -= available[lang]
            open_langs.remove(lang)
    return amounts


def take(pieces: Iterable[tuple[str, str]], amount: int) -> list[str]:
    """Texts of (key, text) pieces in the order of their keys' hashes until `amount` bytes are reached."""
    ordered = sorted(pieces, key=lambda piece: hashlib.sha256(piece[0].encode("utf-8")).digest())
    taken, size = [], 0
    for _, text in ordered:
        if size >= amount:
            break
        taken.append(text)
        size += len(text.encode("utf-8"))
    return taken


def training_text(config: Config, corpora: dict[str, Artifact]) -> tuple[list[str], dict[str, Any]]:
    """The texts one tokenizer is learned from, and the bytes of each language in them.

    Destarved: training documents of the study languages in content-matched amounts. Starved: the
    world's languages by temperature sampling, in the same total of bytes; lines that stand in a
    holdout document are left out.
    """
    amounts = destarved_amounts({lang: corpora[lang].facts["train"]["bytes"] for lang in config.tok.langs})
    if config.tok.condition == "destarved":
        texts = {lang: take(read_split(corpora[lang], "train"), amounts[lang]) for lang in amounts}
    else:
        held_out = {
            line for found in corpora.values() for _, text in read_split(found, "holdout") for line in text.splitlines()
        }
        lines = {
            lang: [
                line for line in text.splitlines(keepends=True) if line.strip() and line.rstrip("\r\n") not in held_out
            ]
            for lang, text in world_texts(config.data).items()
        }
        available = {lang: sum(len(line.encode("utf-8")) for line in kept) for lang, kept in lines.items()}
        amounts = temperature_amounts(available, sum(amounts.values()), config.tok.temperature)
        texts = {
            lang: take(((f"{lang}:{number}:{line}", line) for number, line in enumerate(lines[lang])), amounts[lang])
            for lang in sorted(amounts)
        }
    sizes = {lang: sum(len(text.encode("utf-8")) for text in taken) for lang, taken in texts.items()}
    return [text for taken in texts.values() for text in taken], {"bytes": sizes}


def world_fingerprint(config: Config) -> str | None:
    if config.tok.condition == "destarved":
        return None
    return checksum(require_file(str(config.data.world), "data.world"))
