"""Parallel text: aligned segments, the same content in every language. FLORES+ is fetched and checked here."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiment.config.schema import Data
from experiment.data.files import one_line, quiet_datasets, records
from experiment.errors import ExperimentError, Missing
from experiment.matrix.languages import LANGUAGES
from experiment.run_directory import write_atomically

FLORES = "openlanguagedata/flores_plus"
FLORES_SENTENCES = {"dev": 997, "devtest": 1012}


def parallel_segments(data: Data, langs: Sequence[str]) -> list[dict[str, Any]]:
    """The aligned segments with an `id` and each of the languages; empty where the data has none."""
    if data.parallel is None:
        return []
    if data.flores and not Path(data.parallel).exists():
        raise Missing(
            f"data.parallel: {data.parallel}: FLORES+ is not there yet; python -m experiment.prepare with the same "
            "settings fetches it"
        )
    rows = list(records(data.parallel, "data.parallel", ("id", *langs), also=("split",)))
    if not rows:
        raise ExperimentError(f"data.parallel: {data.parallel} has no rows")
    if data.flores:
        _check_flores(rows, langs, f"data.parallel: {data.parallel}")
    return rows


def development_segments(data: Data, langs: Sequence[str]) -> list[dict[str, Any]]:
    """The part of the parallel text that a tokenizer may look at: its `dev` split, or where rows have no split,
    the half that the hash of their id chooses. The other part judges."""
    return [row for row in parallel_segments(data, langs) if is_development(row)]


def is_development(row: dict[str, Any]) -> bool:
    """Whether a parallel segment is for development, not for judging."""
    if row.get("split"):
        return row["split"] == "dev"
    return hashlib.sha256(str(row["id"]).encode("utf-8")).digest()[0] < 128


def fetch_flores(data: Data) -> None:
    """Write FLORES+ (CC BY-SA 4.0, gated), both splits in the languages known here, to `data.parallel` if missing.

    Raises ExperimentError where this user or machine has no access, or where what came is not FLORES+.
    """
    assert data.parallel is not None
    path = Path(data.parallel)
    if path.exists():
        return
    rows: list[dict[str, Any]] = []
    for split in FLORES_SENTENCES:
        texts = {
            lang: dict(flores(lang, split, "data.flores", "data.flores=false data.parallel=FILE")) for lang in LANGUAGES
        }
        for name in texts["en"]:
            rows.append(
                {"id": f"{split}-{name}", "split": split} | {lang: texts[lang].get(name, "") for lang in LANGUAGES}
            )
    _check_flores(rows, list(LANGUAGES), "data.flores: what the hub gave")
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def flores(lang: str, split: str, setting: str, instead: str) -> list[tuple[str, str]]:
    """(id, text) of a split of FLORES+ from the hub. Raises ExperimentError: the setting, and what to do `instead`."""
    try:
        rows = quiet_datasets().load_dataset(FLORES, LANGUAGES[lang].flores, split=split)
    except Exception as error:  # the hub's client raises many kinds for no access, no network and no such data set
        raise ExperimentError(
            f"{setting}: {FLORES} cannot be had ({one_line(error)[:200]}); it takes a network, accepting its terms on "
            f"the hub and `hf auth login`; or {instead}"
        ) from error
    return [(str(row["id"]), row["text"]) for row in rows]


def _check_flores(rows: Sequence[dict[str, Any]], langs: Sequence[str], where: str) -> None:
    """FLORES+ is known by its numbers of sentences and of bytes; another text in its place is never taken for it."""
    wrong = []
    for split, sentences in FLORES_SENTENCES.items():
        if (found := sum(row.get("split") == split for row in rows)) != sentences:
            wrong.append(f"{found} {split} sentences, not {sentences}")
    for lang in langs:
        found, known = sum(len(str(row[lang]).encode("utf-8")) for row in rows), LANGUAGES[lang].flores_bytes
        if found != known:
            wrong.append(f"{found} bytes of {lang}, not {known}")
    if wrong:
        raise ExperimentError(f"{where} is not FLORES+: {'; '.join(wrong)}; remove the file, or set data.flores=false")


def byte_premiums(data: Data, langs: Sequence[str]) -> dict[str, float]:
    """UTF-8 bytes of each language over those of English for the same segments of the parallel text."""
    rows = parallel_segments(data, list(dict.fromkeys(["en", *langs])))
    if not rows:
        raise ExperimentError("tok.byte_premium: parallel, but data.parallel is null; use tok.byte_premium=table")
    sizes = {lang: sum(len(row[lang].encode("utf-8")) for row in rows) for lang in {"en", *langs}}
    return {lang: sizes[lang] / sizes["en"] for lang in langs}
