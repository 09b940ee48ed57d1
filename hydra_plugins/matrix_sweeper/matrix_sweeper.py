"""Hydra sweeper `matrix`: every run of the experiment, in dependency order. Heavy imports stay inside functions."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class MatrixSweeper(Sweeper):
    """The 26 runs (or 18 with `only_30b`). Overrides of mixture, tok and schedule choose among them; others apply
    to every run, and those with several values multiply the matrix."""

    def __init__(self, flavor: str = "bl", only_30b: bool = False, n_jobs: int | None = None):
        self.flavor, self.only_30b, self.n_jobs = flavor, only_30b, n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from experiment.launching.local import run_jobs
        from experiment.launching.sweeps import matrix_jobs

        jobs = matrix_jobs(arguments, self.flavor, self.only_30b, self.config)
        return run_jobs(jobs, self.n_jobs, str(jobs[0].run.config.trainer.accelerator))
