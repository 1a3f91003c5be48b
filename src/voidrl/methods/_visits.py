"""Visit counts of states that hardly ever repeat exactly: hash codes, tables and recounts.

Whatever may run inside a captured CUDA graph (`forward` of each class, `recount`) reads nothing back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import Config as RunConfig
from voidrl.config import MethodConfig, OptionalSize, Size, registry, require
from voidrl.config.checks import between
from voidrl.methods.base import Latents, Method
from voidrl.nets.augment import center_crop
from voidrl.nets.observations import mask_width, symlog, unpack
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

DEFAULT_BITS = {"image": 128, "vector": 32, "latent": 32}
WIDE = 2**54  # buckets without a table: two different codes practically never share one
LUMA = (77 / 256, 150 / 256, 29 / 256)  # of red, green, blue; in 256ths, so that sums of bytes are exact
IMAGE_SIZE = 21  # side to which images are average-pooled, in pixels; smaller ones are read as they are


@dataclass(frozen=True)
class VisitConfig(MethodConfig):
    """Hash codes and their counts."""

    source: Literal["auto", "image", "latent"] = "auto"
    """Counted states: codes of a small gray `image` (or of a vector), or codes of the `latent` z. `auto`:
    `latent` if the representation has a loss, else `image`."""
    bits: Annotated[int, between(0, 4096)] = 0
    """Bits of a code; more tell more states apart. 0: 128 for images, 32 for vectors and latents."""
    table_size: Annotated[int, between(1, 2**26)] = 2**22
    """Counts in the table, 8 bytes each. With fewer than 2^bits, codes share them at random."""
    pool: Size = 256
    """States drawn from the replay in each update to recount the codes of latents."""
    recounted: OptionalSize = 4096
    """The newest codes of drawn states, from which visits of latents are estimated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"at least pool = {self.pool}, better several times that"
        require(self.recounted >= self.pool, "recounted", self.recounted, expected)


def small_gray(obs: Tensor, spec: EnvSpec, side: int) -> Tensor:
    """(B, h, w): the newest frame of images, gray, in [0, 1], average-pooled to at most `side` × `side`.

    Bytes are summed without rounding, so that a state gives the same numbers in a batch of any size.
    """
    images = unpack(obs, spec)[0] if spec.num_values else obs
    channels = spec.frame_shape[0]
    frame = center_crop(images, spec.frame_shape[1:])[:, -channels:].float()  # (B, C, H, W)
    if channels == len(LUMA):
        gray: Tensor = sum(frame[:, i] * weight for i, weight in enumerate(LUMA))  # type: ignore[assignment]
    else:
        gray = frame.mean(1)
    small = F.adaptive_avg_pool2d(gray[:, None], [min(side, size) for size in gray.shape[1:]])  # type: ignore[arg-type]
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

    def __init__(self, dim: int, bits: int, buckets: int = WIDE) -> None:
        super().__init__()
        self.buckets = min(buckets, 2**bits)
        self.projection = nn.Buffer(torch.randn(dim, bits, dtype=torch.float64))
        own = 2 ** torch.arange(min(bits, 62))
        self.weights = nn.Buffer(own if 2**bits <= buckets else torch.randint(buckets, (bits,)))

    @torch.no_grad()
    def bits(self, x: Tensor) -> Tensor:
        """(B, bits), booleans."""
        return x.double() @ self.projection > 0

    def forward(self, x: Tensor) -> Tensor:
        """(B, dim) → (B,) int64, the bucket of each code."""
        return (self.bits(x) * self.weights).sum(1) % self.buckets  # type: ignore[no-any-return]


class VisitTable(nn.Module):
    """Exact numbers of visits of each bucket."""

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.counts = nn.Buffer(torch.zeros(buckets, dtype=torch.int64))
        self.total = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.distinct = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.sum_n_log_n = nn.Buffer(torch.zeros(1, dtype=torch.float64))

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

    def forward(self, buckets: Tensor) -> Tensor:
        """(B,) int64: visits of each bucket."""
        return self.counts[buckets]


class CodeSample(nn.Module):
    """The newest codes of states drawn from the replay, for counts in a space that moves.

    As the encoder learns, a state's code changes, and what was counted under the old one is lost. So nothing
    is stored for long: every update hashes some states with the current encoder, and the newest `size` codes
    are the sample.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.codes = nn.Buffer(torch.full((size,), -1))
        self.head = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.valid = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.equal = nn.Buffer(torch.zeros(()))  # share of equal pairs of codes in the newest states
        self.distinct = nn.Buffer(torch.zeros((), dtype=torch.int64))

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


class VisitMethod(Method):
    """Counts the hash codes of the states that environments reach.

    Codes of observations have a table, with one visit for every step of the environments. The codes of
    latents change while f learns: there every update hashes some of the replay with the current f, and that
    sample is what is counted.
    """

    config: VisitConfig
    reads_latents = False
    counts_visits = True
    prefix: ClassVar[str]
    """Prefix of the metrics' names."""

    def __init__(self, spec: EnvSpec, config: VisitConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.source = _source(config, type(representation))
        """`auto` resolved."""
        if self.source == "latent":
            self.hash = SimHash(representation.dim, config.bits or DEFAULT_BITS["latent"])
            self.sample = CodeSample(config.recounted)
        else:
            bits = config.bits or DEFAULT_BITS["image" if spec.pixels else "vector"]
            self.hash = SimHash(hash_width(spec, IMAGE_SIZE), bits, config.table_size)
            self.table = VisitTable(self.hash.buckets)

    @classmethod
    def uses_latents(cls, config: RunConfig) -> bool:
        """Only if latents are counted."""
        assert isinstance(config.method, VisitConfig)
        representation = registry.find("representation", config.representation.name)
        return _source(config.method, representation) == "latent"

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> None:
        """Count the states that were reached; of latents a sample is counted instead."""
        if self.source == "image":
            self.table.add(self.bucket(obs))

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """No losses; but f has moved, so hash some states with the current f, once per update."""
        if self.source == "latent":
            self.sample.recount(self.hash(latents.pool(self.config.pool)))
        return iter(())

    def visits(self, table: VisitTable | None, batch: Batch, latents: Latents) -> tuple[Tensor, Tensor]:
        """Visits of s', (B,), and of all states, in a table or, without one, in the sample of latents."""
        if table is not None:
            return table(self.bucket(batch.next_obs)), table.total
        return self.sample(self.hash(latents.z_next)), self.sample.valid

    def metrics(self) -> Metrics:
        """How even the visits are, and how fine the codes."""
        if self.source == "latent":
            return {f"{self.prefix}_equal_codes": self.sample.equal}
        found = {"codes": self.table.distinct.float(), "entropy": self.table.entropy}
        return {f"{self.prefix}_{name}": value for name, value in found.items()}

    def bucket(self, obs: Tensor) -> Tensor:
        """(B,) int64: the entry of the table for each observation."""
        return self.hash(hash_input(obs, self.spec, IMAGE_SIZE))  # type: ignore[no-any-return]


def _source(config: VisitConfig, representation: type[Representation]) -> str:
    """The source, with `auto` resolved."""
    if config.source != "auto":
        return config.source
    return "latent" if representation.has_loss else "image"
