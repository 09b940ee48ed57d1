"""Runs that are there already: found by name, with the settings they were trained with."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiment.config.check import one_line
from experiment.config.schema import Config
from experiment.errors import ConfigError, RunRefused
from experiment.run_directory import RunDirectory


def named_runs(place: Path, pattern: str, several: bool = True) -> list[Path]:
    """Directories of the runs of a name, or of a pattern. Raises ConfigError, naming what there is, for none."""
    there = sorted(path.parent for path in place.glob("*/run.json"))
    found = [path for path in there if path.name == pattern]
    if several and not found:
        found = [path for path in there if path.match(pattern)]
    if not found:
        names = ", ".join(path.name for path in there) or "none"
        raise ConfigError([f"run: no run in {place} is named {pattern!r}; there: {names}"])
    return found


def recorded_fingerprints(directory: RunDirectory) -> dict[str, Any]:
    """Those of the run's corpora, tokenizer, shards and parallel text. Raises RunRefused if they are not there."""
    found = (directory.read() or {}).get("fingerprints")
    if not isinstance(found, dict) or not {"corpora", "tokenizer", "shards", "parallel"} <= found.keys():
        raise RunRefused(f"{directory.path}: run.json has no fingerprints of the data that the run was trained on")
    return found


def recorded_config(path: Path) -> Config:
    """The settings that a run was trained with. Raises RunRefused if they are not there."""
    file = path / ".hydra" / "config.yaml"
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(file)))
    except (OSError, OmegaConfBaseException) as error:
        raise RunRefused(f"{file}: is not the config of a run ({one_line(error)})") from error
    assert isinstance(config, Config)
    return config
