"""BPB scored in batches, against one document at a time and against training: python benchmarks/evaluation.py [rounds]

The same model, documents and device; each in turn, so that a busy machine slows all. Prints the ratios of the
medians of tokens per second and the largest relative difference of a document's loss.
"""

import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from measuring import keep, timed

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
    trained = PretrainingModule(config, {}).to(device)
    optimizer = trained.configure_optimizers()
    windows = config.batch.tokens // config.model.context
    batch = torch.randint(0, config.tok.vocab_size, (windows, config.model.context + 1)).to(device)

    def update() -> None:
        trained.losses(batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), config.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    batched, single, training = [], [], []
    timed(update)
    for _ in range(rounds):
        seconds, together = score(config.evaluation.batch_tokens)
        batched.append(seconds)
        seconds, alone = score(1)  # a batch always holds at least one document
        single.append(seconds)
        training.append(timed(lambda: [update() for _ in range(5)]) / 5)
    difference = float(abs(together / alone - 1).max())
    ratio = statistics.median(single) / statistics.median(batched)
    tokens = sum(len(doc.ids) - 1 for doc in docs)
    against_training = tokens / statistics.median(batched) / (config.batch.tokens / statistics.median(training))
    print(f"{len(docs)} segments, {tokens:,} tokens, {device}, {rounds} rounds")
    print(
        f"  one document at a time takes {ratio:.1f} times as long as {config.evaluation.batch_tokens} tokens at once"
    )
    print(f"  {against_training:.1f} times the tokens per second of training")
    keep("evaluation", {"single_over_batched": ratio, "over_training": against_training, "difference": difference})
    print(f"  largest difference of a document's loss: {difference:.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
