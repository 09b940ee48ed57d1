"""The fast encoder gives the ids of the reference, proves it where it can, and says so where it cannot."""

import itertools
import json
import pickle
import unicodedata

import numpy as np
import pytest
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

from experiment.config.compose import compose
from experiment.data.corpus import corpus, read_split
from experiment.errors import ExperimentError
from experiment.tokenizers import encoder as module
from experiment.tokenizers.byte_level import SPECIAL_TOKENS, byte_level_tokenizer, train_byte_level
from experiment.tokenizers.encoder import CHECKED_FIRST, Encoder, EncoderMismatch, splits_agree
from experiment.tokenizers.parity_aware import learn, tokenizer_of
from experiment.tokenizers.tokenizer import Tokenizer, tokenizer_artifact

CONDITIONS = ("starved", "destarved")
LANGS = ("en", "de", "fr", "ar", "zh")
ODD = {
    "nothing": "",
    "special tokens spelt out": "<bos><eos> <pad>x<unk> <|unused|><|endoftext|>",
    "NUL": "a\0b\0\0",
    "runs": "a" * 5000 + " " * 5000 + "x" + "!" * 5000 + "\n" * 5000 + "7" * 5000 + "中" * 5000 + "\t" * 5000,
    "spaces at both ends": "   a   ",
    "CRLF": "one\r\ntwo\rthree\n\n\r\n \r\n  x\r",
    "lone combining marks": "\u0301 \u0301\u0301 a\u0301 1\u0301 !\u0301\n\u0301 \u064e\u0651",
    "contractions": "it's IT'S it'ſ we'LL'd 've''re’s '",
    "NFD": unicodedata.normalize("NFD", "é Å ế 각"),
    "white space of all kinds": "\ufeffa\u2028b\u2029c\x85d\u00a0e\u3000f\u180eg\u200bh\x1ci",
    "private, unassigned, last": "\ue000\U000f0000\U0003fffe\U0010ffff\u0378",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈👍🏽",
    "digits": "1234567 ١٢٣٤٥ 3.14 ½²",
}


@pytest.fixture(scope="module")
def corpora(artifacts):
    config = compose().config
    return {lang: corpus(config.data, lang, artifacts) for lang in LANGS}


@pytest.fixture(scope="module")
def files(artifacts, corpora):
    """tokenizer.json of each condition."""
    return {
        condition: tokenizer_artifact(compose([f"tok=bl_{condition}"]).config, corpora, artifacts).path
        / "tokenizer.json"
        for condition in CONDITIONS
    }


@pytest.fixture(scope="module")
def texts(corpora) -> list[str]:
    return [text for lang in LANGS for _, text in read_split(corpora[lang], "train")]


@pytest.fixture(scope="module")
def pairs(files):
    return {condition: (Encoder(file), Tokenizer(file)) for condition, file in files.items()}


def bpe(place, merges: list[tuple[str, str]], ids=None, **settings):
    """A byte-level tokenizer.json with these merges; ids are in their order unless `ids` says otherwise."""
    products = dict.fromkeys(left + right for left, right in merges)
    entries = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *products]
    vocab = {entry: i for i, entry in enumerate(entries)} | (ids or {})
    tokenizer = byte_level_tokenizer(models.BPE(vocab, merges, **settings))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(place / "tokenizer.json"))
    return place / "tokenizer.json"


def assert_equal(encoder: Encoder, tokenizer: Tokenizer, texts: list[str]) -> None:
    for ids, expected in zip(encoder.encode_batch(texts), tokenizer.encode_batch(texts), strict=True):
        assert ids.dtype == np.uint16
        assert ids.tolist() == expected


@pytest.mark.parametrize("condition", CONDITIONS)
def test_all_training_text_is_encoded_as_by_the_reference(files, texts, condition):
    encoder = Encoder(files[condition])
    assert (encoder.name, encoder.proven) == ("tiktoken", True)
    assert_equal(encoder, Tokenizer(files[condition]), texts)
    assert len(texts) / 128 < encoder.checked < len(texts) / 32
    assert encoder.facts == {
        "encoder": "tiktoken",
        "proven": True,
        "checked": encoder.checked,
        "refused": 0,
        "mismatch": None,
    }


@pytest.mark.parametrize("condition", CONDITIONS)
@given(text=st.text())
@settings(deadline=None, max_examples=300)
def test_any_unicode_text_is_encoded_as_by_the_reference(pairs, condition, text):
    assert_equal(*pairs[condition], [text])


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("text", ODD.values(), ids=[name.replace(" ", "-") for name in ODD])
def test_odd_texts_are_encoded_as_by_the_reference(pairs, condition, text):
    assert_equal(*pairs[condition], [text])


def test_all_characters_are_of_the_same_classes():
    assert splits_agree()


def test_a_difference_of_classes_is_noticed(monkeypatch):
    monkeypatch.setattr(module, "Regex", lambda members: Regex(members.replace(r"\p{M}", "(?:(?!\u0483)\\p{M})")))
    assert not splits_agree.__wrapped__()


def test_characters_are_split_alike():
    """Each after a letter, a digit, a sign and a space, which tells its class: scripts of all ages of Unicode."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    reference = byte_level_tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [])).pre_tokenizer
    ranks = {bytes([byte]): byte for byte in range(256)}
    for byte in range(256):
        ranks |= {bytes([first, byte]): 256 + 4 * byte + i for i, first in enumerate(b"a1! ")}
    fast = tiktoken.Encoding("joins", pat_str=module.SPLIT, mergeable_ranks=ranks, special_tokens={})
    for code in itertools.chain(range(0x3500), range(0xA000, 0xAC00), range(0xF900, 0x20000), range(0x323A0, 0x32400)):
        for first in "a1! " if not 0xD800 <= code < 0xE000 else "":
            text = first + chr(code)
            joined = len(fast.encode_ordinary(text)) < len(text.encode("utf-8"))
            assert joined == (len(reference.pre_tokenize_str(text)) == 1), hex(code)


def test_a_large_trained_tokenizer_is_proven(tmp_path, texts):
    train_byte_level(texts, 16384).save(str(tmp_path / "tokenizer.json"))
    encoder = Encoder(tmp_path / "tokenizer.json")
    assert (encoder.name, encoder.proven) == ("tiktoken", True)
    assert_equal(encoder, Tokenizer(tmp_path / "tokenizer.json"), texts[::10])


def test_a_parity_aware_tokenizer_is_proven(tmp_path, corpora):
    some = {lang: [text for _, text in itertools.islice(read_split(corpora[lang], "train"), 200)] for lang in LANGS}
    tokenizer = tokenizer_of(learn(some, {lang: found[:20] for lang, found in some.items()}, 2000))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = Encoder(tmp_path / "tokenizer.json")
    assert (encoder.name, encoder.proven) == ("tiktoken", True)
    assert_equal(encoder, Tokenizer(tmp_path / "tokenizer.json"), list(itertools.chain(*some.values())))


@st.composite
def merges_of_few_letters(draw) -> list[tuple[str, str]]:
    """Merges of entries in any order, listed once or twice, as no training would find them."""
    entries, merges = ["a", "b"], []
    for _ in range(draw(st.integers(1, 10))):
        pair = draw(st.sampled_from(entries)), draw(st.sampled_from(entries))
        if pair not in merges and len("".join(pair)) <= 6:
            merges.append(pair)
            entries.append("".join(pair))
    return draw(st.permutations(merges))


@given(merges=merges_of_few_letters())
@example([("b", "b"), ("a", "b"), ("ab", "b")])
@example([("a", "aa"), ("a", "a"), ("aa", "a")])
@settings(deadline=None, max_examples=200)
def test_the_proof_holds_exactly_where_all_words_are_encoded_alike(tmp_path_factory, merges):
    file = bpe(tmp_path_factory.getbasetemp(), merges)
    encoder, tokenizer = Encoder(file), Tokenizer(file)
    words = ["".join(word) for length in range(1, 9) for word in itertools.product("ab", repeat=length)]
    alike = all(
        encoder._fast.encode(word).tolist() == ids
        for word, ids in zip(words, tokenizer.encode_batch(words), strict=True)
    )
    assert alike or not encoder.proven
    listed_once = len({left + right for left, right in merges}) == len(merges)
    assert encoder.proven or not alike or not listed_once


def test_ids_that_do_not_follow_the_merges_are_mapped(tmp_path):
    merges = [("l", "o"), ("lo", "w"), ("e", "r"), ("low", "er")]
    file = bpe(tmp_path, merges, ids={"lower": 260, "er": 261, "low": 262, "lo": 263})
    encoder = Encoder(file)
    assert (encoder.name, encoder.proven) == ("tiktoken", True)
    (ids,) = encoder.encode_batch(["lower"])
    assert ids.tolist() == [260]
    assert_equal(encoder, Tokenizer(file), ["lowlower erlo", "wolrelow"])


@pytest.fixture
def differing(tmp_path):
    """ "abc" is an entry, but the merge of "bc" always comes before that of "ab"."""
    return bpe(tmp_path, [("b", "c"), ("a", "b"), ("ab", "c")])


def test_a_difference_raises_and_the_reference_takes_over(differing):
    encoder = Encoder(differing)
    assert (encoder.name, encoder.proven) == ("tiktoken", False)
    assert_equal(encoder, Tokenizer(differing), ["ab cd"])
    with pytest.raises(EncoderMismatch, match=r"differ from token 2 .* in 'xyabc!'") as raised:
        encoder.encode_batch(["fine", "xyabc!"])
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value), "workers send it to their parent"
    assert encoder.name == "tokenizers"
    assert encoder.facts["mismatch"] == str(raised.value)
    assert_equal(encoder, Tokenizer(differing), ["xyabc!"])
    assert_equal(Encoder(differing, fast=False), Tokenizer(differing), ["xyabc!"])
    assert Encoder(differing, fast=False).name == "tokenizers"


def test_a_difference_long_after_the_first_documents_is_found_by_the_hash_of_its_text(differing):
    encoder = Encoder(differing)
    encoder.encode_batch(["fine"] * CHECKED_FIRST)
    with pytest.raises(EncoderMismatch):
        for number in range(1000):
            encoder.encode_batch([f"abc {number}"])


def test_which_documents_are_checked_depends_on_their_text_alone(files, texts):
    one, other = Encoder(files["starved"]), Encoder(files["starved"], threads=2)
    for encoder in (one, other):
        encoder.encode_batch(["first"] * CHECKED_FIRST)
    one.encode_batch(texts[:1000])
    for text in reversed(texts[:1000]):
        other.encode_batch([text])
    assert one.checked == other.checked > CHECKED_FIRST


@pytest.mark.parametrize("threads", [1, 3])
def test_any_failure_of_tiktoken_is_a_mismatch(files, monkeypatch, threads):
    panic = tiktoken.Encoding.encode_ordinary  # meets the limit of the regex engine with a panic

    def fail(self, text, **_):
        return panic(self, " " * 1_000_100) if text == "bad" else np.zeros(1, dtype=np.uint32)

    monkeypatch.setattr(tiktoken.Encoding, "encode_to_numpy", fail)
    encoder = Encoder(files["starved"], threads=threads)
    with pytest.raises(EncoderMismatch, match="failed on a document of 3 characters that begins with 'bad'"):
        encoder.encode_batch(["bad"] * 40)
    assert encoder.name == "tokenizers"
    assert_equal(encoder, Tokenizer(files["starved"]), ["bad"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_is_no_mismatch(files, monkeypatch, error):
    def interrupted(self, text, **_):
        raise error

    encoder = Encoder(files["starved"])
    monkeypatch.setattr(tiktoken.Encoding, "encode_to_numpy", interrupted)
    with pytest.raises(error):
        encoder.encode_batch(["text"])
    assert encoder.name == "tiktoken"


def test_a_document_that_tiktoken_refuses_goes_to_the_reference(files):
    encoder = Encoder(files["destarved"])
    assert_equal(encoder, Tokenizer(files["destarved"]), ["before", "x" + " " * 1_000_100 + "y", "after"])
    assert (encoder.name, encoder.refused, encoder.checked) == ("tiktoken", 1, 2)


@pytest.mark.parametrize("fast", [True, False])
def test_threads_keep_the_order(files, texts, fast):
    some = texts[:500] if fast else texts[:60]
    alone, together = (Encoder(files["destarved"], threads, fast).encode_batch(some) for threads in (1, 3))
    assert [ids.tolist() for ids in alone] == [ids.tolist() for ids in together]


@pytest.mark.parametrize("fast", [True, False])
def test_a_lone_surrogate_is_an_error(files, fast):
    with pytest.raises(ExperimentError, match="Unicode") as raised:
        Encoder(files["starved"], fast=fast).encode_batch(["fine", "a\ud800b"])
    assert not isinstance(raised.value, EncoderMismatch)


@pytest.mark.parametrize("fast", [True, False])
def test_ids_that_do_not_fit_are_refused(tmp_path, fast):
    Encoder(bpe(tmp_path, [("a", "b")], ids={"ab": 65_535}), fast=fast)
    with pytest.raises(ExperimentError, match="ids reach 65,536"):
        Encoder(bpe(tmp_path, [("a", "b")], ids={"ab": 65_536}), fast=fast)


def test_unigram_goes_to_the_reference(tmp_path):
    pieces = [("<unk>", 0.0), ("<eos>", -99.0), ("▁a", -1.0), ("b", -1.5), ("▁", -2.0), ("a", -2.0), ("ab", -2.5)]
    tokenizer = HFTokenizer(models.Unigram([*pieces, *((c, -9.0) for c in "<eos>")], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<eos>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = Encoder(tmp_path / "tokenizer.json", threads=2)
    assert encoder.name == "tokenizers"
    assert_equal(encoder, Tokenizer(tmp_path / "tokenizer.json"), ["ab ba", "", "a<eos>b", "aabab"] * 10)
    assert 1 not in encoder.encode_batch(["a<eos>b"])[0], "a special token that is spelt out is text"
    assert encoder.facts["checked"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}},
        {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
        {"model": {"ignore_merges": True}},
        {"model": {"dropout": 0.5}},
        {"added_tokens": [{"id": 260, "content": "ab", "special": False}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_tiktoken_would_not_do_goes_to_the_reference(tmp_path, change):
    file = bpe(tmp_path, [("a", "b")])
    spec = json.loads(file.read_text())
    for key, value in change.items():
        if key == "model":
            spec[key] |= value
        elif key == "added_tokens":
            spec[key] += [spec[key][0] | value[0]]
        else:
            spec[key] = value
    file.write_text(json.dumps(spec))
    assert Encoder(file).name == "tokenizers"


def test_bpe_over_characters_goes_to_the_reference(tmp_path, texts):
    tokenizer = HFTokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.train_from_iterator(texts[:100], trainers.BpeTrainer(special_tokens=["<unk>"], show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Encoder(tmp_path / "tokenizer.json").name == "tokenizers"
