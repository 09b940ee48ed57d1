"""What every `python -m experiment.X` shares: Hydra's grammar, one voice for errors, exit codes."""

import os
import signal
import sys
from collections.abc import Callable

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiment.config.compose import CONF, register
from experiment.config.explain import explain
from experiment.errors import ConfigError, ExperimentError, Interrupted

SPINS = 1000
ERRORS_AS_LINES = "EXPERIMENT_ERRORS_AS_LINES"


def front_door(config_name: str, schema: type) -> Callable[[Callable[[DictConfig], int | None]], Callable[[], None]]:
    """Turn `task(cfg) -> exit code` into a program.

    Errors a user can mend end it with lines on stderr and the error's exit code; anything else is
    a bug of ours and shows its traceback.
    """

    def decorate(task: Callable[[DictConfig], int | None]) -> Callable[[], None]:
        def program() -> None:
            spin_briefly()
            register()
            _register_plugins()
            asked_for_traces = os.environ.get("HYDRA_FULL_ERROR") == "1" and ERRORS_AS_LINES not in os.environ
            if not asked_for_traces:
                os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
                os.environ[ERRORS_AS_LINES] = "1"  # and processes that we start do not take it for the user's wish
            code = 0
            started = False
            failure: Exception | None = None

            def remember(cfg: DictConfig) -> None:
                nonlocal code, started, failure
                started = True
                try:
                    if OmegaConf.get_type(cfg) is not schema:
                        name = HydraConfig.get().job.config_name
                        raise ConfigError(
                            [f"--config-name: {name} is none of this program's; set scale=, data= and so on"]
                        )
                    code = task(cfg) or 0
                except (ExperimentError, OSError) as error:
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
            except BrokenPipeError:  # the reader of our output, say `head`, has gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                code = 128 + signal.SIGPIPE
            except KeyboardInterrupt:
                print("interrupted", file=sys.stderr)
                code = 128 + signal.SIGINT
            except Interrupted as error:
                print(error, file=sys.stderr)
                code = error.exit_code
            except Exception as error:
                if asked_for_traces or (lines := _mendable(error, started, config_name, schema)) is None:
                    raise
                for line in lines:
                    print(f"error: {line}", file=sys.stderr)
                code = getattr(error, "exit_code", ConfigError.exit_code)
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


def spin_briefly() -> None:
    """Let the waiting threads of OpenMP sleep soon; it reads this when torch is imported.

    By default they spin for milliseconds, and beside any other busy process each operation of a CPU run can last a
    tick of the scheduler: a tenth of the usual rate has been seen on two cores, half of it with this. Not to spin at
    all costs where nothing else runs.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def _mendable(error: Exception, started: bool, config_name: str, schema: type) -> list[str] | None:
    """What to tell a user who can mend this; None for a bug of ours."""
    if isinstance(error, ExperimentError):
        return str(error).splitlines()
    if isinstance(error, OSError) and error.errno:
        return [f"{error.filename or 'a file'}: {error.strerror}"]
    if isinstance(error, HydraException | OmegaConfBaseException) or (not started and isinstance(error, ValueError)):
        return explain(error, sys.argv[1:], config_name, schema)
    return None
