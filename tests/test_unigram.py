"""Unigram tokenizers give back every byte, and the same text always gives the same one."""

import json
import lzma
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

import experiment
from experiment.errors import ExperimentError
from experiment.tokenizers.byte_level import SPECIAL_TOKENS
from experiment.tokenizers.tokenizer import Tokenizer
from experiment.tokenizers.unigram import BYTE_TOKENS, FIRST_ENTRY, STAND_INS, _seeds, train_unigram
from tests.test_tokenizers import BY_HAND

VOCAB_SIZE = 2048
LANGS = ("en", "de", "fr", "ar", "zh")
AWKWARD = BY_HAND | {
    "white space": " \t \n\t\r\n \u00a0\u3000 a \n b\t ",
    "signs of sentencepiece": "▁a▁▁b ▁ c▅d\x1fe\t1\n",
    "stand-ins": "".join(STAND_INS.values()) + " a\x01b\x01 \x02",
    "byte tokens spelt out": "<0x41> <0x0A><0xE4> x<0xFF>y <0x00",
    "replacement characters": "\ufffd a\ufffd\ufffdb",
    "byte order marks": "\ufeff\ufeffa\ufeff b",
    "private use and noncharacters": "\ue000a\uf8ff \U000f0000 \ufdd0\ufdd1\ufffe\U0010ffff",
    "unknown characters in a row": "ᏣᎳᎩa𓀀𓀁 𓀂b",
    "a long word": "ab" * 40_000 + " " * 3000 + "。" * 3000,
}


def embedded(lang: str, documents: int) -> list[str]:
    path = Path(experiment.__file__).parent / "assets" / "corpus" / f"{lang}.jsonl.xz"
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in islice(lines, documents)]


def study_text(documents: int) -> Iterator[str]:
    return (text for lang in LANGS for text in embedded(lang, documents))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, HFTokenizer]:
    """As the project uses it and as it was learned; every awkward text stood in the training text."""
    path = tmp_path_factory.mktemp("unigram") / "tokenizer.json"
    inner = train_unigram([*study_text(100), *AWKWARD.values()], VOCAB_SIZE)
    inner.save(str(path))
    return Tokenizer(path), inner


@pytest.fixture(scope="module")
def tokenizer(learned) -> Tokenizer:
    return learned[0]


def assert_lossless(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids).encode("utf-8") == text.encode("utf-8")
    assert all(len(SPECIAL_TOKENS) <= i < tokenizer.vocab_size for i in ids), "encoding never yields a special token"


@given(text=st.text())
@settings(deadline=None, max_examples=500)
def test_any_unicode_text_comes_back(tokenizer, text):
    assert_lossless(tokenizer, text)


@given(parts=st.lists(st.sampled_from([" ", "a", "▁", "\n", *STAND_INS.values(), *SPECIAL_TOKENS, *BYTE_TOKENS])))
@settings(deadline=None, max_examples=500)
def test_reserved_tokens_and_signs_are_text_in_any_context(tokenizer, parts):
    text = "".join(parts)
    assert_lossless(tokenizer, text)
    spelt_out = set(BYTE_TOKENS) | set(SPECIAL_TOKENS)
    words = tokenizer._tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert not [word for word, _ in words if any(token in word for token in spelt_out)]


@pytest.mark.parametrize("text", AWKWARD.values(), ids=[name.replace(" ", "-") for name in AWKWARD])
def test_texts_that_other_tokenizers_lose_come_back(tokenizer, text):
    assert_lossless(tokenizer, text)


def test_text_comes_back_in_all_languages(tokenizer):
    for lang in LANGS:
        for text in embedded(lang, 150)[100:]:
            assert_lossless(tokenizer, text)


def test_the_vocabulary_is_exact_specials_then_bytes_then_entries(learned):
    _, inner = learned
    assert sorted(inner.get_vocab().values()) == list(range(VOCAB_SIZE))
    assert [inner.id_to_token(i) for i in range(FIRST_ENTRY)] == [*SPECIAL_TOKENS, *BYTE_TOKENS]


def test_entries_hold_spaces_and_line_ends_and_never_cross_a_split(learned):
    _, inner = learned
    entries = [inner.id_to_token(i) for i in range(FIRST_ENTRY, VOCAB_SIZE)]
    assert {" the", "\n", " ", " die", "的"} <= set(entries)
    assert all(len(inner.pre_tokenizer.pre_tokenize_str(entry)) == 1 for entry in entries)
    assert not [entry for entry in entries if set(entry) & set(STAND_INS.values())]


def test_an_unseen_script_comes_out_as_its_bytes(tokenizer):
    text = "ⴰⵣⵓⵍ𐎠𐎡"
    assert tokenizer.encode(text) == [len(SPECIAL_TOKENS) + byte for byte in text.encode("utf-8")]


def test_a_document_of_any_length_and_with_any_sign_is_learned_from():
    line = "".join(f" quixotic{sign}" for sign in ("\0", "▅", "▁", "\t", "\x1f", "\x01", "\r\n"))
    for text in (line * 2000, "quixotic" * 20_000):
        assert any("quixotic" in entry for entry in train_unigram([text], 300).get_vocab())


def test_learning_does_not_depend_on_the_process_or_the_order_of_texts():
    texts = list(study_text(10))
    once = train_unigram(texts, 1024).to_str()
    assert once == train_unigram(reversed(texts), 1024).to_str()
    program = (
        "from tests.test_unigram import *\n"
        "sys.stdout.buffer.write(train_unigram(study_text(10), 1024).to_str().encode('utf-8'))"
    )
    again = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert once == again.stdout.decode("utf-8")


@pytest.mark.parametrize("texts", [[], [""], ["\x01\x02"], ["a"], ["few words", "few words"]])
@pytest.mark.parametrize("vocab_size", [260, 261, 300, 4096])
def test_too_small_a_text_gives_what_it_can(texts, vocab_size, tmp_path):
    inner = train_unigram(texts, vocab_size)
    assert FIRST_ENTRY <= inner.get_vocab_size() <= min(vocab_size, FIRST_ENTRY + 20)
    assert sorted(inner.get_vocab().values()) == list(range(inner.get_vocab_size()))
    inner.save(str(tmp_path / "tokenizer.json"))
    assert_lossless(Tokenizer(tmp_path / "tokenizer.json"), "few other words\n")


def test_more_characters_than_entries_leave_room_for_words():
    inner = train_unigram(study_text(20), 600)
    entries = [inner.id_to_token(i) for i in range(FIRST_ENTRY, 600)]
    assert sum(len(entry) == 1 for entry in entries) <= len(entries) / 2


def test_a_missing_library_is_an_error_that_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ExperimentError, match=r"pip install -e '\.\[unigram\]'"):
        train_unigram(["text"], 4096)


def test_frequent_words_with_their_space_are_entries():
    """sentencepiece's own seeds count a distinct word once, and never propose one that no longer word contains."""
    texts = list(study_text(100))
    counts = Counter(word for text in texts for word in re.findall(r" [a-zäöüß]{3,}", text))
    vocabulary = train_unigram(texts, 4096).get_vocab()
    frequent = [word for word, _ in counts.most_common(40)]
    assert sum(word in vocabulary for word in frequent) >= 36, [word for word in frequent if word not in vocabulary]


def test_seeds_are_counted_by_occurrence():
    seeds = dict(_seeds(Counter({"wird": 5, "wirds": 1, "haus": 3, "aus": 9, "x": 1})))
    assert (seeds["wird"], seeds["haus"], seeds["aus"], seeds["x"], seeds["w"]) == (6, 3, 12, 1, 6)
    assert "wir" not in seeds, "it is always followed by d"
    assert "wirds" not in seeds, "it occurs once"
