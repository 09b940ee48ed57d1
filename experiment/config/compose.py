"""Compose configs with Hydra, inside a front door or without one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from experiment.config.check import check, to_config
from experiment.config.help import described
from experiment.config.schema import (
    Config,
    EvaluateConfig,
    ExportConfig,
    PrepareConfig,
    ReportConfig,
    RunsConfig,
    TokenizersConfig,
)
from experiment.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
# A checkout has conf/ beside the package; a wheel carries it inside.
CONF = PACKAGE.parent / "conf" if (PACKAGE.parent / "conf" / "train.yaml").is_file() else PACKAGE / "conf"
GROUPS = ("mixture", "tok", "schedule", "scale", "model", "optim", "data", "trainer", "logger")


@dataclass(frozen=True)
class Composed:
    """A checked config with the choices it came from."""

    config: Config
    choices: dict[str, str]
    """Group -> chosen option."""
    overrides: tuple[str, ...]
    """Overrides as given on the command line."""
    source: DictConfig
    """What Hydra composed, for the record."""


def register() -> None:
    """Make the schema and the resolvers known to Hydra; harmless to repeat."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=Config)
    store.store(name="runs_schema", node=RunsConfig)
    store.store(name="prepare_schema", node=PrepareConfig)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    store.store(name="report_schema", node=ReportConfig)
    store.store(name="export_schema", node=ExportConfig)
    store.store(name="tokenizers_schema", node=TokenizersConfig)
    OmegaConf.register_new_resolver("described", described, replace=True)
    OmegaConf.register_new_resolver("asset", lambda path: str(PACKAGE / "assets" / path), replace=True)


def compose(overrides: Sequence[str] = (), config_name: str = "train", possible: bool = True) -> Composed:
    """Compose one run and, if it must be `possible`, check it.

    Raises ConfigError, or Hydra's own errors for unknown overrides.
    """
    register()
    if GlobalHydra.instance().is_initialized():
        cfg = hydra_compose(config_name, list(overrides), return_hydra_config=True)
    else:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra_compose(config_name, list(overrides), return_hydra_config=True)
    return checked(cfg, possible=possible)


def checked(cfg: DictConfig, hydra_node: DictConfig | None = None, possible: bool = True) -> Composed:
    """A composed run as a `Composed`. `hydra_node` is Hydra's own config where `cfg` lacks it."""
    hydra = cfg.hydra if hydra_node is None else hydra_node
    chosen = {group: hydra.runtime.choices.get(group) for group in GROUPS}
    if wrong := [group for group, option in chosen.items() if not isinstance(option, str)]:
        raise ConfigError([f"{group}: got {chosen[group]}; one option of the group is needed" for group in wrong])
    config = to_config(cfg, Config)
    if possible:
        check(config)
    source = OmegaConf.masked_copy(cfg, [k for k in cfg if k != "hydra"])
    return Composed(config, chosen, tuple(hydra.overrides.task), source)
