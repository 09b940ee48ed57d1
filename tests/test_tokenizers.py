"""Tokenizers give back every byte, and the starved one is starved."""

import json
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiment.config.compose import compose
from experiment.data.corpus import corpus, read_split
from experiment.data.parallel import parallel_segments
from experiment.errors import ExperimentError
from experiment.tokenizers.tokenizer import Tokenizer, load_tokenizer, tokenizer_artifact

CONDITIONS = ("starved", "destarved")
BY_HAND = {
    "CRLF": "one\r\ntwo\rthree\n\n\r\n",
    "tabs": "\ta\t\tb\t",
    "runs of spaces": "  a     b" + " " * 200 + "c   ",
    "NUL": "a\0b\0\0",
    "NFC and NFD": "é " + unicodedata.normalize("NFD", "é Å ế") + " 각 " + unicodedata.normalize("NFD", "각"),
    "Arabic diacritics and tatweel": "مُحَمَّدٌ كـــتاب ٱلْحَمْدُ لِلَّٰهِ",
    "ligatures": "ﬁ ﬂ ﷺ ﻻ Ǆ",
    "fullwidth": "ＡＢＣ１２３　。",
    "emoji with ZWJ": "👩‍👩‍👧‍👦🏳️‍🌈👍🏽",
    "CJK extension B": "𠀀𠮷𡘙 漢字",
    "right-to-left marks": "a\u200fb\u200e\u202bc\u202c\u2066d\u2069",
    "special tokens spelt out": "<bos><eos> <pad>x<unk>",
    "byte order mark and separators": "\ufeffa\u2028b\u2029c\x85d\u00a0e",
    "digits": "1234567890 ١٢٣٤٥ 3.14159",
    "nothing": "",
}


@pytest.fixture(scope="module")
def tokenizers(artifacts) -> dict[str, Tokenizer]:
    found = {}
    for condition in CONDITIONS:
        config = compose([f"tok=bl_{condition}"]).config
        corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
        found[condition] = load_tokenizer(tokenizer_artifact(config, corpora, artifacts))
    return found


def assert_lossless(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids).encode("utf-8") == text.encode("utf-8")
    assert all(3 < i < tokenizer.vocab_size for i in ids), "encoding never yields a special token"


@pytest.mark.parametrize("condition", CONDITIONS)
@given(text=st.text())
@settings(deadline=None, max_examples=500)
def test_any_unicode_text_comes_back(tokenizers, condition, text):
    assert_lossless(tokenizers[condition], text)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("text", BY_HAND.values(), ids=[name.replace(" ", "-") for name in BY_HAND])
def test_texts_that_other_tokenizers_lose_come_back(tokenizers, condition, text):
    assert_lossless(tokenizers[condition], text)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_all_parallel_text_comes_back(tokenizers, condition):
    for row in parallel_segments(compose().config.data, ["en", "de", "fr", "ar", "zh"]):
        for lang in ("en", "de", "fr", "ar", "zh"):
            assert_lossless(tokenizers[condition], row[lang])


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_vocabulary_is_exact_and_begins_with_the_specials(tokenizers, condition):
    tokenizer = tokenizers[condition]
    assert tokenizer.vocab_size == 4096
    inner = tokenizer._tokenizer
    assert sorted(inner.get_vocab().values()) == list(range(4096))
    assert [inner.id_to_token(i) for i in range(4)] == ["<unk>", "<bos>", "<eos>", "<pad>"]


def test_the_starved_tokenizer_needs_clearly_more_tokens_in_every_language(tokenizers):
    segments = parallel_segments(compose().config.data, ["en", "de", "fr", "ar", "zh"])
    print(
        f"\n{'':4}{'starved':>10}{'destarved':>11}{'ratio':>7}   tokens per parallel segment, {len(segments)} segments"
    )
    for lang in ("en", "de", "fr", "ar", "zh"):
        texts = [row[lang] for row in segments]
        starved, destarved = (sum(map(len, tokenizers[c].encode_batch(texts))) / len(texts) for c in CONDITIONS)
        print(f"{lang:4}{starved:10.2f}{destarved:11.2f}{starved / destarved:7.2f}")
        assert starved / destarved > 1.3


def test_a_lone_surrogate_is_an_error(tokenizers):
    with pytest.raises(ExperimentError, match="Unicode"):
        tokenizers["starved"].encode("a\ud800b")


def test_learning_is_repeatable_and_too_little_text_is_an_error(artifacts, tmp_path):
    config = compose(["scale.vocab_size=600"]).config
    corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
    once, again = (tokenizer_artifact(config, corpora, tmp_path / name) for name in ("a", "b"))
    assert (once.path / "tokenizer.json").read_bytes() == (again.path / "tokenizer.json").read_bytes()
    (tmp_path / "en.jsonl").write_text("\n".join(json.dumps({"text": f"few words {i}"}) for i in range(40)))
    few = compose(
        ["scale.vocab_size=600", "tok.langs=[en]", f"data.files.en={tmp_path}/en.jsonl", "data.holdout_by=text"]
    )
    corpora = {"en": corpus(few.config.data, "en", tmp_path)}
    with pytest.raises(ExperimentError, match=r"tok\.vocab_size: got 600, but .* yield only"):
        tokenizer_artifact(few.config, corpora, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("tok", ["bl_starved", "bl_destarved", "unigram_starved", "unigram_destarved", "pa_destarved"])
def test_at_65536_entries_the_embedded_text_is_too_small_or_every_text_comes_back(tok, artifacts, tmp_path):
    """Every flavor at full size, or as far as the embedded text goes; then asking for more says how far."""
    config = compose([f"tok={tok}", "tok.vocab_size=65536", f"paths.artifacts={artifacts}"]).config
    corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
    try:
        found = tokenizer_artifact(config, corpora, artifacts)
    except ExperimentError as error:
        reached = re.search(r"tok\.vocab_size: got 65536, but \d+ bytes of text yield only (\d+) entries", str(error))
        assert reached, error
        config.tok.vocab_size = int(reached[1])
        found = tokenizer_artifact(config, corpora, artifacts)
    tokenizer = load_tokenizer(found)
    print(f"\n{tok}: {tokenizer.vocab_size:,} entries from {sum(found.facts['bytes'].values()):,} bytes")
    assert tokenizer.vocab_size == config.tok.vocab_size > 10_000
    vocabulary = tokenizer._tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(tokenizer.vocab_size))
    for text in BY_HAND.values():
        assert_lossless(tokenizer, text)
    for lang in corpora:
        for _, text in read_split(corpora[lang], "holdout"):
            assert_lossless(tokenizer, text)

    @given(text=st.text())
    @settings(deadline=None, max_examples=500)
    def any_text(text):
        assert_lossless(tokenizer, text)

    any_text()
