"""What tokenizers do to parallel text, what their vocabularies hold, and whether two conditions differ enough.

tokenizer.json -> what each id stands for -> metrics per tokenizer and language, comparisons, a verdict per flavor
"""

import hashlib
import json
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from fontTools import unicodedata

from experiment.config.schema import Data
from experiment.data.artifacts import Artifact
from experiment.data.parallel import is_development, parallel_segments
from experiment.errors import ExperimentError
from experiment.matrix.languages import LANGUAGES
from experiment.tokenizers.byte_level import byte_of_letter
from experiment.tokenizers.tokenizer import load_tokenizer

RENYI_ALPHA = 2.5
SAMPLES = 3
WITHOUT_SPACES = ("Han",)
"""Scripts whose words are not separated by spaces: tokens per word needs a segmenter there."""
COMMON, MIXED, PARTIAL = "Zyyy", "mixed", "partial"
"""What stands for the script of an entry without letters, with letters of several scripts, of a part of a character."""
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Encodes(Protocol):
    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]: ...


@dataclass(frozen=True)
class Vocabulary:
    """What each id of a tokenizer stands for."""

    pieces: tuple[bytes | None, ...]
    """By id: the bytes of text that it is; None for a special token."""
    fallback: frozenset[int]
    """Ids that text is spelled with where no entry holds a character: bytes, or parts of a character."""

    def text(self, i: int) -> str | None:
        """The characters of an entry; None for special tokens and byte fallback."""
        piece = self.pieces[i]
        return None if piece is None or i in self.fallback else piece.decode("utf-8")


def read_vocabulary(file: Path) -> Vocabulary:
    """The vocabulary of a `tokenizer.json`: byte-level, or of characters with `<0xNN>` for bytes.

    Fallback in a byte-level vocabulary is every entry that is no whole characters; bytes of ASCII are characters.
    """
    spec = json.loads(file.read_text(encoding="utf-8"))
    entries = spec["model"]["vocab"]
    names = entries if isinstance(entries, dict) else {name: i for i, (name, _) in enumerate(entries)}
    names = names | {token["content"]: token["id"] for token in spec["added_tokens"]}
    special = {token["id"] for token in spec["added_tokens"] if token["special"]}
    bytewise = spec["decoder"]["type"] == "ByteLevel"
    pieces: list[bytes | None] = [None] * (max(names.values()) + 1)
    fallback = set()
    for name, i in names.items():
        if i in special:
            continue
        if bytewise:
            piece = bytes(byte_of_letter()[character] for character in name)
            if not _is_text(piece):
                fallback.add(i)
        elif byte := BYTE_PIECE.fullmatch(name):
            piece = bytes.fromhex(byte[1])
            fallback.add(i)
        else:
            piece = name.encode("utf-8")
        pieces[i] = piece
    return Vocabulary(tuple(pieces), frozenset(fallback))


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class Subject:
    """A tokenizer under analysis."""

    encoder: Encodes
    vocabulary: Vocabulary


def subject_of(found: Artifact) -> Subject:
    return Subject(load_tokenizer(found), read_vocabulary(found.path / "tokenizer.json"))


def judging_segments(data: Data, langs: Sequence[str]) -> list[dict[str, Any]]:
    """The parallel segments that no tokenizer may look at while it is learned: the same for every flavor.

    Raises ExperimentError where there are none.
    """
    segments = [row for row in parallel_segments(data, langs) if not is_development(row)]
    if not segments:
        raise ExperimentError(f"data.parallel: {data.parallel} has no segment for judging; all are for development")
    return segments


def analyse(
    subjects: Mapping[str, Subject], segments: Sequence[Mapping[str, str]], langs: Sequence[str], gate: float
) -> dict[str, Any]:
    """Everything about tokenizers named `<flavor>_<condition>`, as plain values.

    `segments`: parallel text, `id` and one text per language. Raises ExperimentError for a tokenizer that does
    not give a segment back.
    """
    subjects = dict(sorted(subjects.items(), key=lambda item: not item[0].endswith("_starved")))
    ids = {name: _encoded(name, subject, segments, langs) for name, subject in subjects.items()}
    rows = []
    for name, subject in subjects.items():
        for lang in langs:
            metrics = text_metrics(subject.vocabulary, ids[name][lang], [row[lang] for row in segments], lang)
            rows.append({"tok": name, "lang": lang, **metrics})
    tokens = {(row["tok"], row["lang"]): row["tokens"] for row in rows}
    for row in rows:
        english = tokens.get((row["tok"], "en"))
        row["parity"] = None if english is None else row["tokens"] / english
    comparisons = []
    for a, b in combinations(subjects, 2):
        ratios = {lang: tokens[a, lang] / tokens[b, lang] for lang in langs}
        overlap = jaccard(subjects[a].vocabulary, subjects[b].vocabulary)
        comparisons.append({"of": a, "to": b, "ratios": ratios, "jaccard": overlap})
    flavors = dict.fromkeys(name.rpartition("_")[0] for name in subjects)
    return {
        "langs": list(langs),
        "segments": len(segments),
        "gate": gate,
        "verdicts": {flavor: verdict(flavor, list(subjects), comparisons, gate) for flavor in flavors},
        "comparisons": comparisons,
        "tokenizers": {
            name: {
                "entries": len(subject.vocabulary.pieces),
                "special": subject.vocabulary.pieces.count(None),
                "gini": gini([tokens[name, lang] for lang in langs]),
                "gini_of_segments": _gini_of_segments(ids[name], langs),
                "renyi_efficiency": renyi_efficiency(
                    _counts(subject.vocabulary, [one for lang in langs for one in ids[name][lang]])
                ),
                "scripts": scripts(subject.vocabulary),
            }
            for name, subject in subjects.items()
        },
        "rows": rows,
        "samples": _samples(subjects, ids, segments, langs),
    }


def _encoded(
    name: str, subject: Subject, segments: Sequence[Mapping[str, str]], langs: Sequence[str]
) -> dict[str, list[Sequence[int]]]:
    """Language -> ids of each segment, whose pieces are seen to make up the text."""
    found = {}
    for lang in langs:
        found[lang] = list(subject.encoder.encode_batch([row[lang] for row in segments]))
        for row, ids in zip(segments, found[lang], strict=True):
            if b"".join(subject.vocabulary.pieces[i] or b"" for i in ids) != row[lang].encode("utf-8"):
                raise ExperimentError(
                    f"{name}: segment {row['id']} in {lang} is not what its tokens spell; the numbers of a tokenizer "
                    "that loses text cannot be compared"
                )
    return found


def text_metrics(
    vocabulary: Vocabulary, ids: Sequence[Sequence[int]], texts: Sequence[str], lang: str
) -> dict[str, Any]:
    """What a tokenizer makes of the texts of one language, whose tokens are `ids`; <bos> and <eos> are not among them.

    `byte_share` is of tokens that are byte fallback, `character_share` of tokens of one code point, a leading
    space not counted. `tokens_per_word` is None where words are not separated by whitespace.
    """
    counts = _counts(vocabulary, ids)
    tokens, size = int(counts.sum()), sum(len(text.encode("utf-8")) for text in texts)
    words = None if LANGUAGES[lang].script in WITHOUT_SPACES else sum(len(text.split()) for text in texts)
    characters = [i for i in np.flatnonzero(counts).tolist() if _is_character(vocabulary.text(i))]
    return {
        "segments": len(texts),
        "bytes": size,
        "tokens": tokens,
        "tokens_per_segment": tokens / len(texts),
        "bytes_per_token": size / tokens,
        "words": words,
        "tokens_per_word": tokens / words if words else None,
        "byte_share": int(counts[list(vocabulary.fallback)].sum()) / tokens,
        "character_share": int(counts[characters].sum()) / tokens,
        "renyi_efficiency": renyi_efficiency(counts),
    }


def _counts(vocabulary: Vocabulary, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """int64 [entries]: how often each entry occurs."""
    return np.bincount(np.concatenate([np.asarray(one, np.int64) for one in ids]), minlength=len(vocabulary.pieces))


def _is_character(text: str | None) -> bool:
    return text is not None and len(text.removeprefix(" ") or text) == 1


def renyi_efficiency(counts: np.ndarray, alpha: float = RENYI_ALPHA) -> float:
    """H_alpha(p) / log |V|, with H_alpha(p) = log(sum p^alpha) / (1 - alpha) and |V| all entries, used or not.

    Zouhar et al. 2023, "Tokenization and the Noiseless Channel" (ACL 2023.acl-long.284), where alpha = 2.5 goes best
    with translation quality; their `tokenization-scorer` takes the entries that occur for V unless told otherwise.
    """
    p = counts[counts > 0] / counts.sum()
    return float(np.log((p**alpha).sum()) / (1 - alpha) / np.log(len(counts)))


def gini(costs: Sequence[float]) -> float:
    """sum_ij |c_i - c_j| / (2 n^2 mean c): 0 where all are equal, at most 1 - 1/n.

    Of the mean tokens per parallel line (or their totals) over languages it is the measure of fairness of
    parity-aware BPE (arXiv 2508.04796).
    """
    c = np.asarray(costs, np.float64)
    return float(np.abs(c[:, None] - c[None, :]).sum() / (2 * len(c) ** 2 * c.mean()))


def _gini_of_segments(ids: Mapping[str, Sequence[Sequence[int]]], langs: Sequence[str]) -> float:
    """The mean over segments of the Gini of their tokens over the languages: above `gini`, for single lines
    differ in more than the tokenizer."""
    lengths = np.array([[len(one) for one in ids[lang]] for lang in langs])
    return float(np.mean([gini(segment) for segment in lengths.T]))


@cache
def _script(character: str) -> str:
    return unicodedata.script(character)


def script_of(text: str) -> tuple[str, int]:
    """(ISO 15924 code, letters of it) of an entry; a letter is a character whose Script property names a script.

    `Zyyy` where there is none (Common and Inherited: spaces, digits, punctuation, combining marks), `mixed` for
    letters of several scripts.
    """
    letters = [script for script in map(_script, text) if script not in ("Zyyy", "Zinh")]
    if not letters:
        return COMMON, 0
    return (letters[0], len(letters)) if len(set(letters)) == 1 else (MIXED, len(letters))


def scripts(vocabulary: Vocabulary) -> dict[str, dict[str, int]]:
    """Script -> entries of it, and how many of these are `multi`: two or more of its letters. Most entries first.

    Byte fallback is `partial`; special tokens are left out.
    """
    found: dict[str, dict[str, int]] = {}
    for i, piece in enumerate(vocabulary.pieces):
        if piece is not None:
            text = vocabulary.text(i)
            script, letters = (PARTIAL, 0) if text is None else script_of(text)
            count = found.setdefault(script, {"entries": 0, "multi": 0})
            count["entries"] += 1
            count["multi"] += letters > 1
    return dict(sorted(found.items(), key=lambda item: (-item[1]["entries"], item[0])))


def jaccard(a: Vocabulary, b: Vocabulary) -> float:
    """Entries that both have, over those that either has; special tokens are left out."""

    def entries(vocabulary: Vocabulary) -> set[tuple[bytes, bool]]:
        pairs = enumerate(vocabulary.pieces)
        return {(piece, i in vocabulary.fallback) for i, piece in pairs if piece is not None}

    return len(entries(a) & entries(b)) / len(entries(a) | entries(b))


def verdict(
    flavor: str, names: Collection[str], comparisons: Sequence[Mapping[str, Any]], gate: float
) -> dict[str, Any]:
    """Whether the starved form of a flavor needs at least `gate` times the tokens of the destarved one in every
    language, as `differ` (None where a form is not there) and as a `sentence`."""
    starved, destarved = f"{flavor}_starved", f"{flavor}_destarved"
    pair = next((one for one in comparisons if (one["of"], one["to"]) == (starved, destarved)), None)
    if pair is None:
        there = starved if starved in names else destarved
        why = f"only {there} is here, so its conditions cannot be told apart."
        if flavor == "pa":
            why = (
                "no starved form exists, for parity-aware BPE needs training text and aligned text in each of its "
                "languages; there is no pair of conditions to tell apart, and no interaction under this flavor alone."
            )
            beside = [one for one in comparisons if one["to"] == destarved]
            why += "".join(f" {one['of']} needs {_span(one['ratios'])} times its tokens." for one in beside)
        return {"differ": None, "smallest": None, "sentence": f"{flavor}: {why}"}
    ratios = pair["ratios"]
    least = min(ratios, key=lambda lang: ratios[lang])
    smallest = {"lang": least, "ratio": ratios[least]}
    if ratios[least] >= gate:
        sentence = (
            f"{flavor}: the conditions differ enough to go on. The starved tokenizer needs at least {gate:g} times the "
            "tokens of the destarved one for the same text in every study language; the smallest ratio is "
            f"{ratios[least]:.3f}, in {LANGUAGES[least].name}."
        )
        return {"differ": True, "smallest": smallest, "sentence": sentence}
    others = ", ".join(f"{lang} {ratio:.3f}" for lang, ratio in ratios.items() if ratio < gate and lang != least)
    also = f" (under it as well: {others})" if others else ""
    same = " Both have the same entries." if pair["jaccard"] == 1 else ""
    sentence = (
        f"{flavor}: the conditions do not differ enough. The starved tokenizer needs {ratios[least]:.3f} times the "
        f"tokens of the destarved one in {LANGUAGES[least].name}, under the gate of {gate:g}{also}.{same} Runs under "
        "them would test nearly the same condition twice, and an interaction near zero would say nothing about "
        "scripts: change the vocabularies (more languages in data.world, a higher tok.temperature, another "
        "tok.vocab_size) before anything is trained."
    )
    return {"differ": False, "smallest": smallest, "sentence": sentence}


def _span(ratios: Mapping[str, float]) -> str:
    return f"{min(ratios.values()):.3f} to {max(ratios.values()):.3f}"


def _samples(
    subjects: Mapping[str, Subject],
    ids: Mapping[str, Mapping[str, Sequence[Sequence[int]]]],
    segments: Sequence[Mapping[str, str]],
    langs: Sequence[str],
) -> list[dict[str, Any]]:
    """How a few segments are split: of the shorter half, those whose ids' hashes come first."""
    lengths = [len(row[langs[0]]) for row in segments]
    short = [n for n, length in enumerate(lengths) if length <= statistics.median(lengths)]
    chosen = sorted(short, key=lambda n: hashlib.sha256(str(segments[n]["id"]).encode("utf-8")).digest())[:SAMPLES]
    return [
        {
            "id": segments[n]["id"],
            "lang": lang,
            "tok": name,
            "pieces": [_shown(subject.vocabulary, i) for i in ids[name][lang][n]],
        }
        for n in chosen
        for lang in langs
        for name, subject in subjects.items()
    ]


def _shown(vocabulary: Vocabulary, i: int) -> str:
    """A piece to look at: bytes as hex, control characters by their pictures."""
    text = vocabulary.text(i)
    if text is None:
        return f"⟨{(vocabulary.pieces[i] or b'').hex(' ').upper()}⟩"
    return "".join(chr(0x2400 + ord(character)) if ord(character) < 0x20 else character for character in text)
