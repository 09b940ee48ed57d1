"""A job: one run as a command of its own, and what must exist before it can start."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiment.config.check import check_batch_divides
from experiment.config.schema import Config
from experiment.errors import ConfigError, ExperimentError
from experiment.matrix.board import is_marked_done
from experiment.matrix.identity import Run
from experiment.run_directory import RunDirectory

# A process that finds one of these takes itself for a rank of somebody else's job.
DISTRIBUTED = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PL_GLOBAL_SEED")
DISTRIBUTED_PREFIXES = ("MASTER_", "ROLE_", "TORCHELASTIC_", "SLURM_", "EXPERIMENT_STAGE_STORE", "SUBMITIT_", "PMI_")


@dataclass(frozen=True)
class Job:
    run: Run
    overrides: tuple[str, ...]
    """Overrides of `python -m experiment.train` that compose the run."""
    flags: tuple[str, ...] = ()
    """Hydra's flags of the sweep that a job needs as well, say --config-name."""
    needs: str | None = None
    """Name of the job that writes the checkpoint this one starts from; None: it needs nothing, or makes it itself."""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.run.directory)

    @property
    def log(self) -> Path:
        return self.run.directory / "log.txt"

    @property
    def command(self) -> list[str]:
        own = ("branch.missing=error",) if self.needs else ()
        return [sys.executable, "-m", "experiment.train", *self.flags, *self.overrides, *own]

    @property
    def can_start(self) -> bool:
        """Whether what it starts from is there: a trunk that has passed the mark is enough."""
        return self.needs is None or (self.run.branch_from is not None and self.run.branch_from.exists())

    def is_done(self) -> bool:
        """Whether its run's marker says finished. Raises RunRefused if something else is in its place."""
        return is_marked_done(self.run)


def check_jobs(jobs: Sequence[Job], nodes: int = 1) -> None:
    """What a run would refuse first: files that are not there, a batch that its devices do not divide.

    Raises ConfigError with every problem, before the first job starts.
    """
    problems: list[str] = []
    for job in jobs:
        config = job.run.config
        if config.trainer.num_nodes not in (1, nodes):
            got = config.trainer.num_nodes
            problems.append(f"trainer.num_nodes: got {got}, but a job gets {nodes}; set hydra.sweeper.slurm.nodes")
        try:
            check_batch_divides(config, (config.trainer.devices or 1) * nodes)
        except ConfigError as error:
            problems += error.problems
        langs = dict.fromkeys([*config.mixture.langs, *config.tok.langs])
        problems += filter(None, (_missing_text(config, lang) for lang in langs))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _missing_text(config: Config, lang: str) -> str | None:
    """What is not there of a language that a run reads: files, or with data.missing=error what is made of the hub."""
    from experiment.data.files import source_files
    from experiment.data.prepare import Stages

    try:
        if lang not in config.data.hub:
            source_files(config.data, lang)
        elif config.data.missing == "error" and lang in config.mixture.langs:
            Stages(config).shards(lang)
    except ExperimentError as error:
        return str(error)
    return None


def clean_environment() -> dict[str, str]:
    """This process's environment without what would make a job join another one's process group."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or (name not in DISTRIBUTED and not name.startswith(DISTRIBUTED_PREFIXES))
    }


def jobs_of(runs: list[Run], overrides: list[str], flags: tuple[str, ...], forwarded: list[str]) -> list[Job]:
    """A job for each run; a branch whose trunk is among them waits for it, another one trains its trunk itself.

    `overrides` apply to all; `forwarded` are Hydra's own.
    """
    names = {run.name for run in runs}
    keys = {override.split("=", 1)[0] for override in overrides}
    return [
        Job(
            run,
            (*(f"{group}={option}" for group, option in run.choices if group not in keys), *overrides, *forwarded),
            flags,
            run.trunk.name if run.trunk and run.trunk.name in names else None,
        )
        for run in runs
    ]
