"""How far the runs are, read from their directories."""

import time
from typing import Any

from experiment.errors import RunRefused
from experiment.matrix.belonging import identity_of, is_done
from experiment.matrix.identity import Run
from experiment.run_directory import RunDirectory, read_lines


def is_marked_done(run: Run) -> bool:
    """Whether the run's marker says finished; what its data holds is left for the run itself to check.

    Raises RunRefused if something else is in its place.
    """
    directory = RunDirectory(run.directory)
    record = directory.read()
    if record is None:
        return False
    fingerprints = record.get("fingerprints", {})
    trunk = identity_of(run.trunk, fingerprints) if run.trunk else None
    if run.config.branch.trunk:
        trunk = RunDirectory(run.scale_directory / run.config.branch.trunk).read()
    return is_done(directory.path, record, run, identity_of(run, fingerprints, trunk))


def state_of(run: Run) -> tuple[str, str | None]:
    """The run's state, and why: `other` is another experiment, or rubbish, under the run's name."""
    directory = RunDirectory(run.directory)
    try:
        state = directory.state()
        if state != "pending" and not is_marked_done(run) and state == "done":
            state = "interrupted"  # a trunk that is done up to another length
        return state, (directory.read() or {}).get("error")
    except RunRefused as error:
        return "other", str(error)


def status(run: Run) -> dict[str, Any]:
    """State, tokens, percent, last BPB per source and language, tok/s, seconds left and since the last sign of life."""
    directory = RunDirectory(run.directory)
    state, error = state_of(run)
    schedule, batch = run.schedule, run.config.batch.tokens
    first, end = schedule.start_step, schedule.end_step
    progress = directory.progress() if state not in ("pending", "other") else {}
    step = end if state == "done" else progress.get("step", first)
    rate = progress.get("tok_per_s")
    return {
        "name": run.name,
        "kind": run.kind,
        "state": state,
        "tokens": (step - first) * batch,
        "end_tokens": (end - first) * batch,
        "percent": 100.0 * (step - first) / (end - first),
        "bpb": {} if state == "other" else _last_bpb(directory),
        "tok_per_s": rate,
        "seconds_left": (end - step) * batch / rate if rate and state == "running" else None,
        "stale_seconds": time.time() - progress["written_at"] if progress and state != "done" else None,
        "error": error,
    }


def measured_rate(run: Run) -> float | None:
    """Tokens per second that this run was last seen at."""
    return RunDirectory(run.directory).progress().get("tok_per_s")


def _last_bpb(directory: RunDirectory) -> dict[str, float]:
    try:
        lines = read_lines(directory.evaluations)
    except RunRefused:
        return {}
    return {f"{line['source']}/{line['lang']}": line["bpb"] for line in lines if line["step"] == lines[-1]["step"]}
