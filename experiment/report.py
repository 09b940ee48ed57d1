"""From evaluation points to the answer: `python -m experiment.report`.

read points -> transfer scores, penalty, interaction, intervals -> report.json, tables, figures, index.html
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiment.config.check import to_config
from experiment.config.front_door import front_door
from experiment.config.schema import ReportConfig, TokenizersConfig
from experiment.data.artifacts import checksum, recorded_artifact
from experiment.data.files import require_file
from experiment.errors import ConfigError, ExperimentError, RunRefused
from experiment.evaluation.findings import Findings, Settings
from experiment.evaluation.points import Evidence, points_from_runs, points_from_table
from experiment.evaluation.recorded import recorded_config
from experiment.reporting.figures import draw_for_paper, figures
from experiment.reporting.page import headline, page
from experiment.reporting.tables import budget, tables, write_tables
from experiment.reporting.tokenizers import tokenizer_tables
from experiment.run_directory import place_for, replaced_as_a_whole

FILES = ("report.json", "index.html", "tables", "figures")


@front_door("report", ReportConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, ReportConfig)
    _check(config)
    out = _place(config)
    settings = Settings(tuple(config.budgets), config.replicates, config.level, config.seed)
    evidence = _evidence(config)
    report = Findings(evidence, settings).report() | {"tokenizer_analysis": tokenizer_analysis(config, evidence)}
    write(report, out)
    print(summary(report, out))


def _check(config: ReportConfig) -> None:
    problems = []
    if not config.budgets or not all(0 < value < float("inf") for value in config.budgets):
        problems.append(f"budgets: got {config.budgets}; must be one or more numbers above 0")
    if len(set(config.budgets)) < len(config.budgets):
        problems.append(f"budgets: got {config.budgets}; each of them once")
    if not 100 <= config.replicates <= 100_000:
        problems.append(f"replicates: got {config.replicates}; must be 100 to 100000")
    if not 0.5 <= config.level < 1:
        problems.append(f"level: got {config.level:g}; must be 0.5 or more and below 1")
    if config.seed < 0:
        problems.append(f"seed: got {config.seed}; must be at least 0")
    if problems:
        raise ConfigError(problems)


def _evidence(config: ReportConfig) -> Evidence:
    if config.points is not None:
        evidence = points_from_table(require_file(config.points, "points"))
    else:
        evidence = points_from_runs(Path(config.paths.runs) / config.scale, Path(config.paths.artifacts))
    there = sorted({point.source for point in evidence.points})
    if unknown := sorted(set(config.sources or ()) - set(there)):
        raise ConfigError([f"sources: nothing was scored on {', '.join(unknown)}; there: {', '.join(there) or 'none'}"])
    wanted = config.sources or [source for source in there if source != "files"]
    evidence.points = [point for point in evidence.points if point.source in wanted]
    return evidence


def tokenizer_analysis(config: ReportConfig, evidence: Evidence) -> dict[str, Any] | None:
    """What the runs' tokenizers do to the parallel text that the runs were scored on, or the `reason` why that is not
    known; None for a table of points. Of several variants, the canonical one, else the one that most runs are of."""
    from experiment.tokenizers.analysis import analyse, judging_segments, subject_of

    left_out = {found.name for found in evidence.excluded}
    runs = [run for run in evidence.runs if run["name"] not in left_out]
    if not runs:
        return None
    variants = Counter(run["variant"] for run in runs)
    variant = "" if "" in variants else variants.most_common(1)[0][0]
    runs = [run for run in runs if run["variant"] == variant]
    try:
        prints = {run["tok_name"]: run["fingerprints"]["tokenizer"] for run in runs}
        found = {
            tok: recorded_artifact(Path(config.paths.artifacts), "tokenizers", prints[tok])
            for tok in sorted(prints, reverse=True)
        }
        trained = recorded_config(Path(config.paths.runs) / config.scale / runs[0]["name"])
        path = require_file(trained.data.parallel or "", "data.parallel")
        if checksum(path) != runs[0]["fingerprints"].get("parallel"):
            raise RunRefused(f"data.parallel: {path} is not the parallel text that {runs[0]['name']} was scored on")
        segments = judging_segments(trained.data, trained.tok.langs)
        subjects = {tok: subject_of(artifact) for tok, artifact in found.items()}
        return {"variant": variant} | analyse(subjects, segments, trained.tok.langs, TokenizersConfig.gate)
    except ExperimentError as error:
        return {"variant": variant, "reason": str(error)}


def _place(config: ReportConfig) -> Path:
    """Where the report goes. Raises RunRefused for a directory that holds anything but a report."""
    name = config.scale if config.points is None else Path(config.points).stem
    out = Path(config.out) if config.out else Path(config.paths.runs) / "reports" / name
    return place_for(out, FILES, "a report")


def write(report: dict[str, Any], out: Path) -> None:
    """Write the report: whoever opens it finds the old one or the new one, whole."""
    with replaced_as_a_whole(out) as place:
        drawn, made = figures(report), tables(report)
        toks = tokenizer_tables(report["tokenizers"], report["tokenizer_analysis"])
        text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False)
        (place / "report.json").write_text(text + "\n", encoding="utf-8")
        write_tables([*made, *toks], place / "tables")
        draw_for_paper(drawn, place / "figures")
        (place / "index.html").write_text(page(report, drawn, made, toks), encoding="utf-8")


def summary(report: dict[str, Any], out: Path) -> str:
    """What the report says, in a few lines."""
    lines = headline(report)
    spans = [row["0"] for row in report["measurable"] if row["0"]]
    if spans:
        low, high = max(span[0] for span in spans), min(span[1] for span in spans)
        if low <= high:
            where = f"from {budget(low)} to {budget(high)} tokens of the partner language"
            lines.append(f"measurable: a neutral score in every cell {where}")
    if report["excluded"]:
        shown = [f"{row['name']}: {row['reason']}" for row in report["excluded"][:5]]
        more = len(report["excluded"]) - len(shown)
        lines += ["takes no part:", *(f"  {line}" for line in shown), *([f"  and {more} more"] if more else [])]
    return "\n".join([*lines, f"report: {out / 'index.html'}", f"numbers: {out / 'report.json'}"])


if __name__ == "__main__":
    main()
