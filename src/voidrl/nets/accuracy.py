"""The share of rows in which the right candidate has the highest score."""

from __future__ import annotations

import torch
from torch import Tensor


def top1_accuracy(scores: Tensor, right: Tensor) -> Tensor:
    """The mean over (B, candidates) of whether `right`, (B,), is the highest score of its row.

    A tie counts as a guess among the m tied scores, 1/m: where all scores are equal, as after a collapse, the
    accuracy is that of chance. `right` must be taken from `scores`, so that it compares as equal to itself.
    """
    return top1_hits(scores, right).mean()


def top1_hits(scores: Tensor, right: Tensor) -> Tensor:
    """Whether it is, of each row, (B,), with ties as in `top1_accuracy`."""
    scores, right = scores.detach(), right.detach()
    best = scores.amax(1)  # (B,)
    # In int32, since PyTorch counts several times slower in int64; and NaN is equal to nothing.
    ties = (scores == best[:, None]).sum(1, dtype=torch.int32).clamp(min=1)  # (B,)
    return (right == best) / ties
