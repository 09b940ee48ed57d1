"""The world's text, which a starved vocabulary is learned from: a file of it, or a sample of a data set of the hub."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from experiment.config.schema import Config, Data
from experiment.data.artifacts import Artifact, artifact, checksum
from experiment.data.corpus import FACTS, is_holdout, read_split
from experiment.data.files import records, require_file
from experiment.data.parts import Advance, build_parts
from experiment.data.sources import SourceFile, config_names, files_of, list_files, pinned, read_column, split_revision
from experiment.errors import ExperimentError
from experiment.matrix.languages import LANGUAGES
from experiment.run_directory import write_atomically
from experiment.tokenizers.amounts import temperature_amounts

LISTED_AT_ONCE = 8
ACROSS = 8  # files that a language's text is drawn from
SCHEMA = pa.schema([("lang", pa.string()), ("text", pa.string())])

Pieces = dict[str, Callable[[], Iterator[tuple[str, str]]]]
"""Language -> its (key, text), read anew by each call."""


def world_fingerprint(config: Config, world: Artifact | None) -> str | None:
    """What the starved text comes from; None for a destarved vocabulary."""
    if config.tok.condition == "destarved":
        return None
    if world is not None:
        return world.fingerprint
    return checksum(require_file(str(config.data.world), "data.world"))


def world_pieces(
    config: Config, corpora: Mapping[str, Artifact], world: Artifact | None
) -> tuple[Pieces, dict[str, float] | None]:
    """The world's text by language, without what stands in the holdout, and how much there is of each in all (bytes
    on the hub; None where it is what is here)."""
    if world is None:
        return _pieces_of_file(config.data, corpora), None
    by_lang: dict[str, list[str]] = {lang: [] for lang in world.facts["bytes"]}
    for batch in pq.ParquetFile(world.path / "world.parquet").iter_batches():
        for lang, text in zip(batch["lang"].to_pylist(), batch["text"].to_pylist(), strict=True):
            by_lang[lang].append(text)
    pieces: Pieces = {lang: _keyed(lang, texts) for lang, texts in by_lang.items()}
    for lang in config.tok.langs:
        pieces[lang] = lambda found=corpora[lang]: read_split(found, "train")
    return pieces, dict(world.facts["sizes"])


def _keyed(lang: str, texts: list[str]) -> Callable[[], Iterator[tuple[str, str]]]:
    return lambda: ((f"{lang}:{number}:{text}", text) for number, text in enumerate(texts))


def _pieces_of_file(data: Data, corpora: Mapping[str, Artifact]) -> Pieces:
    held_out = {
        line for found in corpora.values() for _, text in read_split(found, "holdout") for line in text.splitlines()
    }
    assert data.world is not None
    lines: dict[str, list[str]] = {}
    for row in records(data.world, "data.world", ("lang", "text")):
        lines.setdefault(row["lang"], []).append(row["text"])
    return {
        lang: _keyed(
            lang,
            [
                line
                for line in "".join(texts).splitlines(keepends=True)
                if line.strip() and line.rstrip("\r\n") not in held_out
            ],
        )
        for lang, texts in lines.items()
    }


def pin_world(config: Config, root: Path) -> dict[str, tuple[SourceFile, ...]]:
    """Language -> its files: the largest languages of `data.world_hub` beside the study's. Listed once, then kept."""
    data = config.data
    assert data.world_hub is not None
    study = sorted(LANGUAGES[lang].fineweb for lang in config.tok.langs)
    count = data.world_languages - len(config.tok.langs)

    def find() -> dict[str, Any]:
        names = [name for name in config_names(str(data.world_hub), "data.world_hub") if name not in study]
        if len(names) < count:
            raise ExperimentError(
                f"data.world_languages: got {data.world_languages}, but {data.world_hub} has only {len(names)} beside "
                f"the {len(config.tok.langs)} of tok.langs; at most {len(names) + len(config.tok.langs)}"
            )
        repository, revision = split_revision(str(data.world_hub))
        at = f"@{revision}" if revision else ""
        with ThreadPoolExecutor(LISTED_AT_ONCE) as pool:  # FineWeb2 has some 1,800 of them
            listing = pool.map(lambda name: list_files([f"{repository}/{name}{at}"], "data.world_hub"), names)
            files = dict(zip(names, tqdm(listing, "languages listed", len(names), delay=2), strict=True))
        largest = sorted(files, key=lambda name: (-sum(file.bytes for file in files[name]), name))
        return {"files": {name: [asdict(file) for file in files[name]] for name in sorted(largest[:count])}}

    return pinned(
        root,
        f"{data.corpus}-world",
        [data.world_hub, study, count],
        "the world's languages are not listed yet",
        find,
        lambda record: {lang: files_of(files) for lang, files in record["files"].items()},
        data.missing == "build",
    )


def world_corpus(
    config: Config,
    root: Path,
    study: Mapping[str, tuple[float, float]],
    total: int,
    workers: int,
) -> Artifact:
    """`world.parquet` (lang, text): a sample of the hub's other languages, made if it is missing.

    It holds what temperature sampling gives each of them of `total` bytes, documents drawn across files and none of
    the holdout; what a language lacks is given to the others. `study`: the size of each study language on the hub and
    the bytes of its sample. Facts: `bytes` and `sizes` (on the hub) by language, and `exhausted`, the languages that
    have given all they have.
    """
    data = config.data
    files = pin_world(config, root)
    sizes = {lang: float(sum(file.bytes for file in found)) for lang, found in files.items()}
    inputs = {
        "data set": data.world_hub,
        "files": {lang: [file.identity for file in found] for lang, found in files.items()},
        "study": {lang: list(facts) for lang, facts in study.items()},
        "total": total,
        "temperature": config.tok.temperature,
        "rules": [data.text_column, data.holdout_fraction, data.max_document_bytes],
    }

    def sample(out: Path) -> dict[str, Any]:
        everyone = sizes | {lang: size for lang, (size, _) in study.items()}
        available = dict.fromkeys(files, float("inf")) | {lang: held for lang, (_, held) in study.items()}
        held: dict[str, tuple[int, Path]] = {}
        number = 0
        while True:
            amounts = temperature_amounts(available, total, config.tok.temperature, everyone)
            wanted = [lang for lang in files if lang not in held or held[lang][0] < min(amounts[lang], available[lang])]
            if not wanted:
                break
            beside = out / f"round-{number}"
            beside.mkdir(exist_ok=True)
            jobs = [WorldPart(data, lang, files[lang], amounts[lang]) for lang in wanted]
            for lang, (_, place) in zip(
                wanted, build_parts(beside, jobs, write_world_part, workers, "samples world"), strict=True
            ):
                counts = json.loads((place / "counts.json").read_text(encoding="utf-8"))
                held[lang] = (counts["bytes"], place)
                if counts["exhausted"]:
                    available[lang] = counts["bytes"]
            number += 1
        with pq.ParquetWriter(out / "world.parquet", SCHEMA, compression="zstd") as writer:
            for lang in sorted(held):
                texts = pq.read_table(held[lang][1] / "texts.parquet")["text"].combine_chunks()
                writer.write_table(pa.table({"lang": pa.repeat(lang, len(texts)), "text": texts}, SCHEMA))
        exhausted = sorted(lang for lang in files if available[lang] < float("inf"))
        return {"bytes": {lang: held[lang][0] for lang in sorted(held)}, "sizes": everyone, "exhausted": exhausted}

    def build(out: Path) -> dict[str, Any]:
        if not (out / FACTS).exists():
            write_atomically(out / FACTS, json.dumps(sample(out)))
        for left in out.glob("round-*"):
            shutil.rmtree(left)
        return json.loads((out / FACTS).read_text(encoding="utf-8"))

    return artifact(root, "corpora", f"{data.corpus}-world", inputs, build, data.missing == "build", resumable=True)


@dataclass(frozen=True)
class WorldPart:
    """One language of the world's text."""

    data: Data
    lang: str
    files: tuple[SourceFile, ...]
    amount: int


def write_world_part(job: WorldPart, out: Path, advance: Advance) -> None:
    """`amount` bytes in equal shares of up to ACROSS files; where files are too small, more of more files."""
    limit = -(-job.amount // min(ACROSS, len(job.files)))
    while True:
        texts: dict[str, None] = {}  # an ordered set: exact duplicates are dropped
        size, cut = 0, False
        for file in job.files:
            got = 0
            for text, length in _texts(job.data, file):
                if got >= limit or size >= job.amount:
                    cut = True
                    break
                if text not in texts and length <= job.amount:  # a longer one would be many shares
                    texts[text] = None
                    advance(length)
                    got += length
                    size += length
            if size >= job.amount:
                break
        if size >= job.amount or not cut:
            break
        limit *= 4
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), out / "texts.parquet", compression="zstd")
    counts = {"bytes": size, "exhausted": size < job.amount}
    write_atomically(out / "counts.json", json.dumps(counts))


def _texts(data: Data, file: SourceFile) -> Iterator[tuple[str, int]]:
    """The texts of a file that may be learned from, and their UTF-8 bytes."""
    for batch in read_column(file, data.text_column, "data.world_hub"):
        for content in batch:
            if not content or len(content) > data.max_document_bytes:
                continue
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if not is_holdout(text, data.holdout_fraction):
                yield text, len(content)
