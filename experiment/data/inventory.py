"""What there is of everything that runs read, and what the rest will cost."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiment.config.schema import Config
from experiment.data.artifacts import building
from experiment.data.parts import measured
from experiment.data.prepare import SPARE, Stages
from experiment.errors import Missing
from experiment.matrix.names import tok_name
from experiment.matrix.runs import tokens_needed
from experiment.run_directory import write_atomically

STAGES = ("text", "tokenizer", "corpus", "shards")
BYTES_PER_TOKEN = {
    "starved": {"en": 3.647, "de": 3.350, "fr": 3.374, "ar": 4.589, "zh": 3.066},
    "destarved": {"en": 4.377, "de": 4.594, "fr": 4.391, "ar": 6.771, "zh": 3.999},
}
"""Of a public Unigram vocabulary with 65,536 entries: for estimates while there is no tokenizer here."""
TELLING_BYTES = 10**8
"""Less than this and the time is that of starting up: no rate to go by."""


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
    data = configs[0].data
    rates = _read_rates(Path(configs[0].paths.artifacts))
    pieces: dict[tuple[str, str], Piece] = {}
    if data.flores:
        there = Path(str(data.parallel)).exists()
        note = "" if there else "gated: accept its terms and log in to the hub"
        pieces["text", "FLORES+"] = Piece(
            "text", "FLORES+", "ready" if there else "missing", None, None, 0.0 if there else None, note
        )
    for config in configs:
        stages = Stages(replace(config, data=replace(config.data, missing="error")))
        for piece in _pieces(stages, langs, until, rates):
            pieces.setdefault((piece.stage, piece.name), piece)
    return sorted(pieces.values(), key=lambda piece: STAGES.index(piece.stage))


def _pieces(stages: Stages, langs: Sequence[str], until: str, rates: dict[str, float]) -> Iterator[Piece]:
    config = stages.config
    wanted = STAGES[: STAGES.index(until) + 1]
    tok = tok_name(config.tok.flavor, config.tok.condition)
    size = config.tok.vocab_size
    sample = config.data.sample_bytes
    for lang in config.tok.langs:
        if lang in config.data.hub:
            share = None if sample is None else int(sample / len(config.tok.langs))
            yield _piece(
                "text", f"{config.data.corpus}-sample-{lang}", lambda x=lang: stages.text(x), share, 0.5, rates
            )
        else:  # tokenizers learn from the whole corpus
            yield _piece("text", f"{config.data.corpus}-{lang}", lambda x=lang: stages.corpus(x), None, None, rates)
    if config.tok.condition == "starved" and config.data.world_hub is not None:
        what = None if sample is None else int(sample)
        yield _piece("text", f"{config.data.corpus}-world", stages.world, what, 0.5, rates)
    if "tokenizer" in wanted:
        yield _piece("tokenizer", f"{tok} {size:,}", stages.tokenizer, None, None, rates)
    for lang in langs:
        text, source = _needed(stages, lang)
        if "corpus" in wanted and (lang in config.data.hub or lang not in config.tok.langs):
            corpus = _piece(
                "corpus", f"{config.data.corpus}-{lang}", lambda x=lang: stages.corpus(x), text, 0.45, rates
            )
            if corpus.state != "ready":
                corpus.note = source
            yield corpus
        if "shards" in wanted:
            per_byte = 2 / _bytes_per_token(stages, lang)
            yield _with_epochs(
                _piece("shards", f"{lang} {tok}", lambda x=lang: stages.shards(x), text, per_byte, rates), stages, lang
            )


def _with_epochs(piece: Piece, stages: Stages, lang: str) -> Piece:
    """Says where the run of the matrix that reads most of a language reads it more than once."""
    if piece.state == "ready":
        needed = tokens_needed()[lang] * stages.config.scale.token_scale
        if (epochs := needed / stages.shards(lang).facts["tokens"]) > 1:
            piece.note = f"one run reads it {epochs:.1f} times"
    return piece


def _piece(
    stage: str, name: str, find: Any, text: int | None, disk_per_byte: float | None, rates: dict[str, float]
) -> Piece:
    try:
        found = find()
    except Missing as missing:
        place = missing.place  # of this piece, or of one that it is made from
        own = place is not None and (
            place.parent.name == "shards" if stage == "shards" else place.name.startswith(name.split()[0])
        )
        begun = own and place is not None and building(place).exists()
        disk = None if text is None or disk_per_byte is None else int(text * disk_per_byte)
        kind = {"text": "samples", "corpus": "corpora", "shards": "shards"}.get(stage)
        seconds = text / rates[kind] if text is not None and kind in rates else None
        return Piece(stage, name, "begun" if begun else "missing", text, disk, seconds)
    facts = found.facts
    text = facts["train"]["bytes"] if "train" in facts else facts["bytes"]
    if isinstance(text, dict):
        text = sum(text.values())
    disk = sum(path.stat().st_size for path in found.path.rglob("*") if path.is_file())
    note = f"{len(facts['bytes'])} languages" if name.endswith("-world") else ""
    if facts.get("exhausted"):
        note = "its sources have no more"
    left_out = [f"{facts[key]} {key}" for key in ("duplicates", "empty", "too_long", "not_utf8") if facts.get(key)]
    return Piece(stage, name, "ready", text, disk, 0.0, "; ".join(filter(None, [note, ", ".join(left_out)])))


def _needed(stages: Stages, lang: str) -> tuple[int | None, str]:
    """UTF-8 bytes of training text of a language that is wanted from the hub, and where that is from."""
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


def _bytes_per_token(stages: Stages, lang: str) -> float:
    try:
        return float(stages.tokenizer().facts["bytes_per_token"][lang])
    except (Missing, KeyError):
        return BYTES_PER_TOKEN[stages.config.tok.condition][lang]


def _rates_file(root: Path) -> Path:
    return root / "rates.json"


def _read_rates(root: Path) -> dict[str, float]:
    """Kind of artifact -> UTF-8 bytes per second when one was last built here; only estimates depend on it."""
    try:
        found = json.loads(_rates_file(root).read_text(encoding="utf-8"))
        return {str(kind): float(rate) for kind, rate in found.items() if 0 < float(rate) < float("inf")}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def remember_rates(root: Path) -> None:
    rates = {kind: size / seconds for kind, (size, seconds) in measured.items() if size >= TELLING_BYTES}
    if rates:
        write_atomically(_rates_file(root), json.dumps(_read_rates(root) | rates) + "\n")
