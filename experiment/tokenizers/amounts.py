"""How much of each language a tokenizer's training text holds."""

from collections.abc import Mapping


def destarved_amounts(
    available: Mapping[str, float], weights: Mapping[str, float], total: float | None = None
) -> dict[str, int]:
    """UTF-8 bytes to take of each language so that all hold the same: `weights` are byte premiums, or ones.

    As much as `total` allows, and as the language that has least for its weight.
    """
    content = min(size / weights[lang] for lang, size in available.items())
    if total is not None:
        content = min(content, total / sum(weights[lang] for lang in available))
    return {lang: int(content * weights[lang]) for lang in available}


def temperature_amounts(
    available: Mapping[str, float], total: float, temperature: float, sizes: Mapping[str, float] | None = None
) -> dict[str, int]:
    """UTF-8 bytes to take of each language: shares p ~ n^(1/T), and what a language lacks goes to the others.

    n is what `sizes` says, else what is `available`. Where all of it is less than `total`, everything is taken.
    """
    weights = {lang: (sizes or available)[lang] ** (1 / temperature) for lang in available}
    amounts: dict[str, int] = {}
    open_langs = sorted(available)
    left = total
    while open_langs:
        norm = sum(weights[lang] for lang in open_langs)
        short = [lang for lang in open_langs if available[lang] <= left * weights[lang] / norm]
        if not short:
            return amounts | {lang: int(left * weights[lang] / norm) for lang in open_langs}
        for lang in short:
            amounts[lang] = int(available[lang])
            left -= available[lang]
            open_langs.remove(lang)
    return amounts
