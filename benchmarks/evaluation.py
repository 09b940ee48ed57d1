"""BPB scored in batches against one document at a time: python benchmarks/evaluation.py [rounds]

The same model, documents and device; both ways in turn, so that a busy machine slows both. Prints the ratio of
the medians and the largest relative difference of a document's loss.
"""

import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from experiment.config.compose import compose
from experiment.data.corpus import corpus
from experiment.data.parallel import parallel_segments
from experiment.evaluation.bpb import document_nll
from experiment.evaluation.sources import documents
from experiment.tokenizers.tokenizer import load_tokenizer, tokenizer_artifact
from experiment.training.devices import keep_freed_memory
from experiment.training.module import PretrainingModule

SEGMENTS = 400


def main(rounds: int) -> None:
    keep_freed_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory() as directory:
        config = compose(["mixture=en-ar"]).config
        root = Path(directory)
        corpora = {lang: corpus(config.data, lang, root) for lang in config.tok.langs}
        tokenizer = load_tokenizer(tokenizer_artifact(config, corpora, root))
    segments = parallel_segments(config.data, ["en", "ar"])[:SEGMENTS]
    docs = [doc for lang in ("en", "ar") for doc in documents([(row["id"], row[lang]) for row in segments], tokenizer)]
    model = PretrainingModule(config, {}).eval().to(device)

    def score(batch_tokens: int):
        start = time.perf_counter()
        nll = document_nll(model, docs, config.model.context, batch_tokens, device)
        return time.perf_counter() - start, nll

    score(config.evaluation.batch_tokens)  # warm
    batched, single = [], []
    for _ in range(rounds):
        seconds, together = score(config.evaluation.batch_tokens)
        batched.append(seconds)
        seconds, alone = score(1)  # a batch always holds at least one document
        single.append(seconds)
    difference = float(abs(together / alone - 1).max())
    ratio = statistics.median(single) / statistics.median(batched)
    print(f"{len(docs)} segments, {sum(len(doc.ids) - 1 for doc in docs):,} tokens, {device}, {rounds} rounds")
    print(
        f"  one document at a time takes {ratio:.1f} times as long as {config.evaluation.batch_tokens} tokens at once"
    )
    print(f"  largest difference of a document's loss: {difference:.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
