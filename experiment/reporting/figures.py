"""The figures of a report: drawn once for paper (matplotlib), once to be explored (plotly)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from experiment.matrix.languages import LANGUAGES
from experiment.reporting.tables import MATCHING_NAMES, SCORE_NAMES

# Okabe and Ito's palette: told apart by most colour-blind readers, on white and on black
COLOURS = {"en": "#7f7f7f", "de": "#0072B2", "fr": "#E69F00", "ar": "#D55E00", "zh": "#009E73"}
DASHES = {"starved": "dash", "destarved": "solid"}
MPL_DASHES = {"dash": (0, (4, 2)), "solid": "-", "dot": ":"}


@dataclass(frozen=True)
class Line:
    label: str
    x: list[float]
    y: list[float | None]
    colour: str
    dash: str
    group: tuple[str, str]
    """Mixture and condition: what the page's switches switch."""
    band: tuple[list[float | None], list[float | None]] | None = None
    band_says: str = ""
    markers: bool = False


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    note: str
    x_title: str
    y_title: str
    lines: list[Line] = field(default_factory=list)
    zero_line: bool = False


def figures(report: dict[str, Any]) -> list[Figure]:
    """The interaction, transfer curves and loss curves of each source; those without a line are left out."""
    made: list[Figure] = []
    sources = sorted({row["source"] for row in report["curves"]})
    for source in sources:
        for matching in MATCHING_NAMES:
            made += [_interaction(report, source, matching, score) for score in ("relative", "atlas")]
            made += [_transfer(report, source, matching, score) for score in ("relative", "atlas")]
    for source in sources:
        for lang in sorted({row["lang"] for row in report["curves"] if row["source"] == source}, key=_order):
            made.append(_loss(report, source, lang))
    return [figure for figure in made if figure.lines]


def _order(lang: str) -> int:
    return list(LANGUAGES).index(lang)


def _loss(report: dict[str, Any], source: str, lang: str) -> Figure:
    lines = []
    for row in report["curves"]:
        if (row["source"], row["lang"]) != (source, lang):
            continue
        partner = next((x for x in row["mixture"].split("-") if x != "en"), "en")
        condition = row["tok"].rpartition("_")[2]
        for run, points in groupby(sorted(row["points"], key=lambda p: (p[3], p[0])), key=lambda p: p[3]):
            kept = list(points)
            lines.append(
                Line(
                    label=run,
                    x=[p[0] for p in kept],
                    y=[p[1] for p in kept],
                    colour=COLOURS["en"] if "-" not in row["mixture"] else COLOURS[partner],
                    dash=DASHES.get(condition, "dot"),
                    group=(row["mixture"], condition),
                    markers=True,
                )
            )
    note = "Every evaluation point of every run, warmup and decay included. Grey: monolingual. Dashed: starved."
    title = f"Loss on {source} text in {LANGUAGES[lang].name}"
    return Figure(f"loss_{source}_{lang}", title, note, "tokens", "bits per byte", lines)


def _transfer(report: dict[str, Any], source: str, matching: str, score: str) -> Figure:
    rows = [row for row in report["transfer_curves"] if (row["source"], row["matching"]) == (source, matching)]
    lines = []
    for key, mine in _grouped(rows, lambda r: (r["mixture"], r["partner"], r["tok"], r["condition"], r["variant"])):
        mixture, partner, tok, condition, variant = key
        label = " ".join(filter(None, (mixture, tok, variant)))
        look = (COLOURS[partner], DASHES.get(condition, "dot"))
        values = [row[score] for row in mine]
        lines += _curve(label, mine, values, [row["intervals"][score] for row in mine], look, (mixture, condition))
    note = (
        "0 is neutral, above 0 English helps. Gaps: censored, or outside the stable points; no band: an interval "
        "without a bound. Dashed: starved."
    )
    return _over_budgets(report, "transfer", "Transfer to the partner language", source, matching, score, note, lines)


def _interaction(report: dict[str, Any], source: str, matching: str, score: str) -> Figure:
    place = (source, matching, score)
    rows = [row for row in report["interaction_curves"] if (row["source"], row["matching"], row["score"]) == place]
    lines = []
    for key, mine in _grouped(rows, lambda r: (tuple(r["same"]), tuple(r["cross"]), r["flavor"], r["variant"])):
        same, cross, flavor, variant = key
        label = " ".join(filter(None, (flavor, f"{{{', '.join(same)}}} - {{{', '.join(cross)}}}", variant)))
        look = ("#CC79A7" if mine[0]["designed"] else "#56B4E9", "solid")
        values = [row["value"] for row in mine]
        lines += _curve(label, mine, values, [row["intervals"] for row in mine], look, ("", ""))
    note = (
        "Penalty for crossing scripts: under the starved minus under the destarved tokenizer. A second colour: the "
        "partners that are left where others are not measured, in both conditions."
    )
    return _over_budgets(report, "interaction", "Interaction", source, matching, score, note, lines)


def _curve(
    label: str,
    rows: list[dict[str, Any]],
    values: list[float | None],
    intervals: list[list[dict[str, Any]]],
    look: tuple[str, str],
    group: tuple[str, str],
) -> list[Line]:
    """A line over budgets with its band; none where no value is known. `look`: colour and dash."""
    if all(value is None for value in values):
        return []
    low, high, says = _band(intervals)
    budgets = [row["budget"] for row in rows]
    return [Line(label, budgets, values, *look, group, band=(low, high), band_says=says)]


def _over_budgets(
    report: dict[str, Any], name: str, title: str, source: str, matching: str, score: str, note: str, lines: list[Line]
) -> Figure:
    what = SCORE_NAMES[score]
    title = f"{title} on {source} text, {MATCHING_NAMES[matching]}: {what}"
    place = f"{name}_{score}_{matching}_{source}"
    return Figure(place, title, note, _budget_axis(report), what, lines, zero_line=True)


def _budget_axis(report: dict[str, Any]) -> str:
    nominal = "nominal " if report["settings"]["token_scale"] != 1.0 else ""
    return f"{nominal}tokens of the partner language"


def _grouped(rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> list[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [(name, sorted(mine, key=lambda row: row["budget"])) for name, mine in groups.items()]


def _band(intervals: list[list[dict[str, Any]]]) -> tuple[list[float | None], list[float | None], str]:
    """Per point the interval that covers most; an end without a bound is a gap."""
    widest = [max(rows, key=lambda row: len(row["covers"]), default=None) for rows in intervals]
    covers = next((" + ".join(row["covers"]) for row in widest if row), "")
    low = [row["low"] if row else None for row in widest]
    high = [row["high"] if row else None for row in widest]
    return low, high, covers


def draw_for_paper(found: Iterable[Figure], out: Path) -> None:
    """`<name>.svg` and `<name>.png` of each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    out.mkdir(parents=True, exist_ok=True)
    paper = {"svg.hashsalt": "report", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    with plt.rc_context(paper):
        for figure in found:
            canvas, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
            for line in figure.lines:
                y = np.array([np.nan if v is None else v for v in line.y])
                marker = "." if line.markers or np.isfinite(y).sum() < 2 else None
                axes.plot(
                    line.x,
                    y,
                    color=line.colour,
                    linestyle=MPL_DASHES[line.dash],
                    marker=marker,
                    label=line.label.replace("$", r"\$"),
                    lw=1.3,
                )
                if line.band is not None:
                    low, high = (np.array([np.nan if v is None else v for v in side]) for side in line.band)
                    axes.fill_between(line.x, low, high, color=line.colour, alpha=0.12, lw=0)
            if figure.zero_line:
                axes.axhline(0, color="0.5", lw=0.8)
                ys = [v for line in figure.lines for v in line.y if v is not None]
                reach = max(ys) - min(ys) or 1.0
                axes.set_ylim(min([*ys, 0.0]) - reach, max([*ys, 0.0]) + reach)
            axes.set(xlabel=figure.x_title, ylabel=figure.y_title, xscale="log", title=figure.title)
            axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
            for kind in ("svg", "png"):
                facts = {"Date": None} if kind == "svg" else {}
                canvas.savefig(out / f"{figure.name}.{kind}", dpi=160, metadata=facts)
            plt.close(canvas)


def to_explore(figure: Figure) -> str:
    """The figure as HTML that a page with plotly.js shows: hovered, zoomed, each line switched on and off."""
    import plotly.graph_objects as go

    canvas = go.Figure()
    for line in figure.lines:
        meta = {"mixture": line.group[0], "condition": line.group[1]}
        if line.band is not None:
            pairs = [(x, a, b) for x, a, b in zip(line.x, *line.band, strict=True) if a is not None and b is not None]
            xs = [x for x, _, _ in pairs]
            canvas.add_scatter(
                x=xs + xs[::-1],
                y=[b for _, _, b in pairs] + [a for _, a, _ in pairs][::-1],
                mode="lines",
                fill="toself",
                fillcolor=line.colour,
                opacity=0.15,
                line={"width": 0},
                hoverinfo="skip",
                legendgroup=line.label,
                showlegend=False,
                meta=meta,
            )
        canvas.add_scatter(
            x=line.x,
            y=line.y,
            name=line.label,
            mode="lines+markers" if line.markers or sum(v is not None for v in line.y) < 2 else "lines",
            line={"color": line.colour, "dash": line.dash, "width": 2},
            marker={"size": 4},
            legendgroup=line.label,
            text=[f"{x / 1e9:.3g}B" if x >= 1e9 else f"{x:,.0f}" for x in line.x],
            hovertemplate="%{text} tokens: %{y:.4f}<extra>%{fullData.name}</extra>",
            meta=meta,
        )
    canvas.update_layout(
        template="none",
        margin={"l": 56, "r": 8, "t": 8, "b": 44},
        height=430,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        legend={"orientation": "h", "y": -0.2, "font": {"size": 11}},
        xaxis={"type": "log", "title": {"text": figure.x_title}, "exponentformat": "B"},
        yaxis={"title": {"text": figure.y_title}, "zeroline": figure.zero_line},
    )
    return canvas.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=figure.name,
        config={"responsive": True, "displaylogo": False},
    )
