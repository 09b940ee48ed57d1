"""The texts that evaluation points score: holdout documents and parallel segments, as tokens."""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from experiment.config.schema import Config, Data, EvaluationText
from experiment.data.artifacts import Artifact, checksum, recorded_artifact
from experiment.data.corpus import read_split
from experiment.data.files import raw_documents, require_file, source_files
from experiment.data.parallel import FLORES_SENTENCES, flores, parallel_segments
from experiment.errors import ExperimentError, RunRefused
from experiment.evaluation.bpb import Document
from experiment.evaluation.recorded import recorded_fingerprints
from experiment.matrix.identity import Run
from experiment.run_directory import RunDirectory
from experiment.tokenizers.tokenizer import BOS, EOS, Tokenizer, load_tokenizer

T = TypeVar("T")
Sources = dict[str, dict[str, list[Document]]]
"""Source -> language -> documents."""


def evaluation_sources(config: Config, corpora: dict[str, Artifact], tokenizer: Tokenizer) -> Sources:
    """Holdout and parallel text of the run's languages. Where fewer are wanted than there are, the hash
    of their id chooses, so parallel segments are the same ones in every language, run and tokenizer."""
    langs, wanted = config.mixture.langs, config.evaluation.holdout_docs
    sources: Sources = {"holdout": {}, "parallel": {}}
    for lang in langs:
        chosen = _chosen(read_split(corpora[lang], "holdout"), wanted)
        sources["holdout"][lang] = documents(chosen, tokenizer)
    segments = parallel_segments(config.data, langs)
    ordered = _chosen(((row["id"], row) for row in segments), None)
    for lang in langs:
        sources["parallel"][lang] = documents([(name, row[lang]) for name, row in ordered], tokenizer)
    return {source: by_lang for source, by_lang in sources.items() if any(by_lang.values())}


def texts_to_score(run: Run, sources: Sequence[str], given: EvaluationText) -> Sources:
    """The asked sources of a trained run, whole, in its languages and as its tokenizer's ids.

    Corpora and tokenizer are those whose fingerprints the run recorded. Raises RunRefused if they are not there,
    and ExperimentError if a text cannot be had.
    """
    config, directory = run.config, RunDirectory(run.directory)
    recorded, root = recorded_fingerprints(directory), Path(config.paths.artifacts)
    tokenizer = load_tokenizer(recorded_artifact(root, "tokenizers", recorded["tokenizer"]))
    if "flores" in sources and given.flores_split not in FLORES_SENTENCES:
        raise ExperimentError(f"data.flores_split: got {given.flores_split!r}; must be dev or devtest")
    found: Sources = {source: {} for source in sources}
    for source in sources:
        for lang in config.mixture.langs:
            if source == "holdout":
                texts = list(read_split(recorded_artifact(root, "corpora", recorded["corpora"][lang]), "holdout"))
            elif source == "flores":
                texts = flores(
                    lang, given.flores_split, "sources: flores", "sources=[files] data.files.<language>=PATH"
                )
            elif source == "files":
                texts = _texts_of_files(given, lang)
            elif recorded["parallel"] is None:
                texts = []
            else:
                path = require_file(config.data.parallel or "", "data.parallel")
                if checksum(path) != recorded["parallel"]:
                    raise RunRefused(f"data.parallel: {path} is not the parallel text that {run.name} was scored on")
                texts = [(row["id"], row[lang]) for row in parallel_segments(config.data, config.mixture.langs)]
            if texts:
                found[source][lang] = documents(texts, tokenizer)
    return {source: by_lang for source, by_lang in found.items() if by_lang}


def _texts_of_files(given: EvaluationText, lang: str) -> list[tuple[str, str]]:
    if not given.files.get(lang):
        return []
    data = Data(corpus="files", files=given.files, text_column=given.text_column)
    texts = list(raw_documents(data, lang, source_files(data, lang)))
    named = [(name if name is not None else str(number), text) for number, (name, text) in enumerate(texts) if text]
    if len({name for name, _ in named}) < len(named):
        raise ExperimentError(f"data.files.{lang}: documents with the same id cannot be told apart")
    if not named:
        raise ExperimentError(f"data.files.{lang}: {given.files[lang]} has no text")
    return named


def documents(texts: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> list[Document]:
    """`texts`: (id, text) of each document."""
    encoded = tokenizer.encode_batch([text for _, text in texts])
    return [
        Document(name, [BOS, *ids, EOS], len(text.encode("utf-8")))
        for (name, text), ids in zip(texts, encoded, strict=True)
    ]


def _chosen(items: Iterable[tuple[str, T]], wanted: int | None) -> list[tuple[str, T]]:
    """Items in the order of their keys' hashes, the first `wanted` of them, which is all that is held in memory."""

    def place(item: tuple[str, T]) -> bytes:
        return hashlib.sha256(item[0].encode("utf-8")).digest()

    return sorted(items, key=place) if wanted is None else heapq.nsmallest(wanted, items, key=place)
