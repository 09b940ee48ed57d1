"""What the matrix costs before a GPU is booked: tokens, FLOPs, GPU-hours, epochs, disk, and what fits."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from experiment.config.schema import Config
from experiment.errors import Missing
from experiment.matrix.board import measured_rate
from experiment.matrix.identity import Run
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.runs import CONDITIONS
from experiment.model.size import BYTES_PER_PARAMETER, PEAK_FLOPS, flops_per_token, parameter_count

CELL_TOKENS = 30e9
Measured = dict[tuple[str, str], tuple[float | None, float | None]]
"""(language, tokenizer) -> what measured_text says."""


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
    measured: Measured = {}
    rows = [_row(run, rate, measured) for run in runs]
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
        "shard_bytes": _shard_bytes(runs, measured),
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


def _row(run: Run, rate: float | None, measured: Measured) -> dict[str, Any]:
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
        **_text(run, measured),
        "checkpoint_bytes": kept * parameters * BYTES_PER_PARAMETER + snapshots,
    }


def _look(measured: Measured, config: Config, lang: str, tok: str) -> tuple[float | None, float | None]:
    if (lang, tok) not in measured:
        measured[lang, tok] = measured_text(config, lang, tok)
    return measured[lang, tok]


def measured_text(config: Config, lang: str, tok: str) -> tuple[float | None, float | None]:
    """Tokens in the corpus of a language under a tokenizer, and UTF-8 bytes per token; None where it is not known.

    Both as the packed shards have them; before they are packed, by the tokenizer's bytes per token.
    """
    if lang in config.data.hub:
        return _measured_on_hub(config, lang)
    # files may be large: they are not read here to find the artifacts that are made of them, a name must do
    artifacts, vocab_size = Path(config.paths.artifacts), config.tok.vocab_size
    texts = {m["fingerprint"] for m in _manifests(artifacts, f"corpora/{config.data.corpus}-*")}
    tokenizers = [
        m
        for m in _manifests(artifacts, f"tokenizers/{tok}-*")
        if m["inputs"]["vocab_size"] == vocab_size and texts.issuperset(m["inputs"]["corpora"].values())
    ]
    fingerprints = {m["fingerprint"] for m in tokenizers}
    packed = [
        m["facts"]
        for m in _manifests(artifacts, f"shards/{config.data.corpus}-{lang}-{tok}-*")
        if m["inputs"]["tokenizer"] in fingerprints
    ]
    if len(packed) == 1:
        return packed[0]["tokens"], packed[0]["bytes"] / packed[0]["tokens"]
    rates = {m["facts"]["bytes_per_token"][lang] for m in tokenizers if lang in m["facts"].get("bytes_per_token", {})}
    if packed or len(rates) != 1:  # several corpora or tokenizers of one name: which is meant is not known
        return None, None
    rate = rates.pop()
    corpora = [m["facts"]["train"]["bytes"] for m in _manifests(artifacts, f"corpora/{config.data.corpus}-{lang}-*")]
    return (corpora[0] / rate if len(corpora) == 1 else None), rate


def _measured_on_hub(config: Config, lang: str) -> tuple[float | None, float | None]:
    from experiment.data.prepare import Stages  # only a plan of staged text needs what it imports

    stages = Stages(replace(config, data=replace(config.data, missing="error")))
    with suppress(Missing):
        facts = stages.shards(lang).facts
        return facts["tokens"], facts["bytes"] / facts["tokens"]
    rate = tokens = None
    with suppress(Missing):
        rate = stages.tokenizer().facts["bytes_per_token"].get(lang)
        tokens = stages.corpus(lang).facts["train"]["bytes"] / rate if rate else None
    return tokens, rate


def _manifests(artifacts: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in artifacts.glob(f"{pattern}/manifest.json")]


def _text(run: Run, measured: Measured) -> dict[str, dict[str, float | None]]:
    """Per language: `epochs` over its corpus at the end of the run, its trunk included, and `text_bytes`, the UTF-8
    bytes of the tokens that it reads itself; None where neither shards nor tokenizer are there."""
    config, scale = run.config, run.config.scale.token_scale
    probs = config.mixture.probs or [1 / len(config.mixture.langs)] * len(config.mixture.langs)
    own = trained_tokens(run) * scale
    end = own + (config.branch.mark or 0) * scale
    text: dict[str, dict[str, float | None]] = {"epochs": {}, "text_bytes": {}}
    for lang, p in zip(config.mixture.langs, probs, strict=True):
        tokens, rate = _look(measured, config, lang, run.tok_name)
        text["epochs"][lang] = None if tokens is None else end * p / tokens
        text["text_bytes"][lang] = None if rate is None else own * p * rate
    return text


def _shard_bytes(runs: list[Run], measured: Measured) -> int | None:
    """Two bytes a token over every language and condition; None while some of them are not packed."""
    wanted = {(lang, run.tok_name): run.config for run in runs for lang in run.config.mixture.langs}
    tokens = [_look(measured, config, lang, tok)[0] for (lang, tok), config in wanted.items()]
    return None if None in tokens else int(2 * sum(n for n in tokens if n is not None))


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
