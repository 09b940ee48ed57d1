"""What is wrong with a command line that Hydra could not compose: one line for each mistake.

Hydra stops at the first mistake, in several lines, and proposes `+` for a misspelt key. Here every override is tried
by itself, and what remains goes through the strict checks.
"""

from collections.abc import Sequence

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiment.config.check import check, hint, one_line, to_config
from experiment.config.compose import CONF
from experiment.config.schema import Config
from experiment.errors import ConfigError


def explain(error: Exception, arguments: Sequence[str], config_name: str, schema: type) -> list[str]:
    """The problems of a command line, `error` itself if none is found."""
    parsed = get_args_parser().parse_args(list(arguments))
    config_name = parsed.config_name or config_name
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(parsed.config_dir or str(CONF), version_base="1.3"):
        try:
            base = hydra.compose(config_name, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            return [one_line(error)]
        problems: list[str] = []
        groups: list[str] = []
        settings: list[tuple[str, str]] = []
        for override in parsed.overrides:
            points, problem = _points(override)
            problems += [problem] if problem else []
            for key, point in points:
                if key not in base.hydra.runtime.choices:
                    settings.append((key, point))
                elif problem := _wrong_option(key, point):
                    problems.append(problem)
                else:
                    groups.append(point)
        chosen = hydra.compose(config_name, groups, return_hydra_config=True)
        fitting = []
        for key, point in settings:
            problem = _unknown_setting(key, chosen) or _wrong_value(key, point, config_name, groups, chosen)
            if problem:
                problems.append(problem)
            else:
                fitting.append(point)
        try:
            config = to_config(hydra.compose(config_name, [*groups, *fitting]), schema)
            if isinstance(config, Config):
                check(config)
        except ConfigError as more:
            problems += more.problems
        except (HydraException, OmegaConfBaseException, ValueError) as more:
            problems.append(one_line(more))
    return problems or [one_line(error)]


def _points(override: str) -> tuple[list[tuple[str, str]], str | None]:
    """(key, override) for every value that an override lists, or why it cannot be read."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except (HydraException, ValueError):
        return [], f"{override}: cannot be read; write key=value, and quote what the shell would eat"
    key = parsed.key_or_group
    if parsed.is_discrete_sweep():
        return [(key, f"{parsed.get_key_element()}={value}") for value in parsed.sweep_string_iterator()], None
    return [(key, override)], None


def _wrong_option(group: str, override: str) -> str | None:
    option = override.split("=", 1)[-1]
    options = GlobalHydra.instance().config_loader().get_group_options(group)
    return None if option in options else f"{group}: there is no option {option!r}; {hint(option, options)}"


def _unknown_setting(key: str, node: DictConfig) -> str | None:
    """What is wrong with a key that is not there; None for one that is."""
    path = key.replace("/", ".").split(".")
    for depth, name in enumerate(path):
        known = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if name not in known:
            where = ".".join(path[: depth + 1])
            return f"{where}: there is no such setting; {hint(name, known)}"
        node = node._get_node(name)
    return None


def _wrong_value(key: str, override: str, config_name: str, groups: list[str], node: DictConfig) -> str | None:
    try:
        hydra.compose(config_name, [*groups, override])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        message = one_line(error.__cause__ or error).removeprefix(f"{key}: ")
        for name in key.split("."):
            node = node._get_node(name) if OmegaConf.is_dict(node) and name in node else None
        kind = getattr(getattr(node, "_metadata", None), "ref_type", None)
        return f"{key}: {message}" + (f" (takes: {getattr(kind, '__name__', kind)})" if kind else "")
    return None
