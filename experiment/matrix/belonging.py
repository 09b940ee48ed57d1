"""What a run writes down about itself, and whether what is written down belongs to a run."""

from pathlib import Path
from typing import Any

from experiment.errors import RunRefused
from experiment.matrix.identity import AFTER_MARK, Run, differences, trajectory_of

Identity = dict[str, Any]
"""Whose weights these are, in plain values, as run.json and checkpoints carry it: see identity_of."""


def identity_of(run: Run, fingerprints: dict[str, Any], trunk: Identity | None = None) -> Identity:
    """`fingerprints` are those of the run's corpora, tokenizer and shards; `trunk` is that of its trunk, if any."""
    return {
        "name": run.name,
        "kind": run.kind,
        "scale": run.config.scale.name,
        "science": run.science,
        "trajectory": trajectory_of(run, trunk["trajectory"] if trunk else None),
        "fingerprints": fingerprints,
    }


def refuse_other(where: Path, recorded: Identity, wanted: Identity, ignoring: tuple[str, ...] = ()) -> None:
    """Raise RunRefused, listing the differences, unless `recorded` is the experiment that is wanted.

    `ignoring` holds the beginnings of science keys that may differ.
    """
    science = {
        key: pair
        for key, pair in differences(recorded["science"], wanted["science"]).items()
        if not key.startswith(ignoring)
    }
    changed = [f"{key} is {old!r} there and {new!r} here" for key, (old, new) in science.items()]
    mine, theirs = _flat(wanted["fingerprints"]), _flat(recorded["fingerprints"])
    changed += [
        f"the {key} differ: {str(old)[:12]} there, {str(new)[:12]} here"
        for key, (old, new) in differences(theirs, mine).items()
    ]
    if changed:
        raise RunRefused(
            f"{where}: holds another experiment: {'; '.join(changed)}. Use another paths.runs, or remove {where}"
        )


def refuse_other_trunk(where: Path, recorded: Identity, branch: Identity, step: int) -> None:
    """Raise RunRefused unless a checkpoint is of a trunk that this branch may leave, at the step it leaves at."""
    refuse_other(where, recorded, branch, ignoring=AFTER_MARK)
    if recorded["step"] != step:
        raise RunRefused(f"{where}: is of update {recorded['step']}, but the branch leaves its trunk at update {step}")


def is_done(where: Path, record: dict[str, Any], run: Run, wanted: Identity) -> bool:
    """Whether run.json says that this run is finished. Raises RunRefused if it is of another experiment.

    `wsd` and `cooldown_30b` share a name and a trajectory: either is done when the other is. A
    trunk is done when it is as long as asked for.
    """
    if lacking := {"kind", "state", "science", "trajectory", "fingerprints", "end_step"} - record.keys():
        raise RunRefused(f"{where}: run.json lacks {', '.join(sorted(lacking))}; remove the directory to start again")
    if not all(isinstance(record[key], dict) for key in ("science", "trajectory", "fingerprints")):
        raise RunRefused(f"{where}: run.json is not of a run; remove the directory to start again")
    final = where / "checkpoints" / "final.ckpt"
    if record["state"] == "done" and not final.exists():
        raise RunRefused(f"{final}: missing, though the run is marked as finished; remove {where} to train it again")
    if record["kind"] == run.kind:
        refuse_other(where, record, wanted)
        return record["state"] == "done" and (run.kind != "trunk" or record["end_step"] >= run.schedule.end_step)
    if record["state"] != "done":
        raise RunRefused(
            f"{where}: an unfinished run of kind {record['kind']} is here and {run.kind} was asked for; "
            f"finish it with its own schedule, or remove the directory"
        )
    refuse_other(where, record, wanted, ignoring=("schedule.", "branch."))
    if record["trajectory"] != wanted["trajectory"]:
        changed = differences(record["trajectory"], wanted["trajectory"])
        raise RunRefused(
            f"{where}: holds a finished {record['kind']} of another learning-rate trajectory: "
            + "; ".join(f"{key} is {old} there and {new} here" for key, (old, new) in changed.items())
        )
    return True


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}{key} ") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
