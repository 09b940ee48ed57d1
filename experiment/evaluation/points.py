"""Evaluation points of many runs, from the runs' directories or from a table, and the series they form."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiment.errors import ExperimentError, RunRefused
from experiment.evaluation.scores import DocumentScores, read_points, read_scores
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.names import mixture_name
from experiment.run_directory import RunDirectory, read_lines

COLUMNS = ("run", "mixture", "tok", "seed", "tokens", "phase", "source", "lang", "bpb")
OPTIONAL = ("nll_nats", "bytes", "lr", "tokenizer")
HUB = "en"
"""The language that every bilingual mixture has."""
CONDITIONS = ("starved", "destarved")
PHASES = ("warmup", "stable", "decay", "final")
"""`final` is, in a table, the last point of a run that was decayed to its end."""
MOST, MOST_BPB = 1e18, 1000
RISE, ROWS_OF_A_RISE = 1.10, 2
"""A series this far above its running minimum at so many points in a row has diverged."""


@dataclass(frozen=True, order=True)
class Cell:
    """One trajectory of the experiment: a trunk and its cooldowns are one cell."""

    mixture: str
    tok: str
    seed: int = 0
    variant: str = ""

    @property
    def langs(self) -> list[str]:
        return self.mixture.split("-")

    @property
    def name(self) -> str:
        seed = f"seed-{self.seed}" if self.seed else ""
        return "__".join(part for part in (self.mixture, self.tok, self.variant, seed) if part)


def baseline_of(variant: str) -> str:
    """The variant of the monolingual runs that a bilingual one is compared with: shares change only the latter."""
    return "__".join(part for part in variant.split("__") if not part.startswith("probs-"))


@dataclass(frozen=True)
class Point:
    """One model's score on one source in one language."""

    cell: Cell
    run: str
    tokens: int
    phase: str
    source: str
    lang: str
    bpb: float
    bytes: int | None = None
    lr: float | None = None
    documents: Path | None = None
    """The file with the scores of each document."""


@dataclass(frozen=True)
class Excluded:
    """What takes no part, and why."""

    name: str
    reason: str


@dataclass
class Evidence:
    """Everything a report rests on."""

    points: list[Point] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    """run.json of each run directory."""
    shares: dict[tuple[Cell, str], float] = field(default_factory=dict)
    """(cell, language) -> share of the mix; a table's are uniform."""
    shards: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """(tok, variant, language) -> tokens and bytes of the training shards."""
    tokenizers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """tok -> the manifest of its tokenizer."""
    token_scale: float = 1.0
    origin: str = ""

    def share(self, cell: Cell, lang: str) -> float:
        return self.shares.get((cell, lang), 1 / len(cell.langs))


@dataclass(frozen=True)
class Series:
    """The stable points of one cell on one source and language, in order of tokens."""

    cell: Cell
    source: str
    lang: str
    tokens: np.ndarray
    """float64 [points]."""
    bpb: np.ndarray
    """float64 [points]."""
    doc_ids: tuple[str, ...] = ()
    doc_bytes: np.ndarray | None = None
    """int64 [documents]."""
    nll: np.ndarray | None = None
    """float64 [points, documents], where every point has the scores of the same documents."""
    lr: float | None = None
    """Rate of the stable phase, where it is known."""


Key = tuple[Cell, str, str]


def read_documents(point: Point) -> DocumentScores | None:
    """The scores of each document behind a point, where they were kept."""
    if point.documents is None:
        return None
    return _scores_in(point.documents, point.documents.stat().st_mtime_ns).get((point.source, point.lang))


@lru_cache(maxsize=512)
def _scores_in(path: Path, changed: int) -> dict[tuple[str, str], DocumentScores]:
    """One file holds several sources and languages, which are asked for one after the other."""
    return read_scores(path)


Reader = Callable[[Point], DocumentScores | None]


def stable_series(points: Sequence[Point], read: Reader = read_documents) -> Series:
    """The series of one cell, source and language. Raises ValueError unless every point is of the stable phase.

    Points of another learning-rate state would create transfer where there is none.
    """
    if cooled := [point for point in points if point.phase != "stable"]:
        raise ValueError(f"{cooled[0].run} at {cooled[0].tokens} tokens is of the {cooled[0].phase} phase, not stable")
    ordered = sorted(points, key=lambda point: point.tokens)
    first = ordered[0]
    tokens = np.array([point.tokens for point in ordered], dtype=np.float64)
    bpb = np.array([point.bpb for point in ordered], dtype=np.float64)
    scores = [read(point) for point in ordered]
    known = [found for found in scores if found is not None]
    series = Series(first.cell, first.source, first.lang, tokens, bpb, lr=first.lr)
    if len(known) < len(scores) or len({found.ids for found in known}) > 1:
        return series
    nll = np.stack([found.nll for found in known])
    return replace(series, doc_ids=known[0].ids, doc_bytes=known[0].bytes, nll=nll)


def healthy_points(evidence: Evidence) -> tuple[list[Point], list[Excluded]]:
    """The points of all series that have not diverged, and the others by name.

    A series here is one run on one source and language: a trunk above its cooled branch has not diverged.
    """
    by_run: dict[tuple[Cell, str, str, str], list[Point]] = {}
    for point in evidence.points:
        by_run.setdefault((point.cell, point.source, point.lang, point.run), []).append(point)
    healthy, excluded = [], []
    for (_, source, lang, run), points in sorted(by_run.items()):
        if (tokens := diverged_at(points)) is None:
            healthy += points
        else:
            reason = f"diverged: more than 10% above its minimum at two points in a row, up to {tokens:,} tokens"
            excluded.append(Excluded(f"{run} {source}/{lang}", reason))
    return healthy, excluded


def usable_series(healthy: Sequence[Point], read: Reader = read_documents) -> tuple[dict[Key, Series], list[Excluded]]:
    """The stable series that may enter a score, and the points that are left out because of other documents."""
    by_key: dict[Key, list[Point]] = {}
    for point in healthy:
        if point.phase == "stable":
            by_key.setdefault((point.cell, point.source, point.lang), []).append(point)
    excluded = []
    for key, points in by_key.items():
        by_key[key], left = _of_one_run(points)
        excluded += left
    same, others = _on_one_set_of_documents(by_key)
    series = {key: stable_series(points, read) for key, points in same.items()}
    for (source, lang), mine in groupby(sorted(series, key=lambda key: key[1:]), key=lambda key: key[1:]):
        keys = [key for key in mine if series[key].doc_ids]
        usual = Counter(series[key].doc_ids for key in keys).most_common(1)
        for key in keys:
            if series[key].doc_ids != usual[0][0]:  # as many bytes, but not the same documents
                excluded.append(Excluded(f"{key[0].name} {source}/{lang}", "scored on other documents than most cells"))
                del series[key]
    return series, excluded + others


def _of_one_run(points: Sequence[Point]) -> tuple[list[Point], list[Excluded]]:
    """The stable points of the run that has most of them: a cell is one trajectory, not a mixture of two."""
    counts = Counter(point.run for point in points)
    chosen = max(counts, key=lambda run: (counts[run], max(p.tokens for p in points if p.run == run), run))
    reason = f"the stable points of {chosen} count for this cell"
    one = points[0]
    covered = {point.tokens for point in points if point.run == chosen}
    more = sorted({point.run for point in points if point.run != chosen and point.tokens not in covered})
    left = [Excluded(f"{run} {one.source}/{one.lang}", reason) for run in more]  # else it is the same trajectory again
    return [point for point in points if point.run == chosen], left


def diverged_at(points: Iterable[Point]) -> int | None:
    """Tokens at which a series of any phases is found to have diverged, or None."""
    lowest, run = math.inf, 0
    for point in sorted(points, key=lambda point: point.tokens):
        run = run + 1 if point.bpb > RISE * lowest else 0
        if run == ROWS_OF_A_RISE:
            return point.tokens
        lowest = min(lowest, point.bpb)
    return None


def _on_one_set_of_documents(series: dict[Key, list[Point]]) -> tuple[dict[Key, list[Point]], list[Excluded]]:
    """Per source and language, points on the set of documents that most cells have; sets are told by their bytes."""
    cells_of: dict[tuple[str, str], dict[int | None, set[Cell]]] = {}
    for (cell, source, lang), points in series.items():
        for point in points:
            cells_of.setdefault((source, lang), {}).setdefault(point.bytes, set()).add(cell)
    kept: dict[Key, list[Point]] = {}
    excluded = []
    for (cell, source, lang), points in series.items():
        sets = cells_of[source, lang]
        chosen = max(sets, key=lambda size: (len(sets[size]), size or 0))
        mine = [point for point in points if point.bytes == chosen]
        if mine:
            kept[cell, source, lang] = mine
        else:
            reason = f"scored on other documents than the {chosen} bytes that most cells were scored on"
            excluded.append(Excluded(f"{cell.name} {source}/{lang}", reason))
    return kept, excluded


def finals(healthy: Sequence[Point]) -> dict[Key, dict[int, Point]]:
    """(cell, source, language) -> tokens -> the score at the end of a decay, on the documents that most cells have."""
    by_key: dict[Key, list[Point]] = {}
    for point in healthy:
        if point.phase == "final":
            by_key.setdefault((point.cell, point.source, point.lang), []).append(point)
    kept, _ = _on_one_set_of_documents(by_key)
    return {key: {point.tokens: point for point in points} for key, points in kept.items()}


# --- a table -------------------------------------------------------------------------------------


def points_from_table(path: Path) -> Evidence:
    """Points of a CSV with the columns run, mixture, tok, seed, tokens, phase, source, lang, bpb.

    Optional columns: nll_nats and bytes, of which bpb must be the ratio; lr; tokenizer (a fingerprint).
    Raises ExperimentError, naming row and column, for anything that cannot be a point.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or []
            if missing := [name for name in COLUMNS if name not in header]:
                there = ", ".join(header) or "none"
                raise ExperimentError(
                    f"points: {path} lacks the columns {', '.join(missing)} (separated by commas); there: {there}"
                )
            if twice := sorted({name for name in header if header.count(name) > 1}):
                raise ExperimentError(f"points: {path} has the column {', '.join(twice)} twice")
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ExperimentError(f"points: {path} is no CSV in UTF-8: {error}") from error
    if not rows:
        raise ExperimentError(f"points: {path} has no rows")
    points, tokenizers = [], {}
    for number, row in rows:
        where = f"points: row {number} of {path.name}"
        point = _point(row, where)
        points.append(point)
        if tokenizer := row.get("tokenizer"):
            _same(tokenizers, (point.cell.tok,), tokenizer, f"{where}: tokenizer")
    return Evidence(checked_points(points, f"points: {path.name}"), origin=str(path))


def _point(row: dict[str, Any], where: str) -> Point:
    if None in row or None in row.values():
        raise ExperimentError(f"{where}: has not as many fields as the header")

    def number(name: str, kind: Callable[[str], float], least: float, what: str) -> Any:
        try:
            value = kind(row[name])
        except ValueError:
            value = math.nan
        if not least <= value < MOST or "_" in row[name]:
            raise ExperimentError(f"{where}: {name}: got {row[name]!r}; must be {what}")
        return value

    def whole(text: str) -> float:
        value = float(text)
        return int(value) if value.is_integer() else math.nan

    for lang in dict.fromkeys([*row["mixture"].split("-"), row["lang"]]):
        if lang not in LANGUAGES:
            raise ExperimentError(f"{where}: there is no language {lang!r}; known: {', '.join(LANGUAGES)}")
    if row["lang"] not in row["mixture"].split("-"):
        raise ExperimentError(f"{where}: lang: {row['lang']!r} is not in the mixture {row['mixture']!r}")
    langs = row["mixture"].split("-")
    if len(langs) > 2 or (len(langs) == 2 and (langs[0] != HUB or langs[1] == HUB)):
        raise ExperimentError(f"{where}: mixture: got {row['mixture']!r}; must be a language or {HUB}-<language>")
    if not row["tok"].endswith(tuple(f"_{condition}" for condition in CONDITIONS)):
        raise ExperimentError(f"{where}: tok: got {row['tok']!r}; must be <flavor>_starved or <flavor>_destarved")
    if row["phase"] not in PHASES:
        raise ExperimentError(f"{where}: phase: got {row['phase']!r}; must be one of {', '.join(PHASES)}")
    for name, pattern, what in (
        ("run", r"[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*", "a name on one line"),
        ("tok", r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, . _ -"),
        ("source", r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, . _ -"),
    ):
        if len(row[name]) > 200 or not re.fullmatch(pattern, row[name]):
            raise ExperimentError(f"{where}: {name}: got {row[name][:60]!r}; must be {what}")
    cell = Cell(row["mixture"], row["tok"], int(number("seed", whole, -math.inf, "a whole number")))
    bpb = number("bpb", float, 1e-9, "a number above 0")
    if bpb > MOST_BPB:
        raise ExperimentError(f"{where}: bpb: got {row['bpb']!r}; no text has more than {MOST_BPB} bits per byte")
    size = int(number("bytes", whole, 1, "a whole number above 0")) if row.get("bytes") else None
    if row.get("nll_nats") and size:
        ratio = number("nll_nats", float, 0, "a number of at least 0") / (math.log(2) * size)
        if not math.isclose(ratio, bpb, rel_tol=1e-6):
            raise ExperimentError(f"{where}: bpb: got {bpb!r}, but nll_nats / (ln 2 * bytes) is {ratio!r}")
    lr = number("lr", float, 0, "a number of at least 0") if row.get("lr") else None
    tokens = int(number("tokens", whole, 1, "a whole number above 0"))
    return Point(cell, row["run"], tokens, row["phase"], row["source"], row["lang"], bpb, size, lr)


def checked_points(points: Iterable[Point], where: str) -> list[Point]:
    """Points in a fixed order, each once. Raises ExperimentError where two of one place disagree, or where
    the phases of a run come in an order that no schedule has: a cooled point among stable ones."""
    unique: dict[tuple[Any, ...], Point] = {}
    for point in points:
        key = (point.cell, point.run, point.source, point.lang, point.phase, point.tokens, point.bytes)
        other = unique.setdefault(key, point)
        if other.bpb != point.bpb:
            raise ExperimentError(
                f"{where}: {point.cell.name} {point.source}/{point.lang} at {point.tokens} tokens ({point.phase}) "
                f"has two values, {other.bpb!r} and {point.bpb!r}"
            )
    ordered = sorted(unique.values(), key=lambda p: (p.cell, p.source, p.lang, p.tokens, PHASES.index(p.phase), p.run))
    by_run: dict[tuple[str, Cell], list[Point]] = {}
    for point in ordered:
        by_run.setdefault((point.run, point.cell), []).append(point)
    for (run, _), mine in by_run.items():
        mine.sort(key=lambda p: (p.tokens, PHASES.index(p.phase)))
        for before, after in pairwise(mine):
            if PHASES.index(after.phase) < PHASES.index(before.phase):
                raise ExperimentError(
                    f"{where}: {run}: a {after.phase} point at {after.tokens} tokens follows a {before.phase} point "
                    f"at {before.tokens}; the learning rate has been lowered there, so it is not {after.phase}"
                )
        rates = {point.lr for point in mine if point.phase == "stable" and point.lr is not None}
        if len(rates) > 1:
            raise ExperimentError(
                f"{where}: {run}: stable points at different learning rates, {min(rates):g} and {max(rates):g}"
            )
    return ordered


def _same(seen: dict[tuple[str, ...], tuple[str, str]], key: tuple[str, ...], value: str, where: str) -> None:
    known, at = seen.setdefault(key, (value, where))
    if known != value:
        raise ExperimentError(
            f"{where} of {' '.join(filter(None, key))} is {value[:12]}, but {known[:12]} in {at}; "
            "scores under different ones cannot be compared"
        )


# --- the runs' own records -----------------------------------------------------------------------


def points_from_runs(place: Path, artifacts: Path) -> Evidence:
    """The points of every run under `place` (<runs>/<scale>) whose state allows it.

    Raises ExperimentError if there is no run, or if runs of one tokenizer condition differ in tokenizer,
    corpora or parallel text.
    """
    paths = sorted(path.parent for path in place.glob("*/run.json"))
    if not paths:
        raise ExperimentError(f"paths.runs: there are no runs in {place}")
    scales = Counter(filter(None, (_token_scale(path) for path in paths)))
    evidence = Evidence(origin=str(place), token_scale=scales.most_common(1)[0][0] if scales else 1.0)
    points: list[Point] = []
    prints: dict[tuple[str, ...], tuple[str, str]] = {}
    for path in paths:
        try:
            found, reason = _points_of_run(path, evidence, prints, artifacts)
        except RunRefused as error:
            found, reason = [], str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found, reason = [], f"its records are not those of a run ({type(error).__name__}: {error})"
        points += found
        if reason:
            evidence.excluded.append(Excluded(path.name, reason))
    evidence.points = checked_points(points, str(place))
    return evidence


def _token_scale(path: Path) -> float | None:
    try:
        return float((RunDirectory(path).read() or {})["science"]["scale.token_scale"])
    except (RunRefused, KeyError, TypeError, ValueError):
        return None


def _points_of_run(
    path: Path, evidence: Evidence, prints: dict[tuple[str, ...], tuple[str, str]], artifacts: Path
) -> tuple[list[Point], str | None]:
    directory = RunDirectory(path)
    record, state = directory.read() or {}, directory.state()
    try:
        science, langs, tok, end_step = record["science"], record["langs"], record["tok_name"], record["end_step"]
        cell = Cell(mixture_name(langs), tok, record["seed"], record["variant"])
        scale, fingerprints = science["scale.token_scale"], record["fingerprints"]
        shown = (record["name"], record["scale"], record["kind"], science["batch.tokens"])
        shown += tuple(record["schedule"][f"{length}_tokens"] for length in ("warmup", "stable", "decay"))
        shown += (record["schedule"]["peak_lr"],)
    except (KeyError, TypeError) as error:
        raise RunRefused(f"run.json is not of a run ({error})") from error
    if None in shown:
        raise RunRefused("run.json is not of a run (a setting is null)")
    if unknown := [lang for lang in langs if lang not in LANGUAGES]:
        raise RunRefused(f"run.json names the language {unknown[0]!r}, which is not known")
    evidence.runs.append(record | {"state": state})
    if scale != evidence.token_scale:
        return [], f"scale.token_scale is {scale:g}, elsewhere {evidence.token_scale:g}"
    if state != "done" and not (state == "interrupted" and record.get("note")):
        return [], f"{state}: {record['error']}" if record.get("error") else state
    variant = baseline_of(cell.variant)
    for lang in langs:
        _same(prints, ("corpus", lang, variant), fingerprints["corpora"][lang], f"{path.name}: the fingerprint")
        manifest = _manifest(artifacts / "shards", fingerprints["shards"][lang])
        evidence.shards.setdefault((tok, cell.variant, lang), manifest.get("facts", {}))
    _same(prints, ("tokenizer", tok, variant), fingerprints["tokenizer"], f"{path.name}: the fingerprint")
    _same(prints, ("parallel text", variant), str(fingerprints.get("parallel")), f"{path.name}: the fingerprint")
    evidence.tokenizers.setdefault(tok, _manifest(artifacts / "tokenizers", fingerprints["tokenizer"]))
    probs = record["probs"] or [1 / len(langs)] * len(langs)
    evidence.shares |= {(cell, lang): share for lang, share in zip(langs, probs, strict=True)}
    last = end_step if record["kind"] != "trunk" else None
    unique: dict[tuple[Any, ...], Point] = {}
    for line, documents in _lines(directory):
        where = documents or directory.evaluations
        if (line["run"], line["mixture"], line["tok"], line["seed"]) != (path.name, cell.mixture, tok, cell.seed):
            raise RunRefused(f"{where} holds points of {line['run']}")
        if not all(math.isfinite(line[name]) and line[name] > 0 for name in ("tokens", "bpb", "bytes")):
            raise RunRefused(f"{where} holds a point that is none: {json.dumps(line)[:200]}")
        point = Point(
            cell=cell,
            run=path.name,
            tokens=line["tokens"],
            phase="final" if line["step"] == last and line["phase"] == "decay" else line["phase"],
            source=line["source"],
            lang=line["lang"],
            bpb=line["bpb"],
            bytes=line["bytes"],
            lr=line["lr"],
            documents=documents,
        )
        # one that was scored in the loop and once more afterwards counts once
        unique.setdefault((point.source, point.lang, point.tokens, point.bytes), point)
    return list(unique.values()), None


def _lines(directory: RunDirectory) -> Iterable[tuple[dict[str, Any], Path | None]]:
    """Evaluation points of a run: those with the scores of each document first, then those of the records alone."""
    for path in sorted(directory.scores.glob("step_*.parquet")):
        for line in read_points(path):
            yield line, path
    for line in read_lines(directory.evaluations):
        yield line, None


def _manifest(kind: Path, fingerprint: str) -> dict[str, Any]:
    for path in kind.glob(f"*-{fingerprint[:12]}/manifest.json"):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunRefused(f"{path}: cannot be read ({error})") from error
    return {}
