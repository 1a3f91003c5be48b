"""Visit counts of states that hardly ever repeat exactly: hash codes, tables and recounts.

All state is in buffers that are changed in place. Whatever may run inside a captured CUDA graph (`forward` of
each class, `recount`) reads nothing back to the host.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.nets.augment import center_crop
from voidrl.nets.observations import mask_width, symlog, unpack
from voidrl.types import EnvSpec

WIDE = 2**54  # buckets without a table: two different codes practically never share one
LUMA = (77 / 256, 150 / 256, 29 / 256)  # of red, green, blue; in 256ths, so that sums of bytes are exact


def small_gray(obs: Tensor, spec: EnvSpec, side: int) -> Tensor:
    """(B, h, w): the newest frame of images, gray, in [0, 1], average-pooled to at most `side` × `side`.

    Bytes are summed without rounding, so that a state gives the same numbers in a batch of any size.
    """
    images = unpack(obs, spec)[0] if spec.num_values else obs
    channels = spec.frame_shape[0]
    frame = center_crop(images, spec.frame_shape[1:])[:, -channels:].float()  # (B, C, H, W)
    if channels == len(LUMA):
        gray = sum(frame[:, i] * weight for i, weight in enumerate(LUMA))
        assert isinstance(gray, Tensor)
    else:
        gray = frame.mean(1)
    height, width = gray.shape[1:]
    small = F.adaptive_avg_pool2d(gray[:, None], (min(side, height), min(side, width)))
    return small[:, 0] / 255


def hash_input(obs: Tensor, spec: EnvSpec, side: int) -> Tensor:
    """(B, `hash_width`): what SimHash reads of an observation's newest frame; masks are left out.

    Images are small and gray, in [−½, ½]. Numbers pass through symlog, whatever their units, and a constant 1
    is appended, since SimHash alone sees only the direction of a vector.
    """
    parts = [(small_gray(obs, spec, side) - 0.5).flatten(1)] if spec.pixels else []
    if spec.num_values or not spec.pixels:
        numbers = unpack(obs, spec)[1] if spec.pixels else obs
        newest = numbers.unflatten(1, (spec.frame_stack, -1))[:, -1].float()
        seen = newest[:, : newest.shape[1] - mask_width(spec)]
        parts += [symlog(seen), torch.ones_like(seen[:, :1])]
    return torch.cat(parts, 1)


def hash_width(spec: EnvSpec, side: int) -> int:
    """Width of `hash_input`."""
    pixels = min(side, spec.frame_shape[1]) * min(side, spec.frame_shape[2]) if spec.pixels else 0
    numbers = spec.num_values if spec.pixels else spec.frame_shape[0]
    return pixels + (numbers - mask_width(spec) + 1 if numbers else 0)


class SimHash(nn.Module):
    """Locality-sensitive hash codes sign(A x), A Gaussian (Charikar 2002), as numbers of buckets.

    Two vectors at an angle θ agree in a bit with probability 1 − θ/π. Where 2^bits ≤ `buckets`, every code
    has a bucket of its own. Otherwise a bucket is a sum of random weights of the bits that are set, modulo
    `buckets`: two different codes share one with probability 1 / `buckets`.

    A is drawn from PyTorch's global random state and saved. Products are in float64, which autocast leaves
    alone: in narrower types the bits of a state would depend on the batch in which it is hashed.
    """

    projection: Tensor
    weights: Tensor

    def __init__(self, dim: int, bits: int, buckets: int = WIDE) -> None:
        super().__init__()
        self.buckets = min(buckets, 2**bits)
        self.register_buffer("projection", torch.randn(dim, bits, dtype=torch.float64))
        own = 2 ** torch.arange(min(bits, 62))
        self.register_buffer("weights", own if 2**bits <= buckets else torch.randint(buckets, (bits,)))

    @torch.no_grad()
    def bits(self, x: Tensor) -> Tensor:
        """(B, bits), booleans."""
        return x.double() @ self.projection > 0

    def forward(self, x: Tensor) -> Tensor:
        """(B, dim) → (B,) int64, the bucket of each code."""
        buckets: Tensor = (self.bits(x) * self.weights).sum(1) % self.buckets
        return buckets


class VisitTable(nn.Module):
    """Exact numbers of visits of each bucket."""

    counts: Tensor
    total: Tensor
    distinct: Tensor
    sum_n_log_n: Tensor

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(buckets, dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))
        self.register_buffer("distinct", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sum_n_log_n", torch.zeros(1, dtype=torch.float64))

    @torch.no_grad()
    def add(self, buckets: Tensor) -> None:
        """Count one visit for each of (n,)."""
        before = self.counts[buckets]
        self.counts.index_add_(0, buckets, torch.ones_like(buckets))
        after = self.counts[buckets]
        self.total.add_(len(buckets))
        # A bucket that comes m times in (n,) changes by m, so that each of them is 1/m of its change.
        share = 1 / (after - before).double()
        self.distinct.add_(((before == 0) * share).sum().round().long())
        change = torch.xlogy(after, after.double()) - torch.xlogy(before, before.double())
        self.sum_n_log_n.add_((change * share).sum())

    @property
    def entropy(self) -> Tensor:
        """−Σ p log p over all buckets, p being their shares of the visits, in nats: log N − Σ n log n / N."""
        total = self.total.double().clamp(min=1)
        return (total.log() - self.sum_n_log_n[0] / total).float()

    def copy_(self, other: VisitTable) -> None:
        """Take over the counts of another table."""
        for mine, theirs in zip(self.buffers(), other.buffers(), strict=True):
            mine.copy_(theirs)

    def forward(self, buckets: Tensor) -> Tensor:
        """(B,) int64: visits of each bucket."""
        return self.counts[buckets]


class CodeSample(nn.Module):
    """The newest codes of states drawn from the replay, for counts in a space that moves.

    As the encoder learns, a state's code changes, and what was counted under the old one is lost. So nothing
    is stored for long: every update hashes some states with the current encoder, and the newest `size` codes
    are the sample.
    """

    codes: Tensor
    head: Tensor
    valid: Tensor
    equal: Tensor
    distinct: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.full((size,), -1))
        self.register_buffer("head", torch.zeros((), dtype=torch.int64))
        self.register_buffer("valid", torch.zeros((), dtype=torch.int64))
        self.register_buffer("equal", torch.zeros(()))  # share of equal pairs of codes in the newest states
        self.register_buffer("distinct", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def recount(self, codes: Tensor) -> None:
        """Replace the oldest codes by (n,) new ones, n ≤ `size`."""
        n, size = len(codes), len(self.codes)
        slots = (self.head + torch.arange(n, device=codes.device)) % size
        self.codes.index_copy_(0, slots, codes)
        self.head.copy_((self.head + n) % size)
        self.valid.add_(n).clamp_(max=size)
        self.equal.copy_((self(codes) - 1).sum() / ((self.valid - 1).clamp(min=1) * n))
        ordered = self.codes.sort().values  # empty slots first
        self.distinct.copy_(((ordered.diff() != 0) & (ordered[1:] >= 0)).sum() + (ordered[0] >= 0))

    def forward(self, codes: Tensor) -> Tensor:
        """(B,) int64: how many codes of the sample equal each of these."""
        return (codes[:, None] == self.codes).sum(1)
