"""What learning `pa` costs beside `bl`: python benchmarks/parity_aware.py [MB of text] [entries] [override ...]

Reads, for both alike, the first documents of each study language up to its fifth of the text, so that sizes are
those printed; overrides such as data.files.en=en.jsonl give more than the embedded corpus holds. Each learner has a
process of its own, which tells its seconds with reading and its peak memory; `reading` is the same without learning.
`pa` runs on one core and `bl` on all. What counts for `pa` is the bytes of distinct words, so repeated text is no
substitute for more of it.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from experiment.config.compose import compose
from experiment.config.schema import Data
from experiment.data.files import raw_documents, source_files
from experiment.data.parallel import development_segments
from experiment.tokenizers.byte_level import train_byte_level
from experiment.tokenizers.parity_aware import learn, tokenizer_of, word_counts

LANGS = ("en", "de", "fr", "ar", "zh")


def documents(data: Data, lang: str, size: int) -> Iterator[str]:
    for _, text in raw_documents(data, lang, source_files(data, lang)):
        if size <= 0:
            return
        yield text
        size -= len(text.encode("utf-8"))


def measure(what: str, size: int, entries: int, overrides: list[str]) -> tuple[float, float, str]:
    """Seconds, peak MB of this process, and what came out."""
    data = compose(overrides).config.data
    texts = {lang: documents(data, lang, size) for lang in LANGS}
    segments = development_segments(data, LANGS)
    start = time.perf_counter()
    if what == "reading":
        found = ", ".join(f"{lang} {sum(len(t.encode('utf-8')) for t in texts[lang]) / 1e6:.1f} MB" for lang in LANGS)
    elif what == "words":
        sizes = {lang: sum(len(word) for word in word_counts(texts[lang])) for lang in LANGS}
        found = ", ".join(f"{lang} {size / 1e6:.1f} MB" for lang, size in sizes.items()) + " in distinct words"
    else:
        if what == "bl":
            tokenizer = train_byte_level(chain.from_iterable(texts.values()), entries)
        else:
            development = {lang: [row[lang] for row in segments] for lang in LANGS}
            tokenizer = tokenizer_of(learn(texts, development, entries))
        tokens = {lang: sum(len(tokenizer.encode(row[lang]).ids) for row in segments) for lang in LANGS}
        found = f"{tokenizer.get_vocab_size()} entries; development tokens " + ", ".join(
            f"{lang} {count}" for lang, count in tokens.items()
        )
    seconds = time.perf_counter() - start
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return seconds, int(peak) / 1024, found


def main(megabytes: float, entries: int, overrides: list[str]) -> None:
    for what in ("reading", "words", "bl", "pa"):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            size = int(megabytes * 1e6 / len(LANGS))
            seconds, peak, found = pool.submit(measure, what, size, entries, overrides).result()
        print(f"{what:8}{seconds:8.1f} s {peak:7.0f} MB   {found}", flush=True)


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(*numbers[:1] or [10.0], int((numbers[1:] or [65536])[0]), [a for a in sys.argv[1:] if "=" in a])
