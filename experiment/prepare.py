"""What runs read, staged before they run: `python -m experiment.prepare`.

one run, one language or the whole matrix -> what is there, what is missing, what it costs -> build it, stage by stage
"""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import fields, replace

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from experiment.config.check import check, hint, to_config
from experiment.config.front_door import front_door
from experiment.config.schema import Config, Data, PrepareConfig
from experiment.data.inventory import STAGES, Piece, inventory, remember_rates
from experiment.data.parallel import fetch_flores, parallel_segments
from experiment.data.parts import cores
from experiment.data.prepare import Stages, prepare
from experiment.errors import ConfigError
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.runs import CONDITIONS, tokens_needed


@front_door("prepare", PrepareConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, PrepareConfig)
    if config.data.missing == "error" and any("data.missing=" in o for o in HydraConfig.get().overrides.task):
        raise ConfigError(["data.missing: got error; preparing is building what is missing; leave it out"])
    configs, langs = _what(config)
    # what is being built is told on stderr where stdout is for JSON
    with redirect_stdout(sys.stderr if config.output == "json" else sys.stdout):
        pieces = inventory(configs, langs, config.until)
        if config.output == "table":
            print(_table(pieces), flush=True)
        if not config.dry_run:
            build(configs, langs, config.until, config.workers)
            pieces = inventory(configs, langs, config.until)
            if config.output == "table":
                print(_summary(pieces))
    if config.output == "json":
        print(json.dumps([piece.__dict__ for piece in pieces], indent=1))


def _what(config: PrepareConfig) -> tuple[list[Config], list[str]]:
    """The runs' settings, one per tokenizer, and the languages whose text is wanted."""
    problems = []
    if config.until not in STAGES:
        problems.append(f"until: got {config.until!r}; must be one of {', '.join(STAGES)}")
    if config.output not in ("table", "json"):
        problems.append(f"output: got {config.output!r}; must be table or json")
    if config.workers is not None and config.workers < 1:
        problems.append(f"workers: got {config.workers}; must be at least 1")
    if config.data.lang is not None and config.data.lang not in LANGUAGES:
        problems.append(f"data.lang: unknown language {config.data.lang!r}; {hint(config.data.lang, list(LANGUAGES))}")
    if problems:
        raise ConfigError(problems)
    data = Data(**{f.name: getattr(config.data, f.name) for f in fields(Data)})
    one = Config(**{f.name: getattr(config, f.name) for f in fields(Config)} | {"data": data})
    check(one)
    langs = list(one.mixture.langs)
    if config.data.lang is not None:
        langs = [config.data.lang]
    elif config.all:
        langs = [lang for lang in tokens_needed() if data.files.get(lang) or lang in data.hub]
    conditions = [one.tok.condition]
    if config.all:
        conditions = ["destarved"] if one.tok.flavor == "pa" else list(CONDITIONS)
    configs = []
    for condition in conditions:
        mixture = replace(one.mixture, langs=langs, probs=None)
        configs.append(replace(one, mixture=mixture, tok=replace(one.tok, condition=condition)))
        check(configs[-1])
    return configs, langs


def build(configs: Sequence[Config], langs: Sequence[str], until: str, workers: int | None) -> None:
    """Build what is missing, stage by stage, so that the conditions can be compared before the large downloads."""
    if configs[0].data.flores:
        fetch_flores(configs[0].data)
    parallel_segments(configs[0].data, langs)  # what is wrong with it is known before anything large is built
    count = workers or cores()
    all_stages = [Stages(replace(config, data=replace(config.data, missing="build")), count) for config in configs]
    for stage in STAGES[: STAGES.index(until) + 1]:
        for stages in all_stages:
            if stage == "text":
                for lang in stages.config.tok.langs:
                    stages.text(lang)
                stages.world()
            elif stage == "tokenizer":
                stages.tokenizer()
            else:
                for lang in langs:
                    stages.corpus(lang) if stage == "corpus" else stages.shards(lang)
            remember_rates(stages.root)
    if until == "shards":
        for stages in all_stages:
            prepare(stages.config)


def _table(pieces: Sequence[Piece]) -> str:
    rows = [(p.stage, p.name, p.state, _size(p.text_bytes), _size(p.disk_bytes), _duration(p), p.note) for p in pieces]
    columns = ("stage", "what", "state", "text", "on disk", "time", "")
    return tabulate(rows, columns, tablefmt="plain", disable_numparse=True) + "\n\n" + _summary(pieces)


def _summary(pieces: Sequence[Piece]) -> str:
    missing = [piece for piece in pieces if piece.state != "ready"]
    ready = len(pieces) - len(missing)
    if not missing:
        disk = sum(piece.disk_bytes or 0 for piece in pieces)
        return f"all {len(pieces)} are there, {_size(disk)} on disk"
    known = [piece.disk_bytes for piece in missing if piece.disk_bytes]
    cost = f"about {_size(sum(known))} more on disk" if known else "size unknown"
    times = [piece.seconds for piece in missing]
    took = [seconds for seconds in times if seconds is not None]
    when = f"about {_hours(sum(took))} at the rates seen here" if took else "time unknown until 100 MB were built here"
    if took and len(took) < len(times):
        when += f", without {len(times) - len(took)} of them, whose rates are not known"
    return f"{ready} of {len(pieces)} are there; missing: {cost}, {when}"


def _size(size: int | None) -> str:
    if size is None:
        return "?"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def _duration(piece: Piece) -> str:
    return "" if piece.state == "ready" else "?" if piece.seconds is None else _hours(piece.seconds)


def _hours(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


if __name__ == "__main__":
    main()
