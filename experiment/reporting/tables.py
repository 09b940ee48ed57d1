"""The tables of a report, as rows of text, and as markdown, CSV and LaTeX."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

SCORE_NAMES = {"relative": "relative BTS", "atlas": "ATLAS BTS", "final_difference": "difference of finals"}
MATCHING_NAMES = {"tokens": "equal tokens", "content": "equal content"}
TOTAL = "equal total tokens"
LONGEST_REASON = 160
LOWER_WITHOUT_BOUND, UPPER_WITHOUT_BOUND = "-∞", "∞"


@dataclass(frozen=True)
class Table:
    name: str
    """Name of its files."""
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    """What a reader sees."""
    records: Sequence[dict[str, Any]]
    """The same rows as plain numbers: what the CSV has."""


def tables(report: dict[str, Any]) -> list[Table]:
    """Every table of the report that has rows; those of its tokenizers are made elsewhere."""
    made = [
        _transfer(report["transfer"], "transfer", "Transfer to the partner language"),
        _contrasts(report["interaction"], "interaction", "Interaction: penalty starved minus penalty destarved"),
        _contrasts(report["penalty"], "penalty", "Penalty: same-script minus cross-script partners"),
        _finals(report["final_difference"]),
        _transfer(report["english"], "english", "Transfer to English"),
        _measurable(report["measurable"]),
        _excluded(report["excluded"]),
        _runs(report["runs"]),
    ]
    return [table for table in made if table.rows]


def write_tables(found: Iterable[Table], out: Path) -> None:
    """`<name>.md`, `.csv` and `.tex` (booktabs) of each."""
    out.mkdir(parents=True, exist_ok=True)
    for table in found:
        (out / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")
        latex = tabulate(table.rows, table.columns, tablefmt="latex_booktabs", disable_numparse=True)
        (out / f"{table.name}.tex").write_text(latex.replace("∞", r"$\infty$") + "\n", encoding="utf-8")
        with open(out / f"{table.name}.csv", "w", encoding="utf-8", newline="") as file:
            flat = [_flat(record) for record in table.records]
            writer = csv.DictWriter(file, list(dict.fromkeys(name for record in flat for name in record)))
            writer.writeheader()
            writer.writerows(flat)


def markdown(table: Table, level: int = 1) -> str:
    """The table under a heading of this level, with its note."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    text = tabulate(rows, table.columns, tablefmt="github", disable_numparse=True)
    return f"{'#' * level} {table.title}\n\n{table.note}\n\n{text}\n"


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level of named scalars: intervals by what they cover, lists with spaces between."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}_")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for found in value:
                covers = f"{name}_{'_'.join(found['covers'])}"
                flat |= {f"{covers}_low": found["low"], f"{covers}_high": found["high"]}
        else:
            flat[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def budget(tokens: float | None) -> str:
    return "" if tokens is None else f"{tokens / 1e9:.3g}B"


def number(value: float | None, score: str) -> str:
    if value is None:
        return ""
    return f"{value:+.3f}" if score == "atlas" else f"{value:+.4f}"


def interval(row: dict[str, Any], score: str) -> str:
    low = LOWER_WITHOUT_BOUND if row["low"] is None else number(row["low"], score)
    high = UPPER_WITHOUT_BOUND if row["high"] is None else number(row["high"], score)
    return f"[{low}, {high}] {' + '.join(row['covers'])}"


def _value(value: float | None, bound: dict[str, Any] | None, reason: str | None, score: str) -> str:
    if value is not None:
        return number(value, score)
    if bound is not None:
        return f"{'<' if bound['side'] == 'below' else '>'} {number(bound['of'], score)} (censored)"
    told = reason or ""
    return f"not computable: {told if len(told) <= LONGEST_REASON else told[:LONGEST_REASON] + ' ... (report.json)'}"


def _intervals(rows: Sequence[dict[str, Any]], score: str) -> str:
    return "; ".join(interval(row, score) for row in rows)


def _transfer(rows: Sequence[dict[str, Any]], name: str, title: str) -> Table:
    columns = ("source", "matching", "budget", "mixture", "tokenizer", "variant")
    out = []
    for r in rows:
        cells = []
        for score in ("relative", "atlas"):
            bound = r["atlas_bound"] if score == "atlas" else None
            cells += [_value(r[score], bound, r["reasons"][score], score), _intervals(r["intervals"][score], score)]
        where = (r["source"], MATCHING_NAMES[r["matching"]], budget(r["budget"]), r["mixture"], r["tok"], r["variant"])
        out.append((*where, *cells))
    note = (
        "Stable points against stable points. Budgets are tokens of the language that is looked at, in either run. "
        "0 is neutral, above 0 the other language helps. Intervals name the sources of error that they cover."
    )
    return Table(
        name,
        title,
        note,
        (*columns, "relative BTS", "interval of relative", "ATLAS BTS", "interval of ATLAS"),
        out,
        rows,
    )


def _contrasts(rows: Sequence[dict[str, Any]], name: str, title: str) -> Table:
    out = []
    for r in rows:
        partners = f"{{{', '.join(r['same'])}}} - {{{', '.join(r['cross'])}}}"
        row = [r["source"], SCORE_NAMES[r["score"]], MATCHING_NAMES.get(r["matching"], TOTAL), budget(r["budget"])]
        row += [partners if r["designed"] else f"{partners} (what is left of the design)"]
        row += [f"{r['flavor']}_{r['condition']}" if "condition" in r else r["flavor"], r["variant"]]
        row += [_value(r["value"], r["bound"], r["reason"], r["score"]), _intervals(r["intervals"], r["score"])]
        out.append(tuple(row))
    note = "The same partners in both conditions, or none. A censored member leaves a bound, or nothing."
    columns = ("source", "score", "matching", "budget", "partners", "tokenizer", "variant", "value", "interval")
    return Table(name, title, note, columns, out, rows)


def _finals(rows: Sequence[dict[str, Any]]) -> Table:
    out = []
    for r in rows:
        where = (r["source"], f"en-{r['partner']}", r["tok"], r["variant"])
        value = _value(r["value"], r["bound"], r["reason"], r["score"])
        out.append((*where, value, _intervals(r["intervals"], r["score"])))
    note = (
        "(BPB mono - BPB bi) / BPB mono of the partner language, both decayed to their end after equal total tokens: "
        "the bilingual run has read half as much of the language. Not a transfer score."
    )
    columns = ("source", "mixture", "tokenizer", "variant", "difference", "interval")
    return Table("final_difference", "Difference of finals", note, columns, out, rows)


def _measurable(rows: Sequence[dict[str, Any]]) -> Table:
    def span(pair: list[float] | None) -> str:
        return "none" if pair is None else f"{budget(pair[0])} to {budget(pair[1])}"

    out = [
        (r["source"], f"en-{r['partner']}", r["tok"], r["variant"], str(r["seed"]), span(r["0"]), span(r["-1"]))
        for r in rows
    ]
    note = "Budgets at which the stable points reach far enough to see an ATLAS BTS of this size."
    columns = ("source", "mixture", "tokenizer", "variant", "seed", "BTS = 0", "BTS = -1")
    return Table("measurable", "What can be measured", note, columns, out, rows)


def _excluded(rows: Sequence[dict[str, Any]]) -> Table:
    out = [(r["name"], r["reason"]) for r in rows]
    return Table(
        "excluded", "What takes no part", "By state of the run, or by its points.", ("name", "reason"), out, rows
    )


def _run_record(run: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "state", "kind", "seed", "variant", "tok_name", "schedule", "precision", "commit", "device")
    return {name: run.get(name) for name in kept} | {"batch_tokens": run["science"]["batch.tokens"]}


def _runs(rows: Sequence[dict[str, Any]]) -> Table:
    out = []
    for r in rows:
        s, science = r["schedule"], r["science"]
        lengths = [budget(s[name]) for name in ("warmup_tokens", "stable_tokens", "decay_tokens")]
        what = (r["name"], r["state"], r["kind"], str(r["seed"]), f"{s['peak_lr']:g}", *lengths)
        origin = (r.get("precision", ""), r.get("commit", "")[:10], r.get("device", ""))
        out.append((*what, f"{science['batch.tokens']:,}", *origin))
    columns = ("run", "state", "kind", "seed", "peak rate", "warmup", "stable", "decay", "batch", "precision")
    note = "Token lengths are nominal; run.json of each run has all settings, versions and fingerprints."
    return Table("runs", "Runs", note, (*columns, "commit", "device"), out, [_run_record(r) for r in rows])
