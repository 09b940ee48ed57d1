"""Names of runs, variants and marks: readable, stable, safe as file names on every system."""

import hashlib
import json
import math
import re
from typing import Any

MAX_VARIANT_LENGTH = 80
SPOKEN = {"batch.tokens": "batch", "tok.langs": "tok-langs"}
"""Settings whose last name alone would not say what they are."""


def tok_name(flavor: str, condition: str) -> str:
    return f"{flavor}_{condition}"


def mixture_name(langs: list[str]) -> str:
    return "-".join(langs)


def run_name(mixture: str, tok: str, suffix: str = "", variant: str = "") -> str:
    """`<mixture>__<tok>[__<schedule suffix>][__<variant>]`, say `en-ar__bl_destarved__100b__seed-1`."""
    return "__".join(part for part in (mixture, tok, suffix, variant) if part)


def mark_name(tokens: float) -> str:
    """`stable_24000M` for 24e9 nominal tokens; marks below a million keep their digits (`stable_500k`)."""
    for unit, size in (("M", 10**6), ("k", 10**3), ("", 1)):
        if math.floor(tokens) == tokens and tokens % size == 0:
            return f"stable_{int(tokens) // size}{unit}"
    return f"stable_{tokens!r}"


def variant_suffix(differences: dict[str, Any]) -> str:
    """Readable suffix for settings that differ from the canonical run: `{"seed": 1}` -> `seed-1`.

    `differences` maps dotted keys to values; their order does not matter. What is too long, or
    does not survive as a file name, ends in a hash of the differences.
    """
    parts = []
    lossless = True
    for key in sorted(differences):
        name = SPOKEN.get(key, key.rpartition(".")[2])
        text = _text(differences[key])
        safe = re.sub(r"[^A-Za-z0-9._-]+", "", text)
        lossless &= safe == text and safe == safe.lower()
        parts.append(f"{name}-{safe}")
    suffix = "__".join(parts)
    if lossless and len(suffix) <= MAX_VARIANT_LENGTH:
        return suffix
    digest = hashlib.sha256(json.dumps(differences, sort_keys=True).encode()).hexdigest()[:8]
    return f"{suffix[: MAX_VARIANT_LENGTH - len('__x') - 8].rstrip('-_.')}__x{digest}"


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).replace("e+", "e").removesuffix(".0")
    if isinstance(value, (list, tuple)):
        return "-".join(_text(item) for item in value)
    return str(value)
