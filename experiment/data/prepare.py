"""Everything a run reads, found or built: sources, corpora, tokenizer, shards."""

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, checksum
from experiment.data.corpus import corpus, hub_corpus
from experiment.data.parallel import parallel_segments
from experiment.data.shards import TokenStream, shards
from experiment.data.sources import Pinned, SourceFile, files_of, list_files, pinned
from experiment.errors import ExperimentError
from experiment.matrix.names import tok_name
from experiment.matrix.runs import tokens_needed
from experiment.tokenizers.sample import sample_amounts, weights_of
from experiment.tokenizers.tokenizer import tokenizer_artifact
from experiment.tokenizers.world import world_corpus

SPARE = 1.1
"""What a corpus from the hub holds for each byte that is needed: rates measured on a sample are not exact."""


@dataclass(frozen=True)
class Prepared:
    corpora: dict[str, Artifact]
    """Per language of the mixture."""
    tokenizer: Artifact
    shards: dict[str, Artifact]
    """Per language of the mixture."""
    parallel: str | None
    """sha256 of the parallel text; None where there is none."""

    @property
    def fingerprints(self) -> dict[str, Any]:
        return {
            "corpora": {lang: found.fingerprint for lang, found in self.corpora.items()},
            "tokenizer": self.tokenizer.fingerprint,
            "shards": {lang: found.fingerprint for lang, found in self.shards.items()},
            "parallel": self.parallel,
        }


def prepare(config: Config, workers: int = 1) -> Prepared:
    """Build what is missing, and see that all of it can be used. Nothing is built with data.missing=error.

    Raises ExperimentError or RunRefused as the parts do.
    """
    stages = Stages(config, workers)
    langs = config.mixture.langs
    tokenizer = stages.tokenizer()
    packed = {lang: stages.shards(lang) for lang in langs}
    for found in packed.values():
        TokenStream(found).windows(config.model.context)
    parallel_segments(config.data, langs)
    parallel = None if config.data.parallel is None else checksum(Path(config.data.parallel))
    return Prepared({lang: stages.corpus(lang) for lang in langs}, tokenizer, packed, parallel)


class Stages:
    """What one run is prepared from, each piece found or built when it is asked for.

    Files: corpora, from them the tokenizer, from both the shards. Hub: the files of the sources are pinned, a sample of
    each language is drawn, tokenizers are learned from the samples, their rates say how much text a corpus must hold.
    """

    def __init__(self, config: Config, workers: int = 1):
        self.config, self.workers = config, workers
        self.root = Path(config.paths.artifacts)
        self.may_build = config.data.missing == "build"
        for name in ("files", "text", "corpus", "tokenizer", "shards"):  # each asked for several times
            setattr(self, name, cache(getattr(self, name)))

    def files(self, lang: str) -> tuple[SourceFile, ...]:
        """The files of a language's data sets on the hub, as they were when they were first listed."""
        data = self.config.data

        def find() -> dict[str, Any]:
            return {"files": [asdict(file) for file in list_files(data.hub[lang], f"data.hub.{lang}")]}

        return pinned(
            self.root,
            f"{data.corpus}-{lang}",
            data.hub[lang],
            f"the sources of {lang} are not listed yet",
            find,
            lambda record: files_of(record["files"]),
            self.may_build,
        )

    def text(self, lang: str) -> Artifact:
        """What a tokenizer may learn from of a language: its corpus, or from the hub a sample across its files."""
        data = self.config.data
        if lang not in data.hub:
            return self.corpus(lang)
        weights = weights_of(self.config)
        assert data.sample_bytes is not None
        amount = int(data.sample_bytes * weights[lang] / sum(weights.values()) * SPARE)
        return hub_corpus(data, lang, self.root, Pinned(self.files(lang), amount), self.workers, sample=True)

    def world(self) -> Artifact | None:
        """The sample of the world's languages from the hub; None where it is a file, or not needed."""
        config = self.config
        if config.tok.condition == "destarved" or config.data.world_hub is None:
            return None
        texts = {lang: self.text(lang) for lang in config.tok.langs}
        sizes = {lang: sum(f.bytes for f in self.files(lang)) if lang in config.data.hub else 0 for lang in texts}
        study = {lang: (float(sizes[lang]), float(found.facts["train"]["bytes"])) for lang, found in texts.items()}
        return world_corpus(config, self.root, study, sum(sample_amounts(config, texts).values()), self.workers)

    def tokenizer(self) -> Artifact:
        texts = {lang: self.text(lang) for lang in self.config.tok.langs}
        return tokenizer_artifact(self.config, texts, self.root, self.world())

    def budget(self, lang: str) -> dict[str, Any]:
        """How much text of a language from the hub is kept: what was asked for, or what the matrix needs at this scale
        by the destarved tokenizer's bytes per token, as it was when it was first worked out."""
        config = self.config
        if (asked := config.data.budget_bytes.get(lang)) is not None:
            return {"budget_bytes": int(asked), "from": f"data.budget_bytes.{lang}"}
        tokens = tokens_needed()[lang] * config.scale.token_scale

        def find() -> dict[str, Any]:
            destarved = replace(config, tok=replace(config.tok, condition="destarved"))
            rates = Stages(destarved, self.workers).tokenizer().facts["bytes_per_token"]
            if lang not in rates:
                raise ExperimentError(
                    f"data.budget_bytes.{lang}: null, but no tokenizer learns from {lang} to tell what is needed; "
                    f"give the bytes, or have {lang} among tok.langs"
                )
            tok = tok_name(config.tok.flavor, "destarved")
            source = f"{tokens:.4g} tokens of {rates[lang]:.3f} bytes ({tok}), {SPARE:g} times"
            return {"budget_bytes": int(tokens * rates[lang] * SPARE), "from": source}

        def read(record: dict[str, Any]) -> dict[str, Any]:
            if int(record["budget_bytes"]) < 1:
                raise ValueError("its budget is not above 0")
            return {"budget_bytes": int(record["budget_bytes"]), "from": str(record["from"])}

        about = [config.data.hub[lang], tokens]
        name = f"{config.data.corpus}-{lang}-{config.scale.name}-budget"
        return pinned(self.root, name, about, f"how much {lang} is needed is not known yet", find, read, self.may_build)

    def corpus(self, lang: str) -> Artifact:
        data = self.config.data
        if lang not in data.hub:
            return corpus(data, lang, self.root, self.workers)
        files = Pinned(self.files(lang), int(self.budget(lang)["budget_bytes"]))
        return hub_corpus(data, lang, self.root, files, self.workers)

    def shards(self, lang: str) -> Artifact:
        return shards(self.config, lang, self.corpus(lang), self.tokenizer(), self.root, self.workers)
