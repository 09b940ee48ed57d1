"""Strict checks: a composed config becomes a `Config`, or one report of all that is wrong with it."""

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiment.config.schema import Config
from experiment.errors import ConfigError
from experiment.matrix.languages import LANGUAGES
from experiment.schedule import DECAY_SHAPES, Schedule, steps_of_marks

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
RESERVED_NAMES = ("artifacts", "sweeps", "reports")
FLAVORS = ("bl", "unigram", "pa")


def to_config(cfg: DictConfig, schema: type) -> Any:
    """`cfg` as an instance of the dataclass `schema`.

    Raises ConfigError listing unknown keys (also those that came in with `+` or `++`),
    missing values and values of a wrong type.
    """
    cfg = OmegaConf.masked_copy(cfg, [k for k in cfg if k != "hydra"])
    problems = [*_unknown_keys(cfg, schema, "")]
    problems += [f"{key}: no value given; set {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]
    if problems:
        raise ConfigError(problems)
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), cfg))
    except OmegaConfBaseException as error:
        raise ConfigError([one_line(error)]) from error


def one_line(error: Exception) -> str:
    """An OmegaConf or Hydra message without its appendix of internals."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("full_key:", "object_type=", "reference_type="))]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")), "")
    text = " ".join(kept) or type(error).__name__
    return f"{key}: {text}" if key and key not in text else text


def hint(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(known)


def _unknown_keys(node: DictConfig, schema: type, prefix: str) -> Iterator[str]:
    if not is_dataclass(schema):
        return
    known = {f.name: f for f in fields(schema)}
    for key in node:
        path = f"{prefix}{key}"
        if key not in known:
            yield f"{path}: there is no such setting; {hint(str(key), list(known))}"
            continue
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_missing() and not child._is_none():
            yield from _unknown_keys(child, OmegaConf.get_type(child), path + ".")


def settings_of(config: Config) -> dict[str, Any]:
    """All settings by dotted key."""

    def walk(node: Any, prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for f in fields(node):
            value, key = getattr(node, f.name), f"{prefix}{f.name}"
            flat |= walk(value, f"{key}.") if is_dataclass(value) else {key: value}
        return flat

    return walk(config, "")


def check(config: Config) -> None:
    """Refuse settings that cannot work together. Raises ConfigError with one line per problem."""
    problems = list(_not_finite(config)) or list(_problems(config))
    if problems:
        raise ConfigError(problems)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> Iterator[str]:
    if value not in allowed:
        yield f"{name}: got {value!r}; must be one of {', '.join(allowed)}"


def _at_least(name: str, value: float | None, least: float, strictly: bool = False) -> Iterator[str]:
    if value is None:
        return
    if value < least or (strictly and value == least):
        yield f"{name}: got {value:g}; must be {'above' if strictly else 'at least'} {least:g}"


def _not_finite(config: Config) -> Iterator[str]:
    for key, value in settings_of(config).items():
        numbers = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for number in numbers:
            if isinstance(number, float) and not math.isfinite(number):
                yield f"{key}: got {number}; must be a finite number"


def _names(c: Config) -> Iterator[str]:
    """What becomes part of a path must stay in its place and be the same on every system."""
    for key, value in (("scale.name", c.scale.name), ("data.corpus", c.data.corpus)):
        if not re.fullmatch(NAME, value) or "__" in value or value in RESERVED_NAMES:
            yield f"{key}: got {value!r}; must be a name of letters, digits, . _ - and not one of {RESERVED_NAMES}"
    trunk = c.branch.trunk
    if trunk is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", trunk):
        yield f"branch.trunk: got {trunk!r}; must be the name of a run"
    suffix = c.schedule.suffix
    if not re.fullmatch(r"[A-Za-z0-9-]{0,32}", suffix) or (suffix == "trunk") != (c.schedule.kind == "trunk"):
        yield f"schedule.suffix: got {suffix!r}; must be letters, digits or -, and 'trunk' for a trunk and nothing else"
    for key, value in (("paths.runs", c.paths.runs), ("paths.artifacts", c.paths.artifacts)):
        if not value.strip():
            yield f"{key}: got {value!r}; must name a directory"


def _problems(c: Config) -> Iterator[str]:
    yield from _names(c)
    yield from _mixture_problems(c)
    yield from _tok_problems(c)
    yield from _shape_problems(c)
    yield from _data_problems(c)
    schedule_problems = list(_schedule_problems(c))
    yield from schedule_problems
    if not schedule_problems and c.batch.tokens >= 1:
        yield from _axis_problems(c)
    for name in ("accelerator", "precision"):
        allowed = {"accelerator": ("auto", "cpu", "gpu"), "precision": ("bf16", "fp32")}[name]
        yield from _one_of(f"trainer.{name}", getattr(c.trainer, name), allowed)
    for name in ("devices", "num_nodes", "micro_batch", "loss_chunk"):
        yield from _at_least(f"trainer.{name}", getattr(c.trainer, name), 1)
    yield from _at_least("trainer.workers", c.trainer.workers, 0)
    yield from _one_of("logger.kind", c.logger.kind, ("csv", "tensorboard", "wandb", "mlflow"))
    yield from _at_least("train.log_every_steps", c.train.log_every_steps, 1)
    yield from _at_least("train.checkpoint_every_tokens", c.train.checkpoint_every_tokens, 0, strictly=True)
    yield from _at_least("evaluation.every_tokens", c.evaluation.every_tokens, 0, strictly=True)
    for name in ("parallel_segments", "holdout_docs"):
        yield from _at_least(f"evaluation.{name}", getattr(c.evaluation, name), 1)
    yield from _at_least("evaluation.batch_tokens", c.evaluation.batch_tokens, c.model.context)
    seeds = {"seed": c.seed} | ({"data_seed": c.data_seed} if c.data_seed != c.seed else {})
    for name, value in seeds.items():
        if not 0 <= value < 2**32:
            yield f"{name}: got {value}; must be in 0 .. 2^32-1"


def _mixture_problems(c: Config) -> Iterator[str]:
    langs, probs = c.mixture.langs, c.mixture.probs
    if not langs or len(set(langs)) != len(langs):
        yield f"mixture.langs: got {langs}; must be one or more different languages"
    for where, names in (("mixture.langs", langs), ("tok.langs", c.tok.langs)):
        for lang in names:
            if lang not in LANGUAGES:
                yield f"{where}: unknown language {lang!r}; {hint(lang, list(LANGUAGES))}"
    if probs is not None:
        if len(probs) != len(langs):
            yield f"mixture.probs: got {len(probs)} values for {len(langs)} languages; one for each of {langs}"
        elif not all(p > 0 for p in probs):
            yield f"mixture.probs: got {probs}; every share must be above 0"
        elif abs(sum(Fraction(str(p)) for p in probs) - 1) > Fraction(1, 10**9):
            yield f"mixture.probs: got {probs}, which sum to {sum(probs):g}; must sum to 1"


def _tok_problems(c: Config) -> Iterator[str]:
    tok = c.tok
    yield from _one_of("tok.condition", tok.condition, ("starved", "destarved"))
    if (tok.flavor, tok.condition) == ("pa", "starved"):
        yield "tok: pa_starved cannot exist: parity-aware BPE needs aligned text in every language; use pa_destarved"
    else:
        yield from _one_of("tok.flavor", tok.flavor, FLAVORS)
    yield from _one_of("tok.match", tok.match, ("content", "bytes"))
    yield from _one_of("tok.byte_premium", tok.byte_premium, ("table", "parallel"))
    yield from _at_least("tok.parity_window", tok.parity_window, 1)
    yield from _at_least("tok.parity_alpha", tok.parity_alpha, 1)
    if tok.byte_premium == "parallel" and c.data.parallel is None:
        yield "tok.byte_premium: parallel, but data.parallel is null; use tok.byte_premium=table"
    if tok.flavor == "pa" and c.data.parallel is None:
        yield "tok.flavor: pa balances languages on parallel text, but data.parallel is null; name a file"
    if not 260 <= tok.vocab_size <= 65536:
        yield f"tok.vocab_size: got {tok.vocab_size}; must be in 260 (bytes and special tokens) .. 65536 (uint16)"
    yield from _at_least("tok.temperature", tok.temperature, 1)
    if not tok.langs or len(set(tok.langs)) != len(tok.langs):
        yield f"tok.langs: got {tok.langs}; must be one or more different languages"


def _shape_problems(c: Config) -> Iterator[str]:
    m = c.model
    for name in ("dim", "layers", "heads", "ffn_dim", "context"):
        yield from _at_least(f"model.{name}", getattr(m, name), 1)
    if m.heads >= 1 and (m.dim % m.heads or m.dim // m.heads % 2):
        yield f"model.heads: {m.heads} heads of dim {m.dim} give a head size of {m.dim / m.heads:g}; must be even"
    for name, value in (("model.rope_base", m.rope_base), ("model.norm_eps", m.norm_eps)):
        yield from _at_least(name, value, 0, strictly=True)
    yield from _at_least("model.z_loss", m.z_loss, 0)
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(c.optim, name) < 1:
            yield f"optim.{name}: got {getattr(c.optim, name):g}; must be in 0 .. 1"
    for name in ("eps", "clip_norm"):
        yield from _at_least(f"optim.{name}", getattr(c.optim, name), 0, strictly=True)
    yield from _at_least("optim.weight_decay", c.optim.weight_decay, 0)
    if m.context >= 1 and (c.batch.tokens < m.context or c.batch.tokens % m.context):
        below = max(0, c.batch.tokens // m.context * m.context)
        valid = [str(n) for n in (below, below + m.context) if n > 0]
        yield (
            f"batch.tokens: got {c.batch.tokens}; must be a multiple of the context length {m.context}; "
            f"nearest: {' or '.join(valid)}"
        )


def _data_problems(c: Config) -> Iterator[str]:
    data = c.data
    yield from _one_of("data.holdout_by", data.holdout_by, ("id", "text"))
    yield from _one_of("data.missing", data.missing, ("build", "error"))
    yield from _one_of("branch.missing", c.branch.missing, ("train", "error"))
    if not 0 < data.holdout_fraction < 1:
        yield f"data.holdout_fraction: got {data.holdout_fraction:g}; must be between 0 and 1"
    for setting, given in (("files", data.files), ("hub", data.hub), ("budget_bytes", data.budget_bytes)):
        for lang in given:
            if lang not in LANGUAGES:
                yield f"data.{setting}.{lang}: unknown language; {hint(lang, list(LANGUAGES))}"
    for lang, specs in data.hub.items():
        if data.files.get(lang):
            yield f"data.hub.{lang}: set, and data.files.{lang} as well; a corpus has one kind of source"
        if not specs or not all(spec.rpartition("/")[0] and spec.rpartition("/")[2] for spec in specs):
            yield f"data.hub.{lang}: got {specs}; must be a list of OWNER/NAME/CONFIG[@REVISION] or DIRECTORY/CONFIG"
    if data.hub and data.holdout_by == "id":
        yield "data.holdout_by: got 'id'; documents of the hub are split by their text"
    for lang, amount in data.budget_bytes.items():
        yield from _at_least(f"data.budget_bytes.{lang}", amount, 0, strictly=True)
    yield from _at_least("data.sample_bytes", data.sample_bytes, 1)
    yield from _at_least("data.max_document_bytes", data.max_document_bytes, 1)
    yield from _at_least("data.world_languages", data.world_languages, len(c.tok.langs) + 1)
    if data.hub and data.sample_bytes is None:
        yield "data.sample_bytes: null, but the hub has no end; say how much text a vocabulary is learned from"
    if data.flores and data.parallel is None:
        yield "data.flores: true, but data.parallel is null; name the file that FLORES+ is kept in"
    needed = dict.fromkeys(c.mixture.langs, "the mixture trains on it")
    for lang in c.tok.langs:
        needed.setdefault(lang, f"tokenizers learn from it, or set tok.langs (now {','.join(c.tok.langs)})")
    for lang, why in needed.items():
        if lang in LANGUAGES and not data.files.get(lang) and lang not in data.hub:
            yield f"data.files: nothing for {lang!r}, but {why}; set data.files.{lang}=FILE"
    if c.tok.condition == "starved" and data.world is None and data.world_hub is None:
        yield "data.world: null, but a starved tokenizer is learned from it; name a jsonl of `lang`, `text`"
    if data.world_hub is not None and not data.world_hub.strip("/@"):
        yield f"data.world_hub: got {data.world_hub!r}; must be OWNER/NAME[@REVISION] or a directory"
    if c.tok.condition == "starved" and data.world_hub is not None:
        for lang in c.tok.langs:
            if lang in LANGUAGES and lang not in data.hub:
                yield f"data.world_hub: set, but data.hub has no {lang}, whose share would follow from its size there"
    if data.world is not None and data.world_hub is not None:
        yield "data.world_hub: set, and data.world as well; the world's text has one source"


def _schedule_problems(c: Config) -> Iterator[str]:
    s = c.schedule
    yield from _one_of("schedule.kind", s.kind, ("wsd", "trunk", "cooldown"))
    yield from _one_of("schedule.decay_shape", s.decay_shape, tuple(DECAY_SHAPES))
    yield from _at_least("schedule.peak_lr", s.peak_lr, 0, strictly=True)
    yield from _at_least("schedule.min_lr", s.min_lr, 0)
    if s.min_lr > s.peak_lr:
        yield f"schedule.min_lr: got {s.min_lr:g}; must not be above schedule.peak_lr={s.peak_lr:g}"
    for name in ("warmup_tokens", "stable_tokens", "decay_tokens"):
        yield from _at_least(f"schedule.{name}", getattr(s, name), 0)
    yield from _at_least("scale.token_scale", c.scale.token_scale, 0, strictly=True)
    if s.kind == "trunk" and s.decay_tokens:
        yield f"schedule.decay_tokens: got {s.decay_tokens:g}; a trunk does not decay, use a cooldown or schedule=wsd"
    if s.kind == "cooldown" and not s.decay_tokens:
        yield "schedule.decay_tokens: got 0; a cooldown must decay"
    if s.kind == "cooldown" and c.branch.mark is None:
        yield "branch.mark: null; a cooldown needs the position at which it leaves its trunk, say branch.mark=24e9"
    if s.kind != "cooldown" and (c.branch.mark is not None or c.branch.trunk is not None):
        yield f"branch: set, but schedule.kind={s.kind} does not branch; use schedule=cooldown_30b"
    yield from _at_least("branch.mark", c.branch.mark, 0, strictly=True)


def _axis_problems(c: Config) -> Iterator[str]:
    """Problems of the token axis: what collides or comes to nothing when positions round to steps."""
    s = c.schedule
    start = c.branch.mark or 0.0
    end = start + s.warmup_tokens + s.stable_tokens + s.decay_tokens
    if end > c.mixture.budget_tokens:
        name = "-".join(c.mixture.langs)
        yield (
            f"schedule: {s.kind} ends at {end:g} tokens, but mixture {name} has a budget of "
            f"{c.mixture.budget_tokens:g}; use schedule=wsd, or raise mixture.budget_tokens"
        )
    schedule = Schedule.from_config(c)
    if schedule.end_step <= schedule.start_step:
        yield (
            f"schedule: {end - start:g} tokens at scale.token_scale={c.scale.token_scale:g} are less than half a "
            f"batch of batch.tokens={c.batch.tokens}; nothing would be trained"
        )
    elif s.decay_tokens and schedule.decay_end_step <= schedule.stable_end_step:
        yield (
            f"schedule.decay_tokens: {s.decay_tokens:g} at scale.token_scale={c.scale.token_scale:g} rounds to no "
            f"update of batch.tokens={c.batch.tokens}; make the batch smaller or token_scale larger"
        )
    marks = c.train.stable_marks
    for mark in marks:
        if not start < mark <= end:
            yield f"train.stable_marks: {mark:g} is not within this run's {start:g} .. {end:g} tokens"
        elif s.decay_tokens and mark > end - s.decay_tokens:
            yield f"train.stable_marks: {mark:g} lies in the decay, which starts at {end - s.decay_tokens:g}"
    try:
        steps_of_marks(marks, c.batch.tokens, c.scale.token_scale)
    except ValueError as error:
        yield f"train.stable_marks: {error}"
    if c.branch.mark is not None and schedule.start_step == 0:
        yield f"branch.mark: {c.branch.mark:g} is step 0 at this scale; nothing to branch from"


def check_batch_divides(config: Config, world_size: int) -> None:
    """Raises ConfigError, naming the nearest valid batches, unless devices x micro-batch divides the windows."""
    context, micro = config.model.context, config.trainer.micro_batch
    windows, unit = config.batch.tokens // context, world_size * (micro or 1)
    if windows % unit == 0:
        return
    below = windows // unit * unit
    valid = [str(n * context) for n in (below, below + unit) if n > 0]
    shares = f"{world_size} devices" + (f" x micro-batch {micro}" if micro else "")
    fits = [n for n in range(1, windows // world_size + 1) if windows % (world_size * n) == 0]
    instead = f", or trainer.micro_batch {min(fits, key=lambda n: abs(n - micro))}" if micro and fits else ""
    raise ConfigError(
        [
            f"batch.tokens: {config.batch.tokens} is {windows} windows, which {shares} do not divide; "
            f"nearest valid: {' or '.join(valid)}{instead}"
        ]
    )


def check_flavor(flavor: str, setting: str) -> None:
    """Raises ConfigError for a tokenizer flavor that there is not."""
    if flavor not in FLAVORS:
        raise ConfigError([f"{setting}: there is no flavor {flavor!r}; {hint(str(flavor), list(FLAVORS))}"])
