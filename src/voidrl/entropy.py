"""k-nearest-neighbor distances, particle entropy (eq. 1), weighted or not, and particle reward (eq. 5).

Everything here takes and returns tensors, works without the rest of voidrl, and may run inside a captured
CUDA graph: shapes are static and there are no host reads.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.errors import ConfigError, NeighborError
from voidrl.kernels import usable

# Queries and distances held at once: 16 MiB on a CPU, 64 MiB to fill a GPU.
_MAX_QUERIES = 1024
_MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**24}


@torch.no_grad()
def knn_distances(queries: Tensor, particles: Tensor, k: int, *, exclude_self: bool = False) -> Tensor:
    """Distances from (n, d) queries to their k nearest of (m, d) particles, ascending: (n, k) float32.

    Exact to float32 rounding, even for close points far from the origin: distances come from differences,
    never from ‖a‖² + ‖b‖² − 2ab, which cancels. Memory grows with n + m, not n × m. With `exclude_self`,
    `particles[i]` is `queries[i]` for every i < n, and is not its own neighbor. The index is masked, not the
    value: another copy of a point is a neighbor at distance 0.
    """
    _check(queries, particles, k, exclude_self)
    if usable(queries) and _wide_dtype(queries, particles) == torch.float32:
        from voidrl.kernels import knn  # imports Triton

        if k <= knn.MAX_K:
            return knn.knn_distances(queries, particles, k, exclude_self)  # type: ignore[no-any-return]
    # In plain PyTorch, for CPUs, float64 and very many neighbors.
    return _knn(*_widen(queries, particles), k, exclude_self)[0].float()


@torch.no_grad()
def random_distances(queries: Tensor, particles: Tensor, k: int, *, exclude_self: bool = False) -> Tensor:
    """Distances to k different particles drawn uniformly for each query, ascending (Table 4's ablation).

    Arguments and result are those of `knn_distances`; the draw uses PyTorch's global random state.
    """
    _check(queries, particles, k, exclude_self)
    queries, particles = _widen(queries, particles)
    n, available = len(queries), len(particles) - int(exclude_self)
    index = torch.rand(n, available, device=queries.device).topk(k).indices  # (n, k), without replacement
    if exclude_self:  # the draw was among the others: step over the query's own index
        index += index >= torch.arange(n, device=queries.device)[:, None]
    distances: Tensor = torch.linalg.vector_norm(queries[:, None] - particles[index], dim=-1)  # (n, k)
    return distances.sort(dim=1).values.float()


@torch.no_grad()
def particle_entropy(z: Tensor, k: int = 3) -> Tensor:
    """Kozachenko–Leonenko estimate of the entropy of the distribution of z, in nats (eq. 1 and 2).

    The bias correction is b(k) = log k − ψ(k). Eq. 1 is kept as printed, with log n. The k-th of n − 1 others
    has E[log mass] = ψ(k) − ψ(n), so this is 1/2n too high and log(n − 1) would be 1/2n too low: neither
    matters next to the estimator's error.

    A particle with k or more exact copies has radius 0 and would make the estimate −inf. In continuous data
    such copies come from rounding (20000 float32 draws from [0, 1) contain about ten pairs), so the spacing
    of floats at that point is used as the radius. With many copies there is no density: the estimate is
    finite and very low, and means no more than that. (n, d) → 0-d float64; NaN gives NaN.
    """
    log_volume = _log_ball(z, knn_distances(z, z, k, exclude_self=True)[:, -1])  # (n,) log v_i^k, eq. 2
    psi = torch.full_like(log_volume[0], k).digamma()
    return log_volume.mean() + math.log(len(z)) - psi  # eq. 1: −log(k/n) + b(k) = log n − ψ(k)


class Neighborhoods(NamedTuple):
    """The k nearest others of each of n particles, and the ball that holds them."""

    index: Tensor  # type: ignore[assignment]  # (n, k)
    log_volume: Tensor  # (n,) float64, of the ball out to the k-th of them


@torch.no_grad()
def neighborhoods(z: Tensor, k: int, *, min_radius: float = 0.0) -> Neighborhoods:
    """The neighborhoods of (n, d) particles, searched in blocks: memory grows with n, not n².

    Balls are at least `min_radius` times as wide as the mean one, so that a particle with many copies counts
    as crowded and not as infinitely so. Each copy has neighbors of its own among the others, drawn at random:
    the same few for all would carry the weight of the rest. The host reads whether there are such copies.
    """
    _check(z, z, k, exclude_self=True)
    z, _ = _widen(z, z)
    distances, index = _knn(z, z, k, exclude_self=True)
    radius = distances[:, -1].float()
    least = min_radius * radius.mean()
    if (radius == 0).any():
        apart = 0.1 * torch.maximum(least, _spacing(z).max()) / math.sqrt(z.shape[1])
        moved = z + apart * torch.randn_like(z)
        index = _knn(moved, moved, k, exclude_self=True)[1]
    return Neighborhoods(index, _log_ball(z, radius.clamp(min=least)))


def weighted_entropy(hoods: Neighborhoods, log_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of a distribution p of which the particles are weighted samples, and KL(q, p), in nats.

    The particles are drawn from q; `log_weight`, (n,), is log p/q up to a constant. With W_i the weight in
    the neighborhood of particle i, scaled so that all of them add up to 1,

        Ĥ = −Σ W_i log(W_i / V_i) − ψ(k),    K̂L = −1/n Σ log(n W_i).

    Equal weights give `particle_entropy` and exactly 0. K̂L is never negative. Both are 0-d float64 and carry
    the gradients of `log_weight`. Where a weight underflows to 0, K̂L is infinite.
    """
    n, k = hoods.index.shape
    weight = log_weight.double().softmax(0)
    mass = weight[hoods.index].sum(1)  # (n,)
    log_mass = mass.log() - mass.sum().log()
    psi = torch.full_like(hoods.log_volume[0], k).digamma()
    entropy = (log_mass.exp() * (hoods.log_volume - log_mass)).sum() - psi
    return entropy, -log_mass.mean() - math.log(n)


def _spacing(z: Tensor) -> Tensor:
    """(n,) float64: distance between floats at each of (n, d) particles."""
    info = torch.finfo(z.dtype)
    return (info.eps * z.double().norm(dim=1)).clamp(min=info.tiny)  # type: ignore[no-any-return]


def _log_ball(z: Tensor, radius: Tensor) -> Tensor:
    """(n,) float64: log-volumes of balls around (n, d) particles; 0 is replaced as in `particle_entropy`."""
    z, _ = _widen(z, z)
    d, radius, spacing = z.shape[1], radius.double(), _spacing(z)
    log_unit_ball = d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)
    return d * torch.where(radius == 0, spacing, radius).log() + log_unit_ball


@torch.no_grad()
def particle_reward(
    z: Tensor,
    *,
    particles: Tensor | None = None,
    own_first: bool = False,
    k: int = 5,
    c: float = 1.0,
    include_self: bool = False,
    average: bool = True,
    neighbors: Literal["nearest", "random"] = "nearest",
) -> Tensor:
    """The reward of APT before normalization, log(c + mean_j ‖z − z_j‖) over k neighbors (eq. 5): (n,).

    The equation has the power dim(z) of the distance, the authors' code 1.

    Args:
        z: (n, d) the particles to reward.
        particles: (m, d) pool of possible neighbors, none of which is excluded; by default z itself.
        own_first: The particles begin with z, and none of z is its own neighbor.
        k: number of neighbors.
        c: the constant of eq. 4, at least 0; with 0 a point that equals all its neighbors gets −inf.
        include_self: count the point itself as one of its k neighbors, as the authors' code does: k = 12 is
            then the mean of 11 distances and a zero.
        average: False uses only the k-th neighbor (eq. 3).
        neighbors: `"random"` draws them uniformly instead (Table 4); the k-th is then the farthest drawn.
    """
    pool = z if particles is None else particles
    exclude_self = particles is None or own_first  # with include_self, the point's zero is added below
    _check(z, pool, k, exclude_self, include_self)
    search = random_distances if neighbors == "random" else knn_distances
    distances = search(z, pool, k - int(include_self), exclude_self=exclude_self)  # (n, k) or (n, k − 1)
    if not average:
        distances = distances[:, -1:]  # (n, 1)
    count = k if average else 1  # includes the point's own distance of 0
    mean = distances.mean(dim=1) if count == distances.shape[1] else distances.sum(dim=1) / count  # (n,)
    return mean.log1p() if c == 1 else (mean + c).log()


class RunningMean(nn.Module):
    """Running mean of positive numbers; dividing the reward by it, or at least by `floor`, keeps its scale.

    The state is three buffers, changed in place: `total` and `count` in float64 (so that a long run does not
    stop moving) and `mean`, their quotient, in float32. Before the first update the mean is 1: no scaling.
    `momentum` is None for the mean of everything seen, otherwise the factor in [0, 1) by which the weight of
    the past shrinks at each update; as `total` and `count` shrink alike, the start is not biased.
    """

    def __init__(self, momentum: float | None = None, floor: float = 1e-8) -> None:
        super().__init__()
        self.momentum, self.floor = momentum, floor
        self.mean = nn.Buffer(torch.ones(()))
        # Not 0-d: torch.compile treats 0-d float64 tensors as Python numbers and loses writes to them.
        self.total = nn.Buffer(torch.zeros(1, dtype=torch.float64))
        self.count = nn.Buffer(torch.zeros(1, dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch of any shape; an empty one changes nothing. The batches of all ranks are one.

        With a `mask` of the same shape, only those where it is True count, at least one.
        """
        is_distributed = dist.current().is_distributed
        if x.numel() == 0 and not is_distributed:
            return
        x = x if mask is None else x.masked_fill(~mask, 0)
        total, count = x.sum(dtype=torch.float64), x.numel() if mask is None else mask.sum()
        if is_distributed:
            total, count = dist.sum_(torch.stack([total, torch.zeros_like(total) + count])).unbind()
        if self.momentum is not None:
            momentum = _unless_empty(self.momentum, count) if is_distributed else self.momentum
            self.total.mul_(momentum)
            self.count.mul_(momentum)
        self.total.add_(total)
        self.count.add_(count)
        mean = self.total / self.count
        if is_distributed:  # the parts of all ranks may have been empty
            mean = torch.where(self.count > 0, mean, self.mean)
        self.mean.copy_(mean[0])

    def forward(self, x: Tensor) -> Tensor:
        """Divide x by the mean."""
        return x / self.mean.clamp(min=self.floor)


class RunningMoments(nn.Module):
    """Running mean and standard deviation of a stream, element by element (Chan et al. 1979).

    What ranks add at the same time is one batch: they exchange its moments, and all have the same state. The
    state is in buffers that are changed in place: the moments in float64, so that a long run does not
    stop moving them, and `mean` and `std` (at least `floor`) in float32. Before the first update they are 0
    and 1. `momentum` is that of `RunningMean`.
    """

    def __init__(
        self, shape: tuple[int, ...] = (1,), floor: float = 1e-8, momentum: float | None = None
    ) -> None:
        super().__init__()
        self.floor, self.momentum = floor, momentum
        self.mean = nn.Buffer(torch.zeros(shape))
        self.std = nn.Buffer(torch.ones(shape))
        self.count = nn.Buffer(torch.zeros(1, dtype=torch.float64))
        self.center = nn.Buffer(torch.zeros(shape, dtype=torch.float64))
        self.squares = nn.Buffer(torch.zeros(shape, dtype=torch.float64))  # Σ (x − center)²

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Update with a batch (n, *shape), of numbers also (n,); an empty batch changes nothing."""
        is_distributed = dist.current().is_distributed
        if len(x) == 0 and not is_distributed:
            return
        x = x.view(len(x), *self.mean.shape).double()
        n, mean, squares = _moments_of_ranks(x) if is_distributed else _moments(x)
        if self.momentum is not None:
            momentum = _unless_empty(self.momentum, n) if is_distributed else self.momentum
            self.count.mul_(momentum)
            self.squares.mul_(momentum)
        delta = mean - self.center
        count = self.count + n
        total = count.clamp(min=1) if is_distributed else count  # the parts of all ranks may have been empty
        self.squares.add_(squares + delta.square() * self.count * n / total)
        self.center.add_(delta * n / total)
        self.count.copy_(count)
        self.mean.copy_(self.center)
        std = (self.squares / total).sqrt().clamp(min=self.floor)
        self.std.copy_(torch.where(count > 0, std, self.std) if is_distributed else std)

    def standardize(self, x: Tensor) -> Tensor:
        """(x − mean) / std."""
        return (x - self.mean) / self.std

    def scale(self, x: Tensor) -> Tensor:
        """Divide x by the standard deviation, without centering."""
        return x / self.std


def _moments(x: Tensor) -> tuple[int, Tensor, Tensor]:
    """Number, mean and squared deviations of (n, *shape)."""
    mean = x.mean(0)
    return len(x), mean, (x - mean).square().sum(0)


def _moments_of_ranks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_moments`, (1,) and *shape twice, of the batches of all ranks together, some of which may be empty."""
    mean = x.sum(0) / max(1, len(x))
    squares = (x - mean).square().sum(0)
    n = torch.full_like(mean.flatten()[:1], len(x))
    own = torch.cat([n, mean.flatten(), squares.flatten()])
    parts = dist.all_gather(own[None])  # (ranks, 1 + 2 · numbers)
    counts = parts[:, :1]
    means, squares_within = parts[:, 1:].chunk(2, 1)
    together = (counts * means).sum(0) / counts.sum().clamp(min=1)
    squares = squares_within.sum(0) + (counts * (means - together).square()).sum(0)
    return counts.sum(0), together.view_as(mean), squares.view_as(mean)


def _unless_empty(momentum: float, count: Tensor | int) -> Tensor:
    """The momentum, or 1 for a batch of no elements, which is known only on the device."""
    assert isinstance(count, Tensor)
    return torch.where(count > 0, momentum, torch.ones_like(count))


def _check(
    queries: Tensor, particles: Tensor, k: int, exclude_self: bool, include_self: bool = False
) -> None:
    shapes = f"got queries {tuple(queries.shape)} and particles {tuple(particles.shape)}"
    if queries.ndim != 2 or particles.ndim != 2 or queries.shape[1] != particles.shape[1]:
        raise ConfigError(f"neighbors need tensors (n, d) and (m, d) with the same d; {shapes}")
    if exclude_self and len(queries) > len(particles):
        raise ConfigError(f"exclude_self needs a pool that starts with the queries themselves; {shapes}")
    available = max(0, len(particles) - int(exclude_self))  # int: torch.compile cannot trace n − True
    fewest, most = 1 + int(include_self), available + int(include_self)
    if not fewest <= k <= most:
        raise NeighborError(
            f"k = {k} neighbors cannot be found among {available} {'other ' * exclude_self}particles"
            f"{', where the point itself counts as a neighbor' * include_self}: expected {fewest} to {most}; "
            f"lower k, or use more particles (a larger batch or pool)"
        )


def _knn(queries: Tensor, particles: Tensor, k: int, exclude_self: bool) -> tuple[Tensor, Tensor]:
    """Distances to the k nearest particles, ascending, and their indices, (n, k) each; block by block."""
    elements = _MAX_ELEMENTS.get(queries.device.type, _MAX_ELEMENTS["cuda"])
    chunk_size = max(1, elements // max(1, min(len(queries), _MAX_QUERIES)))
    rows = []
    for i, block in enumerate(queries.split(_MAX_QUERIES)):
        nearest, index = block.new_empty(len(block), 0), block.new_empty(len(block), 0, dtype=torch.int64)
        for j, chunk in enumerate(particles.split(chunk_size)):
            distances = torch.cdist(block, chunk, compute_mode="donot_use_mm_for_euclid_dist")  # (q, c)
            if exclude_self:  # NaN sorts after every distance; a NaN query gets only NaN
                distances.diagonal(i * _MAX_QUERIES - j * chunk_size).fill_(math.nan)
            found, where = distances.topk(min(k, distances.shape[1]), largest=False)  # (q, ≤ k)
            where = where + j * chunk_size
            if j:
                found, where = torch.cat([nearest, found], dim=1), torch.cat([index, where], dim=1)
                found, best = found.topk(min(k, found.shape[1]), largest=False)
                where = where.gather(1, best)
            nearest, index = found, where
        rows.append((nearest, index))
    distances, index = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return distances, index


def _wide_dtype(queries: Tensor, particles: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(queries.dtype, particles.dtype), torch.float32)


def _widen(queries: Tensor, particles: Tensor) -> tuple[Tensor, Tensor]:
    dtype = _wide_dtype(queries, particles)
    return queries.to(dtype), particles.to(dtype)
