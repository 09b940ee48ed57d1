"""Hydra launcher `process`: every job of a sweep is a process of its own. Heavy imports stay inside functions."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ProcessLauncher(Launcher):
    """`n_jobs` processes at a time (null: one per GPU, or per core), each with a clean environment."""

    def __init__(self, n_jobs: int | None = None):
        self.n_jobs = n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from experiment.launching.jobs import jobs_of
        from experiment.launching.local import check_n_jobs, run_jobs
        from experiment.launching.sweeps import runs_of_points, sweep_flags

        check_n_jobs(self.n_jobs, "hydra.launcher.n_jobs")
        points = [list(point) for point in job_overrides]
        flags, forwarded = sweep_flags(self.config)
        runs = runs_of_points(points, self.config.hydra.job.config_name)
        jobs = [job for run, point in zip(runs, points, strict=True) for job in jobs_of([run], point, flags, forwarded)]
        run_jobs(jobs, self.n_jobs, str(runs[0].config.trainer.accelerator))
        return [_completed(point) for point in points]


def _completed(point: list[str]) -> JobReturn:
    result: Any = JobReturn(overrides=point, status=JobStatus.COMPLETED)
    result.return_value = None
    return result
