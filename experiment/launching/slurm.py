"""Jobs on Slurm: a batch script each, submitted with the dependencies of branches on trunks."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiment.config.check import one_line
from experiment.errors import ConfigError, ExperimentError, Interrupted
from experiment.launching.jobs import Job, check_jobs, clean_environment
from experiment.matrix.names import mark_name
from experiment.run_directory import write_atomically


@dataclass
class SlurmSettings:
    """What a job asks Slurm for; one task per device of `trainer.devices`."""

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    """Time limit in sbatch's spelling; a run that reaches it saves, requeues itself and goes on."""
    nodes: int = 1
    cpus_per_task: int | None = None
    signal_seconds: int = 120
    """How long before the time limit the run is told to save."""
    options: list[str] = field(default_factory=list)
    """More sbatch options, say ["--constraint=h100", "--mem=200G"]."""
    setup: list[str] = field(default_factory=list)
    """Shell lines before the run, say ["module load cuda"]."""


def slurm_settings(node: DictConfig | None) -> SlurmSettings:
    """The settings of `hydra.sweeper.slurm`. Raises ConfigError for a key or a type that does not fit."""
    try:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SlurmSettings), node or {}))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError([f"hydra.sweeper.slurm: {one_line(error)}"]) from error
    assert isinstance(found, SlurmSettings)
    problems = []
    for name, least in (("nodes", 1), ("cpus_per_task", 1), ("signal_seconds", 0)):
        if (value := getattr(found, name)) is not None and value < least:
            problems.append(f"hydra.sweeper.slurm.{name}: got {value}; must be at least {least}")
    texts = [("partition", found.partition), ("account", found.account), ("time", found.time)]
    for name, value in [*texts, *(("options", option) for option in found.options)]:
        if value is not None and ("\n" in value or not value.strip()):
            problems.append(f"hydra.sweeper.slurm.{name}: got {value!r}; must be one line")
    if problems:
        raise ConfigError(problems)
    return found


@dataclass(frozen=True)
class Batch:
    """One Slurm job: a run, or a trunk's part up to one of its marks."""

    name: str
    job: Job
    after: str | None
    """Name of the batch that must have ended well."""
    mark: float | None = None
    """The trunk's mark that it ends at."""

    def is_done(self) -> bool:
        if self.mark is not None and self.job.directory.checkpoint(mark_name(self.mark)).exists():
            return True
        return self.job.is_done()


def batches_of(jobs: Sequence[Job]) -> list[Batch]:
    """Trunks are cut at their marks, so that Slurm starts a cooldown when its own mark has been passed."""
    batches: list[Batch] = []
    for job in jobs:
        run, marks = job.run, sorted(job.run.config.train.stable_marks)
        if run.kind != "trunk" or not marks:
            after = _part(job.needs, run.config.branch.mark) if job.needs and run.config.branch.mark else None
            batches.append(Batch(job.name, job, after))
            continue
        warmup, end = run.config.schedule.warmup_tokens, run.config.schedule.stable_tokens
        before = None
        for mark in marks:
            part = job
            if mark < warmup + end:
                kept = ",".join(f"{m:g}" for m in marks if m <= mark)
                shorter = (f"schedule.stable_tokens={mark - warmup!r}", f"train.stable_marks=[{kept}]")
                part = replace(job, overrides=(*job.overrides, *shorter))
            batches.append(Batch(_part(job.name, mark), part, before, mark))
            before = batches[-1].name
        if marks[-1] < warmup + end:
            batches.append(Batch(job.name, job, before))
    return batches


def _part(trunk: str, mark: float) -> str:
    return f"{trunk}@{mark_name(mark)}"


def script_of(batch: Batch, settings: SlurmSettings) -> str:
    """The sbatch script of one job. A run that a signal stopped (exit code 75) is queued again."""
    config = batch.job.run.config
    tasks = config.trainer.devices or 1
    options = [
        f"--job-name={batch.name}",
        f"--comment={batch.job.run.directory.absolute()}",
        f"--output={batch.job.log.absolute()}",
        "--open-mode=append",
        f"--nodes={settings.nodes}",
        f"--ntasks-per-node={tasks}",
        f"--signal=USR1@{settings.signal_seconds}",
        "--requeue",
    ]
    if config.trainer.accelerator == "gpu":
        options.append(f"--gpus-per-node={tasks}")
    for name in ("partition", "account", "time", "cpus_per_task"):
        if (value := getattr(settings, name)) is not None:
            options.append(f"--{name.replace('_', '-')}={value}")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in [*options, *settings.options]),
        "",
        f"cd {shlex.quote(str(Path.cwd()))}",
        *(["set -e", *settings.setup, "set +e"] if settings.setup else []),
        f"srun {shlex.join(batch.job.command)}",
        "code=$?",
        # 138 is SIGUSR1 in the first moments of the process, before it can handle it
        f'if [ "$code" -eq {Interrupted.exit_code} ] || [ "$code" -eq 138 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def submit(jobs: Sequence[Job], settings: SlurmSettings, scripts: Path, only_write: bool = False) -> dict[str, str]:
    """Write a script for each unfinished job and submit it. Returns batch name -> Slurm job id.

    With `only_write` nothing is submitted. Raises ExperimentError if sbatch is missing or refuses.
    """
    if not only_write and shutil.which("sbatch") is None:
        raise ExperimentError("sbatch is not on this machine; hydra.sweeper.where=scripts writes the scripts only")
    check_jobs(jobs, settings.nodes)
    queued = {} if only_write else _queued()
    if bad := {str(job.log.absolute()) for job in jobs if not re.fullmatch(r"[^\s\"'%\\]+", str(job.log.absolute()))}:
        raise ConfigError([f"paths.runs: a Slurm script takes no space, quote, % or backslash in a path: {min(bad)}"])
    ids: dict[str, str] = {}
    lost: dict[str, str] = {}
    lines = ["#!/bin/bash", "set -euo pipefail", 'cd "$(dirname "$0")"']
    for batch in batches_of(jobs):
        if batch.is_done():
            print(f"done       {batch.name}  finished already")
            continue
        if (why := lost.get(batch.after or "")) or batch.job.directory.state() == "diverged":
            lost[batch.name] = why or f"{batch.name} has diverged"
            print(f"skipped    {batch.name}  {lost[batch.name]}")
            continue
        batch.job.log.parent.mkdir(parents=True, exist_ok=True)  # Slurm makes no directory for a log
        if (known := queued.get((batch.name, str(batch.job.run.directory.absolute())))) is not None:
            print(f"queued     {batch.name}  already, as job {known}")
            ids[batch.name] = known
            continue
        path = scripts / f"{len(ids):03d}_{re.sub('[^A-Za-z0-9._@-]', '_', batch.name)}.sbatch"
        write_atomically(path, script_of(batch, settings))
        if only_write:
            ids[batch.name] = f"job_{len(ids):03d}"
            after = f"--dependency=afterok:${ids[batch.after]} --kill-on-invalid-dep=yes " if batch.after in ids else ""
            lines.append(f"{ids[batch.name]}=$(sbatch --parsable {after}{path.name} | cut -d ';' -f 1)")
            print(f"written    {path}" + (f"  (after {batch.after})" if after else ""))
            continue
        # a batch that was not submitted has ended well already
        after = [f"--dependency=afterok:{ids[batch.after]}", "--kill-on-invalid-dep=yes"] if batch.after in ids else []
        result = subprocess.run(
            ["sbatch", "--parsable", *after, str(path)],
            capture_output=True,
            text=True,
            check=False,
            env=clean_environment(),  # a job takes on what it is submitted from
        )
        number = result.stdout.strip().split(";")[0]
        if result.returncode or not number.isdecimal():
            rest = f"; queued before it: {', '.join(ids.values())}. The same command goes on" if ids else ""
            raise ExperimentError(f"sbatch refused {path}: {' '.join(result.stderr.split()) or 'no job id'}{rest}")
        ids[batch.name] = number
        print(f"submitted  {batch.name}  as job {ids[batch.name]}" + (f", after {batch.after}" if after else ""))
    if only_write and ids:
        write_atomically(scripts / "submit.sh", "\n".join(lines) + "\n")
        print(f"written    {scripts / 'submit.sh'}  (submits them, each after what it needs)")
    return ids


def _queued() -> dict[tuple[str, str], str]:
    """(job name, run directory) -> id of this user's jobs that wait or run."""
    command = ["squeue", "--me", "--noheader", "--format=%A|%j|%k"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = (line.split("|", 2) for line in result.stdout.splitlines() if line.count("|") >= 2)
    return {(name, comment.strip()): number for number, name, comment in rows}
