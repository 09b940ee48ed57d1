"""Hydra sweeper `matrix`: every run of the experiment, in dependency order. Heavy imports stay inside functions."""

from pathlib import Path
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class MatrixSweeper(Sweeper):
    """The 26 runs (or 18 with `only_30b`). Overrides of mixture, tok and schedule choose among them; others apply
    to every run, and those with several values multiply the matrix."""

    def __init__(
        self,
        flavor: str = "bl",
        only_30b: bool = False,
        n_jobs: int | None = None,
        where: str = "local",
        slurm: DictConfig | None = None,
    ):
        self.flavor, self.only_30b, self.n_jobs = flavor, only_30b, n_jobs
        self.where, self.slurm = where, slurm

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from experiment.config.check import check_flavor
        from experiment.errors import ConfigError
        from experiment.launching.local import check_n_jobs, run_jobs
        from experiment.launching.slurm import slurm_settings, submit
        from experiment.launching.sweeps import matrix_jobs

        if self.where not in ("local", "slurm", "scripts"):
            raise ConfigError([f"hydra.sweeper.where: got {self.where!r}; must be local, slurm or scripts"])
        check_n_jobs(self.n_jobs, "hydra.sweeper.n_jobs")
        if not isinstance(self.only_30b, bool):
            raise ConfigError([f"hydra.sweeper.only_30b: got {self.only_30b!r}; must be true or false"])
        check_flavor(self.flavor, "hydra.sweeper.flavor")
        given = self.config.hydra.overrides.hydra
        if stray := [o for o in given if o.lstrip("+~").startswith(("hydra/launcher", "hydra.launcher"))]:
            instead = "the matrix starts its runs itself: hydra.sweeper.where=local|slurm|scripts, hydra.sweeper.n_jobs"
            raise ConfigError([f"{override}: {instead}" for override in stray])
        jobs = matrix_jobs(arguments, self.flavor, self.only_30b, self.config)
        if self.where == "local":
            return run_jobs(jobs, self.n_jobs, str(jobs[0].run.config.trainer.accelerator))
        scripts = Path(self.config.hydra.sweep.dir)
        return submit(jobs, slurm_settings(self.slurm), scripts, only_write=self.where == "scripts")
