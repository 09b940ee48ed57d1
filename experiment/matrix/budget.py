"""What the matrix costs before a GPU is booked: tokens, FLOPs, GPU-hours, epochs, disk, and what fits."""

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

from experiment.config.schema import Config
from experiment.matrix.board import measured_rate
from experiment.matrix.identity import Run
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.runs import CONDITIONS
from experiment.model.size import BYTES_PER_PARAMETER, PEAK_FLOPS, flops_per_token, parameter_count

CELL_TOKENS = 30e9


def trained_tokens(run: Run) -> float:
    """Nominal tokens that this run itself trains on; a cooldown's trunk is not counted again."""
    s = run.config.schedule
    return s.warmup_tokens + s.stable_tokens + s.decay_tokens


def rate_of(
    runs: list[Run], tok_per_s: float | None, mfu: float | None, device: str | None
) -> tuple[float | None, str]:
    """Tokens per second and GPU, and where the figure is from: given, from MFU and device, or measured."""
    config = runs[0].config
    if tok_per_s is not None:
        return tok_per_s, "given"
    if mfu is not None and device is not None:
        return mfu * PEAK_FLOPS[device] / flops_per_token(
            config.model, config.tok.vocab_size
        ), f"MFU {mfu:g} on {device}"
    rates = [rate for run in runs if (rate := measured_rate(run)) is not None]
    return (sum(rates) / len(rates), f"mean of {len(rates)} runs here") if rates else (None, "unknown")


def plan(
    runs: list[Run],
    tok_per_s: float | None = None,
    mfu: float | None = None,
    device: str | None = None,
    budget_hours: float | None = None,
) -> dict[str, Any]:
    """The plan of some runs as plain values. GPU-hours are None where no rate is known."""
    rate, source = rate_of(runs, tok_per_s, mfu, device)
    rows = [_row(run, rate) for run in runs]
    total = sum(row["tokens"] for row in rows)
    cells = {(run.mixture, run.tok_name, run.config.seed) for run in runs}
    scale = runs[0].config.scale.token_scale
    report: dict[str, Any] = {
        "scale": runs[0].config.scale.name,
        "cells": len(cells),
        "total_tokens": total,
        "total_real_tokens": total * scale,
        "total_flops": sum(row["flops"] for row in rows),
        "tok_per_s": rate,
        "rate_from": source,
        "total_gpu_hours": _hours(total * scale, rate),
        "checkpoint_bytes": sum(row["checkpoint_bytes"] for row in rows),
        "shard_bytes": _shard_bytes(runs),
        "trunks_save_tokens": _saved_by_trunks(runs),
        "all_pairs": _all_pairs(scale, rate),
        "runs": rows,
        "warnings": _warnings(rows),
    }
    if budget_hours is not None:
        report["budget"] = _budget(budget_hours, total * scale, rate, scale)
    return report


def _hours(real_tokens: float, rate: float | None) -> float | None:
    return None if rate is None else real_tokens / rate / 3600


def _row(run: Run, rate: float | None) -> dict[str, Any]:
    config = run.config
    tokens = trained_tokens(run)
    real = tokens * config.scale.token_scale
    parameters = parameter_count(config.model, config.tok.vocab_size)
    kept = len(config.train.stable_marks) + 1 + (run.kind != "trunk")  # marks, last, and final where it is no mark
    snapshots = 0.0
    if config.evaluation.snapshots:
        snapshots = math.ceil(tokens / config.evaluation.every_tokens) * parameters * 4
    return {
        "name": run.name,
        "kind": run.kind,
        "tokens": tokens,
        "real_tokens": real,
        "flops": real * flops_per_token(config.model, config.tok.vocab_size),
        "gpu_hours": _hours(real, rate),
        "epochs": _epochs(run),
        "checkpoint_bytes": kept * parameters * BYTES_PER_PARAMETER + snapshots,
    }


def corpus_tokens(config: Config, lang: str, tok: str) -> int | None:
    """Tokens in the packed shards of a language; None where there are none, or several corpora of that name."""
    artifacts = Path(config.paths.artifacts)
    tokenizers = {
        manifest["fingerprint"]
        for path in artifacts.glob(f"tokenizers/{tok}-*/manifest.json")
        if (manifest := json.loads(path.read_text(encoding="utf-8")))["inputs"]["vocab_size"] == config.tok.vocab_size
    }
    sizes = {
        manifest["facts"]["tokens"]
        for path in artifacts.glob(f"shards/{config.data.corpus}-{lang}-{tok}-*/manifest.json")
        if (manifest := json.loads(path.read_text(encoding="utf-8")))["inputs"]["tokenizer"] in tokenizers
    }
    return sizes.pop() if len(sizes) == 1 else None


def _epochs(run: Run) -> dict[str, float | None]:
    """Passes over each language's corpus at the end of the run, its trunk included."""
    config = run.config
    probs = config.mixture.probs or [1 / len(config.mixture.langs)] * len(config.mixture.langs)
    end = (trained_tokens(run) + (config.branch.mark or 0)) * config.scale.token_scale
    epochs: dict[str, float | None] = {}
    for lang, p in zip(config.mixture.langs, probs, strict=True):
        tokens = corpus_tokens(config, lang, run.tok_name)
        epochs[lang] = None if tokens is None else end * p / tokens
    return epochs


def _shard_bytes(runs: list[Run]) -> int | None:
    """Two bytes a token over every language and condition; None while some of them are not packed."""
    wanted = {(lang, run.tok_name): run.config for run in runs for lang in run.config.mixture.langs}
    tokens = [corpus_tokens(config, lang, tok) for (lang, tok), config in wanted.items()]
    return None if None in tokens else 2 * sum(n for n in tokens if n is not None)


def _saved_by_trunks(runs: list[Run]) -> float:
    """Tokens that separate runs to the cooldowns' ends would train on, less what trunks and cooldowns do."""
    branches = [run for run in runs if run.kind == "cooldown"]
    separate = sum((run.config.branch.mark or 0) + trained_tokens(run) for run in branches)
    return separate - sum(trained_tokens(run) for run in runs if run.kind in ("trunk", "cooldown")) if branches else 0.0


def _all_pairs(scale: float, rate: float | None) -> dict[str, Any]:
    """The design without a cut: every language alone and every pair of them, in both conditions, 30B tokens each."""
    mixtures = len(LANGUAGES) + len(list(combinations(LANGUAGES, 2)))
    tokens = mixtures * len(CONDITIONS) * CELL_TOKENS
    return {
        "mixtures": mixtures,
        "cells": mixtures * len(CONDITIONS),
        "tokens": tokens,
        "gpu_hours": _hours(tokens * scale, rate),
    }


def _budget(hours: float, real_tokens: float, rate: float | None, scale: float) -> dict[str, Any]:
    affordable = None if rate is None else hours * 3600 * rate / scale
    return {
        "hours": hours,
        "fits": None if affordable is None else real_tokens / scale <= affordable,
        "affordable_tokens": affordable,
        "affordable_30b_cells": None if affordable is None else math.floor(affordable / CELL_TOKENS),
        "tok_per_s_needed": real_tokens / hours / 3600,
    }


def _warnings(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"{row['name']}: {lang} is read {n:.1f} times; repetition is then mixed up with the tokenizer's condition"
        for row in rows
        for lang, n in row["epochs"].items()
        if n is not None and n > 1
    ]
