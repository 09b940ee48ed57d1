"""Unigram language model over characters (flavor `unigram`); a character without an entry is spelt in byte tokens.

Kudo, "Subword Regularization" (arXiv 1804.10959). Text is split as `bl` does it, and no entry crosses a split.
"""

import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from tempfile import NamedTemporaryFile
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from experiment.errors import ExperimentError
from experiment.tokenizers.byte_level import MAX_TOKEN_CHARACTERS, SPECIAL_TOKENS, SPLIT, pieces

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
FIRST_ENTRY = len(SPECIAL_TOKENS) + len(BYTE_TOKENS)

CHARACTER_COVERAGE = 0.9999  # of the text; byte tokens spell what is rarer. At 0.9995 Chinese pays 3-10% more tokens
MAX_ALPHABET_SHARE = 0.5  # of the entries; in 4096, all characters of 471 languages would leave no room for words
MAX_WORD_CHARACTERS = 1000  # longer words are cut, since sentencepiece drops what exceeds its limit
SEEDS = 1_000_000  # as in sentencepiece
CODE_BITS = 21  # of a Unicode code point
THREADS = 8  # not the machine's number: sums are made per thread, so another number gives other entries

# sentencepiece takes these for white space to escape, a column's end, its own signs for a space and for an unknown
# character, a string's end, a word's end, and a line's end. Control characters without a use in text stand in for them.
STAND_INS = dict(zip(" \t\u2581\u2585\0\x1f\n\r", "\x01\x02\x03\x04\x05\x06\x07\x08", strict=True))
TO_STAND_INS = str.maketrans(STAND_INS)
FROM_STAND_INS = str.maketrans({stand_in: character for character, stand_in in STAND_INS.items()})


def train_unigram(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a Unigram tokenizer: special tokens, byte tokens, then entries from the most probable on.

    May have fewer than `vocab_size` entries where the text is too small, but always the 260 special and byte tokens.
    The same words in the same numbers give the same tokenizer, in whatever order. Takes memory for each distinct word
    and about 16 bytes for each byte of text, of which 500 MB at most are looked at at once.

    sentencepiece learns, tokenizers encodes: the latter's own trainer gives other probabilities at every call, raises
    where the text has more characters than `vocab_size`, and needs 8% more tokens (65,536 entries from 167 MB) and
    2.5 times the processor's time.

    Raises ExperimentError if sentencepiece is not installed.
    """
    library = _sentencepiece()
    words = _word_counts(texts)
    alphabet = _alphabet(words, math.ceil((vocab_size - FIRST_ENTRY) * MAX_ALPHABET_SHARE))
    return unigram_tokenizer(_learn(library, _stretches(words, alphabet), vocab_size) if alphabet else [])


def unigram_tokenizer(entries: list[tuple[str, float]]) -> Tokenizer:
    """A tokenizer with the special tokens, the byte tokens and `entries` with their log probabilities.

    Text that spells out a byte token or a special token cannot match it: SPLIT leaves no sign together with a digit
    in one word, and no sign after a letter.
    """
    reserved = [(token, 0.0) for token in (*SPECIAL_TOKENS, *BYTE_TOKENS)]
    tokenizer = Tokenizer(models.Unigram([*reserved, *entries], unk_id=0, byte_fallback=True))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = _splitter()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")


def _sentencepiece() -> ModuleType:
    try:
        import sentencepiece
    except ImportError:
        raise ExperimentError("tok.flavor=unigram needs sentencepiece: pip install -e '.[unigram]'") from None
    return sentencepiece


def _word_counts(texts: Iterable[str]) -> Counter[str]:
    splitter = _splitter()
    counts: Counter[str] = Counter()
    for text in texts:
        for piece in pieces(text):
            counts.update(map(itemgetter(0), splitter.pre_tokenize_str(piece)))
    return counts


def _alphabet(words: Counter[str], limit: int) -> list[str]:
    """The most frequent characters that cover CHARACTER_COVERAGE of the words, `limit` at most."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    missing = counts.total()
    allowed = missing * (1 - CHARACTER_COVERAGE)
    alphabet: list[str] = []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if missing <= allowed or len(alphabet) >= limit:
            break
        missing -= count
        if character not in STAND_INS.values():
            alphabet.append(character)
    return alphabet


def _stretches(words: Counter[str], alphabet: list[str]) -> Counter[str]:
    """How often each stretch of a word occurs that consists of the alphabet, with stand-ins."""
    covered = re.compile(f"[{re.escape(''.join(alphabet))}]{{1,{MAX_WORD_CHARACTERS}}}")
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for stretch in covered.findall(word):
            counts[stretch.translate(TO_STAND_INS)] += count
    return counts


def _seeds(stretches: Counter[str]) -> Iterator[tuple[str, int]]:
    """What may become an entry: the characters, and of the strings that occur twice or more and are followed by
    different things the SEEDS with the highest occurrences x length.

    sentencepiece's own seeds count each distinct word once, however often it occurs: it never proposes a word that no
    longer one contains, say one with its leading space.
    """
    codes = np.frombuffer("\0".join([*stretches, ""]).encode("utf-32-le"), np.uint32).astype(np.int64)
    weights = np.repeat(list(stretches.values()), [len(stretch) + 1 for stretch in stretches])
    positions = np.flatnonzero(codes)
    keys = codes[positions]
    found: list[NDArray] = []  # rows of occurrences x length, first position, length, occurrences
    before: NDArray | None = None
    for length in range(1, MAX_TOKEN_CHARACTERS + 1):
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.bincount(inverse, weights[positions]).astype(np.int64)
        rows = np.stack([counts * length, positions[first], np.full(len(counts), length), counts], axis=1)
        if before is not None:
            parents = keys[first] >> CODE_BITS
            largest = np.zeros(len(before), dtype=np.int64)
            np.maximum.at(largest, parents, counts)
            found.append(before[(before[:, 2] == 1) | ((largest < before[:, 3]) & (before[:, 3] >= 2))])
        before = rows
        follows = (counts[inverse] >= 2) & (codes[positions + length] != 0)
        keys = (inverse[follows] << CODE_BITS) + codes[positions[follows] + length]
        positions = positions[follows]
        if not len(positions):
            break
    found.append(before[(before[:, 2] == 1) | (before[:, 3] >= 2)])
    seeds = np.concatenate(found)
    characters = seeds[:, 2] == 1
    longer = seeds[~characters]
    best = longer[np.lexsort((longer[:, 1], -longer[:, 0]))[:SEEDS]]
    for _, start, length, count in np.concatenate([seeds[characters], best]).tolist():
        yield "".join(map(chr, codes[start : start + length])), count


def _learn(library: ModuleType, stretches: Counter[str], vocab_size: int) -> list[tuple[str, float]]:
    """Entries and their log probabilities, such that all of the vocabulary has `vocab_size` at most."""
    learned = io.BytesIO()
    stretches = Counter(dict(sorted(stretches.items())))
    with NamedTemporaryFile("w", encoding="utf-8", newline="\n", suffix=".tsv") as seeds:
        seeds.writelines(f"{piece}\t{count}\n" for piece, count in _seeds(stretches))
        seeds.flush()
        library.SentencePieceTrainer.train(
            sentence_iterator=(f"{stretch}\t{count}" for stretch, count in stretches.items()),
            seed_sentencepieces_file=seeds.name,
            input_format="tsv",
            model_writer=learned,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            byte_fallback=True,
            character_coverage=1.0,
            max_sentencepiece_length=MAX_TOKEN_CHARACTERS,
            max_sentence_length=4 * MAX_WORD_CHARACTERS,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_whitespace=False,
            split_by_unicode_script=False,
            split_by_number=False,
            num_threads=THREADS,
            minloglevel=2,
        )
    model = library.SentencePieceProcessor(model_proto=learned.getvalue())
    return [
        (model.id_to_piece(i).translate(FROM_STAND_INS), model.get_score(i))
        for i in range(FIRST_ENTRY, model.get_piece_size())
    ]
