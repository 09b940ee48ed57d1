"""Trackers. metrics.jsonl is the run's record; these show it elsewhere."""

import importlib.util
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from experiment.config.schema import Config
from experiment.errors import ConfigError
from experiment.matrix.identity import Run


def check_logger(config: Config) -> None:
    """Raises ConfigError if the chosen tracker's package is not installed."""
    kind = config.logger.kind
    if kind != "csv" and importlib.util.find_spec(kind) is None:
        raise ConfigError([f"logger.kind: {kind} is not installed; pip install '.[{kind}]', or use logger=csv"])


def make_logger(run: Run, directory: Path) -> Logger:
    """The chosen tracker, writing below the run's directory where it writes files."""
    kind, project = run.config.logger.kind, run.config.logger.project
    place = directory / "logs"
    if kind == "csv":
        return CSVLogger(place, name="")  # a new version_N for every start of the run
    if kind == "tensorboard":
        return TensorBoardLogger(place, name="", version=run.config.scale.name)
    if kind == "wandb":
        return WandbLogger(name=run.name, project=project, save_dir=directory, id=f"{run.config.scale.name}-{run.name}")
    return MLFlowLogger(experiment_name=project, run_name=run.name, tracking_uri=(place / "mlflow").absolute().as_uri())
