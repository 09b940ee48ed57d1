"""Transfer scores on worlds whose truth is known, and on published points with checked values."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.errors import ExperimentError
from experiment.evaluation.curves import Curve, monotone
from experiment.evaluation.findings import Findings, Settings
from experiment.evaluation.points import COLUMNS, Cell, Evidence, Point, points_from_table, stable_series
from experiment.evaluation.transfer import Estimate, atlas_bts, combine, interval, penalty, relative_bts

PUBLIC = Path(__file__).parent / "reference" / "public_points.csv"
B = 1e9

# relative BTS / ATLAS BTS at 2B, 4B, 8B, 10B tokens, computed independently of this package
CHECKED = {
    ("fr", "destarved"): ["+0.0296 +0.764", "+0.0189 +0.745", "+0.0077 +0.459", "+0.0064 +0.724"],
    ("fr", "starved"): ["+0.0354 +0.875", "+0.0236 +0.944", "+0.0069 +0.446", "+0.0023 +0.079"],
    ("ar", "destarved"): ["-0.0016 -0.107", "+0.0016 +0.203", "-0.0001 -0.018", "-0.0011 -0.227"],
    ("zh", "starved"): ["+0.0016 +0.036", "-0.0106 -0.930", "-0.0075 -0.775", "-0.0078 -0.231"],
    ("zh", "destarved"): ["-0.0094 -0.106", "-0.0122 -2.313", "-0.0244 right", "-0.0183 right"],
}


def law(tokens: np.ndarray | float) -> np.ndarray | float:
    """A loss of the usual form, tokens in billions."""
    return 0.8 + 0.3 * np.asarray(tokens) ** -0.3


def evidence_of(bpb_of, partners=("de", "fr", "ar", "zh"), conditions=("starved", "destarved"), phase="stable"):
    """Points at 1B, 2B, ... 24B of every cell; `bpb_of(mixture, condition, lang, tokens)` in billions."""
    points = []
    for condition in conditions:
        for mixture in ["en", *partners, *(f"en-{p}" for p in partners)]:
            cell = Cell(mixture, f"bl_{condition}")
            for lang in mixture.split("-"):
                for x in range(1, 25):
                    value = float(bpb_of(mixture, condition, lang, x))
                    points.append(Point(cell, cell.name, int(x * B), phase, "held", lang, value))
    return Evidence(points)


def planted(t_of):
    """A bilingual run is as good as a monolingual one after sigma / (2 - t) tokens."""

    def bpb(mixture, condition, lang, tokens):
        if "-" not in mixture or lang == "en":
            return law(tokens)
        return law(tokens / (2 - t_of(condition, lang)))

    return bpb


@pytest.fixture(scope="module")
def public() -> dict:
    return Findings(points_from_table(PUBLIC), Settings(replicates=200)).report()


@pytest.mark.parametrize("lang, condition", CHECKED)
def test_published_points_give_the_checked_values(public, lang, condition):
    rows = [
        row
        for row in public["transfer"]
        if (row["lang"], row["condition"], row["matching"]) == (lang, condition, "tokens")
    ]
    assert [row["budget"] for row in rows] == [2 * B, 4 * B, 8 * B, 10 * B]
    shown = [
        f"{r['relative']:+.4f} " + (f"{r['atlas']:+.3f}" if r["atlas"] is not None else r["censored"]) for r in rows
    ]
    assert shown == CHECKED[lang, condition]
    assert all(row["phase"] == "stable" and row["budget_tokens"] == row["budget"] for row in rows)


def test_published_points_censor_german_and_refuse_the_diverged_cell(public):
    report = Findings(points_from_table(PUBLIC), Settings((6.5 * B, 8 * B, 10 * B), replicates=100)).report()
    rows = [row for row in report["transfer"] if row["lang"] == "de" and row["matching"] == "tokens"]
    assert [row["censored"] for row in rows if row["condition"] == "destarved"] == ["right"] * 3
    for row in rows:
        if row["condition"] == "starved":
            assert row["relative"] is row["atlas"] is None
            assert "diverged" in row["reasons"]["atlas"] and "de__unigram_starved" in row["reasons"]["relative"]
    assert [row["name"] for row in public["excluded"]] == ["de__unigram_starved flores/de"]


def test_a_penalty_over_identical_partners_in_both_conditions_or_none(public):
    for row in public["penalty"] + public["interaction"]:
        if row["score"] != "relative" or row["matching"] != "tokens":
            continue
        if row["designed"]:
            assert row["value"] is None and "needs de in both conditions" in row["reason"]
        else:
            assert (row["same"], row["cross"]) == (["fr"], ["ar", "zh"]) and row["value"] is not None
    scores = {
        (r["condition"], r["lang"]): r["relative"]
        for r in public["transfer"]
        if r["budget"] == 4 * B and r["matching"] == "tokens"
    }
    by_hand = {c: scores[c, "fr"] - (scores[c, "ar"] + scores[c, "zh"]) / 2 for c in ("starved", "destarved")}
    (joint,) = [
        r
        for r in public["interaction"]
        if (r["budget"], r["score"], r["designed"], r["matching"]) == (4 * B, "relative", False, "tokens")
    ]
    assert joint["value"] == pytest.approx(by_hand["starved"] - by_hand["destarved"], rel=1e-12)


def test_a_censored_member_makes_the_penalty_a_bound(public):
    rows = [r for r in public["penalty"] if r["score"] == "atlas" and r["budget"] == 8 * B and not r["designed"]]
    # a cross-script partner is below its bound, so the penalty is above one
    assert {row["condition"]: row["bound"]["side"] for row in rows} == {"starved": "above", "destarved": "above"}
    assert all(row["value"] is None for row in rows)
    assert penalty([Estimate(bound=("below", 1.0))], [Estimate(bound=("below", 0.0))]).reason
    assert penalty([Estimate(bound=("below", 1.0))], [Estimate(0.5)]).bound == ("below", 0.5)


@pytest.mark.parametrize("t", [-1.0, -0.3, 0.0, 0.4, 0.9])
def test_planted_transfer_is_found(t):
    report = Findings(evidence_of(planted(lambda *_: t)), Settings((4 * B, 8 * B), replicates=100)).report()
    for row in report["transfer"]:
        if row["matching"] != "tokens" or (t == -1.0 and row["budget"] == 8 * B):
            continue
        d = row["budget"] / B
        assert row["atlas"] == pytest.approx(t, abs=0.02)
        closed_form = (law(d) - law(2 * d / (2 - t))) / law(d)
        assert row["relative"] == pytest.approx(closed_form, abs=5e-4)
        if t == 0:
            assert row["relative"] == pytest.approx(0, abs=1e-12) and row["atlas"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_transfer_at_any_share_of_the_mix(share):
    """At share p a bilingual run with transfer t reaches the loss of d tokens after d (1/p - t (1/p - 1))."""
    tokens = np.arange(1.0, 121.0) * B
    mono = Curve.fitted(tokens, law(tokens / B))
    for t in (-0.5, 0.0, 1.0):
        ratio = 1 / share - t * (1 / share - 1)
        bi = Curve.fitted(tokens, law(tokens / B / ratio))
        assert atlas_bts(mono, bi, share, 8 * B) == pytest.approx(t, abs=0.02)
        if t == 0:
            assert relative_bts(mono, bi, share, 8 * B) == pytest.approx(0, abs=1e-3)


def test_a_planted_interaction_is_found():
    t = {("starved", "de"): 0.6, ("starved", "fr"): 0.4, ("starved", "ar"): -0.4, ("starved", "zh"): -0.2}
    t |= {("destarved", "de"): 0.6, ("destarved", "fr"): 0.4, ("destarved", "ar"): 0.3, ("destarved", "zh"): 0.1}
    report = Findings(evidence_of(planted(lambda c, lang: t[c, lang])), Settings((8 * B,), replicates=100)).report()
    found = {
        (r["condition"]): r["value"] for r in report["penalty"] if r["score"] == "atlas" and r["matching"] == "tokens"
    }
    assert found == {"starved": pytest.approx(0.8, abs=0.03), "destarved": pytest.approx(0.3, abs=0.03)}
    (joint,) = [r for r in report["interaction"] if r["score"] == "atlas" and r["matching"] == "tokens"]
    assert joint["value"] == pytest.approx(0.5, abs=0.03) and joint["designed"]


def test_a_cooled_point_is_refused_from_a_stable_curve():
    cell = Cell("de", "bl_starved")
    points = [Point(cell, "r", int(x * B), "stable", "held", "de", 1.0) for x in (1, 2, 3)]
    with pytest.raises(ValueError, match="decay phase"):
        stable_series([*points, Point(cell, "r", int(4 * B), "decay", "held", "de", 0.9)])
    # cooled points of a cell change nothing in its scores
    plain = evidence_of(planted(lambda *_: 0.2))
    cooled = [
        Point(p.cell, p.run, p.tokens + 1, "decay", p.source, p.lang, p.bpb * 0.8)
        for p in plain.points
        if p.tokens == 24 * B
    ]
    before = Findings(plain, Settings(replicates=100)).report()
    after = Findings(Evidence(plain.points + cooled), Settings(replicates=100)).report()
    assert before["transfer"] == after["transfer"]


def test_nothing_is_extrapolated():
    report = Findings(
        evidence_of(planted(lambda *_: 0.0)), Settings((0.4 * B, 11 * B, 13 * B, 40 * B), replicates=100)
    ).report()
    by_budget = {row["budget"] / B: row for row in report["transfer"] if row["matching"] == "tokens"}
    assert by_budget[11]["atlas"] == pytest.approx(0, abs=1e-6)
    for budget in (0.4, 40):
        assert by_budget[budget]["relative"] is by_budget[budget]["atlas"] is None
        assert "outside its stable points" in by_budget[budget]["reasons"]["atlas"]
    assert by_budget[13]["relative"] is None and by_budget[13]["censored"] == "right"
    assert by_budget[13]["atlas_bound"] == {"side": "below", "of": pytest.approx(2 - 24 / 13)}
    span = report["measurable"][0]
    assert span["0"] == [1 * B, 12 * B] and span["-1"] == [1 * B, 8 * B]


def test_left_censoring_is_a_bound_from_the_first_point():
    def bpb(mixture, condition, lang, tokens):
        return law(tokens) - (0.5 if "-" in mixture else 0.0)

    report = Findings(evidence_of(bpb), Settings((4 * B,), replicates=100)).report()
    row = next(r for r in report["transfer"] if r["matching"] == "tokens")
    assert row["censored"] == "left" and row["atlas_bound"] == {"side": "above", "of": pytest.approx(2 - 1 / 4)}


def test_finals_are_compared_at_equal_total_tokens_only():
    stable = evidence_of(planted(lambda *_: 0.0))
    ends = []
    for cell in {p.cell for p in stable.points}:
        tokens = 30 if cell.mixture != "en-fr" else 31
        for lang in cell.langs:
            ends.append(
                Point(cell, cell.name, int(tokens * B), "final", "held", lang, 0.9 if len(cell.langs) > 1 else 1.0)
            )
    report = Findings(Evidence(stable.points + ends), Settings(replicates=100)).report()
    rows = {(r["condition"], r["partner"]): r for r in report["final_difference"]}
    assert rows["starved", "ar"]["value"] == pytest.approx(0.1)
    assert (
        rows["starved", "fr"]["value"] is None
        and "no decay that ends at 30,000,000,000 tokens" in rows["starved", "fr"]["reason"]
    )
    finals = [r for r in report["interaction"] if r["score"] == "final_difference"]
    assert [(r["designed"], r["value"]) for r in finals] == [(True, None), (False, pytest.approx(0.0))]


def test_a_missing_cell_makes_the_penalty_not_computable_in_both_conditions():
    full = evidence_of(planted(lambda *_: 0.1))
    left = [p for p in full.points if p.cell != Cell("en-zh", "bl_starved")]
    report = Findings(Evidence(left), Settings((8 * B,), replicates=100)).report()
    rows = [r for r in report["penalty"] if r["score"] == "atlas" and r["matching"] == "tokens"]
    assert [(r["condition"], r["designed"], r["value"] is None) for r in rows] == [
        ("starved", True, True),
        ("destarved", True, True),
        ("starved", False, False),
        ("destarved", False, False),
    ]
    assert rows[2]["cross"] == rows[3]["cross"] == ["ar"]
    only = Findings(evidence_of(planted(lambda *_: 0.1), conditions=("starved",)), Settings(replicates=100)).report()
    assert all(row["value"] is None for row in only["penalty"])


def test_seeds_give_an_interval_that_says_so():
    points = []
    for seed, t in ((0, 0.2), (1, 0.3), (2, 0.4)):
        one = evidence_of(planted(lambda c, lang, t=t: t))
        points += [
            Point(Cell(p.cell.mixture, p.cell.tok, seed), f"{p.run}-{seed}", p.tokens, p.phase, p.source, p.lang, p.bpb)
            for p in one.points
        ]
    report = Findings(Evidence(points), Settings((8 * B,), replicates=100)).report()
    row = next(r for r in report["transfer"] if r["matching"] == "tokens")
    assert row["atlas"] == pytest.approx(0.3, abs=0.02) and row["seeds"] == [0, 1, 2]
    (seeds,) = [i for i in row["intervals"]["atlas"] if "seeds" in i["covers"]]
    half = 4.303 * 0.1 / math.sqrt(3)  # Student's t with two degrees of freedom
    assert (seeds["high"] - seeds["low"]) / 2 == pytest.approx(half, rel=0.02)
    assert seeds["conditional_on"] is None
    single = Findings(evidence_of(planted(lambda *_: 0.2)), Settings((8 * B,), replicates=100)).report()
    assert {i["conditional_on"] for r in single["transfer"] for i in r["intervals"]["atlas"]} == {"one training run"}


def test_content_matching_compares_the_same_text():
    """The starved tokenizer needs twice the tokens for the same text, so its curves are looked at twice as far."""
    evidence = evidence_of(planted(lambda *_: 0.1))
    for condition, tokens in (("starved", 800), ("destarved", 400)):
        for lang in ("en", "de", "fr", "ar", "zh"):
            evidence.shards[f"bl_{condition}", "", lang] = {"tokens": tokens, "bytes": 1600}
    report = Findings(evidence, Settings((4 * B,), replicates=100)).report()
    rows = {(r["condition"], r["lang"]): r for r in report["transfer"] if r["matching"] == "content"}
    assert rows["destarved", "de"]["budget_tokens"] == pytest.approx(4 * B * 1.1861)
    assert rows["starved", "de"]["budget_tokens"] == pytest.approx(8 * B * 1.1861)
    assert rows["destarved", "zh"]["budget_tokens"] == pytest.approx(4 * B * 0.9249)
    bare = Findings(evidence_of(planted(lambda *_: 0.1)), Settings((4 * B,), replicates=100)).report()
    reasons = {r["reasons"]["atlas"] for r in bare["transfer"] if r["matching"] == "content"}
    assert all("needs the training shards" in reason for reason in reasons)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_monotone_is_the_isotonic_fit(values):
    fit = monotone(np.array(values))
    assert (np.diff(fit) <= 1e-12).all()
    assert fit.mean() == pytest.approx(np.mean(values))  # blocks are replaced by their means
    if (np.diff(values) <= 0).all():
        assert fit == pytest.approx(values)


@given(st.lists(st.floats(0.5, 2), min_size=2, max_size=20), st.floats(0.01, 0.99))
def test_the_inverse_is_the_first_place_with_that_loss(values, share):
    curve = Curve.fitted(np.arange(1.0, len(values) + 1), np.array(values))
    level = curve.bpb[-1] + share * (curve.bpb[0] - curve.bpb[-1])
    tokens = float(curve.first_crossing(level))
    assert curve.at(tokens) == pytest.approx(level, abs=1e-9)
    if tokens > 1.0001 and curve.bpb[0] > curve.bpb[-1] + 1e-6:
        assert curve.at(tokens * 0.9999) >= level - 1e-9
    assert np.isinf(curve.first_crossing(curve.bpb[-1] - 0.1)) and curve.first_crossing(curve.bpb[0] + 0.1) == 0.0


def test_a_replicate_that_says_nothing_counts_at_both_ends():
    known = np.linspace(0, 1, 96)
    assert interval(np.concatenate([known, [np.nan] * 4]), 0.95) == (-math.inf, math.inf)
    assert interval(np.concatenate([known, [-math.inf] * 4]), 0.95)[0] == -math.inf
    lost = combine(
        [
            (1.0, Estimate(1.0, replicates={"documents": np.array([np.inf])})),
            (-1.0, Estimate(1.0, replicates={"documents": np.array([np.inf])})),
        ]
    )
    assert np.isnan(lost.replicates["documents"]).all()


# --- the import format


def rows_of(path: Path = PUBLIC) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(tmp_path: Path, rows: list[dict[str, str]]) -> Path:
    path = tmp_path / "points.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_order_of_rows_does_not_matter(tmp_path, public):
    rows = rows_of()
    np.random.default_rng(0).shuffle(rows)
    again = Findings(points_from_table(written(tmp_path, rows)), Settings(replicates=200)).report()
    assert {k: v for k, v in again.items() if k != "origin"} == {k: v for k, v in public.items() if k != "origin"}


def test_the_same_row_twice_is_one_row(tmp_path):
    rows = rows_of()
    assert points_from_table(written(tmp_path, [*rows, rows[0]])).points == points_from_table(PUBLIC).points


@pytest.mark.parametrize(
    "change, message",
    [
        ({"bpb": "nan"}, "row 3 of points.csv: bpb: got 'nan'"),
        ({"bpb": "-1"}, "bpb: got '-1'"),
        ({"bpb": ""}, "bpb: got ''"),
        ({"tokens": "1.5"}, "tokens: got '1.5'; must be a whole number"),
        ({"tokens": "inf"}, "tokens: got 'inf'"),
        ({"tokens": "0"}, "tokens: got '0'"),
        ({"seed": "x"}, "seed: got 'x'"),
        ({"lang": "xx"}, "there is no language 'xx'"),
        ({"mixture": "en-xx"}, "there is no language 'xx'"),
        ({"lang": "de"}, "'de' is not in the mixture 'ar'"),
        ({"phase": "cooled"}, "phase: got 'cooled'"),
        ({"run": " "}, "run: got ' '"),
        ({"tok": "small"}, "tok: got 'small'; must be <flavor>_starved or <flavor>_destarved"),
        ({"mixture": "ar-en"}, "mixture: got 'ar-en'; must be a language or en-<language>"),
        ({"source": "../../x"}, "source: got '../../x'"),
        ({"source": "<img src=x>"}, "source: got '<img src=x>'"),
        ({"run": "two\nlines"}, "must be a name on one line"),
        ({"bpb": "5e3"}, "no text has more than"),
        ({"bpb": "1_0"}, "bpb: got '1_0'"),
        ({"tokens": "250478592", "bpb": "9.9"}, "has two values"),
    ],
)
def test_a_bad_row_is_one_clear_line(tmp_path, change, message):
    rows = rows_of()
    rows[1] |= change
    with pytest.raises(ExperimentError) as error:
        points_from_table(written(tmp_path, rows))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_stable_point_after_a_decay_is_refused(tmp_path):
    rows = rows_of()
    cooled = next(row for row in rows if row["phase"] == "decay")
    cooled["phase"] = "stable"
    with pytest.raises(ExperimentError, match=r"stable point at .* follows a decay point|two values"):
        later = [row for row in rows if row["run"] == cooled["run"] and row["phase"] == "decay"]
        cooled["tokens"] = str(int(later[-1]["tokens"]) + 10**9)
        points_from_table(written(tmp_path, rows))


def test_tables_of_other_shapes_are_one_clear_line(tmp_path):
    rows = rows_of()[:4]
    for lacking in COLUMNS:
        with pytest.raises(ExperimentError, match=f"lacks the columns {lacking}"):
            points_from_table(written(tmp_path, [{k: v for k, v in row.items() if k != lacking} for row in rows]))
    mixed = [row | {"tokenizer": f"{i // 2}" * 8} for i, row in enumerate(rows)]
    with pytest.raises(ExperimentError, match="tokenizer of unigram_destarved is 11111111, but 00000000"):
        points_from_table(written(tmp_path, mixed))
    wrong = [row | {"nll_nats": "10", "bytes": "10"} for row in rows]
    with pytest.raises(ExperimentError, match=r"bpb: got .* but nll_nats"):
        points_from_table(written(tmp_path, wrong))
    rated = [row | {"phase": "stable", "lr": str(3e-3 / (1 + i))} for i, row in enumerate(rows)]
    with pytest.raises(ExperimentError, match="stable points at different learning rates"):
        points_from_table(written(tmp_path, rated))
    for content, message in [
        (b"", "lacks the columns"),
        (b"\xff\xfe\x00", "no CSV in UTF-8"),
        (b"run,mixture\n", "lacks"),
    ]:
        (tmp_path / "points.csv").write_bytes(content)
        with pytest.raises(ExperimentError, match=message):
            points_from_table(tmp_path / "points.csv")
    (tmp_path / "points.csv").write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(ExperimentError, match="has no rows"):
        points_from_table(tmp_path / "points.csv")


@pytest.mark.slow
def test_intervals_hold_a_planted_interaction():
    """The benchmark of the same name with 60 worlds; at 95%, fewer than 50 of them has a chance of 0.01%."""
    from benchmarks.interval_coverage import coverage

    for key, share in coverage(60, 0.005).items():
        assert share >= 50 / 60, (key, share)
