"""Do the tokenizer conditions differ enough to go on? `python -m experiment.tokenizers`.

tokenizers of a flavor, found or built -> metrics on parallel text -> a verdict, tokenizers.json, tokenizers.md
"""

import json
import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from experiment.config.check import check, check_flavor, to_config
from experiment.config.compose import compose
from experiment.config.front_door import front_door
from experiment.config.schema import Config, TokenizersConfig
from experiment.data.artifacts import Artifact, checksum
from experiment.errors import ConfigError
from experiment.matrix.names import tok_name
from experiment.matrix.runs import CONDITIONS
from experiment.reporting.tokenizers import tokenizer_tables, tokenizers_markdown, verdicts
from experiment.run_directory import place_for, replaced_as_a_whole

FILES = ("tokenizers.json", "tokenizers.md")
COMPARED = {"pa": ("bl_starved", "bl_destarved", "pa_destarved")}
"""What a flavor without two conditions of its own is compared with."""
SHOWN = ("tokenizer_text", "tokenizer_ratios", "tokenizer_summary", "vocabulary_scripts")


@front_door("tokenizers", TokenizersConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, TokenizersConfig)
    _check(config)
    out = _place(config)
    configs = _configs(config, HydraConfig.get().overrides.task)
    with redirect_stdout(sys.stderr):  # what is being built is no part of the answer
        report = analysis_of(config, configs)
    write(report, out)
    print(json.dumps(report, indent=1, ensure_ascii=False) if config.output == "json" else _text(report, out))


def _check(config: TokenizersConfig) -> None:
    check_flavor(config.flavor, "flavor")
    problems = []
    if not 1 <= config.gate < math.inf:
        problems.append(f"gate: got {config.gate:g}; must be at least 1")
    if config.output not in ("table", "json"):
        problems.append(f"output: got {config.output!r}; must be one of table, json")
    if config.data.parallel is None:
        problems.append("data.parallel: null, but tokenizers are compared on parallel text; name a jsonl of it")
    if problems:
        raise ConfigError(problems)


def _place(config: TokenizersConfig) -> Path:
    """Where the analysis goes. Raises RunRefused for a directory that holds anything but an analysis."""
    name = f"tokenizers-{config.scale.name}-{config.data.corpus}-{config.flavor}"
    out = Path(config.out) if config.out else Path(config.paths.runs) / "reports" / name
    return place_for(out, FILES, "an analysis of tokenizers")


def _configs(config: TokenizersConfig, overrides: Sequence[str]) -> dict[str, Config]:
    """Tokenizer -> the settings that it is found or built with; they train on nothing but its own languages."""
    own = {f.name for f in fields(TokenizersConfig)} - {f.name for f in fields(Config)}
    given = {override.split("=", 1)[0].lstrip("+~"): override for override in overrides}
    if fixed := sorted({"tok", "tok.flavor", "tok.condition"} & given.keys()):
        raise ConfigError([f"{fixed[0]}: the tokenizers follow from flavor={config.flavor}; leave it out"])
    shared = [override for key, override in given.items() if key not in own]
    configs = {}
    for name in COMPARED.get(config.flavor, tuple(tok_name(config.flavor, condition) for condition in CONDITIONS)):
        made = compose([*shared, f"tok={name}"], possible=False).config
        configs[name] = replace(made, mixture=replace(made.mixture, langs=list(made.tok.langs), probs=None))
        check(configs[name])
    return configs


def tokenizers_of(configs: dict[str, Config]) -> dict[str, Artifact]:
    """The tokenizer of each config, learned if it is missing and data.missing=build."""
    from experiment.data.prepare import Stages

    return {name: Stages(config).tokenizer() for name, config in configs.items()}


def analysis_of(config: TokenizersConfig, configs: dict[str, Config]) -> dict[str, Any]:
    """What tokenizers.json holds."""
    from experiment.tokenizers.analysis import analyse, judging_segments, subject_of

    segments = judging_segments(config.data, config.tok.langs)  # before anything is built
    found = tokenizers_of(configs)
    subjects = {name: subject_of(artifact) for name, artifact in found.items()}
    analysis = analyse(subjects, segments, config.tok.langs, config.gate)
    verdict = analysis["verdicts"][config.flavor]
    return {
        "flavor": config.flavor,
        "scale": config.scale.name,
        "differ": verdict["differ"],
        "verdict": verdict["sentence"],
        "data": {
            "corpus": config.data.corpus,
            "parallel": config.data.parallel,
            "parallel_sha256": checksum(Path(str(config.data.parallel))),
        },
        "fingerprints": {name: artifact.fingerprint for name, artifact in found.items()},
        **analysis,
    }


def write(report: dict[str, Any], out: Path) -> None:
    """Write the analysis: whoever opens it finds the old one or the new one, whole."""
    with replaced_as_a_whole(out) as place:
        text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False)
        (place / "tokenizers.json").write_text(text + "\n", encoding="utf-8")
        (place / "tokenizers.md").write_text(tokenizers_markdown(report), encoding="utf-8")


def _text(report: dict[str, Any], out: Path) -> str:
    made = {table.name: table for table in tokenizer_tables([], report)}
    parts = [
        tabulate(made[name].rows, made[name].columns, tablefmt="plain", disable_numparse=True)
        for name in SHOWN
        if name in made
    ]
    text = (
        f"on {report['segments']:,} segments of {report['data']['parallel']}; learned from {report['data']['corpus']}"
    )
    where = (
        f"{text}\nall of it, with what the columns mean: {out / 'tokenizers.md'}\nnumbers: {out / 'tokenizers.json'}"
    )
    return "\n\n".join([*parts, "\n".join(verdicts(report)), where])


if __name__ == "__main__":
    main()
