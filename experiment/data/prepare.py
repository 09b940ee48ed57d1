"""Everything a run reads, found or built: corpora, tokenizer, shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.config.schema import Config
from experiment.data.artifacts import Artifact, checksum
from experiment.data.corpus import corpus, parallel_segments
from experiment.data.shards import TokenStream, shards
from experiment.tokenizers.tokenizer import tokenizer_artifact


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


def prepare(config: Config) -> Prepared:
    """Build what is missing, by this process alone, and see that all of it can be used.

    Raises ExperimentError or RunRefused as the parts do.
    """
    root = Path(config.paths.artifacts)
    langs = config.mixture.langs
    corpora = {lang: corpus(config.data, lang, root) for lang in dict.fromkeys([*langs, *config.tok.langs])}
    tokenizer = tokenizer_artifact(config, corpora, root)
    packed = {lang: shards(config, lang, corpora[lang], tokenizer, root) for lang in langs}
    for found in packed.values():
        TokenStream(found).windows(config.model.context)
    parallel_segments(config.data, langs)
    parallel = None if config.data.parallel is None else checksum(Path(config.data.parallel))
    return Prepared({lang: corpora[lang] for lang in langs}, tokenizer, packed, parallel)
