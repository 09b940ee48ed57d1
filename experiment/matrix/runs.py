"""The matrix: nine mixtures in two tokenizer conditions, as 26 runs (or 18 of 30B tokens)."""

from collections.abc import Sequence
from dataclasses import replace

from omegaconf import OmegaConf

from experiment.config.compose import CONF, compose
from experiment.config.schema import Config, Mixture
from experiment.matrix.identity import CANONICAL_GROUPS, Run, canonical_config, named_run, variant_of
from experiment.matrix.languages import LANGUAGES

CONDITIONS = ("starved", "destarved")
SELF_CONTAINED = ("wsd",)
EXTENDED = ("trunk", "cooldown_30b", "cooldown_100b")


def mixtures() -> dict[str, Mixture]:
    """Name -> mixture, read from conf/mixture: fewer languages first, in the order of LANGUAGES."""
    found = {}
    for path in (CONF / "mixture").glob("*.yaml"):
        found[path.stem] = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Mixture), OmegaConf.load(path)))
    order = list(LANGUAGES)
    return dict(sorted(found.items(), key=lambda item: (len(item[1].langs), [order.index(x) for x in item[1].langs])))


def matrix_runs(flavor: str = "bl", only_30b: bool = False, overrides: Sequence[str] = ()) -> list[Run]:
    """Every run of the matrix, a trunk before its cooldowns.

    A mixture whose budget reaches the end of the longest cooldown is trained as a trunk with its
    cooldowns, the others as self-contained runs; `only_30b` makes all of them self-contained.
    `overrides` (of the grammar of `experiment.train`) apply to every run.
    """
    names = SELF_CONTAINED if only_30b else SELF_CONTAINED + EXTENDED
    configs, variants = {}, {}
    for name in names:
        composed = compose([*overrides, f"schedule={name}"])
        config, keys = composed.config, {override.split("=")[0] for override in composed.overrides}
        if "data" not in keys:
            config = replace(config, data=replace(config.data, corpus=config.scale.data))
        configs[name] = config
        canonical = config if keys <= set(CANONICAL_GROUPS) else canonical_config(composed.choices)
        variants[name] = variant_of(config, canonical)
    end = max((_end_of(configs[name]) for name in names if name in EXTENDED), default=float("inf"))
    result: list[Run] = []
    for mixture in mixtures().values():
        for condition in CONDITIONS:
            trunk = None
            for name in EXTENDED if mixture.budget_tokens >= end else SELF_CONTAINED:
                tok = replace(configs[name].tok, flavor=flavor, condition=condition)
                config = replace(configs[name], mixture=mixture, tok=tok)
                run = named_run(config, variants[name], trunk if config.schedule.kind == "cooldown" else None)
                trunk = run if run.kind == "trunk" else trunk
                result.append(run)
    return result


def _end_of(config: Config) -> float:
    s = config.schedule
    return (config.branch.mark or 0.0) + s.warmup_tokens + s.stable_tokens + s.decay_tokens
