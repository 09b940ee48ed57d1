"""From the words of a sweep to its jobs."""

import itertools
from collections import Counter
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiment.config.check import one_line
from experiment.config.compose import compose
from experiment.errors import ConfigError
from experiment.launching.jobs import Job, jobs_of
from experiment.matrix.identity import Run, resolve
from experiment.matrix.runs import ROWS, chosen_rows, matrix_runs

# settings of the sweep itself, which a job of it must not have
SWEEP_SETTINGS = ("hydra/sweeper", "hydra/launcher", "hydra.sweeper", "hydra.launcher", "hydra.sweep", "hydra.mode")


def sweep_flags(config: DictConfig) -> tuple[tuple[str, ...], list[str]]:
    """Flags and `hydra.*` overrides of a sweep that its jobs need: Hydra does not hand them on by itself."""
    flags = [f"--config-name={config.hydra.job.config_name}"]
    for source in config.hydra.runtime.config_sources:
        if source.provider == "command-line":
            flags.append(f"--config-dir={source.path}")
    forwarded = [o for o in config.hydra.overrides.hydra if not o.lstrip("+~").startswith(SWEEP_SETTINGS)]
    return tuple(flags), forwarded


def points_of(arguments: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that overrides list (`seed=0,1`)."""
    choices = []
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([f"{key}={override.get_value_element_as_str()}"])
        elif override.is_discrete_sweep() and not isinstance(override.value(), Glob):
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            raise ConfigError([f"{key}: this sweep has no finite list of values; use {key}=a,b or {key}=range(1,4)"])
    return [list(point) for point in itertools.product(*choices)]


def runs_of_points(points: list[list[str]], config_name: str) -> list[Run]:
    """The runs of a plain sweep, all checked before the first one starts. Raises ConfigError with every problem."""
    runs, problems = [], []
    for point in points:
        try:
            runs.append(resolve(compose(point, config_name)))
        except ConfigError as error:
            problems += [f"{' '.join(point)}: {problem}" for problem in error.problems]
        except (HydraException, OmegaConfBaseException) as error:
            problems.append(f"{' '.join(point)}: {one_line(error)}")
    problems += _same_names(runs)
    if problems:
        raise ConfigError(problems)
    return runs


def matrix_jobs(arguments: list[str], flavor: str, only_30b: bool, config: DictConfig) -> list[Job]:
    """The jobs of a matrix sweep, a trunk before its cooldowns."""
    parsed = OverridesParser.create().parse_overrides(arguments)
    wanted: dict[str, set[str]] = {}
    shared = []
    for override, text in zip(parsed, arguments, strict=True):
        if override.key_or_group in ROWS:
            wanted[override.key_or_group] = {point[0].split("=", 1)[1] for point in points_of([text])}
        else:
            shared.append(text)
    flags, forwarded = sweep_flags(config)
    jobs: list[Job] = []
    for point in points_of(shared):
        name = config.hydra.job.config_name
        runs = matrix_runs(flavor, only_30b, point, name, corpus_of_scale=False, wanted=wanted)
        jobs += jobs_of(chosen_rows(runs, wanted), point, flags, forwarded)
    if problems := _same_names([job.run for job in jobs]):
        raise ConfigError(problems)
    return jobs


def _same_names(runs: list[Run]) -> list[str]:
    counts = Counter(run.name for run in runs)
    return [
        f"{name}: {count} points of this sweep are this one run; what says only how it is run (devices, paths, "
        "scale.token_scale, ...) gives no run of its own"
        for name, count in counts.items()
        if count > 1
    ]
