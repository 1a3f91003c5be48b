"""Contrast between the rows of a batch, and how often the right candidate has the highest score."""

from __future__ import annotations

import torch
from torch import Tensor

from voidrl import dist
from voidrl.nets.spectral import full_precision


def info_nce(
    query: Tensor, key: Tensor, *, bilinear: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The (B,) losses of finding the key of the same row by the largest q W k, and the (B,) hits.

    Candidates are the keys of all ranks. Never in bf16, which would round a product of 10 to 0.03.
    """
    keys = dist.all_gather(key)  # (N, width)
    with full_precision(query):
        query = query.float() if bilinear is None else query.float() @ bilinear
        logits = query @ keys.float().T * scale  # (B, N)
    right = logits.diagonal(dist.current().rank * len(key))
    return logits.logsumexp(1) - right, top1_hits(logits, right)


def top1_hits(scores: Tensor, right: Tensor) -> Tensor:
    """(B,): whether `right`, (B,), is the highest score of its row in (B, candidates).

    A tie counts as a guess among the m tied scores, 1/m: where all scores are equal, as after a collapse, the
    accuracy is that of chance. `right` must be taken from `scores`, so that it compares as equal to itself.
    """
    scores, right = scores.detach(), right.detach()
    best = scores.amax(1)  # (B,)
    # In int32, since PyTorch counts several times slower in int64; and NaN is equal to nothing.
    ties = (scores == best[:, None]).sum(1, dtype=torch.int32).clamp(min=1)  # (B,)
    return (right == best) / ties
