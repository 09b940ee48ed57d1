"""Replicates of loss curves: resampled documents, and noise from one checkpoint to the next.

One draw of documents serves every model, checkpoint and tokenizer, so that what all of them find hard
cancels in their differences. Segments of one id are drawn together in all languages.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from experiment.evaluation.points import Series

DOCUMENTS, CHECKPOINTS, SEEDS = "documents", "checkpoints", "seeds"
COVERS = {"documents": [DOCUMENTS], "checkpoints": [CHECKPOINTS], "documents+checkpoints": [DOCUMENTS, CHECKPOINTS]}
"""Name of a kind of replicate -> the sources of error that it varies."""


class Draws:
    """How often each document is drawn in each replicate, of one source."""

    def __init__(self, ids_of: Mapping[str, Sequence[str]], replicates: int, rng: np.random.Generator):
        """`ids_of`: language -> document ids.

        Documents are drawn with replacement among those that are there in the same languages, so no
        language is ever left without any.
        """
        languages: dict[str, list[str]] = {}
        for lang in sorted(ids_of):
            for name in ids_of[lang]:
                languages.setdefault(name, []).append(lang)
        strata: dict[tuple[str, ...], list[str]] = {}
        for name in sorted(languages):
            strata.setdefault(tuple(languages[name]), []).append(name)
        self._column: dict[str, int] = {}
        counts = []
        for key in sorted(strata):
            names = strata[key]
            self._column |= {name: len(self._column) + i for i, name in enumerate(names)}
            counts.append(rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=replicates))
        self._counts = np.concatenate(counts, axis=1).astype(np.float64) if counts else np.zeros((replicates, 0))

    def of(self, ids: Sequence[str]) -> np.ndarray:
        """float64 [replicates, documents]: the counts of these documents."""
        return self._counts[:, [self._column[name] for name in ids]]


def resampled_bpb(series: Series, draws: Draws) -> np.ndarray:
    """float64 [replicates, points]: ratios of sums over the drawn documents."""
    assert series.nll is not None and series.doc_bytes is not None
    counts = draws.of(series.doc_ids)
    return (counts @ series.nll.T) / (np.log(2) * (counts @ series.doc_bytes))[:, None]


def checkpoint_variance(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Variance of BPB from one checkpoint to the next, over several curves (tokens [points], bpb [points]).

    Mean square of the normalised third divided difference over log tokens, which is zero for any
    quadratic: what is left is noise and not the curve's own bend. None with fewer than four points.
    """
    squares: list[float] = []
    for tokens, bpb in curves:
        x = np.log(tokens)
        for start in range(len(x) - 3):
            here = x[start : start + 4]
            weights = np.array([1 / np.prod([here[i] - here[j] for j in range(4) if j != i]) for i in range(4)])
            squares.append(float((weights @ bpb[start : start + 4]) ** 2 / (weights @ weights)))
    return float(np.mean(squares)) if squares else None


def replicate_curves(
    series: Series,
    draws: Draws | None,
    variance: float | None,
    replicates: int,
    rng: np.random.Generator,
    all_have_documents: bool = True,
) -> dict[str, np.ndarray]:
    """Kind of replicate -> BPB float64 [replicates, points], before it is made monotone.

    Where a series of the source lacks its documents' scores, all have replicates of the checkpoints alone as well.
    """
    kinds: dict[str, np.ndarray] = {}
    noise = None
    if variance is not None:
        noise = rng.normal(0.0, np.sqrt(variance), (replicates, len(series.tokens)))
    if draws is not None and series.nll is not None:
        kinds["documents"] = resampled_bpb(series, draws)
        if noise is not None:
            kinds["documents+checkpoints"] = kinds["documents"] + noise
    if noise is not None and (not kinds or not all_have_documents):
        kinds["checkpoints"] = series.bpb + noise
    return kinds
