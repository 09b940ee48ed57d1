"""Bits per byte: the loss of a text, comparable across tokenizers.

BPB = sum of next-token NLL in nats / (ln 2 * UTF-8 bytes of the text), a ratio of sums. The leading
<bos> is context only, <eos> is a target. Byte counts are those of the original text, never of
decoded tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from experiment.evaluation.scores import DocumentScores
from experiment.model.loss import token_nll

LOGITS_AT_ONCE = 1024  # tokens: with large vocabularies logits are most of the memory
PADDED_TO = 32
PAD_TARGET = 0  # its loss is masked


@dataclass(frozen=True)
class Document:
    name: str
    """Its id, the same in every language of parallel text."""
    ids: Sequence[int]
    """`<bos> text <eos>`."""
    bytes: int
    """UTF-8 bytes of the original text."""


class LanguageModel(Protocol):
    def features(self, ids: Tensor) -> Tensor:
        """ids [batch, time] -> [batch, time, dim]."""

    def logits(self, features: Tensor) -> Tensor:
        """[n, dim] -> [n, vocab]."""


@torch.inference_mode()
def document_nll(
    model: LanguageModel,
    documents: Sequence[Document],
    context: int,
    batch_tokens: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    on_scored: Callable[[int], object] = lambda tokens: None,
) -> np.ndarray:
    """NLL of each document in nats, float64 [documents], the same on every rank.

    A document longer than the context is cut like training text: pieces of `context` targets, each
    with the token before it as context, so that every token but <bos> is a target once. Pieces of
    similar length are scored together; batches are dealt to the ranks, and which batch a piece is in
    does not depend on how many ranks there are. `on_scored` hears of the targets of each batch of this rank.
    """
    pieces = [
        (len(doc.ids[start : start + context + 1]), number, start)
        for number, doc in enumerate(documents)
        for start in range(0, len(doc.ids) - 1, context)
    ]
    pieces.sort(key=lambda piece: (-piece[0], piece[1:]))
    totals = torch.zeros(len(documents), dtype=torch.float64)
    for number, batch in enumerate(_batches(pieces, batch_tokens)):
        if number % world_size != rank:
            continue
        width = -(-(batch[0][0] - 1) // PADDED_TO) * PADDED_TO
        ids = torch.full((len(batch), min(width, context) + 1), PAD_TARGET, dtype=torch.int64)
        for row, (length, doc, start) in enumerate(batch):
            ids[row, :length] = torch.as_tensor(documents[doc].ids[start : start + length])
        lengths = torch.tensor([length - 1 for length, _, _ in batch])
        real = (torch.arange(ids.shape[1] - 1) < lengths[:, None]).to(device)
        ids = ids.to(device, non_blocking=True)
        features, targets = model.features(ids[:, :-1])[real], ids[:, 1:][real]
        nll = torch.cat(
            [
                token_nll(model.logits(some), wanted)
                for some, wanted in zip(features.split(LOGITS_AT_ONCE), targets.split(LOGITS_AT_ONCE), strict=True)
            ]
        )
        on_scored(int(lengths.sum()))
        owners = torch.repeat_interleave(torch.tensor([doc for _, doc, _ in batch]), lengths)
        totals.index_add_(0, owners, nll.double().cpu())
    return sum_over_ranks(totals).numpy()


def scores_of(documents: Sequence[Document], nll: np.ndarray) -> DocumentScores:
    """`nll`: float64 [documents], in nats."""
    sizes = np.array([doc.bytes for doc in documents], dtype=np.int64)
    return DocumentScores(tuple(doc.name for doc in documents), nll, sizes)


def _batches(pieces: list[tuple[int, int, int]], batch_tokens: int) -> list[list[tuple[int, int, int]]]:
    batches: list[list[tuple[int, int, int]]] = []
    for piece in pieces:  # longest first: the first piece of a batch is its width
        if batches and (len(batches[-1]) + 1) * batches[-1][0][0] <= batch_tokens:
            batches[-1].append(piece)
        else:
            batches.append([piece])
    return batches
