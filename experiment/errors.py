"""Errors that a user can mend: one clear line on stderr, exit code not 0, no traceback."""

from pathlib import Path


class ExperimentError(Exception):
    """Something the user asked for cannot be done; the message says what would be right."""

    exit_code = 2


class ConfigError(ExperimentError):
    """One or more settings are wrong. `problems` holds one line for each."""

    def __init__(self, problems: list[str]):
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class RunRefused(ExperimentError):
    """A run directory, a checkpoint or an artifact does not belong to what was asked for."""


class Missing(RunRefused):
    """Something that runs read is not there, and was not to be built. `place` is where it will be, if it has one."""

    def __init__(self, message: str, place: Path | None = None):
        super().__init__(message)
        self.place = place


class RunLive(RunRefused):
    """Another process holds the run."""

    exit_code = 4


class Diverged(ExperimentError):
    """Loss or gradient is not finite; nothing was updated with it."""

    exit_code = 3


class Interrupted(ExperimentError):
    """A signal ended the run after it saved; the same command continues it."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again
