"""Encoding of whole corpora: byte-level BPE by tiktoken, checked against tokenizers; everything else by tokenizers.

Both merge, in each word, the neighbours whose pair has the lowest rank, the leftmost of several, until no pair is left.
They can differ in two ways. tokenizers merges the pairs that are listed, tiktoken any two entries that together spell
an entry, and a word that is an entry is taken as it is. And the regex engines may know different versions of Unicode.

The first difference is ruled out if every entry is segmented to itself and comes from one listed pair. What is merged
within a stretch of a word, while nothing is merged across its ends, is what would be merged if the stretch were the
word. So if two entries become neighbours in any word, the word made of just these two is segmented into them, or into
what they merge to. Where they spell a third entry and are no listed pair, that entry would then be segmented into the
two and not to itself. So tiktoken never has a pair to choose that tokenizers lacks.
"""

import json
import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from experiment.errors import ExperimentError
from experiment.tokenizers.byte_level import SPLIT, byte_level_tokenizer, byte_of_letter

CHECKED_FIRST = 64
CHECKED_ONE_IN = 64
TEXTS_AT_ONCE = 16  # handed to a thread
EXCERPT_TOKENS = 8  # before and after a difference
EXCERPT_CHARACTERS = 80

Ids = NDArray[np.uint16]


class EncoderMismatch(ExperimentError):
    """tiktoken gave other ids than tokenizers, or failed; ids that the Encoder gave before are in doubt."""


class Encoder:
    """Texts to the ids that `Tokenizer` gives them, without special tokens, at several times its speed.

    Of all documents the first CHECKED_FIRST and, by a hash of their text, one in CHECKED_ONE_IN are encoded by
    tokenizers as well. `threads` is how many work on a batch; `fast=False` is tokenizers alone.
    """

    def __init__(self, tokenizer_json: Path, threads: int = 1, fast: bool = True):
        """Raises ExperimentError if an id does not fit into uint16."""
        self._reference = HFTokenizer.from_file(str(tokenizer_json))
        self._reference.encode_special_tokens = True
        largest = max(self._reference.get_vocab().values())
        if largest > np.iinfo(np.uint16).max:
            raise ExperimentError(
                f"{tokenizer_json}: ids reach {largest:,}, but tokens are kept as uint16, up to 65,535; "
                "learn a smaller vocabulary"
            )
        spec = json.loads(self._reference.to_str())
        self._fast = _fast_encoder(spec) if fast and _is_byte_level_bpe(spec) else None
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._seen = 0
        self.checked = 0
        """Documents that were encoded by both."""
        self.refused = 0
        """Documents that tiktoken declined and tokenizers encoded: a million white-space characters in a row."""
        self.mismatch: str | None = None
        """Why this Encoder fell back to tokenizers, with an excerpt of the document."""

    @property
    def name(self) -> str:
        """What encodes at present: "tiktoken" or "tokenizers"."""
        return "tokenizers" if self._fast is None else "tiktoken"

    @property
    def proven(self) -> bool:
        """Whether the ids are those of tokenizers for every text, not only for the checked ones."""
        return self._fast is None or self._fast.proven

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth recording beside the ids."""
        return {
            "encoder": self.name,
            "proven": self.proven,
            "checked": self.checked,
            "refused": self.refused,
            "mismatch": self.mismatch,
        }

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, [its tokens].

        Raises EncoderMismatch at the first document that tiktoken encodes differently or fails on: ids that were given
        before may be wrong too, so all must be encoded again by an Encoder with `fast=False`; this one uses tokenizers
        from then on. Raises ExperimentError for a lone surrogate, which no UTF-8 text can hold, and for a document that
        not even tokenizers can encode (about ten million white-space characters in a row).
        """
        if self._fast is None:
            return self._map(self._encode_reference, texts)
        try:
            return self._encode_and_check(texts)
        except EncoderMismatch as error:
            self._fast = None
            self.mismatch = str(error)
            raise

    def _encode_and_check(self, texts: Sequence[str]) -> list[Ids]:
        encoded = self._map(self._encode_fast, texts)
        first = CHECKED_FIRST - self._seen
        self._seen += len(texts)
        again = [i for i, text in enumerate(texts) if i < first or encoded[i] is None or _is_chosen(text)]
        for i, reference in zip(again, self._map(self._encode_reference, [texts[i] for i in again]), strict=True):
            ids = encoded[i]
            if ids is None:
                self.refused += 1
            elif np.array_equal(ids, reference):
                self.checked += 1
            else:
                raise EncoderMismatch(self._difference(ids, reference))
            encoded[i] = reference
        return encoded

    def _encode_fast(self, text: str) -> Ids | None:
        """Ids by tiktoken; None where its regex engine reaches a limit."""
        try:
            return self._fast.encode(text)
        except (UnicodeEncodeError, TypeError) as error:
            raise ExperimentError(f"text is not valid Unicode: {error}") from error
        except ValueError:
            return None
        except BaseException as error:
            if isinstance(error, MemoryError) or not (isinstance(error, Exception) or _is_panic(error)):
                raise
            raise EncoderMismatch(f"tiktoken failed on {_beginning(text)}: {error}") from error

    def _encode_reference(self, text: str) -> Ids:
        # A batch of one: larger ones are spread over all cores, whatever `threads` says. `encode` would hold the GIL.
        try:
            (encoding,) = self._reference.encode_batch_fast([text], add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise ExperimentError(f"text is not valid Unicode: {error}") from error
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise ExperimentError(f"tokenizers cannot encode {_beginning(text)}: {error}") from error
        return np.array(encoding.ids, dtype=np.uint16)

    def _map(self, encode: Callable[[str], Any], texts: Sequence[str]) -> list[Any]:
        if self._pool is None or len(texts) < 2:
            return [encode(text) for text in texts]
        groups = [texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE)]
        return [ids for done in self._pool.map(lambda group: [encode(text) for text in group], groups) for ids in done]

    def _difference(self, ids: Ids, reference: Ids) -> str:
        length = min(len(ids), len(reference))
        at = next(iter(np.flatnonzero(ids[:length] != reference[:length]).tolist()), length)
        around = slice(max(0, at - EXCERPT_TOKENS), at + EXCERPT_TOKENS)
        excerpt = self._reference.decode(reference[around].tolist(), skip_special_tokens=False)
        return (
            f"tiktoken and tokenizers differ from token {at:,} of a document, in {excerpt[:EXCERPT_CHARACTERS]!r}: "
            f"{ids[at : at + 3].tolist()} and {reference[at : at + 3].tolist()}"
        )


def _is_chosen(text: str) -> bool:
    return zlib.crc32(text.encode("utf-8")) % CHECKED_ONE_IN == 0


def _is_panic(error: BaseException) -> bool:
    # of a library in Rust; the class derives from BaseException and cannot be imported
    return type(error).__name__ == "PanicException"


def _beginning(text: str) -> str:
    return f"a document of {len(text):,} characters that begins with {text[:EXCERPT_CHARACTERS]!r}"


@dataclass(frozen=True)
class _FastEncoder:
    encoding: tiktoken.Encoding
    ids: Ids  # by tiktoken's rank, which follows the merges where ids need not
    proven: bool

    def encode(self, text: str) -> Ids:
        # unlike encode_ordinary, which replaces lone surrogates and panics at a limit of the regex engine
        return self.ids[self.encoding.encode_to_numpy(text, disallowed_special=())]


def _is_byte_level_bpe(spec: dict[str, Any]) -> bool:
    """Whether a `tokenizer.json` is BPE over the bytes of words that SPLIT finds, and nothing besides."""
    model = spec["model"]
    letters = byte_of_letter()
    return (
        model["type"] == "BPE"
        and not any(model[k] for k in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"))
        and not any(spec[k] for k in ("normalizer", "post_processor", "truncation", "padding"))
        and spec["pre_tokenizer"] == json.loads(byte_level_tokenizer(models.BPE()).to_str())["pre_tokenizer"]
        and all(token["special"] for token in spec["added_tokens"])
        and letters.keys() <= model["vocab"].keys()
        and all(letters.keys() >= set(left + right) for left, right in model["merges"])
    )


def _fast_encoder(spec: dict[str, Any]) -> _FastEncoder:
    model = spec["model"]
    letters = byte_of_letter()
    products = list(dict.fromkeys(left + right for left, right in model["merges"]))  # in the order of merging
    entries = [*letters, *products]
    encoding = tiktoken.Encoding(
        "tokenizer.json",
        pat_str=SPLIT,
        mergeable_ranks={bytes(letters[c] for c in entry): rank for rank, entry in enumerate(entries)},
        special_tokens={"<|unused|>": len(entries)},  # text is searched for it, and for "" if there is none
    )
    proven = len(products) == len(model["merges"]) and _are_segmented_to_themselves(model, products) and splits_agree()
    return _FastEncoder(encoding, np.array([model["vocab"][entry] for entry in entries], dtype=np.uint16), proven)


def _are_segmented_to_themselves(model: dict[str, Any], products: Sequence[str]) -> bool:
    merges = [(left, right) for left, right in model["merges"]]
    bpe = models.BPE(model["vocab"], merges, cache_capacity=0)  # not the reference, whose cache is for real words
    return all([token.value for token in bpe.tokenize(product)] == [product] for product in products)


@cache
def splits_agree() -> bool:
    """Whether tiktoken and tokenizers put every character in the same classes of SPLIT.

    Planes 4 to 13 of Unicode, which hold no characters, and those for private use are left out.
    """
    planes = [*range(0x40000), *range(0xE0000, 0xF0000)]
    text = "".join(chr(code) for code in planes if not 0xD800 <= code < 0xE000)
    classes = [*sorted(set(re.findall(r"\\p\{\w+\}|\\s", SPLIT))), "(?i:d|e|l|m|r|s|t|v)"]
    for members in classes:
        found = tiktoken.Encoding(
            members, pat_str=members, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={}
        )
        reference = pre_tokenizers.Split(Regex(f"{members}+"), behavior="removed", invert=True)
        in_reference = "".join(run for run, _ in reference.pre_tokenize_str(text))
        if bytes(found.encode_ordinary(text)).decode("utf-8") != in_reference:
            return False
    return True
