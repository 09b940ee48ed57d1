"""How far the runs are, read from their directories."""

import time
from typing import Any

from experiment.matrix.identity import Run
from experiment.run_directory import RunDirectory, read_lines


def status(run: Run) -> dict[str, Any]:
    """State, tokens, percent, last BPB per source and language, tok/s, seconds left and since the last sign of life."""
    directory = RunDirectory(run.directory)
    state = directory.state()
    progress = directory.progress()
    schedule, batch = run.schedule, run.config.batch.tokens
    first, end = schedule.start_step, schedule.end_step
    step = end if state == "done" else progress.get("step", first)
    rate = progress.get("tok_per_s")
    record = directory.read() or {}
    return {
        "name": run.name,
        "kind": run.kind,
        "state": state,
        "tokens": (step - first) * batch,
        "end_tokens": (end - first) * batch,
        "percent": 100.0 * (step - first) / (end - first),
        "bpb": _last_bpb(directory),
        "tok_per_s": rate,
        "seconds_left": (end - step) * batch / rate if rate and state == "running" else None,
        "stale_seconds": time.time() - progress["written_at"] if progress and state != "done" else None,
        "error": record.get("error"),
    }


def measured_rate(run: Run) -> float | None:
    """Tokens per second that this run was last seen at."""
    return RunDirectory(run.directory).progress().get("tok_per_s")


def _last_bpb(directory: RunDirectory) -> dict[str, float]:
    lines = read_lines(directory.evaluations)
    return {f"{line['source']}/{line['lang']}": line["bpb"] for line in lines if line["step"] == lines[-1]["step"]}
