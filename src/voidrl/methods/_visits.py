"""Visits of hash codes, of observations or of latents, for count-based methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from torch import Tensor

from voidrl.config import Config as RunConfig
from voidrl.config import MethodConfig, OptionalSize, Size, registry, require
from voidrl.config.checks import between
from voidrl.methods.base import Latents, Method
from voidrl.nets.counting import CodeSample, SimHash, VisitTable, hash_input, hash_width
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

DEFAULT_BITS = {"image": 128, "vector": 32, "latent": 32}
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


class Visits(NamedTuple):
    """How often states were visited, of how many visits that were counted."""

    n: Tensor  # (B,) int64
    total: Tensor  # () int64


class VisitMethod(Method):
    """Counts the hash codes of the states that environments reach.

    Codes of observations have a table, with one visit for every step of the environments. The codes of
    latents change while f learns: there every update hashes some of the replay with the current f, and that
    sample is what is counted.
    """

    config: VisitConfig
    reads_latents = False
    counts_visits = True

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

    def visits(self, table: VisitTable | None, batch: Batch, latents: Latents) -> Visits:
        """Visits of s', in a table or, without one, in the sample of latents."""
        if table is not None:
            return Visits(table(self.bucket(batch.next_obs)), table.total)
        return Visits(self.sample(self.hash(latents.z_next)), self.sample.valid)

    def bucket(self, obs: Tensor) -> Tensor:
        """(B,) int64: the entry of the table for each observation."""
        bucket: Tensor = self.hash(hash_input(obs, self.spec, IMAGE_SIZE))
        return bucket


def _source(config: VisitConfig, representation: type[Representation]) -> str:
    """The source, with `auto` resolved."""
    if config.source != "auto":
        return config.source
    return "latent" if representation.has_loss else "image"
