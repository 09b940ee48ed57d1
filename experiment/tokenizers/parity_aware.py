"""Parity-aware byte-level BPE (flavor `pa`): every merge serves the language whose text is longest.

Foroutan et al., "Parity-Aware Byte-Pair Encoding" (arXiv 2508.04796). Text is split and spelt as `bl` does it.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from experiment.errors import ExperimentError
from experiment.tokenizers.byte_level import (
    BYTE_LETTERS,
    MAX_TOKEN_CHARACTERS,
    SPECIAL_TOKENS,
    byte_level_tokenizer,
    pieces,
)

MIN_PAIR_COUNT = 2  # one occurrence is no evidence; also the default of the paper's program and of subword-nmt

FIRST_LETTER = len(SPECIAL_TOKENS)
FIRST_MERGE = FIRST_LETTER + len(BYTE_LETTERS)
# special tokens never occur in words, so two of their ids are free to mark slots
BOUNDARY = SPECIAL_TOKENS.index("<unk>")
DEAD = SPECIAL_TOKENS.index("<pad>")


@dataclass(frozen=True)
class Learned:
    """What `learn` found. Ids index `entries`."""

    entries: list[str]  # special tokens, byte letters, then one for each merge
    merges: list[tuple[int, int]]
    served: list[str]  # the language that each merge served
    development_tokens: dict[str, int]  # tokens of each language's development text after the last merge


def tokenizer_of(learned: Learned) -> Tokenizer:
    """The tokenizer that segments by what was learned; pre-tokenizer, decoder and byte letters as of `bl`."""
    entries = learned.entries
    model = models.BPE(
        vocab={entry: i for i, entry in enumerate(entries)},
        merges=[(entries[left], entries[right]) for left, right in learned.merges],
    )
    tokenizer = byte_level_tokenizer(model)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def learn(
    texts: dict[str, Iterable[str]],
    development: dict[str, Sequence[str]],
    vocab_size: int,
    window: int | None = None,
    alpha: float = 2.0,
) -> Learned:
    """Entries and merges of parity-aware BPE (arXiv 2508.04796).

    `texts` holds training text of each language, `development` the same number of aligned segments of each. A merge
    serves the language with most tokens in its development text (ties: order of `texts`) and is that language's most
    frequent pair in training text (ties: smaller left, then right id), applied to all text. `window=None` is the base
    variant; with a window of W merges, a language that had more than alpha / languages of the last W is passed over.
    A language that has no pair left hands over to the next longest, and those passed over are asked when all others
    have none. A pair needs MIN_PAIR_COUNT occurrences in the language's text and a product of at most
    MAX_TOKEN_CHARACTERS. Learning ends at `vocab_size` entries or when no language has a pair.

    Memory: 31 bytes at the peak for each byte of distinct words (pre-tokens) of all text, which is all that is kept of
    it; and while a language is read, the dictionary of its words. 100 MB that repeat no word take 3 GB. Raises
    ExperimentError if the languages or the numbers of segments differ, if there are none, or if distinct words hold
    2^31 bytes.
    """
    _require_aligned(texts, development)
    languages = list(texts)
    groups = [*(texts[lang] for lang in languages), *(development[lang] for lang in languages)]
    learner = _Learner(_Words(map(word_counts, groups), vocab_size))
    recent: deque[int] = deque(maxlen=window or 0)
    fair_share = np.inf if window is None else alpha * window / len(languages)
    served = []
    while len(learner.entries) < vocab_size:
        order = sorted(range(len(languages)), key=lambda i: -learner.development_tokens[i])
        order.sort(key=lambda i: recent.count(i) > fair_share)
        language, pair = next(((i, pair) for i in order if (pair := learner.take_most_frequent(i))), (None, None))
        if language is None:
            break
        learner.merge(*pair)
        recent.append(language)
        served.append(languages[language])
    tokens = dict(zip(languages, learner.development_tokens.tolist(), strict=True))
    return Learned(learner.entries, learner.merges, served, tokens)


def _require_aligned(texts: dict[str, Iterable[str]], development: dict[str, Sequence[str]]) -> None:
    if not texts or texts.keys() != development.keys():
        raise ExperimentError(
            f"parity-aware BPE needs training and development text of the same languages; "
            f"got training text of {', '.join(texts) or 'none'}, development text of {', '.join(development) or 'none'}"
        )
    sizes = {lang: len(development[lang]) for lang in texts}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise ExperimentError(
            "parity-aware BPE needs the same number of aligned development segments in every language; got "
            + ", ".join(f"{lang} {size}" for lang, size in sizes.items())
        )


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """How often each word (pre-token, spelt in byte letters) occurs in the texts."""
    pre_tokenizer = byte_level_tokenizer(models.BPE()).pre_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        for piece in pieces(text):
            counts.update(word for word, _ in pre_tokenizer.pre_tokenize_str(piece))
    return counts


class _Words:
    """Distinct words of all groups in their current segmentation, a slot for each byte.

    The id of a symbol stands in its first and in its last slot, so lengths of symbols lead to both neighbours; slots
    between are DEAD. A BOUNDARY stands before and after each word. Groups follow one another.
    """

    def __init__(self, groups: Iterable[Counter[str]], vocab_size: int):
        dtype = np.uint16 if vocab_size <= 1 << 16 else np.int32
        to_symbol = np.full(512, BOUNDARY, dtype)
        to_symbol[[ord(letter) for letter in BYTE_LETTERS]] = np.arange(FIRST_LETTER, FIRST_MERGE)
        symbols, weights = [np.full(1, BOUNDARY, dtype)], [np.zeros(1, np.int32)]
        for counts in groups:
            spelt = "".join(f"{word}\n" for word in counts)  # a line feed is no byte letter
            symbols.append(to_symbol[np.frombuffer(spelt.encode("utf-16-le"), np.uint16)])
            slots_of_words = np.diff(np.flatnonzero(symbols[-1] == BOUNDARY), prepend=-1)
            weights.append(np.repeat(np.fromiter(counts.values(), np.int32, len(counts)), slots_of_words))
            del counts, spelt  # before the next group is read
        ends = np.cumsum([len(part) for part in symbols])
        if ends[-1] > np.iinfo(np.int32).max:
            raise ExperimentError("parity-aware BPE: distinct words hold more than 2^31 bytes; give less text")
        self.symbols = np.concatenate(symbols)
        self.weights = np.concatenate(weights)  # occurrences of the word that a slot belongs to
        self.bounds = ends.astype(np.int32)  # group i has the slots from bounds[i] to bounds[i + 1]
        self.lengths = np.ones(max(vocab_size, FIRST_MERGE), np.int32)  # of each id, in slots

    def occurring(self, positions: NDArray, left: int, right: int) -> NDArray:
        """Where the pair still stands, of positions where it once stood.

        Symbols only grow, so a slot never gets back an id that it has lost.
        """
        return positions[(self.symbols[positions] == left) & (self.symbols[positions + self.lengths[left]] == right)]

    def join(self, positions: NDArray | int, left: int, right: int, product: int) -> None:
        """Write the product over pairs that do not overlap."""
        second = positions + self.lengths[left]
        self.symbols[second - 1] = DEAD
        self.symbols[second] = DEAD
        self.symbols[positions] = product
        self.symbols[second + (self.lengths[right] - 1)] = product

    def groups(self, positions: NDArray) -> NDArray:
        return self.bounds[1:].searchsorted(positions, side="right")

    def slots(self, group: int) -> slice:
        return slice(int(self.bounds[group]), int(self.bounds[group + 1]))


class _Learner:
    """Merges one pair after the other, knowing where each pair stands and which of a language is most frequent.

    An event is a merge, or at first the text in letters. Any pair that it brings about holds the id that it made, so
    the larger id of a pair tells its event. Its positions stay with the event, and `_Words.occurring` says which still
    hold. Each event offers its pairs to the languages, most frequent first; a count is an upper bound from then on,
    and is taken again when the pair is first in the language's heap.
    """

    def __init__(self, words: _Words):
        self.words = words
        self.entries = [*SPECIAL_TOKENS, *BYTE_LETTERS]
        self.merges: list[tuple[int, int]] = []
        self.languages = (len(words.bounds) - 1) // 2
        self.stride = len(words.lengths)  # the key of a pair is left * stride + right
        self.places: list[tuple[NDArray, NDArray, NDArray]] = []  # by event: keys, offsets, positions
        self.offers: list[tuple[NDArray, NDArray]] = []  # by event: keys, counts
        self.heaps: list[list[tuple[int, ...]]] = [[] for _ in range(self.languages)]
        self._index_letters()

    def take_most_frequent(self, language: int) -> tuple[int, int] | None:
        """The pair to merge for this language, offered no more; None where no pair is left."""
        heap = self.heaps[language]
        while heap:
            bound, key, event, following, end = heapq.heappop(heap)
            if following < end:
                self._push(language, event, following, end)
            left, right = divmod(key, self.stride)
            count = self._count(left, right, language)
            if count == -bound:
                return left, right
            if count >= MIN_PAIR_COUNT:
                heapq.heappush(heap, (-count, key, event, 0, 0))
        return None

    def merge(self, left: int, right: int) -> None:
        """Make the pair one symbol in all text.

        No entry has its spelling yet: where the two ends of a spelling are ends of symbols, no merge has crossed them,
        so it is segmented as it would be alone, and the merge that made an entry of it left it nowhere in two.
        """
        words, product = self.words, len(self.entries)
        self.merges.append((left, right))
        self.entries.append(self.entries[left] + self.entries[right])
        words.lengths[product] = words.lengths[left] + words.lengths[right]
        positions = words.occurring(self._positions(left, right), left, right)
        if left == right:
            positions = _without_overlaps(positions, int(words.lengths[left]))
        words.join(positions, left, right, product)
        joined = np.bincount(words.groups(positions), words.weights[positions], minlength=2 * self.languages)
        self.development_tokens -= joined[self.languages :].astype(np.int64)
        self._index_around(positions, product)

    def _index_letters(self) -> None:
        words, languages = self.words, self.languages
        letters = words.symbols != BOUNDARY
        development = [words.slots(languages + i) for i in range(languages)]
        self.development_tokens = np.array([words.weights[s][letters[s]].sum(dtype=np.int64) for s in development])
        positions = np.flatnonzero(letters[:-1] & letters[1:]).astype(np.int32)
        values = len(BYTE_LETTERS)
        first, second = (words.symbols[positions + i] - FIRST_LETTER for i in (0, 1))
        codes = (first * values + second).astype(np.uint16)  # 16 bits are sorted by radix
        occurrences = np.bincount(codes, minlength=values**2)
        present = np.flatnonzero(occurrences)
        keys = (present // values + FIRST_LETTER) * self.stride + present % values + FIRST_LETTER
        offsets = np.concatenate([[0], np.cumsum(occurrences[present])])
        self.places.append((keys, offsets, positions[np.argsort(codes, kind="stable")]))
        counts = []
        for language in range(languages):
            start, end = positions.searchsorted(words.bounds[language : language + 2])
            weights = words.weights[positions[start:end]]
            counts.append(np.bincount(codes[start:end], weights, minlength=values**2)[present].astype(np.int64))
        self._offer(np.tile(keys, languages), np.repeat(np.arange(languages), len(keys)), np.concatenate(counts))

    def _index_around(self, made: NDArray, product: int) -> None:
        """Make an event of the pairs around a new symbol, given its sorted positions."""
        words = self.words
        before = words.symbols[made - 1].astype(np.int64)
        after = words.symbols[made + words.lengths[product]].astype(np.int64)
        starts = made - words.lengths[before]
        on_left = (before != BOUNDARY) & (before != product)  # two new symbols: that pair is right of the first
        on_right = after != BOUNDARY
        keys = np.concatenate([before[on_left] * self.stride + product, product * self.stride + after[on_right]])
        positions = np.concatenate([starts[on_left], made[on_right]])
        order = np.argsort(keys, kind="stable")  # a key's positions are all on one side, and in order there
        keys, positions = keys[order], positions[order]
        groups = words.groups(positions)
        new_key = np.diff(keys, prepend=-1) != 0
        firsts = np.flatnonzero(new_key)
        self.places.append((keys[firsts], np.append(firsts, len(keys)).astype(np.int32), positions))
        firsts = np.flatnonzero(new_key | (np.diff(groups, prepend=-1) != 0))
        counts = np.add.reduceat(words.weights[positions], firsts, dtype=np.int64)
        self._offer(keys[firsts], groups[firsts], counts)

    def _offer(self, keys: NDArray, groups: NDArray, counts: NDArray) -> None:
        """Offer the last event's pairs to the languages; one at a time stands in a language's heap."""
        left, right = np.divmod(keys, self.stride)
        short = self.words.lengths[left] + self.words.lengths[right] <= MAX_TOKEN_CHARACTERS
        kept = np.flatnonzero(short & (counts >= MIN_PAIR_COUNT) & (groups < self.languages))
        kept = kept[np.lexsort((-counts[kept], groups[kept]))]  # stable: ties stay in the order of keys
        self.offers.append((keys[kept], counts[kept]))
        bounds = groups[kept].searchsorted(np.arange(self.languages + 1)).tolist()
        for language, (start, end) in enumerate(pairwise(bounds)):
            if start < end:
                self._push(language, len(self.offers) - 1, start, end)

    def _push(self, language: int, event: int, number: int, end: int) -> None:
        keys, counts = self.offers[event]
        heapq.heappush(self.heaps[language], (-int(counts[number]), int(keys[number]), event, number + 1, end))

    def _positions(self, left: int, right: int) -> NDArray:
        """Sorted positions in all groups where the pair has stood at any time."""
        keys, offsets, positions = self.places[max(0, left - FIRST_MERGE + 1, right - FIRST_MERGE + 1)]
        i = keys.searchsorted(left * self.stride + right)
        return positions[offsets[i] : offsets[i + 1]]

    def _count(self, left: int, right: int, language: int) -> int:
        positions = self._positions(left, right)
        start, end = positions.searchsorted(self.words.bounds[language : language + 2])
        still = self.words.occurring(positions[start:end], left, right)
        return int(self.words.weights[still].sum(dtype=np.int64))


def _without_overlaps(positions: NDArray, length: int) -> NDArray:
    """Every other position of each run of positions `length` apart: pairs of one symbol merge from the left."""
    numbers = np.arange(len(positions))
    starts_run = np.concatenate([[True], np.diff(positions) != length])
    in_run = numbers - np.maximum.accumulate(np.where(starts_run, numbers, 0))
    return positions[in_run % 2 == 0]
