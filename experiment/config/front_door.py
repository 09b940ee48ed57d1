"""What every `python -m experiment.X` shares: Hydra's grammar, one voice for errors, exit codes."""

import errno
import os
import sys
from collections.abc import Callable, Iterable

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiment.config.compose import CONF, register
from experiment.config.explain import explain
from experiment.errors import ConfigError, ExperimentError, Interrupted

MENDABLE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
"""System errors that are the user's to mend: disk full, over quota, no permission, read-only."""


def front_door(config_name: str, schema: type) -> Callable[[Callable[[DictConfig], int | None]], Callable[[], None]]:
    """Turn `task(cfg) -> exit code` into a program.

    Errors a user can mend end it with lines on stderr and the error's exit code; anything else is
    a bug of ours and shows its traceback.
    """

    def decorate(task: Callable[[DictConfig], int | None]) -> Callable[[], None]:
        def program() -> None:
            register()
            _register_plugins()
            asked_for_traces = os.environ.get("HYDRA_FULL_ERROR") == "1"
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
            code = 0
            failure: ExperimentError | None = None

            def remember(cfg: DictConfig) -> None:
                nonlocal code, failure
                try:
                    code = task(cfg) or 0
                except ExperimentError as error:
                    if HydraConfig.get().mode is RunMode.MULTIRUN:
                        raise  # a launcher of Hydra's must see it
                    failure = error  # kept from Hydra, which would announce it in its own words

            remember.__module__ = task.__module__
            application = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(remember)
            try:
                application()
                if failure is not None:
                    raise failure
                sys.stdout.flush()
            except Interrupted as error:
                print(error, file=sys.stderr)
                code = error.exit_code
            except ExperimentError as error:
                if asked_for_traces:
                    raise
                _say(str(error).splitlines())
                code = error.exit_code
            except (HydraException, OmegaConfBaseException) as error:
                if asked_for_traces:
                    raise
                _say(explain(error, sys.argv[1:], config_name, schema))
                code = ConfigError.exit_code
            except KeyboardInterrupt:
                _say(["interrupted"])
                code = 130
            except BrokenPipeError:  # the reader of our output, say `head`, has gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            except OSError as error:
                if asked_for_traces or error.errno not in MENDABLE:
                    raise
                _say([f"{error.filename or 'a file'}: {error.strerror}"])
                code = ExperimentError.exit_code
            sys.exit(code)

        return program

    return decorate


def _register_plugins() -> None:
    """Hydra's scan of hydra_plugins does not see into editable installs."""
    from hydra_plugins.matrix_sweeper.matrix_sweeper import MatrixSweeper
    from hydra_plugins.process_launcher.process_launcher import ProcessLauncher

    for plugin in (MatrixSweeper, ProcessLauncher):
        if plugin not in Plugins.instance().discover(plugin.__base__):
            Plugins.instance().register(plugin)


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
