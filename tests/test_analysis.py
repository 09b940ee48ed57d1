"""The analysis of tokenizers: every number by hand or by another formula, and a gate that opens and closes."""

import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models

from experiment.config.compose import compose
from experiment.config.schema import ReportConfig
from experiment.data.artifacts import checksum
from experiment.errors import ExperimentError
from experiment.evaluation.findings import Findings, Settings
from experiment.evaluation.points import points_from_runs, points_from_table
from experiment.report import tokenizer_analysis
from experiment.reporting.page import page
from experiment.reporting.tables import markdown, tables
from experiment.reporting.tokenizers import tokenizer_tables
from experiment.tokenizers.__main__ import tokenizers_of
from experiment.tokenizers.analysis import (
    Subject,
    Vocabulary,
    analyse,
    gini,
    jaccard,
    judging_segments,
    read_vocabulary,
    renyi_efficiency,
    script_of,
    scripts,
    subject_of,
    text_metrics,
)
from tests.test_report import PUBLIC, make_run

LANGS = ["en", "de", "fr", "ar", "zh"]


class Greedy:
    """A toy encoder: the longest entry that fits, from left to right."""

    def __init__(self, vocabulary: Vocabulary):
        self.ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if piece is not None}

    def encode_batch(self, texts):
        return [self._encode(text.encode("utf-8")) for text in texts]

    def _encode(self, data: bytes) -> list[int]:
        ids = []
        while data:
            piece = max((piece for piece in self.ids if data.startswith(piece)), key=len, default=data[:1])
            ids.append(self.ids[piece])
            data = data[len(piece) :]
        return ids


def toy(*pieces: str | bytes | None) -> Vocabulary:
    encoded = tuple(piece.encode("utf-8") if isinstance(piece, str) else piece for piece in pieces)
    parts = [i for i, piece in enumerate(pieces) if isinstance(piece, bytes)]
    return Vocabulary(encoded, frozenset(parts))


def subject(*pieces: str | bytes | None) -> Subject:
    vocabulary = toy(*pieces)
    return Subject(Greedy(vocabulary), vocabulary)


FINE = (None, "ab", "a", " b", "b", "中", " ", *(bytes([byte]) for byte in "中文é".encode()))
SEGMENTS = [
    {"id": "1", "en": "ab", "zh": "中", "fr": "é"},
    {"id": "2", "en": "ab a b", "zh": "文", "fr": "a b"},
]


# --- metrics by hand


def test_the_metrics_of_a_toy_are_those_counted_by_hand():
    found = subject(*FINE)
    report = analyse({"bl_destarved": found}, SEGMENTS, ["en", "zh", "fr"], 1.1)
    rows = {row["lang"]: row for row in report["rows"]}
    en, zh, fr = rows["en"], rows["zh"], rows["fr"]
    # en: ab | ab, " ", a, " b";  zh: 中 | three bytes;  fr: two bytes | a, " b"
    assert (en["segments"], en["tokens"], en["bytes"], en["words"]) == (2, 5, 8, 4)
    assert (en["tokens_per_segment"], en["bytes_per_token"], en["tokens_per_word"]) == (2.5, 1.6, 1.25)
    assert (en["parity"], en["byte_share"], en["character_share"]) == (1.0, 0.0, 3 / 5)
    assert (zh["tokens"], zh["bytes"], zh["words"], zh["tokens_per_word"]) == (4, 6, None, None)
    assert (zh["parity"], zh["byte_share"], zh["character_share"]) == (4 / 5, 3 / 4, 1 / 4)
    assert (fr["tokens"], fr["words"], fr["tokens_per_word"]) == (4, 3, 4 / 3)
    assert (fr["parity"], fr["byte_share"], fr["character_share"]) == (4 / 5, 1 / 2, 1 / 2)
    whole = report["tokenizers"]["bl_destarved"]
    assert (whole["entries"], whole["special"]) == (len(FINE), 1)
    # costs 5, 4, 4: pairs differ by 1, 1, 0; within segments 1, 1, 2 and 4, 3, 2
    assert whole["gini"] == pytest.approx(float(Fraction(2 * 2, 2 * 9) / Fraction(13, 3)))
    first, second = Fraction(2 * 2, 2 * 9) / Fraction(4, 3), Fraction(2 * 4, 2 * 9) / 3
    assert whole["gini_of_segments"] == pytest.approx(float((first + second) / 2))


def test_without_english_there_is_no_parity():
    report = analyse({"bl_destarved": subject(*FINE)}, SEGMENTS, ["zh", "fr"], 1.1)
    assert [row["parity"] for row in report["rows"]] == [None, None]


def test_a_tokenizer_that_loses_text_is_an_error():
    broken = subject(*FINE)
    broken.encoder.ids[b"ab"] = broken.encoder.ids[b"a"]
    with pytest.raises(ExperimentError, match="bl_destarved: segment 1 in en is not what its tokens spell"):
        analyse({"bl_destarved": broken}, SEGMENTS, ["en"], 1.1)


counts = st.lists(st.integers(0, 1000), min_size=2, max_size=50).filter(any)


@given(counts=counts)
def test_renyi_efficiency_by_the_norm_of_the_distribution(counts):
    """H_alpha = alpha / (1 - alpha) log ||p||_alpha."""
    p = np.array(counts) / sum(counts)
    expected = 2.5 / (1 - 2.5) * math.log(np.linalg.norm(p, 2.5)) / math.log(len(counts))
    found = renyi_efficiency(np.array(counts))
    assert found == pytest.approx(expected, abs=1e-12) and -1e-12 <= found <= 1 + 1e-12


def test_renyi_efficiency_of_published_examples():
    """Those of the tests and the README of `tokenization-scorer`, whose vocabulary is the entries that occur."""
    once, twice = np.array([3, 2, 1, 1]), np.array([3, 3, 2, 2, 1])  # pick @@ed @@l @@les; pick @@e @@d @@l @@s
    assert renyi_efficiency(once) == pytest.approx(0.8265064834225245)
    assert renyi_efficiency(twice) == pytest.approx(0.9204840242168808)
    assert renyi_efficiency(once, alpha=3) == pytest.approx(0.8031528501359657)
    assert renyi_efficiency(twice, alpha=3) == pytest.approx(0.9105681923824472)
    assert renyi_efficiency(np.full(64, 7)) == pytest.approx(1)
    assert renyi_efficiency(np.array([7, 7, 0, 0])) == pytest.approx(0.5), "entries that do not occur count"


costs = st.lists(st.integers(1, 10**6), min_size=1, max_size=20)


@given(costs=costs)
def test_gini_by_the_ranks_of_the_costs(costs):
    """(n + 1 - 2 sum (n + 1 - i) c_i / sum c_i) / n over costs in ascending order: the form of arXiv 2508.04796."""
    n, weighted = len(costs), sum((len(costs) - i) * c for i, c in enumerate(sorted(costs)))
    assert gini(costs) == pytest.approx(float((n + 1 - Fraction(2 * weighted, sum(costs))) / n), abs=1e-12)


def test_gini_of_extremes():
    assert gini([3, 3, 3, 3, 3]) == 0
    assert gini([0, 0, 0, 1]) == pytest.approx(3 / 4)


# --- vocabularies


@pytest.mark.parametrize(
    "text, script, letters",
    [
        (" the", "Latn", 3),
        ("é", "Latn", 1),
        ("e\u0301", "Latn", 1),  # the mark is Inherited
        ("الكتاب", "Arab", 6),
        ("كـتاب", "Arab", 4),  # tatweel is Common
        ("、。！ 12", "Zyyy", 0),
        ("\u0301", "Zyyy", 0),
        (" ", "Zyyy", 0),
        ("漢字", "Hani", 2),
        ("々", "Hani", 1),
        ("𠮷", "Hani", 1),
        ("漢字は", "mixed", 3),
        ("的app", "mixed", 4),
        ("Жук", "Cyrl", 3),
    ],
)
def test_an_entry_has_the_script_of_its_letters(text, script, letters):
    assert script_of(text) == (script, letters)


def test_entries_are_counted_once_by_script():
    vocabulary = toy(None, None, "the", "a", " b", "中", "中文", "中a", "،", "1", b"\xe4", b" \xd8")
    assert scripts(vocabulary) == {
        "Latn": {"entries": 3, "multi": 1},
        "Hani": {"entries": 2, "multi": 1},
        "Zyyy": {"entries": 2, "multi": 0},
        "partial": {"entries": 2, "multi": 0},
        "mixed": {"entries": 1, "multi": 1},
    }


def test_shared_entries_are_those_of_both_over_those_of_either():
    a, b = toy(None, "a", "b", "c", b"\xe4"), toy(None, None, "b", "c", "d", b"\xe4")
    assert jaccard(a, b) == jaccard(b, a) == 3 / 5
    assert jaccard(a, a) == 1 and jaccard(toy("a"), toy("b")) == 0


@pytest.fixture(scope="module")
def found(artifacts) -> dict[str, Subject]:
    """The tokenizers of the embedded corpus."""
    names = ("bl_starved", "bl_destarved")
    configs = {name: compose([f"tok={name}", f"paths.artifacts={artifacts}"]).config for name in names}
    return {name: subject_of(artifact) for name, artifact in tokenizers_of(configs).items()}


@pytest.fixture(scope="module")
def segments() -> list[dict]:
    return judging_segments(compose().config.data, LANGS)


@pytest.mark.parametrize("name", ["bl_starved", "bl_destarved"])
@given(text=st.text())
@settings(deadline=None, max_examples=200)
def test_the_pieces_of_any_text_spell_it(found, name, text):
    one = found[name]
    (ids,) = one.encoder.encode_batch([text])
    assert b"".join(one.vocabulary.pieces[i] for i in ids) == text.encode("utf-8")


@pytest.mark.parametrize("name", ["bl_starved", "bl_destarved"])
def test_every_entry_stands_in_one_row_of_the_scripts(found, name):
    vocabulary = found[name].vocabulary
    assert vocabulary.pieces[:4] == (None,) * 4 and vocabulary.pieces.count(None) == 4
    rows = scripts(vocabulary)
    assert sum(row["entries"] for row in rows.values()) == 4096 - 4
    assert all(row["multi"] <= row["entries"] for row in rows.values())
    assert rows["partial"]["entries"] >= 128, "each byte that is no character by itself is an entry"


@pytest.mark.parametrize("lang", LANGS)
def test_parts_of_characters_are_the_tokens_that_do_not_decode_alone(found, segments, lang):
    """The share of byte tokens under the starved tokenizer against what its own decoder makes of single tokens."""
    one = found["bl_starved"]
    texts = [row[lang] for row in segments]
    ids = [i for each in one.encoder.encode_batch(texts) for i in each]
    alone = [one.encoder.decode([i]) for i in ids]
    assert not any("\ufffd" in text for text in texts)
    shares = text_metrics(one.vocabulary, one.encoder.encode_batch(texts), texts, lang)
    assert shares["byte_share"] == sum("\ufffd" in text for text in alone) / len(ids)
    single = [text for text in alone if "\ufffd" not in text and len(text[text.startswith(" ") :] or text) == 1]
    assert shares["character_share"] == len(single) / len(ids)


def test_byte_fallback_of_a_unigram_vocabulary_is_its_byte_entries(tmp_path):
    """`<0xNN>` is fallback also where the byte is an ASCII character."""
    pieces = ["<unk>", " ab", "a", "b", " ", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.Unigram([(piece, -float(n > 4) - 1) for n, piece in enumerate(pieces)], unk_id=0, byte_fallback=True)
    tokenizer = HFTokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = read_vocabulary(tmp_path / "tokenizer.json")
    assert vocabulary.pieces[:5] == (None, b" ab", b"a", b"b", b" ")
    assert vocabulary.fallback == frozenset(range(5, 261)) and vocabulary.pieces[5 + 0x41] == b"A"
    ids = tokenizer.encode("a abé").ids
    assert b"".join(vocabulary.pieces[i] for i in ids).decode() == "a abé"
    row = text_metrics(vocabulary, [ids], ["a abé"], "fr")
    assert (row["tokens"], row["byte_share"], row["character_share"]) == (4, 2 / 4, 1 / 4)
    assert scripts(vocabulary)["partial"]["entries"] == 256


# --- the gate


COARSE = (*FINE, "文", "é", "ab a b", "a b")


def two(gate: float, starved=FINE, destarved=COARSE) -> dict:
    """en 5 tokens against 2, zh 4 against 2, fr 4 against 2."""
    subjects = {"bl_destarved": subject(*destarved), "bl_starved": subject(*starved)}
    return analyse(subjects, SEGMENTS, ["en", "zh", "fr"], gate)


def test_the_gate_opens_where_every_language_reaches_it():
    report = two(2.0)
    (comparison,) = report["comparisons"]
    assert (comparison["of"], comparison["to"]) == ("bl_starved", "bl_destarved")
    assert comparison["ratios"] == {"en": 2.5, "zh": 2.0, "fr": 2.0}
    verdict = report["verdicts"]["bl"]
    assert verdict["differ"] is True and verdict["smallest"] == {"lang": "zh", "ratio": 2.0}
    assert "differ enough to go on" in verdict["sentence"] and "2.000, in Chinese" in verdict["sentence"]


def test_the_gate_stays_shut_where_one_language_does_not_reach_it():
    verdict = two(2.4)["verdicts"]["bl"]
    assert verdict["differ"] is False
    for said in (
        "do not differ enough",
        "2.000 times",
        "in Chinese",
        "(under it as well: fr 2.000)",
        "before anything",
    ):
        assert said in verdict["sentence"]


def test_the_same_vocabulary_twice_is_told():
    report = two(1.1, FINE, FINE)
    assert report["comparisons"][0]["jaccard"] == 1
    assert report["verdicts"]["bl"]["differ"] is False and "same entries" in report["verdicts"]["bl"]["sentence"]


def test_parity_aware_has_no_starved_form_and_is_shown_beside_the_others():
    subjects = {"bl_starved": subject(*FINE), "bl_destarved": subject(*COARSE), "pa_destarved": subject(*COARSE)}
    report = analyse(subjects, SEGMENTS, ["en", "zh"], 1.1)
    verdict = report["verdicts"]["pa"]
    assert verdict["differ"] is None and "no starved form exists" in verdict["sentence"]
    assert "bl_starved needs 2.000 to 2.500 times its tokens." in verdict["sentence"]
    assert "bl_destarved needs 1.000 to 1.000 times its tokens." in verdict["sentence"]
    assert report["verdicts"]["bl"]["differ"] is True


def test_one_condition_alone_is_not_judged():
    verdict = analyse({"bl_destarved": subject(*FINE)}, SEGMENTS, ["en"], 1.1)["verdicts"]["bl"]
    assert verdict["differ"] is None and "only bl_destarved" in verdict["sentence"]


def test_the_embedded_conditions_differ_most_in_other_scripts(found, segments):
    report = analyse(found, segments, LANGS, 1.3)
    ratios = report["comparisons"][0]["ratios"]
    assert report["verdicts"]["bl"]["differ"] is True
    assert min(ratios["ar"], ratios["zh"]) > max(ratios["en"], ratios["de"], ratios["fr"])
    starved, destarved = (report["tokenizers"][name]["scripts"] for name in ("bl_starved", "bl_destarved"))
    for script in ("Hani", "Arab"):
        assert destarved[script]["multi"] > 4 * starved[script]["multi"]


def test_samples_show_every_split_with_bytes_as_hex(found, segments):
    report = analyse(found, segments, LANGS, 1.1)
    assert len(report["samples"]) == 3 * len(LANGS) * 2
    texts = {row["id"]: row for row in segments}
    for sample in report["samples"]:
        if not any("⟨" in piece for piece in sample["pieces"]):
            assert "".join(sample["pieces"]) == texts[sample["id"]][sample["lang"]]
    zh = [sample["pieces"] for sample in report["samples"] if (sample["tok"], sample["lang"]) == ("bl_starved", "zh")]
    assert any(piece.startswith("⟨E") for pieces in zh for piece in pieces)


# --- tables and the page


def with_tokenizers(place: Path, artifacts: Path, **changes) -> Path:
    """Runs whose tokenizers are on disk."""
    config = compose([f"paths.artifacts={artifacts}"]).config
    for condition in ("starved", "destarved"):
        composed = compose([f"tok=bl_{condition}", f"paths.artifacts={artifacts}"])
        (artifact,) = tokenizers_of({condition: composed.config}).values()
        fingerprints = {"tokenizer": artifact.fingerprint, "parallel": checksum(Path(config.data.parallel))}
        fingerprints |= {"corpora": {"en": "corpus"}, "shards": {"en": condition}} | changes
        run = make_run(place / "tiny", "en", condition, fingerprints=fingerprints)
        (run / ".hydra").mkdir()
        OmegaConf.save(composed.source, run / ".hydra" / "config.yaml")
    return place


def section(report: dict) -> str:
    made = tokenizer_tables(report["tokenizers"], report["tokenizer_analysis"])
    html = page(report, [], tables(report), made).split("<script>")[0]
    return html.partition('<h2 id="tokenization">')[2].partition("<h2")[0]


def report_on(place: Path, artifacts: Path) -> dict:
    evidence = points_from_runs(place / "tiny", artifacts)
    config = ReportConfig()
    config.paths.runs, config.paths.artifacts = str(place), str(artifacts)
    report = Findings(evidence, Settings((8e9,), 100)).report()
    return report | {"tokenizer_analysis": tokenizer_analysis(config, evidence)}


def test_the_page_has_a_section_on_the_tokenizers_of_its_runs(tmp_path, artifacts):
    report = report_on(with_tokenizers(tmp_path, artifacts), artifacts)
    html = section(report)
    ratios = report["tokenizer_analysis"]["comparisons"][0]["ratios"]
    for said in ("differ enough to go on", "bl_starved / bl_destarved", "Han (Hani)", "⟨E", f"{ratios['zh']:.3f}"):
        assert said in html
    json.dumps(report, allow_nan=False)


def test_the_page_says_why_it_cannot_show_them(tmp_path, artifacts):
    report = report_on(with_tokenizers(tmp_path, artifacts, parallel="another"), artifacts)
    assert "is not the parallel text that en__bl_destarved was scored on" in section(report)
    report = report_on(with_tokenizers(tmp_path / "b", artifacts, tokenizer="not there"), artifacts)
    assert "has none with the fingerprint not there" in section(report)


def test_a_report_on_a_table_of_points_has_no_such_section():
    evidence = points_from_table(PUBLIC)
    assert tokenizer_analysis(ReportConfig(), evidence) is None
    assert tokenizer_tables([], None) == []


def test_tables_are_markdown_whatever_the_text_holds():
    segments = [{"id": "1", "en": "a|b"}]
    analysis = analyse({"bl_destarved": subject("a", "|", "b")}, segments, ["en"], 1.1)
    made = {table.name: table for table in tokenizer_tables([], analysis)}
    assert made["segmentation"].rows == [("1", "en", "bl_destarved", "3", "a│|│b")]
    assert r"a│\|│b" in markdown(made["segmentation"])


def test_the_table_of_scripts_shows_the_common_ones_and_sums_the_rest():
    letters = [chr(start) * n for start in (0x391, 0x410, 0x531, 0x5D0, 0x905, 0x985, 0xE01, 0x10D0) for n in (1, 2)]
    more = ["a", "中", "あ", "ア", "가", "ក"]
    analysis = analyse({"bl_destarved": subject("a", *letters, *more)}, [{"id": "1", "en": "a"}], ["en"], 1.1)
    (table,) = [table for table in tokenizer_tables([], analysis) if table.name == "vocabulary_scripts"]
    assert len(table.records) == 14 and len(table.rows) == 13
    assert table.rows[-1] == ("2 more", "2", "0") and ("Greek (Grek)", "2", "1") in table.rows


# --- the command


def ask(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiment.tokenizers", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_command_says_no_and_ends_well(tmp_path, artifacts):
    """A shut gate is an answer, not a failure: its consequence is told, and scripts read the field `differ`."""
    places = [f"paths.artifacts={artifacts}", f"paths.runs={tmp_path}"]
    result = ask(*places, "gate=9", "output=json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["differ"] is False and "do not differ enough" in report["verdict"]
    assert report["fingerprints"].keys() == {"bl_starved", "bl_destarved"} and len(report["rows"]) == 10
    out = tmp_path / "reports" / "tokenizers-tiny-embedded-bl"
    assert json.loads((out / "tokenizers.json").read_text(encoding="utf-8")) == report
    assert report["verdict"] in (out / "tokenizers.md").read_text(encoding="utf-8")
    result = ask(*places)
    assert result.returncode == 0 and "differ enough to go on" in result.stdout and "bl_starved" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == ["tokenizers.json", "tokenizers.md"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["gate=0.5"], "gate: got 0.5"),
        (["gate=nan"], "gate: got nan"),
        (["output=xml"], "output: got 'xml'"),
        (["flavor=xx"], "there is no flavor 'xx'"),
        (["tok=bl_starved"], "tok: the tokenizers follow from flavor=bl"),
        (["data.parallel=null"], "data.parallel: null"),
        (["data.parallel=nowhere.jsonl"], "data.parallel: nowhere.jsonl"),
        ([f"out={Path(__file__).parent}"], "is not an analysis of tokenizers"),
        (["tok.vocab_size=7"], "tok.vocab_size: got 7"),
    ],
)
def test_a_wrong_request_is_one_line(options, message, tmp_path):
    result = ask(f"paths.runs={tmp_path}", *options)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stdout == ""
