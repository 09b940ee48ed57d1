"""A trained tokenizer as the rest of the project uses it, and the artifact it is kept in."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, artifact, fingerprint_of
from experiment.data.corpus import read_split
from experiment.data.parallel import development_segments
from experiment.errors import ExperimentError
from experiment.matrix.names import tok_name
from experiment.tokenizers.byte_level import SPECIAL_TOKENS, train_byte_level
from experiment.tokenizers.parity_aware import learn, tokenizer_of
from experiment.tokenizers.sample import Texts, training_text, weights_of
from experiment.tokenizers.unigram import train_unigram
from experiment.tokenizers.world import world_fingerprint

UNK, BOS, EOS, PAD = range(4)
MEASURED_BYTES = 10**6
LEARNED_WITH = {"bl": ("tokenizers",), "unigram": ("sentencepiece", "tokenizers"), "pa": ("numpy", "tokenizers")}
"""Libraries whose versions a vocabulary may depend on; recorded beside it."""


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


def tokenizer_artifact(
    config: Config, corpora: Mapping[str, Artifact], root: Path, world: Artifact | None = None
) -> Artifact:
    """`tokenizer.json` for the run's flavor and condition, learned if it is missing.

    `corpora`: the text of each of `tok.langs` that may be learned from; `world`: that of the other languages where it
    comes from the hub. Facts: `bytes` learned from per language, `short` languages, and `bytes_per_token` of each
    language. Raises ExperimentError if the text yields too few entries.
    """
    tok = config.tok
    inputs: dict[str, Any] = {
        "flavor": tok.flavor,
        "condition": tok.condition,
        "vocab_size": tok.vocab_size,
        "corpora": {lang: corpora[lang].fingerprint for lang in tok.langs},
        "world": world_fingerprint(config, world),
        "temperature": tok.temperature if tok.condition == "starved" else None,
        "sample": [config.data.sample_bytes, tok.match, weights_of(config)],
    }
    if tok.flavor == "pa":
        development = _development(config)
        inputs["parity"] = [tok.parity_window, tok.parity_alpha, fingerprint_of("development", development)]

    def build(out: Path) -> dict[str, Any]:
        texts, facts = training_text(config, corpora, world)
        learned, more = _learn(config, texts)
        if learned.get_vocab_size() != tok.vocab_size:
            raise ExperimentError(
                f"tok.vocab_size: got {tok.vocab_size}, but {sum(facts['bytes'].values())} bytes of text yield only "
                f"{learned.get_vocab_size()} entries; give more text or a smaller vocabulary"
            )
        assert [learned.token_to_id(token) for token in SPECIAL_TOKENS] == [UNK, BOS, EOS, PAD]
        (out / "tokenizer.json").write_text(learned.to_str(pretty=True), encoding="utf-8")
        facts["learned_with"] = {name: version(name) for name in LEARNED_WITH[tok.flavor]}
        return facts | more | {"bytes_per_token": _bytes_per_token(Tokenizer(out / "tokenizer.json"), corpora)}

    return artifact(
        root, "tokenizers", tok_name(tok.flavor, tok.condition), inputs, build, config.data.missing == "build"
    )


def _learn(config: Config, texts: Texts) -> tuple[HFTokenizer, dict[str, Any]]:
    """The tokenizer, and what else learning tells: for `pa`, how many merges served each language."""
    tok = config.tok
    if tok.flavor == "pa":
        by_lang = {lang: texts[lang]() for lang in tok.langs}
        learned = learn(by_lang, _development(config), tok.vocab_size, tok.parity_window, tok.parity_alpha)
        return tokenizer_of(learned), {"merges_served": dict(Counter(learned.served))}
    everything = chain.from_iterable(read() for read in texts.values())
    train = train_unigram if tok.flavor == "unigram" else train_byte_level
    return train(everything, tok.vocab_size), {}


def _development(config: Config) -> dict[str, list[str]]:
    segments = development_segments(config.data, config.tok.langs)
    return {lang: [row[lang] for row in segments] for lang in config.tok.langs}


def _bytes_per_token(tokenizer: Tokenizer, corpora: Mapping[str, Artifact]) -> dict[str, float]:
    """UTF-8 bytes per token, <bos> and <eos> not counted, on MEASURED_BYTES of each language: what is held out, and
    where that is less, training text."""
    rates = {}
    for lang, found in corpora.items():
        texts, size = [], 0
        for _, text in chain(read_split(found, "holdout"), read_split(found, "train")):
            texts.append(text)
            size += len(text.encode("utf-8"))
            if size >= MEASURED_BYTES:
                break
        rates[lang] = size / sum(map(len, tokenizer.encode_batch(texts)))
    return rates


def load_tokenizer(found: Artifact) -> Tokenizer:
    return Tokenizer(found.path / "tokenizer.json")
