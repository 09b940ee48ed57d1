"""What runs read, staged before they run: `python -m experiment.prepare`.

one run, one language or the whole matrix -> what is there, what is missing, what it costs -> build it, stage by stage
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tabulate import tabulate

from experiment.config.check import check, hint, to_config
from experiment.config.front_door import front_door
from experiment.config.schema import Config, Data, PrepareConfig
from experiment.errors import ConfigError, Missing
from experiment.matrix.languages import LANGUAGES
from experiment.matrix.runs import CONDITIONS, tokens_needed
from experiment.run_directory import write_atomically

if TYPE_CHECKING:
    from experiment.data.prepare import Stages

STAGES = ("text", "tokenizer", "corpus", "shards")
BYTES_PER_TOKEN = {
    "starved": {"en": 3.647, "de": 3.350, "fr": 3.374, "ar": 4.589, "zh": 3.066},
    "destarved": {"en": 4.377, "de": 4.594, "fr": 4.391, "ar": 6.771, "zh": 3.999},
}
"""Of a public Unigram vocabulary with 65,536 entries: for estimates while there is no tokenizer here."""
TELLING_BYTES = 10**8
"""Less than this and the time is that of starting up: no rate to go by."""


@front_door("prepare", PrepareConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, PrepareConfig)
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


@dataclass
class Piece:
    """One artifact: what it is, whether it is there, how large it is or will be."""

    stage: str
    name: str
    state: str
    """`ready`, `begun` (what is finished of it is kept) or `missing`."""
    text_bytes: int | None
    """UTF-8 bytes of text in it; an estimate where it is missing."""
    disk_bytes: int | None
    """An estimate where it is missing; None where nothing is known."""
    seconds: float | None
    """What building it will take by the rates seen here; 0 where it is ready, None where none was seen."""
    note: str = ""


def inventory(configs: Sequence[Config], langs: Sequence[str], until: str) -> list[Piece]:
    """What there is of everything these runs read. Builds nothing. Raises RunRefused for what is damaged."""
    from experiment.data.prepare import Stages

    data = configs[0].data
    rates = _read_rates(Path(configs[0].paths.artifacts))
    pieces: dict[tuple[str, str], Piece] = {}
    if data.flores:
        there = Path(str(data.parallel)).exists()
        note = "" if there else "gated: accept its terms and log in to the hub"
        pieces["text", "FLORES+"] = Piece("text", "FLORES+", "ready" if there else "missing", None, None, 0.0, note)
    for config in configs:
        stages = Stages(replace(config, data=replace(config.data, missing="error")))
        for piece in _pieces(stages, langs, until, rates):
            pieces.setdefault((piece.stage, piece.name), piece)
    return sorted(pieces.values(), key=lambda piece: STAGES.index(piece.stage))


def _pieces(stages: "Stages", langs: Sequence[str], until: str, rates: dict[str, float]) -> Iterator[Piece]:
    config = stages.config
    wanted = STAGES[: STAGES.index(until) + 1]
    tok = f"{config.tok.flavor}_{config.tok.condition}"
    size = config.tok.vocab_size
    sample = config.data.sample_bytes
    for lang in config.tok.langs:
        if lang in config.data.hub:
            share = None if sample is None else int(sample / len(config.tok.langs))
            yield _piece(
                "text", f"{config.data.corpus}-sample-{lang}", lambda x=lang: stages.text(x), share, 0.5, rates
            )
    if config.tok.condition == "starved" and config.data.world_hub is not None:
        what = None if sample is None else int(sample)
        yield _piece("text", f"{config.data.corpus}-world", stages.world, what, 0.5, rates)
    if "tokenizer" in wanted:
        yield _piece("tokenizer", f"{tok} {size:,}", stages.tokenizer, None, None, rates)
    for lang in langs:
        text, source = _needed(stages, lang)
        if "corpus" in wanted:
            corpus = _piece(
                "corpus", f"{config.data.corpus}-{lang}", lambda x=lang: stages.corpus(x), text, 0.45, rates
            )
            if corpus.state != "ready":
                corpus.note = source
            yield corpus
        if "shards" in wanted:
            per_byte = 2 / _bytes_per_token(stages, lang)
            yield _piece("shards", f"{lang} {tok}", lambda x=lang: stages.shards(x), text, per_byte, rates)


def _piece(
    stage: str, name: str, find: Any, text: int | None, disk_per_byte: float | None, rates: dict[str, float]
) -> Piece:
    from experiment.data.artifacts import building

    try:
        found = find()
    except Missing as missing:
        begun = (
            missing.place is not None
            and building(missing.place).exists()
            and missing.place.name.startswith(name.split()[0])
        )
        disk = None if text is None or disk_per_byte is None else int(text * disk_per_byte)
        kind = {"text": "samples", "corpus": "corpora", "shards": "shards"}.get(stage)
        seconds = text / rates[kind] if text is not None and kind in rates else None
        return Piece(stage, name, "begun" if begun else "missing", text, disk, seconds)
    facts, wanted = found.facts, text
    text = facts["train"]["bytes"] if "train" in facts else facts["bytes"]
    if isinstance(text, dict):
        text = sum(text.values())
    disk = sum(path.stat().st_size for path in found.path.rglob("*") if path.is_file())
    note = ""
    if stage == "corpus" and facts.get("exhausted"):
        note = "its sources have no more"
        if wanted is not None:
            note += f"; runs that read most of it read it about {wanted / text:.1f} times"
    left_out = [f"{facts[key]} {key}" for key in ("duplicates", "empty", "too_long", "not_utf8") if facts.get(key)]
    return Piece(stage, name, "ready", text, disk, 0.0, "; ".join(filter(None, [note, ", ".join(left_out)])))


def _needed(stages: "Stages", lang: str) -> tuple[int | None, str]:
    """UTF-8 bytes of training text of a language that is wanted from the hub, and where that is from."""
    from experiment.data.prepare import SPARE

    config = stages.config
    if lang not in config.data.hub:
        return None, ""
    try:
        budget = stages.budget(lang)
        return int(budget["budget_bytes"]), budget["from"]
    except Missing:
        tokens = tokens_needed()[lang] * config.scale.token_scale
        rate = BYTES_PER_TOKEN["destarved"][lang]
        return int(tokens * rate * SPARE), "estimate; known when the tokenizers are there"


def _bytes_per_token(stages: "Stages", lang: str) -> float:
    try:
        return float(stages.tokenizer().facts["bytes_per_token"][lang])
    except (Missing, KeyError):
        return BYTES_PER_TOKEN[stages.config.tok.condition][lang]


def build(configs: Sequence[Config], langs: Sequence[str], until: str, workers: int | None) -> None:
    """Build what is missing, stage by stage, so that the conditions can be compared before the large downloads."""
    from experiment.data.parallel import fetch_flores, parallel_segments
    from experiment.data.parts import cores
    from experiment.data.prepare import Stages, prepare

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
            _remember_rates(stages.root)
    if until == "shards":
        for stages in all_stages:
            prepare(stages.config)


def _rates_file(root: Path) -> Path:
    return root / "rates.json"


def _read_rates(root: Path) -> dict[str, float]:
    """Kind of artifact -> UTF-8 bytes per second when one was last built here; only estimates depend on it."""
    try:
        found = json.loads(_rates_file(root).read_text(encoding="utf-8"))
        return {str(kind): float(rate) for kind, rate in found.items() if 0 < float(rate) < float("inf")}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _remember_rates(root: Path) -> None:
    from experiment.data.parts import measured

    rates = {kind: size / seconds for kind, (size, seconds) in measured.items() if size >= TELLING_BYTES}
    if rates:
        write_atomically(_rates_file(root), json.dumps(_read_rates(root) | rates) + "\n")


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
