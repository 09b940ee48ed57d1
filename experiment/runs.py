"""The matrix of runs: `python -m experiment.runs`, what they are, how far they are, what they cost."""

import json
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiment.config.check import check_flavor, hint, to_config
from experiment.config.front_door import front_door
from experiment.config.schema import Config, RunsConfig
from experiment.errors import ConfigError
from experiment.matrix.board import others_on_disk, state_of, status
from experiment.matrix.budget import plan, trained_tokens
from experiment.matrix.identity import Run
from experiment.matrix.names import mark_name
from experiment.matrix.runs import ROWS, chosen_rows, matrix_runs
from experiment.model.size import PEAK_FLOPS

WATCH_SECONDS = 5.0


@front_door("runs", RunsConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, RunsConfig)
    _check(config)
    everything, runs = _asked_for(config, HydraConfig.get().overrides.task)
    if config.view == "plan":
        report = plan(runs, config.tok_per_s, config.mfu, config.device, config.budget_hours)
        print(json.dumps(report, indent=1) if config.output == "json" else _plan_text(report))
        return
    while True:
        records = [status(run) if config.view == "status" else _listed(run) for run in runs]
        if config.view == "status" and config.run is None:
            cells = {(run.mixture, run.tok_name) for run in runs}
            others = others_on_disk(everything)
            records += [r for r in others if runs == everything or (r["mixture"], r["tok"]) in cells]
        if config.output == "json":
            print(json.dumps(records if config.run is None else records[0], indent=1, ensure_ascii=False))
        elif config.run is not None:
            print("\n".join(f"{key:14} {json.dumps(value, ensure_ascii=False)}" for key, value in records[0].items()))
        else:
            print(_status_text(records) if config.view == "status" else _list_text(runs, records), flush=True)
        if not (config.watch and config.view == "status"):
            return
        time.sleep(WATCH_SECONDS)


def _check(config: RunsConfig) -> None:
    check_flavor(config.flavor, "flavor")
    problems = []
    for name, options in (("output", ("table", "json")), ("view", ("list", "status", "plan"))):
        if (value := getattr(config, name)) not in options:
            problems.append(f"{name}: got {value!r}; must be one of {', '.join(options)}")
    for name in ("tok_per_s", "mfu", "budget_hours"):
        if (value := getattr(config, name)) is not None and not 0 < value < float("inf"):
            problems.append(f"{name}: got {value}; must be above 0")
    if config.device is not None and config.device not in PEAK_FLOPS:
        problems.append(f"device: the peak of {config.device!r} is not known; {hint(config.device, list(PEAK_FLOPS))}")
    if config.mfu is not None and config.mfu > 1:
        problems.append(f"mfu: got {config.mfu}; a share of the peak is at most 1")
    if config.watch and config.view != "status":
        problems.append("watch: only view=status can be watched")
    if (config.mfu is None) != (config.device is None):
        problems.append("mfu and device: a rate follows from both; give both, or tok_per_s")
    if problems:
        raise ConfigError(problems)


def _asked_for(config: RunsConfig, overrides: Sequence[str]) -> tuple[list[Run], list[Run]]:
    """The runs of the matrix, and those asked for.

    Overrides of mixture, tok and schedule choose among them, others apply to each.
    """
    own = {f.name for f in fields(RunsConfig)} - {f.name for f in fields(Config)}
    given = {override.split("=", 1)[0].lstrip("+~"): override for override in overrides}
    shared = [override for key, override in given.items() if key not in own and key not in ROWS]
    wanted = {group: {HydraConfig.get().runtime.choices[group]} for group in ROWS if group in given}
    runs = matrix_runs(config.flavor, config.only_30b, shared, wanted=wanted)
    chosen = chosen_rows(runs, wanted)
    if config.run is None:
        return runs, chosen
    if not (named := [run for run in chosen if run.name == config.run]):
        raise ConfigError([f"run: there is no run {config.run!r}; known: {', '.join(run.name for run in chosen)}"])
    return runs, named


def _listed(run: Run) -> dict[str, Any]:
    state, _ = state_of(run)
    return run.resolved() | {"state": state}


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _list_text(runs: list[Run], records: list[dict[str, Any]]) -> str:
    rows = [("run", "kind", "tokens", "starts from", "state")]
    for run, record in zip(runs, records, strict=True):
        start = f"{run.trunk.name} at {mark_name(run.config.branch.mark or 0)}" if run.trunk else ""
        rows.append((run.name, run.kind, f"{trained_tokens(run) / 1e9:g}B", start, record["state"]))
    cells = {(run.mixture, run.tok_name) for run in runs}
    total = sum(map(trained_tokens, runs)) / 1e9
    tail = f"{len(cells)} cells, {len(runs)} runs, {total:g}B nominal tokens, scale {runs[0].config.scale.name}"
    return "\n".join([*_table(rows), "", tail])


def _status_text(records: list[dict[str, Any]]) -> str:
    rows = [("run", "state", "tokens", "done", "tok/s", "left", "last sign", "BPB")]
    for r in records:
        bpb = " ".join(f"{key} {value:.3f}" for key, value in r["bpb"].items())
        started = r["state"] != "pending"
        rows.append(
            (
                r["name"],
                r["state"],
                f"{r['tokens']:,}" if started else "",
                f"{r['percent']:.0f}%" if started else "",
                f"{r['tok_per_s']:,.0f}" if r["tok_per_s"] else "",
                _duration(r["seconds_left"]),
                _duration(r["stale_seconds"]),
                r["error"] or " · ".join(filter(None, (bpb, r["note"]))),
            )
        )
    counts = {state: [r["state"] for r in records].count(state) for state in {r["state"]: 0 for r in records}}
    return "\n".join([*_table(rows), "", ", ".join(f"{count} {state}" for state, count in counts.items())])


def _plan_text(report: dict[str, Any]) -> str:
    rows = [("run", "kind", "tokens", "text", "FLOPs", "GPU-hours", "epochs", "checkpoints")]
    for r in report["runs"]:
        epochs = " ".join(f"{lang} {n:.2f}" for lang, n in r["epochs"].items() if n is not None)
        hours = _hours(r["gpu_hours"])
        disk = f"{r['checkpoint_bytes'] / 1e9:.2f} GB"
        known = [size for size in r["text_bytes"].values() if size is not None]
        text = f"{sum(known) / 1e9:.3g} GB" if len(known) == len(r["text_bytes"]) else "?"
        rows.append((r["name"], r["kind"], f"{r['tokens'] / 1e9:g}B", text, f"{r['flops']:.3g}", hours, epochs, disk))
    rate = (
        "unknown: give tok_per_s, or mfu and device"
        if report["tok_per_s"] is None
        else (f"{report['tok_per_s']:,.0f} tok/s per GPU ({report['rate_from']})")
    )
    shards = "not packed yet" if report["shard_bytes"] is None else f"{report['shard_bytes'] / 1e9:.2f} GB"
    pairs = report["all_pairs"]
    lines = [
        *_table(rows),
        "",
        f"{report['cells']} cells, {len(rows) - 1} runs: {report['total_tokens'] / 1e9:g}B nominal tokens "
        f"({report['total_real_tokens']:.4g} real at scale {report['scale']}), {report['total_flops']:.3g} FLOPs",
        f"rate: {rate}",
        f"GPU-hours: {_hours(report['total_gpu_hours'])}",
        f"trunks save {report['trunks_save_tokens'] / 1e9:g}B tokens against separate runs",
        f"all pairs ({pairs['mixtures']} mixtures, {pairs['cells']} cells of 30B): {pairs['tokens'] / 1e9:g}B tokens, "
        f"GPU-hours {_hours(pairs['gpu_hours'])}",
        f"disk: checkpoints {report['checkpoint_bytes'] / 1e9:.2f} GB, shards {shards}",
    ]
    if budget := report.get("budget"):
        verdict = {None: "no rate is known", True: "fits", False: "does not fit"}[budget["fits"]]
        line = f"budget of {budget['hours']:g} GPU-hours: {verdict}"
        if budget["fits"] is not None:
            tokens, cells = budget["affordable_tokens"] / 1e9, budget["affordable_30b_cells"]
            line += f"; it buys {tokens:.0f}B tokens, {cells} cells of 30B"
        lines.append(f"{line}; to fit, a GPU must do {budget['tok_per_s_needed']:,.0f} tok/s")
    return "\n".join(lines + [f"warning: {warning}" for warning in report["warnings"]])


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes = int(seconds) // 60
    return f"{int(seconds)}s" if minutes < 2 else f"{minutes}m" if minutes < 120 else f"{minutes // 60}h"


if __name__ == "__main__":
    main()
