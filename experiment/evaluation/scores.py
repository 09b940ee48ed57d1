"""Per-document scores of one checkpoint: what intervals resample. A parquet file beside the run's records."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiment.data.order import tokens_by_language
from experiment.errors import RunRefused
from experiment.matrix.identity import Run
from experiment.run_directory import sync_directory

POINTS, MADE_FROM = b"points", b"made_from"


@dataclass(frozen=True)
class DocumentScores:
    """Scores of one source and language."""

    ids: tuple[str, ...]
    nll: np.ndarray
    """float64 [documents], in nats."""
    bytes: np.ndarray
    """int64 [documents], UTF-8 bytes of the original text."""

    @property
    def nll_nats(self) -> float:
        return math.fsum(self.nll)

    @property
    def bpb(self) -> float:
        """Bits per byte, a ratio of sums."""
        return self.nll_nats / (math.log(2) * int(self.bytes.sum()))


ByLanguage = Mapping[tuple[str, str], DocumentScores]
"""(source, language) -> scores."""


def position(run: Run, step: int) -> dict[str, Any]:
    """Where update number `step` ends: what every record starts with."""
    return {
        "tokens": step * run.config.batch.tokens,
        "step": step,
        "lr": run.schedule.lr_of_step(step),
        "phase": run.schedule.phase_of_step(step),
    }


def points_of(run: Run, step: int, scores: ByLanguage) -> list[dict[str, Any]]:
    """One evaluation point for each source and language, as evaluations.jsonl has it."""
    lang_tokens = tokens_by_language(run.config, step)
    cell = {"run": run.name, "mixture": run.mixture, "tok": run.tok_name, "seed": run.config.seed}
    return [
        cell
        | position(run, step)
        | {"lang_tokens": lang_tokens[lang], "source": source, "lang": lang, "nll_nats": found.nll_nats}
        | {"bytes": int(found.bytes.sum()), "docs": len(found.ids), "bpb": found.bpb}
        for (source, lang), found in scores.items()
    ]


def scores_file(run: Path, step: int, source: str = "") -> Path:
    """Where the scores of a checkpoint lie: those of the training loop, or of one source scored afterwards."""
    return run / "scores" / (f"step_{step:07d}" + (f"__{source}" if source else "") + ".parquet")


def write_scores(
    path: Path, points: Sequence[Mapping[str, Any]], scores: ByLanguage, made_from: Mapping[str, Any] | None = None
) -> None:
    """Write columns source, lang, doc, nll_nats, bytes, and the evaluation points that they sum up to; atomically.

    `made_from` says what they were computed from, for one who asks whether they still hold.
    """
    keys = list(scores)
    sizes = [len(scores[key].ids) for key in keys]
    table = pa.table(
        {
            "source": pa.array(np.repeat([source for source, _ in keys], sizes).tolist(), pa.string()),
            "lang": pa.array(np.repeat([lang for _, lang in keys], sizes).tolist(), pa.string()),
            "doc": pa.array([name for key in keys for name in scores[key].ids], pa.string()),
            "nll_nats": pa.array(np.concatenate([scores[key].nll for key in keys]), pa.float64()),
            "bytes": pa.array(np.concatenate([scores[key].bytes for key in keys]), pa.int64()),
        }
    ).replace_schema_metadata({POINTS: json.dumps(list(points)), MADE_FROM: json.dumps(made_from or {})})
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table, beside, compression="zstd")
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def read_points(path: Path) -> list[dict[str, Any]]:
    """The evaluation points that a file of scores sums up to. Raises RunRefused for anything else."""
    try:
        return json.loads((pq.read_schema(path).metadata or {})[POINTS])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise RunRefused(f"{path}: holds no scores; remove it") from error


def made_from(path: Path) -> dict[str, Any] | None:
    """What a file of scores was computed from; None where there is no such file."""
    try:
        return json.loads((pq.read_schema(path).metadata or {})[MADE_FROM])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def read_scores(path: Path) -> dict[tuple[str, str], DocumentScores]:
    """Scores by (source, language). Raises RunRefused for a file that is none of ours."""
    try:
        columns = pq.read_table(path, columns=["source", "lang", "doc", "nll_nats", "bytes"]).to_pydict()
    except (OSError, pa.ArrowException) as error:
        raise RunRefused(f"{path}: holds no scores; remove it") from error
    rows: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(zip(columns["source"], columns["lang"], strict=True)):
        rows.setdefault(key, []).append(i)
    nll, sizes = np.asarray(columns["nll_nats"], np.float64), np.asarray(columns["bytes"], np.int64)
    found = {
        key: DocumentScores(tuple(columns["doc"][i] for i in index), nll[index], sizes[index])
        for key, index in rows.items()
    }
    sums = {(point["source"], point["lang"]): (point["nll_nats"], point["bytes"]) for point in read_points(path)}
    mine = {key: (scores.nll_nats, int(scores.bytes.sum())) for key, scores in found.items()}
    if mine != sums or not (nll >= 0).all():
        raise RunRefused(f"{path}: its documents do not sum up to its points; remove it")
    return found
