"""From evaluation points to the answer: every number of report.json."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiment.evaluation.curves import Curve
from experiment.evaluation.intervals import COVERS, DOCUMENTS, SEEDS, Draws, checkpoint_variance, replicate_curves
from experiment.evaluation.points import (
    CONDITIONS,
    HUB,
    Cell,
    Evidence,
    Excluded,
    Key,
    Point,
    Reader,
    Series,
    baseline_of,
    finals,
    healthy_points,
    read_documents,
    usable_series,
)
from experiment.evaluation.transfer import (
    Estimate,
    atlas_bound,
    atlas_bts,
    combine,
    interaction,
    interval,
    mean,
    penalty,
    relative_bts,
    seed_interval,
)
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.names import tok_name

SCORES = ("relative", "atlas")
FINAL = "final_difference"
CURVE_POINTS = 32
PARTNERS = {
    "same": [lang for lang in LANGUAGES if lang != HUB and LANGUAGES[lang].script == LANGUAGES[HUB].script],
    "cross": [lang for lang in LANGUAGES if LANGUAGES[lang].script != LANGUAGES[HUB].script],
}


@dataclass(frozen=True)
class Settings:
    budgets: tuple[float, ...] = (2e9, 4e9, 8e9, 10e9)
    """Nominal tokens of the partner language."""
    replicates: int = 1000
    level: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Matching:
    """At which token count of a language a budget is looked at."""

    name: str
    tokens: Callable[[str, str, str, float], float | None]
    """(tok, variant, language, nominal budget) -> real tokens of the language, None where it is not known."""


@dataclass(frozen=True)
class Place:
    """Where scores are compared."""

    flavor: str
    variant: str
    source: str
    matching: Matching
    budget: float


@dataclass
class Findings:
    """Scores computed from evidence. `report()` has all of them in plain values."""

    evidence: Evidence
    settings: Settings
    read: Reader = read_documents
    series: dict[Key, Series] = field(init=False)
    excluded: list[Excluded] = field(init=False)

    def __post_init__(self) -> None:
        healthy, diverged = healthy_points(self.evidence)
        self.series, other_documents = usable_series(healthy, self.read)
        self.finals = finals(healthy)
        self.excluded = [*self.evidence.excluded, *diverged, *other_documents]
        self.sources = sorted({source for _, source, _ in [*self.series, *self.finals]})
        self._curves: dict[Key, dict[str, Curve]] = {}
        self._draws_of_finals: dict[str, Draws] = {}
        self.checkpoint_sd: dict[tuple[str, str], float] = {}
        rng = np.random.default_rng(self.settings.seed)
        for source in self.sources:
            self._resample(source, rng)
        cells = sorted({cell for cell, _, _ in [*self.series, *self.finals]})
        self.flavors = sorted({cell.tok.rpartition("_")[0] for cell in cells})
        self.variants = sorted({cell.variant for cell in cells if len(cell.langs) > 1})
        self.seeds = sorted({cell.seed for cell in cells})
        self.matchings = [Matching("tokens", self._token_matched), Matching("content", self._content_matched)]

    def _resample(self, source: str, rng: np.random.Generator) -> None:
        mine = {key: found for key, found in self.series.items() if key[1] == source}
        ids = {found.lang: found.doc_ids for found in mine.values() if found.nll is not None}
        draws = Draws(ids, self.settings.replicates, rng) if ids else None
        variance: dict[str, float | None] = {}
        for lang in sorted({lang for _, _, lang in mine}):
            curves = [(found.tokens, found.bpb) for found in mine.values() if found.lang == lang]
            variance[lang] = checkpoint_variance(curves)
            if variance[lang] is not None:
                self.checkpoint_sd[source, lang] = math.sqrt(variance[lang] or 0.0)
        every = all(found.nll is not None for found in mine.values())
        for key, found in mine.items():
            self._curves[key] = {"": Curve.fitted(found.tokens, found.bpb)}
            same_set = draws if found.doc_ids and found.doc_ids == ids.get(found.lang) else None
            kinds = replicate_curves(found, same_set, variance[found.lang], self.settings.replicates, rng, every)
            self._curves[key] |= {kind: Curve.fitted(found.tokens, bpb) for kind, bpb in kinds.items()}

    # --- matching

    def _token_matched(self, tok: str, variant: str, lang: str, budget: float) -> float:
        return budget * self.evidence.token_scale

    def _content_matched(self, tok: str, variant: str, lang: str, budget: float) -> float | None:
        """The tokens of the text whose English-equivalent bytes are those of `budget` destarved English tokens."""
        reference = self._tokens_per_byte(tok_name(tok.rpartition("_")[0], "destarved"), variant, HUB)
        here = self._tokens_per_byte(tok, variant, lang)
        if reference is None or here is None:
            return None
        content = budget * self.evidence.token_scale / reference
        return content * LANGUAGES[lang].byte_premium * here

    def _tokens_per_byte(self, tok: str, variant: str, lang: str) -> float | None:
        facts = self.evidence.shards.get((tok, variant, lang)) or self.evidence.shards.get((tok, "", lang))
        return facts["tokens"] / facts["bytes"] if facts else None

    # --- one score

    def pair(self, tok: str, partner: str, target: str, seed: int, variant: str) -> tuple[Cell, Cell]:
        """The monolingual cell of the target and the bilingual one of the partner. Shares change only the latter."""
        return Cell(target, tok, seed, baseline_of(variant)), Cell(f"{HUB}-{partner}", tok, seed, variant)

    def transfer(
        self, place: Place, condition: str, partner: str, seed: int, target: str | None = None
    ) -> dict[str, Estimate]:
        """Score name -> transfer from the other language to `target` (the partner unless English is asked for)."""
        target = target or partner
        tok = tok_name(place.flavor, condition)
        mono, bi = self.pair(tok, partner, target, seed, place.variant)
        keys = [(mono, place.source, target), (bi, place.source, target)]
        if missing := [self._why_missing(key) for key in keys if key not in self._curves]:
            return dict.fromkeys(SCORES, Estimate.missing("; ".join(missing)))
        budget = place.matching.tokens(tok, place.variant, target, place.budget)
        if budget is None:
            reason = f"content matching needs the training shards of {target} and {HUB}, which are not there"
            return dict.fromkeys(SCORES, Estimate.missing(reason))
        rates = [self.series[key].lr for key in keys]
        if None not in rates and rates[0] != rates[1]:
            reason = f"{mono.name} and {bi.name} have stable phases at different rates, {rates[0]:g} and {rates[1]:g}"
            return dict.fromkeys(SCORES, Estimate.missing(reason))
        share = self.evidence.share(bi, target)
        curves = [self._curves[key] for key in keys]
        if outside := self._outside(curves[0][""], mono.name, budget):
            return dict.fromkeys(SCORES, Estimate.missing(outside))
        kinds = sorted(set(curves[0]) & set(curves[1]) - {""})
        replicates: dict[str, dict[str, np.ndarray]] = {score: {} for score in SCORES}
        for kind in kinds:
            pair = curves[0][kind], curves[1][kind]
            replicates["relative"][kind] = relative_bts(*pair, share, budget)
            replicates["atlas"][kind] = atlas_bts(*pair, share, budget)
        pair = curves[0][""], curves[1][""]
        scores = {}
        if outside := self._outside(pair[1], bi.name, budget / share):
            scores["relative"] = Estimate.missing(outside)
        else:
            scores["relative"] = Estimate(float(relative_bts(*pair, share, budget)), replicates=replicates["relative"])
        atlas = float(atlas_bts(*pair, share, budget))
        if math.isinf(atlas):
            side, censored = ("below", "right") if atlas < 0 else ("above", "left")
            bound = (side, atlas_bound(pair[1], share, budget, censored))
            scores["atlas"] = Estimate(bound=bound, replicates=replicates["atlas"])
        else:
            scores["atlas"] = Estimate(atlas, replicates=replicates["atlas"])
        return scores

    def _outside(self, curve: Curve, name: str, tokens: float) -> str | None:
        if curve.covers(tokens):
            return None
        nominal = [f"{x / self.evidence.token_scale / 1e9:.3g}B" for x in (tokens, curve.tokens[0], curve.tokens[-1])]
        return f"{name}: {nominal[0]} tokens are outside its stable points, {nominal[1]} to {nominal[2]}"

    def _why_missing(self, key: Key) -> str:
        cell, source, lang = key
        runs = {point.run for point in self.evidence.points if point.cell == cell} | {cell.name, f"{cell.name}__trunk"}
        told = [
            f"{found.name}: {found.reason}"
            for found in self.excluded
            if found.name in runs or found.name in {f"{run} {source}/{lang}" for run in runs}
        ]
        return "; ".join(told) or f"{cell.name}: no stable points on {source}/{lang}"

    # --- over partners, conditions, seeds

    def final_difference(
        self, flavor: str, variant: str, source: str, condition: str, partner: str, seed: int
    ) -> Estimate:
        """(BPB_mono - BPB_bi) / BPB_mono of the partner, both at the end of their decay after equal total tokens."""
        mono, bi = self.pair(tok_name(flavor, condition), partner, partner, seed, variant)
        ends = [self.finals.get((cell, source, partner), {}) for cell in (mono, bi)]
        for cell, end in zip((mono, bi), ends, strict=True):
            if not end:
                key = (cell, source, partner)
                reason = self._why_missing(key) if key not in self.series else f"{cell.name}: no finished decay"
                return Estimate.missing(reason)
        total = self.final_tokens(source)
        if without := [cell.name for cell, end in zip((mono, bi), ends, strict=True) if total not in end]:
            return Estimate.missing(
                f"{' and '.join(without)}: no decay that ends at {total:,} tokens, as in most cells"
            )
        points = [end[total] for end in ends]
        if points[0].bytes != points[1].bytes:
            return Estimate.missing(f"{mono.name} and {bi.name} were scored on different documents")
        value = (points[0].bpb - points[1].bpb) / points[0].bpb
        return Estimate(value, replicates=self._final_replicates(points, source))

    def final_tokens(self, source: str) -> int | None:
        """The total at which most cells have been decayed to their end: the one total for all differences."""
        counts: dict[int, int] = {}
        for (_, found, _), ends in self.finals.items():
            for tokens in ends if found == source else ():
                counts[tokens] = counts.get(tokens, 0) + 1
        return max(counts, key=lambda tokens: (counts[tokens], -tokens), default=None)

    def _final_replicates(self, points: Sequence[Point], source: str) -> dict[str, np.ndarray]:
        scores = [self.read(point) for point in points]
        if any(found is None for found in scores) or scores[0].ids != scores[1].ids:
            return {}
        draws = self._final_draws(source)
        bpb = []
        for found in scores:
            counts = draws.of(found.ids)
            bpb.append((counts @ found.nll) / (math.log(2) * (counts @ found.bytes)))
        return {DOCUMENTS: (bpb[0] - bpb[1]) / bpb[0]}

    def _final_draws(self, source: str) -> Draws:
        """Draws over the documents of the final scores, which may be more than those of the loop."""
        if source not in self._draws_of_finals:
            ids: dict[str, tuple[str, ...]] = {}
            for (_, found_source, lang), ends in sorted(self.finals.items()):
                for point in ends.values():
                    if found_source == source and (scores := self.read(point)) is not None:
                        ids[lang] = tuple(dict.fromkeys([*ids.get(lang, ()), *scores.ids]))
            rng = np.random.default_rng(self.settings.seed)
            self._draws_of_finals[source] = Draws(ids, self.settings.replicates, rng)
        return self._draws_of_finals[source]

    def over_seeds(self, by_seed: dict[int, Estimate]) -> tuple[Estimate, dict[int, Estimate]]:
        """The mean over the seeds that have a number; where there is none, the first seed's reason."""
        known = {seed: found for seed, found in by_seed.items() if found.reason is None}
        if not known:
            return next(iter(by_seed.values()), Estimate.missing("no seed")), {}
        return combine(mean(list(known.values()))), known

    def contrasts(
        self, score_of: Callable[[str, str, int], Estimate]
    ) -> Iterator[tuple[dict[str, list[str]], bool, dict[str, dict[int, Estimate]], dict[int, Estimate]]]:
        """For each set of partners: (partners, whether it is the design's, condition -> seed -> penalty, seed ->
        interaction). `score_of(condition, partner, seed)` gives the scores.

        A set is used in both conditions or in none. Where the design's is not computable, what is left of it is
        given as a set of its own.
        """
        scores = {
            (condition, partner, seed): score_of(condition, partner, seed)
            for condition in CONDITIONS
            for partner in PARTNERS["same"] + PARTNERS["cross"]
            for seed in self.seeds
        }

        def usable(partner: str, seed: int) -> bool:
            return all(scores[condition, partner, seed].reason is None for condition in CONDITIONS)

        def penalties(partners: dict[str, list[str]], seed: int) -> dict[str, Estimate]:
            lacking = [p for p in partners["same"] + partners["cross"] if not usable(p, seed)]
            if lacking:
                why = [scores[c, p, seed].reason for p in lacking for c in CONDITIONS if scores[c, p, seed].reason]
                reason = f"needs {', '.join(lacking)} in both conditions ({'; '.join(dict.fromkeys(why))})"
                return dict.fromkeys(CONDITIONS, Estimate.missing(reason))
            return {
                condition: penalty(
                    [scores[condition, p, seed] for p in partners["same"]],
                    [scores[condition, p, seed] for p in partners["cross"]],
                )
                for condition in CONDITIONS
            }

        def of_set(
            partners: dict[str, list[str]],
        ) -> tuple[dict[str, dict[int, Estimate]], dict[int, Estimate]]:
            by_seed = {seed: penalties(partners, seed) for seed in self.seeds}
            by_condition = {c: {seed: found[c] for seed, found in by_seed.items()} for c in CONDITIONS}
            return by_condition, {seed: interaction(*(found[c] for c in CONDITIONS)) for seed, found in by_seed.items()}

        yield PARTNERS, True, *of_set(PARTNERS)
        rest = {
            kind: [p for p in partners if any(usable(p, seed) for seed in self.seeds)]
            for kind, partners in PARTNERS.items()
        }
        if rest != PARTNERS and all(rest.values()):
            yield rest, False, *of_set(rest)

    # --- plain values

    def intervals(self, estimate: Estimate, by_seed: dict[int, Estimate]) -> list[dict[str, Any]]:
        """Each interval with the sources of error that it covers; null is an end without a bound."""
        level = self.settings.level
        runs = "one training run" if len(by_seed) < 2 else f"these {len(by_seed)} training runs"
        rows = []
        for kind, replicates in estimate.replicates.items():
            low, high = interval(replicates, level)
            if low < math.inf and high > -math.inf:  # else all of it is beyond the bound, and the bound says so
                rows.append(_interval(COVERS[kind], low, high, level, runs))
        values = [found.value for found in by_seed.values()]
        if len(values) > 1 and None not in values:
            within = estimate.replicates.get(DOCUMENTS)
            low, high = seed_interval(values, within, level)
            covers = [*([DOCUMENTS] if within is not None else []), "checkpoints", SEEDS]
            rows.append(_interval(covers, low, high, level, None))
        return rows

    def row(self, by_seed: dict[int, Estimate]) -> dict[str, Any]:
        """A number over seeds, as it stands in report.json."""
        estimate, known = self.over_seeds(by_seed)
        row: dict[str, Any] = {
            "value": _plain(estimate.value),
            "bound": {"side": estimate.bound[0], "of": _plain(estimate.bound[1])} if estimate.bound else None,
            "reason": estimate.reason,
            "intervals": self.intervals(estimate, known),
            "seeds": sorted(known),
        }
        if len(known) > 1:
            row["by_seed"] = {str(seed): _plain(found.value) for seed, found in known.items()}
        return row

    def places(self, budgets: Sequence[float], matchings: Sequence[Matching]) -> Iterator[Place]:
        for flavor in self.flavors:
            for variant in self.variants:
                for source in self.sources:
                    for matching in matchings:
                        for budget in budgets:
                            yield Place(flavor, variant, source, matching, budget)

    def transfer_row(self, place: Place, condition: str, partner: str, target: str) -> dict[str, Any]:
        tok = tok_name(place.flavor, condition)
        found = {seed: self.transfer(place, condition, partner, seed, target) for seed in self.seeds}
        rows = {score: self.row({seed: scores[score] for seed, scores in found.items()}) for score in SCORES}
        bound = rows["atlas"]["bound"]
        return {
            "tok": tok,
            "condition": condition,
            "mixture": f"{HUB}-{partner}",
            "partner": partner,
            "lang": target,
            "variant": place.variant,
            "source": place.source,
            "matching": place.matching.name,
            "budget": place.budget,
            "budget_tokens": _plain(place.matching.tokens(tok, place.variant, target, place.budget)),
            "phase": "stable",
            "relative": rows["relative"]["value"],
            "atlas": rows["atlas"]["value"],
            "censored": None if bound is None else {"below": "right", "above": "left"}[bound["side"]],
            "atlas_bound": bound,
            "reasons": {score: rows[score]["reason"] for score in SCORES},
            "intervals": {score: rows[score]["intervals"] for score in SCORES},
            "seeds": rows["atlas"]["seeds"],
            "by_seed": {score: rows[score].get("by_seed") for score in SCORES},
        }

    def contrast_rows(
        self, what: dict[str, Any], score_of: Callable[[str, str, int], Estimate]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of `penalty` and of `interaction` for one score at one place."""
        penalties, interactions = [], []
        for partners, designed, by_condition, joint in self.contrasts(score_of):
            base = what | {"same": partners["same"], "cross": partners["cross"], "designed": designed}
            penalties += [base | {"condition": c} | self.row(found) for c, found in by_condition.items()]
            interactions.append(base | self.row(joint))
        return penalties, interactions

    def transfers(self, budgets: Sequence[float], english: bool, matchings: Sequence[Matching]) -> list[dict[str, Any]]:
        return [
            self.transfer_row(place, condition, partner, HUB if english else partner)
            for place in self.places(budgets, matchings)
            for condition in CONDITIONS
            for partner in PARTNERS["same"] + PARTNERS["cross"]
        ]

    def all_contrasts(
        self, budgets: Sequence[float], matchings: Sequence[Matching]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        penalties, interactions = [], []
        for place in self.places(budgets, matchings):
            for score in SCORES:
                what = {"score": score, "flavor": place.flavor, "variant": place.variant, "source": place.source}
                what |= {"matching": place.matching.name, "budget": place.budget}

                def score_of(
                    condition: str, partner: str, seed: int, place: Place = place, score: str = score
                ) -> Estimate:
                    return self.transfer(place, condition, partner, seed)[score]

                rows = self.contrast_rows(what, score_of)
                penalties += rows[0]
                interactions += rows[1]
        return penalties, interactions

    def final_rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
        differences, penalties, interactions = [], [], []
        for place in self.places([math.nan], self.matchings[:1]):
            what = {"score": FINAL, "flavor": place.flavor, "variant": place.variant, "source": place.source}
            what |= {"matching": "total tokens", "budget": None, "budget_tokens": self.final_tokens(place.source)}

            def score_of(condition: str, partner: str, seed: int, place: Place = place) -> Estimate:
                return self.final_difference(place.flavor, place.variant, place.source, condition, partner, seed)

            for condition in CONDITIONS:
                for partner in PARTNERS["same"] + PARTNERS["cross"]:
                    found = {seed: score_of(condition, partner, seed) for seed in self.seeds}
                    tok = tok_name(place.flavor, condition)
                    here = what | {"tok": tok, "condition": condition, "partner": partner, "phase": "final"}
                    differences.append(here | self.row(found))
            rows = self.contrast_rows(what, score_of)
            penalties += rows[0]
            interactions += rows[1]
        return differences, penalties, interactions

    def measurable(self) -> list[dict[str, Any]]:
        """Nominal budgets at which a neutral score and one of -1 could be seen at all, per cell."""
        rows = []
        scale = self.evidence.token_scale
        for place in self.places([math.nan], self.matchings[:1]):
            for condition in CONDITIONS:
                for partner in PARTNERS["same"] + PARTNERS["cross"]:
                    for seed in self.seeds:
                        tok = tok_name(place.flavor, condition)
                        mono, bi = self.pair(tok, partner, partner, seed, place.variant)
                        pair = [self._curves.get((cell, place.source, partner), {}).get("") for cell in (mono, bi)]
                        if pair[0] is None or pair[1] is None:
                            continue
                        share = self.evidence.share(bi, partner)
                        row = {"tok": tok, "partner": partner, "source": place.source, "variant": place.variant}
                        row |= {"seed": seed}
                        for bts in (0.0, -1.0):
                            ratio = 1 / share - bts * (1 / share - 1)  # sigma / d
                            low = max(pair[0].tokens[0], pair[1].tokens[0] / ratio)
                            high = min(pair[0].tokens[-1], pair[1].tokens[-1] / ratio)
                            row[f"{bts:g}"] = [float(low / scale), float(high / scale)] if low <= high else None
                        rows.append(row)
        return rows

    def grid(self, measurable: Sequence[dict[str, Any]]) -> list[float]:
        ranges = [row["0"] for row in measurable if row["0"]]
        if not ranges:
            return []
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        return [float(x) for x in np.geomspace(low, high, CURVE_POINTS)]

    def loss_curves(self) -> list[dict[str, Any]]:
        rows = []
        points: dict[Key, list[Point]] = {}
        for point in self.evidence.points:
            mine = points.setdefault((point.cell, point.source, point.lang), [])
            if not mine or (mine[-1].run, mine[-1].tokens) != (point.run, point.tokens):  # one of a place is enough
                mine.append(point)
        for key, mine in sorted(points.items()):
            cell, source, lang = key
            row = {"cell": cell.name, "mixture": cell.mixture, "tok": cell.tok, "seed": cell.seed}
            row |= {"variant": cell.variant, "source": source, "lang": lang}
            row["points"] = [[p.tokens, p.bpb, p.phase, p.run] for p in sorted(mine, key=lambda p: (p.tokens, p.run))]
            fitted = self._curves.get(key, {}).get("")
            row["monotone"] = None if fitted is None else [fitted.tokens.tolist(), fitted.bpb.tolist()]
            rows.append(row)
        return rows

    def tokenizer_rows(self) -> list[dict[str, Any]]:
        rows = []
        for (tok, variant, lang), facts in sorted(self.evidence.shards.items()):
            if facts:
                row = {"tok": tok, "variant": variant, "lang": lang, "tokens": facts["tokens"], "bytes": facts["bytes"]}
                rows.append(row | {"bytes_per_token": facts["bytes"] / facts["tokens"]})
        return rows

    def report(self) -> dict[str, Any]:
        """Everything, in plain values: the content of report.json."""
        budgets = list(self.settings.budgets)
        penalties, interactions = self.all_contrasts(budgets, self.matchings)
        differences, final_penalties, final_interactions = self.final_rows()
        measurable = self.measurable()
        grid = self.grid(measurable)
        curve_penalties, curve_interactions = self.all_contrasts(grid, self.matchings)
        return {
            "origin": self.evidence.origin,
            "settings": {
                "budgets": budgets,
                "replicates": self.settings.replicates,
                "level": self.settings.level,
                "seed": self.settings.seed,
                "token_scale": self.evidence.token_scale,
                "seeds": self.seeds,
                "partners": PARTNERS,
            },
            "transfer": self.transfers(budgets, False, self.matchings),
            "penalty": penalties + final_penalties,
            "interaction": interactions + final_interactions,
            "final_difference": differences,
            "english": self.transfers(budgets, True, self.matchings[:1]),
            "measurable": measurable,
            "checkpoint_noise": [
                {"source": source, "lang": lang, "sd_bpb": sd} for (source, lang), sd in self.checkpoint_sd.items()
            ],
            "excluded": [{"name": found.name, "reason": found.reason} for found in self.excluded],
            "curves": self.loss_curves(),
            "transfer_curves": self.transfers(grid, False, self.matchings),
            "penalty_curves": curve_penalties,
            "interaction_curves": curve_interactions,
            "tokenizers": self.tokenizer_rows(),
            "runs": self.evidence.runs,
        }


def _interval(
    covers: Sequence[str], low: float, high: float, level: float, conditional_on: str | None
) -> dict[str, Any]:
    return {
        "covers": list(covers),
        "low": _plain(low),
        "high": _plain(high),
        "level": level,
        "conditional_on": conditional_on,
    }


def _plain(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(number)
