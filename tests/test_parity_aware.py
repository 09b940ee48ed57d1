"""Parity-aware BPE serves the longest language, as a slow reading of its rule does, and segments as it learned."""

import json
from collections import Counter
from itertools import chain, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from experiment.config.compose import compose
from experiment.data.corpus import corpus, read_split
from experiment.data.parallel import is_development, parallel_segments
from experiment.errors import ExperimentError
from experiment.tokenizers import byte_level as splitting
from experiment.tokenizers.byte_level import (
    BYTE_LETTERS,
    MAX_TOKEN_CHARACTERS,
    SPECIAL_TOKENS,
    byte_level_tokenizer,
    pieces,
    train_byte_level,
)
from experiment.tokenizers.parity_aware import (
    MIN_PAIR_COUNT,
    Learned,
    learn,
    tokenizer_of,
    word_counts,
)
from tests.test_tokenizers import BY_HAND

LANGS = ("en", "de", "fr", "ar", "zh")
LETTERS = len(SPECIAL_TOKENS) + len(BYTE_LETTERS)


def reference(texts, development, vocab_size, window=None, alpha=2.0) -> Learned:
    """The rule word for word: all text is segmented anew after each merge, all pairs are counted anew."""
    pre_tokenize = byte_level_tokenizer(models.BPE()).pre_tokenizer.pre_tokenize_str

    def words(group):
        return Counter(word for text in group for word, _ in pre_tokenize(text))

    training = {lang: words(group) for lang, group in texts.items()}
    held = {lang: words(group) for lang, group in development.items()}
    entries = [*SPECIAL_TOKENS, *BYTE_LETTERS]
    merges: list[tuple[int, int]] = []
    served: list[str] = []
    while True:
        ranks = {pair: rank for rank, pair in enumerate(merges)}

        def segment(word, ranks=ranks):
            symbols = [entries.index(letter) for letter in word]
            while found := [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]:
                _, i = min(found)
                symbols[i : i + 2] = [entries.index(entries[symbols[i]] + entries[symbols[i + 1]])]
            return symbols

        tokens = {lang: sum(n * len(segment(word)) for word, n in held[lang].items()) for lang in texts}
        best = {}
        for lang in texts:
            pairs: Counter[tuple[int, int]] = Counter()
            for word, n in training[lang].items():
                symbols = segment(word)
                for pair in pairwise(symbols):
                    pairs[pair] += n
            allowed = [
                (-n, pair)
                for pair, n in pairs.items()
                if n >= MIN_PAIR_COUNT and len(entries[pair[0]] + entries[pair[1]]) <= MAX_TOKEN_CHARACTERS
            ]
            if allowed:
                best[lang] = min(allowed)[1]
        if len(entries) >= vocab_size or not best:
            return Learned(entries, merges, served, tokens)
        fair = [lang for lang in best if not window or Counter(served[-window:])[lang] <= alpha * window / len(texts)]
        lang = max(fair or best, key=lambda lang: tokens[lang])  # the first of the longest
        left, right = best[lang]
        merges.append((left, right))
        served.append(lang)
        if entries[left] + entries[right] not in entries:
            entries.append(entries[left] + entries[right])


small_text = st.lists(
    st.text("ab", min_size=1, max_size=12) | st.text("aé好 ", max_size=8), min_size=1, max_size=6
).map(" ".join)


@st.composite
def small_problem(draw):
    langs = LANGS[: draw(st.integers(1, 3))]
    segments = draw(st.integers(1, 3))
    return (
        {lang: draw(st.lists(small_text, max_size=4)) for lang in langs},
        {lang: draw(st.lists(small_text, min_size=segments, max_size=segments)) for lang in langs},
        draw(st.integers(LETTERS - 1, LETTERS + 30)),
        draw(st.none() | st.integers(1, 6)),
        draw(st.sampled_from([0.5, 1.0, 2.0])),
    )


def alone(text):
    """The text as one language that is its own development text."""
    return {"en": [text]}, {"en": [text]}, LETTERS + 30, None, 2.0


@pytest.fixture(scope="module")
def training(artifacts) -> dict[str, list[str]]:
    data = compose().config.data
    return {lang: [text for _, text in read_split(corpus(data, lang, artifacts), "train")] for lang in LANGS}


@pytest.fixture(scope="module")
def segments() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Aligned segments of each language: for development, and for judging."""
    rows = parallel_segments(compose().config.data, LANGS)
    return tuple(
        {lang: [row[lang] for row in rows if is_development(row) is part] for lang in LANGS} for part in (True, False)
    )


@pytest.fixture(scope="module")
def learned(training, segments) -> Learned:
    return learn(training, segments[0], 4096)


@pytest.fixture(scope="module")
def tokenizer(learned) -> Tokenizer:
    return tokenizer_of(learned)


@pytest.fixture(scope="module")
def byte_level(training) -> Tokenizer:
    return train_byte_level(chain.from_iterable(training.values()), 4096)


def tokens_of(tokenizer: Tokenizer, segments: dict[str, list[str]]) -> dict[str, int]:
    return {
        lang: sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts)) for lang, texts in segments.items()
    }


def gini(values) -> float:
    """Mean absolute difference over twice the mean."""
    values = list(values)
    return sum(abs(a - b) for a in values for b in values) / (2 * len(values) * sum(values))


@given(problem=small_problem())
@example(problem=alone("aaa aaaa aaaaa aaaaaaa aaaaaaaaaaaa"))
@example(problem=alone("abab ababab bababa abaab babab"))
@settings(deadline=None, max_examples=100)
def test_small_texts_are_learned_as_the_rule_says(problem):
    assert learn(*problem) == reference(*problem)


@pytest.mark.parametrize("window", [None, 5])
def test_real_text_is_learned_as_the_rule_says(training, segments, window):
    langs = ("ar", "en", "zh")
    texts = {lang: [training[lang][0][:1000]] for lang in langs}
    development = {lang: segments[0][lang][:4] for lang in langs}
    assert learn(texts, development, LETTERS + 50, window, 1.5) == reference(
        texts, development, LETTERS + 50, window, 1.5
    )


@given(texts=st.lists(st.text("ab", max_size=40) | small_text, min_size=1, max_size=5))
@settings(deadline=None, max_examples=100)
def test_the_finished_tokenizer_segments_as_was_learned(texts):
    problem = {"en": texts}, {"en": texts}, LETTERS + 40
    assert tokens_of(tokenizer_of(learn(*problem)), {"en": texts}) == learn(*problem).development_tokens


def test_the_finished_tokenizer_segments_real_text_as_was_learned(tokenizer, learned, segments):
    assert tokens_of(tokenizer, segments[0]) == learned.development_tokens


def test_everything_but_the_merges_is_as_in_byte_level_bpe(tokenizer, byte_level):
    mine, theirs = json.loads(tokenizer.to_str()), json.loads(byte_level.to_str())
    models = [found.pop("model") for found in (mine, theirs)]
    assert mine == theirs
    (my_vocab, my_merges), (their_vocab, _) = [(model.pop("vocab"), model.pop("merges")) for model in models]
    assert models[0] == models[1]
    by_id = [sorted(vocab, key=vocab.__getitem__) for vocab in (my_vocab, their_vocab)]
    assert by_id[0][:LETTERS] == by_id[1][:LETTERS]
    assert by_id[0][LETTERS:] == ["".join(pair) for pair in my_merges]
    assert sorted(my_vocab.values()) == list(range(4096))


@given(text=st.text())
@settings(deadline=None, max_examples=300)
def test_any_unicode_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", BY_HAND.values(), ids=[name.replace(" ", "-") for name in BY_HAND])
def test_texts_that_other_tokenizers_lose_come_back(tokenizer, text):
    inner = Tokenizer.from_str(tokenizer.to_str())
    inner.encode_special_tokens = True
    assert inner.decode(inner.encode(text).ids, skip_special_tokens=False) == text


def test_languages_are_nearer_to_each_other_than_under_byte_level_bpe(tokenizer, byte_level, segments):
    judged = segments[1]
    found = {name: tokens_of(one, judged) for name, one in (("bl", byte_level), ("pa", tokenizer))}
    print("\ntokens per sentence at 4096 entries" + "".join(f"{lang:>8}" for lang in LANGS) + "    Gini")
    for name, tokens in found.items():
        rates = [tokens[lang] / len(judged[lang]) for lang in LANGS]
        print(f"{name:35}" + "".join(f"{rate:8.2f}" for rate in rates) + f"{gini(rates):8.4f}")
    assert gini(found["pa"].values()) < gini(found["bl"].values()) / 2


def test_a_window_keeps_one_language_from_taking_all_merges():
    texts = {"en": [f"word{i} " * 2 for i in range(100)], "de": ["ein Satz mit einigen Wörtern "] * 9}
    development = {"en": ["a segment without any of those, and long"], "de": ["kurz"]}
    assert set(learn(texts, development, LETTERS + 20).served) == {"en"}
    served = learn(texts, development, LETTERS + 20, window=4, alpha=1.0).served
    assert served == ["en", "en", "en", "de", "de"] * 4


def test_a_language_without_pairs_hands_over():
    texts = {"en": ["x y z"], "de": ["abcabc"]}
    found = learn(texts, {"en": ["long long long"], "de": ["abc"]}, LETTERS + 9, window=2, alpha=0.5)
    assert set(found.served) == {"de"}
    assert found.entries[LETTERS:] == ["ab", "abc"], "a pair that occurs once is not merged"


def test_no_entry_is_longer_than_allowed():
    found = learn({"en": ["a" * 1000]}, {"en": ["a"]}, LETTERS + 100)
    assert max(len(entry) for entry in found.entries) == MAX_TOKEN_CHARACTERS


@given(text=st.text("a\n\r .'\u0301") | st.text("a\n1é好\t\x0b\x1c\x85\xa0\u2028"), size=st.integers(0, 5))
@settings(deadline=None, max_examples=300)
def test_words_are_the_same_when_text_is_read_in_pieces(text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "PIECE", size)
        assert "".join(pieces(text)) == text
        in_pieces = word_counts([text])
        patch.setattr(splitting, "PIECE", len(text) + 1)
        assert word_counts([text]) == in_pieces


@pytest.mark.parametrize(
    ("texts", "development", "message"),
    [
        ({"en": [], "de": []}, {"en": ["a"], "de": ["a", "b"]}, "same number of aligned .* en 1, de 2"),
        ({"en": [], "de": []}, {"en": [], "de": []}, "same number of aligned .* en 0, de 0"),
        ({"en": []}, {"en": ["a"], "de": ["a"]}, "same languages; got training text of en, development text of en, de"),
        ({}, {}, "same languages"),
    ],
)
def test_development_text_that_is_not_aligned_is_an_error(texts, development, message):
    with pytest.raises(ExperimentError, match=message):
        learn(texts, development, 300)
