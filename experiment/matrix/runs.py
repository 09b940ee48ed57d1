"""The matrix: nine mixtures in two tokenizer conditions, as 26 runs (or 18 of 30B tokens)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from omegaconf import OmegaConf

from experiment.config.check import check, hint
from experiment.config.compose import CONF, compose
from experiment.config.schema import Config, Mixture
from experiment.errors import ConfigError
from experiment.matrix.identity import CANONICAL_GROUPS, Run, canonical_config, changes_of, named_run
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.names import tok_name

CONDITIONS = ("starved", "destarved")
SELF_CONTAINED = ("wsd",)
ROWS = ("mixture", "tok", "schedule")
"""Groups whose options tell the runs of the matrix apart."""
SET_BY_THE_MATRIX = ("mixture.", "tok.flavor", "tok.condition", "schedule.kind", "schedule.suffix")
EXTENDED = ("trunk", "cooldown_30b", "cooldown_100b")


def mixtures() -> dict[str, Mixture]:
    """Name -> mixture, read from conf/mixture: fewer languages first, in the order of LANGUAGES."""
    found = {}
    for path in (CONF / "mixture").glob("*.yaml"):
        found[path.stem] = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Mixture), OmegaConf.load(path)))
    order = list(LANGUAGES)
    return dict(sorted(found.items(), key=lambda item: (len(item[1].langs), [order.index(x) for x in item[1].langs])))


def tokens_needed() -> dict[str, float]:
    """Nominal tokens of each language that the mixture of the matrix which reads most of it is trained on."""
    needed: dict[str, float] = {}
    for mixture in mixtures().values():
        for lang, share in zip(
            mixture.langs, mixture.probs or [1 / len(mixture.langs)] * len(mixture.langs), strict=True
        ):
            needed[lang] = max(needed.get(lang, 0.0), share * mixture.budget_tokens)
    return needed


def matrix_runs(
    flavor: str = "bl",
    only_30b: bool = False,
    overrides: Sequence[str] = (),
    config_name: str = "train",
    corpus_of_scale: bool = True,
    wanted: Mapping[str, Collection[str]] | None = None,
) -> list[Run]:
    """Every run of the matrix, a trunk before its cooldowns.

    A mixture whose budget reaches the end of the longest cooldown is trained as a trunk with its
    cooldowns, the others as self-contained runs; `only_30b` makes all of them self-contained.
    `overrides` (of the grammar of `experiment.train`) apply to every run. Where they choose no
    data, runs are those on the scale's own corpus, or with `corpus_of_scale=False` on the primary
    config's. Only the rows among `wanted` (group -> options) must be possible runs.
    """
    if own := [o for o in overrides if o.lstrip("+~").startswith(SET_BY_THE_MATRIX)]:
        raise ConfigError([f"{override}: the matrix sets this itself for each of its runs" for override in own])
    wanted = wanted or {}
    # settings are composed for one mixture and then hold for all: one that is wanted, for its languages are there
    one = next(([f"mixture={name}"] for name in mixtures() if name in wanted.get("mixture", ())), [])
    names = SELF_CONTAINED if only_30b else SELF_CONTAINED + EXTENDED
    configs, changes = {}, {}
    for name in names:
        composed = compose([*overrides, *one, f"schedule={name}"], config_name, possible=False)
        config, keys = composed.config, {override.split("=")[0] for override in composed.overrides}
        if corpus_of_scale and "data" not in keys and config.data.corpus != config.scale.data:
            of_scale = [*overrides, *one, f"schedule={name}", f"data={config.scale.data}"]
            config = compose(of_scale, config_name, possible=False).config
        configs[name] = config
        canonical = config if keys <= set(CANONICAL_GROUPS) else canonical_config(composed.choices)
        changes[name] = changes_of(config, canonical)
    end = max((_end_of(configs[name]) for name in names if name in EXTENDED), default=float("inf"))
    result: list[Run] = []
    for mixture_choice, mixture in mixtures().items():
        for condition in CONDITIONS:
            trunk = None
            for name in EXTENDED if mixture.budget_tokens >= end else SELF_CONTAINED:
                tok = replace(configs[name].tok, flavor=flavor, condition=condition)
                config = replace(configs[name], mixture=mixture, tok=tok)
                choices = {"mixture": mixture_choice, "tok": tok_name(flavor, condition), "schedule": name}
                if all(choices[group] in options for group, options in wanted.items()):
                    _check(config, choices)
                parent = trunk if config.schedule.kind == "cooldown" else None
                run = named_run(config, changes[name], parent, choices)
                trunk = run if run.kind == "trunk" else trunk
                result.append(run)
    return result


def _check(config: Config, choices: dict[str, str]) -> None:
    try:
        check(config)
    except ConfigError as error:
        which = " ".join(f"{group}={option}" for group, option in choices.items())
        raise ConfigError([f"{which}: {problem}" for problem in error.problems]) from error


def chosen_rows(runs: list[Run], wanted: dict[str, set[str]]) -> list[Run]:
    """The runs whose mixture, tok and schedule are among the wanted ones.

    Raises ConfigError if there are none, or if no run has one of the wanted options.
    """
    problems = []
    for group, options in wanted.items():
        there = list(dict.fromkeys(dict(run.choices)[group] for run in runs))
        problems += [f"{group}: no run of the matrix has {x!r}; {hint(x, there)}" for x in sorted(options - {*there})]
    if problems:
        raise ConfigError(problems)
    chosen = [run for run in runs if all(dict(run.choices)[group] in options for group, options in wanted.items())]
    if not chosen:
        asked = ", ".join(f"{group}={','.join(sorted(options))}" for group, options in wanted.items())
        raise ConfigError([f"no run of the matrix matches {asked}"])
    return chosen


def _end_of(config: Config) -> float:
    s = config.schedule
    return (config.branch.mark or 0.0) + s.warmup_tokens + s.stable_tokens + s.decay_tokens
