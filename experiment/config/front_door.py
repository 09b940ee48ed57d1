"""What every `python -m experiment.X` shares: Hydra's grammar, one voice for errors, exit codes."""

import errno
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiment.config.check import hint, one_line
from experiment.config.compose import CONF, register
from experiment.errors import ConfigError, ExperimentError

MENDABLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
"""System errors that are the user's to mend: disk full, over quota, no permission, read-only."""


def front_door(config_name: str) -> Callable[[Callable[[DictConfig], int | None]], Callable[[], None]]:
    """Turn `task(cfg) -> exit code` into a program.

    Errors a user can mend end it with lines on stderr and the error's exit code; anything else is
    a bug of ours and shows its traceback.
    """

    def decorate(task: Callable[[DictConfig], int | None]) -> Callable[[], None]:
        def program() -> None:
            register()
            asked_for_traces = os.environ.get("HYDRA_FULL_ERROR") == "1"
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
            code = 0
            failure: ExperimentError | None = None

            def remember(cfg: DictConfig) -> None:
                nonlocal code, failure
                try:
                    code = task(cfg) or 0
                except ExperimentError as error:  # kept from Hydra, which would announce it in its own words
                    failure = error

            remember.__module__ = task.__module__
            application = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(remember)
            try:
                application()
                if failure is not None:
                    raise failure
            except ExperimentError as error:
                if asked_for_traces:
                    raise
                _say(str(error).splitlines())
                code = error.exit_code
            except (HydraException, OmegaConfBaseException) as error:
                if asked_for_traces:
                    raise
                _say(_explain(error, config_name))
                code = ConfigError.exit_code
            except OSError as error:
                if asked_for_traces or error.errno not in MENDABLE:
                    raise
                _say([f"{error.filename or 'a file'}: {error.strerror}"])
                code = ExperimentError.exit_code
            except KeyboardInterrupt:
                _say(["interrupted"])
                code = 130
            except BrokenPipeError:  # the reader of our output, say `head`, has gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(code)

        return program

    return decorate


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"error: {line}", file=sys.stderr)


def _explain(error: Exception, config_name: str) -> list[str]:
    """Every override that does not fit by itself, a line each; Hydra stops at the first one."""
    overrides = [arg for arg in sys.argv[1:] if "=" in arg or arg.startswith("~")]
    flags = iter(sys.argv[1:])
    for flag in flags:
        if flag in ("--config-name", "-cn"):
            config_name = next(flags, config_name)
        elif flag.startswith("--config-name="):
            config_name = flag.split("=", 1)[1]
            overrides.remove(flag)
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        base = hydra.compose(config_name, return_hydra_config=True)
        problems = []
        groups: list[str] = []
        settings: list[tuple[str, str]] = []
        for override in overrides:
            try:
                key = OverridesParser.create().parse_override(override).key_or_group
            except HydraException:
                problems.append(f"{override}: cannot be read; write key=value, and quote what the shell would eat")
                continue
            if key in base.hydra.runtime.choices:
                option = override.split("=", 1)[-1]
                options = GlobalHydra.instance().config_loader().get_group_options(key)
                if option in options:
                    groups.append(override)
                else:
                    problems.append(f"{key}: there is no option {option!r}; {hint(option, options)}")
            else:
                settings.append((key, override))
        chosen = hydra.compose(config_name, groups)
        for key, override in settings:
            unknown = _unknown_setting(key, chosen)
            try:
                hydra.compose(config_name, [*groups, override])
            except (HydraException, OmegaConfBaseException) as wrong:
                problems.append(unknown or _unfit_setting(key, wrong.__cause__ or wrong, chosen))
            else:
                problems += [unknown] if unknown else []
    return problems or [one_line(error)]


def _unknown_setting(key: str, node: DictConfig) -> str | None:
    """What is wrong with a key that the schema does not have; None for one it has (or a free dictionary's)."""
    path = key.split(".")
    for depth, name in enumerate(path):
        known = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if name not in known:
            free = known and not is_dataclass(OmegaConf.get_type(node))
            where = ".".join(path[: depth + 1])
            return None if free else f"{where}: there is no such setting; {hint(name, known)}"
        node = node._get_node(name)
    return None


def _unfit_setting(key: str, error: Exception, node: DictConfig) -> str:
    for name in key.split("."):
        node = node._get_node(name)
    kind = node._metadata.ref_type
    return f"{key}: {one_line(error).removeprefix(key + ': ')} (takes: {getattr(kind, '__name__', kind)})"
