"""What makes two runs the same experiment: science settings, variant names, trunks and branches."""

import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from experiment.config.check import check, settings_of
from experiment.config.compose import Composed, compose
from experiment.config.schema import Config
from experiment.errors import ConfigError
from experiment.matrix.names import mark_name, mixture_name, run_name, tok_name, variant_suffix
from experiment.schedule import Schedule, exact

SCIENCE = (
    "mixture.langs",
    "mixture.probs",
    "tok",
    "schedule.peak_lr",
    "schedule.min_lr",
    "schedule.warmup_tokens",
    "schedule.stable_tokens",
    "schedule.decay_tokens",
    "schedule.decay_shape",
    "branch.mark",
    "branch.load_optim",
    "branch.trunk",
    "scale.token_scale",
    "model",
    "optim",
    "batch.tokens",
    "data.corpus",
    "data.text_column",
    "data.holdout_by",
    "data.holdout_fraction",
    "data.sample_bytes",
    "data.max_document_bytes",
    "data.world_languages",
    "seed",
    "data_seed",
)
"""Settings (or whole groups) that change the result. Another value is another run."""

EXECUTION = (
    "mixture.budget_tokens",
    "schedule.kind",
    "schedule.suffix",
    "branch.missing",
    "scale.name",
    "scale.vocab_size",
    "scale.data",
    "train",
    "evaluation",
    "data.files",
    "data.hub",
    "data.budget_bytes",
    "data.parallel",
    "data.flores",
    "data.world",
    "data.world_hub",
    "data.missing",
    "trainer",
    "logger",
    "paths",
)
"""Settings that only say how, where or how often. What files hold is covered by fingerprints."""

CANONICAL_GROUPS = ("mixture", "tok", "schedule", "scale")
"""Groups whose choice makes a cell and a scale; every other change in the science makes a variant."""

AFTER_MARK = (
    "branch.",
    "schedule.min_lr",
    "schedule.warmup_tokens",
    "schedule.stable_tokens",
    "schedule.decay_tokens",
    "schedule.decay_shape",
)
"""Science settings in which a branch may differ from its trunk."""


def science_of(config: Config) -> dict[str, Any]:
    """The science settings by dotted key, in one spelling: uniform shares are null.

    A trunk has no floor, no decay and no end of its own: it can always be trained further. Only a
    cooldown branches.
    """
    science = {
        key: copy.deepcopy(value)
        for key, value in settings_of(config).items()
        if key in SCIENCE or key.rpartition(".")[0] in SCIENCE
    }
    probs = config.mixture.probs
    if probs is not None and len(set(probs)) == 1:
        science["mixture.probs"] = None
    if config.tok.condition == "destarved":
        del science["tok.temperature"]  # of the starved sample
    if config.tok.condition == "destarved" or config.data.world_hub is None:
        del science["data.world_languages"]
    if config.tok.flavor != "pa":
        del science["tok.parity_window"], science["tok.parity_alpha"]
    if config.schedule.kind == "trunk":
        for name in ("min_lr", "stable_tokens", "decay_tokens", "decay_shape"):
            del science[f"schedule.{name}"]
    if config.schedule.kind != "cooldown":
        science = {key: value for key, value in science.items() if not key.startswith("branch.")}
    return science


def differences(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ -> (mine, theirs); a missing key counts as None."""
    keys = sorted({*mine, *theirs})
    return {key: (mine.get(key), theirs.get(key)) for key in keys if mine.get(key) != theirs.get(key)}


@dataclass(frozen=True)
class Run:
    """One resolved run."""

    name: str
    config: Config
    trunk: "Run | None" = None
    """The run that a branch leaves; None for other kinds and where `branch.trunk` names one."""
    choices: tuple[tuple[str, str], ...] = ()
    """Groups and options it was composed from, those that make its cell."""
    variant: str = ""
    """What it changes in the science of its cell, the seed aside; empty for the canonical experiment."""

    @property
    def kind(self) -> str:
        return self.config.schedule.kind

    @property
    def mixture(self) -> str:
        return mixture_name(self.config.mixture.langs)

    @property
    def tok_name(self) -> str:
        return tok_name(self.config.tok.flavor, self.config.tok.condition)

    @property
    def scale_directory(self) -> Path:
        return Path(self.config.paths.runs) / self.config.scale.name

    @property
    def directory(self) -> Path:
        return self.scale_directory / self.name

    @property
    def schedule(self) -> Schedule:
        return Schedule.from_config(self.config)

    @property
    def trunk_name(self) -> str | None:
        return self.trunk.name if self.trunk else self.config.branch.trunk

    @property
    def branch_from(self) -> Path | None:
        """The trunk's checkpoint that this run continues."""
        if self.trunk_name is None:
            return None
        assert self.config.branch.mark is not None
        return self.scale_directory / self.trunk_name / "checkpoints" / f"{mark_name(self.config.branch.mark)}.ckpt"

    @property
    def science(self) -> dict[str, Any]:
        return science_of(self.config)

    def resolved(self) -> dict[str, Any]:
        """The resolved run under the names of the run matrix, with plain values."""
        c = self.config
        schedule = {f.name: getattr(c.schedule, f.name) for f in fields(c.schedule) if f.name not in ("kind", "suffix")}
        resolved: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "langs": list(c.mixture.langs),
            "probs": None if c.mixture.probs is None else list(c.mixture.probs),
            "tok_name": self.tok_name,
            "variant": self.variant,
            "schedule": schedule,
            "train": {"stable_marks": list(c.train.stable_marks)} if c.train.stable_marks else {},
            "seed": c.seed,
            "data_seed": c.data_seed,
            "depends_on": [self.trunk_name] if self.trunk_name else [],
        }
        if self.branch_from:
            resolved["branch"] = {"from": str(self.branch_from), "load_optim": c.branch.load_optim}
        return resolved


def trajectory_of(run: Run, trunk: dict[str, Any] | None = None) -> dict[str, Any]:
    """The learning rate from token 0 to the end, so that a branch compares with an uninterrupted run.

    `trunk` is the trunk's trajectory. `segments` holds [phase, end in nominal tokens]; of a trunk
    only what lies before the mark counts.
    """
    s, start = run.config.schedule, run.config.branch.mark or 0.0
    segments: list[list[Any]] = []
    if trunk is not None:
        for phase, end in trunk["segments"]:
            if not segments or segments[-1][1] < start:
                segments.append([phase, min(end, start)])
    position = exact(start)
    for phase, length in (("warmup", s.warmup_tokens), ("stable", s.stable_tokens), ("decay", s.decay_tokens)):
        if not length:
            continue
        position += exact(length)
        if segments and segments[-1][0] == phase == "stable":
            segments[-1][1] = float(position)
        else:
            segments.append([phase, float(position)])
    decays = any(phase == "decay" for phase, _ in segments)
    return {
        "peak_lr": s.peak_lr,
        "min_lr": s.min_lr if decays else None,
        "decay_shape": s.decay_shape if decays else None,
        "segments": segments,
        "load_optim": run.config.branch.load_optim,
    }


def resolve(composed: Composed) -> Run:
    """The run that a composed config stands for: its name, and its trunk if it branches."""
    return _resolve(composed.config, composed.choices)


def canonical_config(choices: dict[str, str]) -> Config:
    """The settings of a run that overrides nothing but its groups, on the corpus of its scale."""
    groups = [f"{group}={choices[group]}" for group in CANONICAL_GROUPS]
    config = compose(groups, possible=False).config
    if config.data.corpus == config.scale.data:
        return config
    return compose([*groups, f"data={config.scale.data}"], possible=False).config


def changes_of(config: Config, canonical: Config) -> dict[str, Any]:
    """The science settings that `config` changes, which name its variant; empty for a canonical run."""
    mine, theirs = science_of(config), science_of(canonical)
    changed = {key: value for key, (value, _) in differences(mine, theirs).items() if key != "scale.token_scale"}
    if config.data_seed == config.seed:
        changed.pop("data_seed", None)
    if "data.corpus" in changed:  # how its files are read goes with a corpus's name
        changed = {key: value for key, value in changed.items() if not key.startswith("data.") or key == "data.corpus"}
    return changed


def _resolve(config: Config, choices: dict[str, str]) -> Run:
    canonical = canonical_config(choices)
    for key, mine, own in (
        ("schedule.suffix", config.schedule.suffix, canonical.schedule.suffix),
        ("scale.name", config.scale.name, canonical.scale.name),
    ):
        if mine != own:  # it would take the name of another run
            raise ConfigError([f"{key}: got {mine!r}; the chosen group says {own!r}, and names follow from it"])
    trunk = None
    if config.schedule.kind == "cooldown" and config.branch.trunk is None:
        trunk = _resolve(_trunk_config(config, choices), choices | {"schedule": "trunk"})
    return named_run(config, changes_of(config, canonical), trunk, choices)


def named_run(config: Config, changes: dict[str, Any], trunk: Run | None, choices: dict[str, str]) -> Run:
    """`changes` are those of changes_of."""
    tok = tok_name(config.tok.flavor, config.tok.condition)
    name = run_name(mixture_name(config.mixture.langs), tok, config.schedule.suffix, variant_suffix(changes))
    cell = tuple((group, choices[group]) for group in ("mixture", "tok", "schedule"))
    variant = variant_suffix({key: value for key, value in changes.items() if key != "seed"})
    return Run(name, config, trunk, cell, variant)


def _trunk_config(config: Config, choices: dict[str, str]) -> Config:
    """The settings of a cooldown's trunk: what acts before the mark is the cooldown's own."""
    canonical = canonical_config(choices | {"schedule": "trunk"})
    marks = list(canonical.train.stable_marks)
    if config.branch.mark not in marks:
        marks = sorted([*marks, config.branch.mark])
    trunk = replace(
        config,
        schedule=replace(canonical.schedule, peak_lr=config.schedule.peak_lr),
        branch=replace(canonical.branch, missing=config.branch.missing),
        train=replace(config.train, stable_marks=marks),
    )
    trunk.schedule.min_lr = min(trunk.schedule.min_lr, trunk.schedule.peak_lr)  # it has no floor to reach
    end = trunk.schedule.warmup_tokens + trunk.schedule.stable_tokens
    if config.branch.mark > end:
        raise ConfigError([f"branch.mark: got {config.branch.mark:g}; the trunk ends at {end:g}"])
    try:
        check(trunk)
    except ConfigError as error:
        raise ConfigError([f"its trunk: {problem}" for problem in error.problems]) from error
    return trunk
