"""Byte-level BPE (flavor `bl`): every string is covered by its bytes, so nothing is ever lost."""

from collections.abc import Iterable, Iterator
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<unk>", "<bos>", "<eos>", "<pad>")
BYTE_LETTERS = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))  # a visible character for each byte
MAX_TOKEN_CHARACTERS = 32  # without a limit, runs of one character become tokens of hundreds

PIECE = 1 << 16  # characters; pre-tokenizing longer texts at once is slower and takes memory for each token

# Words with one leading space or sign, digits by threes, punctuation, line ends: the split of GPT-4
# and Llama 3. Combining marks count as letters, so that a diacritic does not break an Arabic word.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable Latin-1 stands for itself, other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about PIECE characters, cut where a word ends in any case.

    SPLIT has no word in which a line feed stands before anything but white space.
    """
    start, cut = 0, text.find("\n", PIECE)
    while cut >= 0:
        if not text[cut + 1 : cut + 2].isspace():
            yield text[start : cut + 1]
            start = cut + 1
        cut = text.find("\n", max(cut + 1, start + PIECE))
    yield text[start:]


def byte_level_tokenizer(model: models.Model) -> Tokenizer:
    """A tokenizer that splits text into words, spells their bytes in BYTE_LETTERS and segments them by `model`."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_byte_level(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn byte-level BPE. May have fewer than `vocab_size` entries where the text is too small."""
    tokenizer = byte_level_tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=list(BYTE_LETTERS),
        max_token_length=MAX_TOKEN_CHARACTERS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
