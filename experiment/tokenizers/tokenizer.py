"""A trained tokenizer as the rest of the project uses it, and the artifact it is kept in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, artifact
from experiment.errors import ExperimentError
from experiment.matrix.names import tok_name
from experiment.tokenizers.byte_level import SPECIAL_TOKENS, train_byte_level
from experiment.tokenizers.sample import training_text, world_fingerprint

UNK, BOS, EOS, PAD = range(4)


class Tokenizer:
    """Text <-> ids without loss. Ids 0-3 are <unk> <bos> <eos> <pad>; encoding never yields them.

    A text that spells out a special token ("<eos>") is text: it is encoded by its bytes.
    """

    def __init__(self, path: Path):
        self._tokenizer = HFTokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text. Raises ExperimentError for a lone surrogate, which no UTF-8 text can hold."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise ExperimentError(f"text is not valid Unicode: {error}") from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids that a whole text was encoded to; special tokens are left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


def tokenizer_artifact(config: Config, corpora: dict[str, Artifact], root: Path) -> Artifact:
    """`tokenizer.json` for the run's flavor and condition, learned if it is missing.

    `corpora` are those of `tok.langs`. Raises ExperimentError if the text yields too few entries.
    """
    tok = config.tok
    inputs: dict[str, Any] = {
        "flavor": tok.flavor,
        "condition": tok.condition,
        "vocab_size": tok.vocab_size,
        "corpora": {lang: corpora[lang].fingerprint for lang in tok.langs},
        "world": world_fingerprint(config),
        "temperature": tok.temperature if tok.condition == "starved" else None,
    }

    def build(out: Path) -> dict[str, Any]:
        texts, facts = training_text(config, corpora)
        learned = train_byte_level(texts, tok.vocab_size)
        if learned.get_vocab_size() != tok.vocab_size:
            raise ExperimentError(
                f"tok.vocab_size: got {tok.vocab_size}, but {sum(facts['bytes'].values())} bytes of text yield only "
                f"{learned.get_vocab_size()} entries; give more text or a smaller vocabulary"
            )
        assert [learned.token_to_id(token) for token in SPECIAL_TOKENS] == [UNK, BOS, EOS, PAD]
        learned.save(str(out / "tokenizer.json"))
        return facts

    return artifact(
        root, "tokenizers", tok_name(tok.flavor, tok.condition), inputs, build, config.data.missing == "build"
    )


def load_tokenizer(found: Artifact) -> Tokenizer:
    return Tokenizer(found.path / "tokenizer.json")
