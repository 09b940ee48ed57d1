"""The matrix of runs: `python -m experiment.runs`."""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiment.config.check import AVAILABLE_FLAVORS, PLANNED_FLAVORS, hint, to_config
from experiment.config.front_door import front_door
from experiment.config.schema import Config, RunsConfig
from experiment.errors import ConfigError
from experiment.matrix.identity import Run
from experiment.matrix.names import mark_name
from experiment.matrix.runs import ROWS, chosen_rows, matrix_runs
from experiment.run_directory import RunDirectory


@front_door("runs", RunsConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, RunsConfig)
    _check(config)
    runs = _asked_for(config, HydraConfig.get().overrides.task)
    if config.run is not None:
        known = [run.name for run in runs]
        runs = [run for run in runs if run.name == config.run]
        if not runs:
            raise ConfigError([f"run: there is no run {config.run!r}; known: {', '.join(known)}"])
    records = [run.record() | {"state": RunDirectory(run.directory).state()} for run in runs]
    if config.output == "json":
        print(json.dumps(records if config.run is None else records[0], indent=1, ensure_ascii=False))
    elif config.run is not None:
        for key, value in records[0].items():
            print(f"{key:12} {json.dumps(value, ensure_ascii=False)}")
    else:
        _print_table(runs, records)


def _asked_for(config: RunsConfig, overrides: Sequence[str]) -> list[Run]:
    """The runs of the matrix; overrides of mixture, tok and schedule choose among them, others apply to each."""
    own = {f.name for f in fields(RunsConfig)} - {f.name for f in fields(Config)}
    given = {override.split("=", 1)[0].lstrip("+~"): override for override in overrides}
    shared = [override for key, override in given.items() if key not in own and key not in ROWS]
    runs = matrix_runs(config.flavor, config.only_30b, shared)
    wanted = {group: {HydraConfig.get().runtime.choices[group]} for group in ROWS if group in given}
    return chosen_rows(runs, wanted)


def _check(config: RunsConfig) -> None:
    problems = []
    flavors = [*AVAILABLE_FLAVORS, *PLANNED_FLAVORS]
    if config.flavor not in AVAILABLE_FLAVORS:
        planned = config.flavor in PLANNED_FLAVORS
        problems.append(
            f"flavor: {config.flavor!r} is not part of this version yet; available: {', '.join(AVAILABLE_FLAVORS)}"
            if planned
            else f"flavor: there is no flavor {config.flavor!r}; {hint(config.flavor, flavors)}"
        )
    if config.output not in ("table", "json"):
        problems.append(f"output: got {config.output!r}; must be table or json")
    if problems:
        raise ConfigError(problems)


def _print_table(runs: list[Run], records: list[dict[str, Any]]) -> None:
    rows = [("run", "kind", "tokens", "starts from", "state")]
    for run, record in zip(runs, records, strict=True):
        s = run.config.schedule
        tokens = s.warmup_tokens + s.stable_tokens + s.decay_tokens
        start = f"{run.trunk.name} at {mark_name(run.config.branch.mark or 0)}" if run.trunk else ""
        rows.append((run.name, run.kind, f"{tokens / 1e9:g}B", start, record["state"]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    total = sum(s.warmup_tokens + s.stable_tokens + s.decay_tokens for s in (run.config.schedule for run in runs))
    cells = {(run.mixture, run.tok_name) for run in runs}
    print(f"\n{len(cells)} cells, {len(runs)} runs, {total / 1e9:g}B nominal tokens, scale {runs[0].config.scale.name}")


if __name__ == "__main__":
    main()
