"""The page of a report: one HTML file with everything in it, opened from disk without a network."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiment.matrix.languages import LANGUAGES
from experiment.matrix.names import run_name
from experiment.reporting.figures import Figure, to_explore
from experiment.reporting.tables import SCORE_NAMES, Table, budget, interval, number


def page(
    report: dict[str, Any], figures: Sequence[Figure], tables: Sequence[Table], tokenizers: Sequence[Table] = ()
) -> str:
    """The page. `tokenizers`: the tables of report["tokenizers"] and report["tokenizer_analysis"]."""
    from jinja2 import Environment
    from plotly.offline import get_plotlyjs

    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    divs, scripts = [], []
    for figure in figures:
        html = to_explore(figure)
        # the figures' scripts come after plotly.js, which comes after what a reader wants to see first
        scripts += re.findall(r"<script.*?</script>", html, flags=re.DOTALL)
        shown = {"name": figure.name, "title": figure.title, "note": figure.note}
        shown["bands"] = sorted({line.band_says for line in figure.lines if line.band_says})
        divs.append((shown, re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)))
    groups = [line.group for figure in figures for line in figure.lines if line.group[0]]
    switches = [("mixture", name) for name in sorted({mixture for mixture, _ in groups}, key=_mixture_order)]
    switches += [("condition", name) for name in sorted({condition for _, condition in groups}, reverse=True)]
    board = _board(report["runs"])
    analysis = report.get("tokenizer_analysis")
    sections = [("board", "matrix")] if board else []
    sections += [("curves", "curves")]
    sections += [("tokenization", "tokenizers")] if analysis or tokenizers else []
    sections += [*((table.name, table.name.replace("_", " ")) for table in tables)]
    return (
        Environment(autoescape=True, trim_blocks=True)
        .from_string(template)
        .render(
            origin=report["origin"],
            settings=report["settings"],
            headline=headline(report),
            demonstration=any(run["scale"] == "tiny" for run in report["runs"]),
            conditional=_conditions(report),
            sections=[*sections, ("method", "method")],
            board=board,
            analysis=analysis,
            tokenizers=tokenizers,
            switches=switches,
            figures=divs,
            tables=tables,
            noise=report["checkpoint_noise"],
            plotly=get_plotlyjs(),
            plots="\n".join(scripts),
        )
    )


def headline(report: dict[str, Any]) -> list[str]:
    """The answer in sentences: per source the interaction at the largest budget that has one, or why there is none."""
    sentences = []
    flavors = sorted({row["flavor"] for row in report["interaction"]})
    for source in sorted({row["source"] for row in report["interaction"]}):
        for flavor in flavors:
            for score in ("relative", "atlas"):
                place = (source, flavor, score, "tokens", "")
                rows = [
                    row
                    for row in report["interaction"]
                    if (row["source"], row["flavor"], row["score"], row["matching"], row["variant"]) == place
                ]
                if rows:
                    name = f"{source}, {flavor}" if len(flavors) > 1 else source
                    sentences.append(_sentence(name, score, rows))
    return sentences or ["There are no bilingual runs with stable points, so no transfer can be computed."]


def _sentence(source: str, score: str, rows: Sequence[dict[str, Any]]) -> str:
    what = f"{source}, {SCORE_NAMES[score]}"
    known = [row for row in rows if row["value"] is not None]
    if not known:
        design = [row for row in rows if row["designed"]]
        return f"{what}: the interaction is not computable. {design[-1]['reason'] or 'It is censored.'}"
    best = max(known, key=lambda row: (row["designed"], row["budget"]))
    further = max(row["budget"] for row in rows)
    why = " (further on it is censored or not measured)" if best["budget"] < further else ""
    partners = f"{{{', '.join(best['same'])}}} against {{{', '.join(best['cross'])}}}"
    left = "" if best["designed"] else " (what is left of the design, in both conditions)"
    found = max(best["intervals"], key=lambda row: len(row["covers"]), default=None)
    between = f", {100 * found['level']:g}% interval {interval(found, score)}" if found else ", without an interval"
    return (
        f"{what}: at {budget(best['budget'])} tokens of the partner language{why} the interaction, penalty starved "
        f"minus destarved, is {number(best['value'], score)}{between}; {partners}{left}."
    )


def _conditions(report: dict[str, Any]) -> str:
    """What the interaction's intervals are conditional on, in words."""
    intervals = [found for row in report["interaction"] for found in row["intervals"]]
    told = sorted({found["conditional_on"] for found in intervals if found["conditional_on"]})
    return f", conditional on {' or '.join(told)}" if told else ""


def _mixture_order(mixture: str) -> tuple[int, list[int]]:
    langs = mixture.split("-")
    return len(langs), [list(LANGUAGES).index(lang) for lang in langs]


def _board(runs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Mixtures by tokenizer conditions -> the runs of each cell with their states."""
    if not runs:
        return None
    mixtures = sorted({"-".join(run["langs"]) for run in runs}, key=_mixture_order)
    toks = sorted({run["tok_name"] for run in runs}, reverse=True)
    rows = []
    for mixture in mixtures:
        cells = []
        for tok in toks:
            mine = [run for run in runs if ("-".join(run["langs"]), run["tok_name"]) == (mixture, tok)]
            base = run_name(mixture, tok)
            cells.append([(run["name"].removeprefix(base).removeprefix("__") or "30B", run["state"]) for run in mine])
        rows.append((mixture, cells))
    return {"toks": toks, "rows": rows}
