"""How far the runs are, read from their directories."""

import time
from typing import Any

from experiment.errors import RunRefused
from experiment.matrix.belonging import identity_of, is_done
from experiment.matrix.identity import Run
from experiment.matrix.names import mixture_name
from experiment.run_directory import RunDirectory, read_lines
from experiment.schedule import step_at


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
    state, error = state_of(run)
    directory, schedule = RunDirectory(run.directory), run.schedule
    if state == "done" and (other := _recorded_status(directory)) is not None and other["kind"] != run.kind:
        return other  # a cooldown in the place of a wsd run, or the other way round
    what = {"name": run.name, "mixture": run.mixture, "tok": run.tok_name, "kind": run.kind}
    return what | _how_far(directory, state, error, schedule.start_step, schedule.end_step, run.config.batch.tokens)


def others_on_disk(runs: list[Run]) -> list[dict[str, Any]]:
    """Status of the runs in the same places that are none of these: variants, seeds, other flavors."""
    found = []
    for place in dict.fromkeys(run.scale_directory for run in runs):
        known = {run.name for run in runs}
        for path in sorted(place.glob("*/run.json")):
            if path.parent.name not in known and (facts := _recorded_status(RunDirectory(path.parent))) is not None:
                found.append(facts)
    return found


def _recorded_status(directory: RunDirectory) -> dict[str, Any] | None:
    """Status of a run of which only its directory tells; None where that is of no run."""
    try:
        record, state = directory.read() or {}, directory.state()
        science, batch = record["science"], record["science"]["batch.tokens"]
        start = step_at(science.get("branch.mark") or 0.0, batch, science["scale.token_scale"])
        what = {"name": directory.path.name, "mixture": mixture_name(record["langs"]), "tok": record["tok_name"]}
        what["kind"] = record["kind"]
        return what | _how_far(directory, state, record.get("error"), start, record["end_step"], batch)
    except (RunRefused, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def _how_far(
    directory: RunDirectory, state: str, error: str | None, first: int, end: int, batch_tokens: int
) -> dict[str, Any]:
    progress = directory.progress() if state not in ("pending", "other") else {}
    step = end if state == "done" else progress.get("step", first)
    rate = progress.get("tok_per_s")
    return {
        "state": state,
        "tokens": (step - first) * batch_tokens,
        "end_tokens": (end - first) * batch_tokens,
        "percent": 100.0 * (step - first) / (end - first),
        "bpb": {} if state == "other" else _last_bpb(directory),
        "tok_per_s": rate,
        "seconds_left": (end - step) * batch_tokens / rate if rate and state == "running" else None,
        "stale_seconds": time.time() - progress["written_at"] if progress and state != "done" else None,
        "error": error,
        "note": (directory.read() or {}).get("note") if state == "interrupted" else None,
    }


def measured_rate(run: Run) -> float | None:
    """Tokens per second that this run was last seen at."""
    return RunDirectory(run.directory).progress().get("tok_per_s")


def _last_bpb(directory: RunDirectory) -> dict[str, float]:
    try:
        lines = read_lines(directory.evaluations)
        return {f"{line['source']}/{line['lang']}": line["bpb"] for line in lines if line["step"] == lines[-1]["step"]}
    except (RunRefused, KeyError):
        return {}
