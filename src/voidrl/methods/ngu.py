"""NGU's intrinsic reward: new within the episode, and new to the agent (Badia et al. 2020, "Never Give Up").

Every environment has a memory of the states of its episode, placed by f. When a state is reached, its k
nearest neighbors there say how often the episode has been near it:

    r = α / (√(Σ_k K(z', z_i)) + c),   K(z', z_i) = ε / (max(d²/d²_m − ξ, 0) + ε)

with d the distance and d²_m the running mean of the squared distances to the k neighbors: a copy adds 1, a
state at a usual distance about ε. A new episode forgets, so that the agent returns to what it knows and looks
for more. α, in [1, L], is 1 + the standardized error of RND's predictor and fades as states become familiar.

As in the paper the episodic part is computed when the step is taken, with the f of that time, and stored with
the transition (`batch.note`). α is computed when the transition is drawn, by the predictor as it is then.

Differences from the paper: α is not stored but fresh; only the intrinsic reward, without the family of
policies that mix it with a task's reward, without R2D2 and its recurrent network; f is the representation
`icm`, whose own loss trains it, instead of an embedding of its own, and a slow copy of f can place the states
(`embedding_tau`), as f moves within an episode; the running means forget (`mean_momentum`), since RND's error
falls, and means of everything would pin α to 1 once most of the error is gone. As in the paper fewer than k
neighbors are summed at the beginning of an episode, which makes its first rewards the largest. With k = 10
the largest similarity is √10 + c, so that the paper's s_max = 8 never applies; it is kept as a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl.config import Count, require, require_positive
from voidrl.entropy import RunningMean, RunningMoments
from voidrl.methods.base import About, Latents, Method
from voidrl.methods.rnd import RND, RNDConfig
from voidrl.nets import polyak_update, target_copy
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics


@dataclass(frozen=True)
class NGUConfig(RNDConfig):
    """r = clip(1 + (e − μ)/σ, 1, L) / (√(Σ_k K) + c), e being the error of RND, with RND's own fields."""

    k: int = 10
    """Neighbors in the episode's memory."""
    memory: Count = 5000
    """States of an episode that are remembered, the newest; the paper's 30,000 hold any episode."""
    kernel_epsilon: float = 1e-4
    """ε of the kernel; the paper's table has 1e-4, its text 1e-3. A new state earns about 1/√(kε)."""
    cluster_distance: float = 0.008
    """ξ: squared distances up to this share of their mean count as none."""
    pseudo_count: float = 1e-3
    """c, which bounds the reward to 1/c."""
    max_similarity: float = 8.0
    """s_max: with a larger √(Σ K) + c the reward is 0."""
    max_scale: float = 5.0
    """L, the largest α; 1 leaves the episodic reward alone."""
    embedding_tau: float = 1.0
    """Share of f that moves, at every update, into the slow copy that places states; 1 takes f itself (the
    paper). What was remembered before f moved lies elsewhere, so that copies of it look new: in long episodes
    with many updates, and where f learns fast, the copy keeps them together."""
    mean_momentum: float | None = 0.999
    """Factor by which the running means of distances and errors forget, at each step of the environments and
    at each update; None averages over everything seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "k", "memory", "kernel_epsilon", "pseudo_count", "max_similarity")
        require(self.cluster_distance >= 0, "cluster_distance", self.cluster_distance, "0 or more")
        require(self.max_scale >= 1, "max_scale", self.max_scale, "1 (no scaling) or more")
        tau, momentum = self.embedding_tau, self.mean_momentum
        require(0 < tau <= 1, "embedding_tau", tau, "a number above 0, up to 1")
        expected = "None or a number in [0, 1)"
        require(momentum is None or 0 <= momentum < 1, "mean_momentum", momentum, expected)


class NGU(Method):
    """Rewards states that are new within the episode, more so where they are new altogether."""

    Config = NGUConfig
    about = About(
        family="knowledge",
        year=2020,
        reward="novelty within the episode by k-NN, scaled by the error of RND",
        paper="Badia et al., arXiv:2002.06038",
    )
    image_representation = "icm"
    note_dim = 1

    def __init__(self, spec: EnvSpec, config: NGUConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: NGUConfig = config
        self.rnd = RND(spec, config, representation)
        self.slow_encoder = self._slow_encoder(representation)
        self.distances = RunningMean(config.mean_momentum)  # d²_m
        self.errors = RunningMoments(momentum=config.mean_momentum)
        # The episodes' memories are no buffers: all episodes begin again after a checkpoint.
        self._memory = self._filled = torch.zeros(0)
        self._used = 0  # no environment has more than these, so that the rest need not be searched

    def _slow_encoder(self, representation: Representation) -> nn.Module | None:
        """A slow copy of f, where f is a network that learns."""
        f = representation.encoder
        plain = type(representation).encode is Representation.encode
        learns = f is not None and any(p.requires_grad for p in f.parameters())
        slow = self.config.embedding_tau < 1
        return target_copy(f) if f is not None and slow and plain and learns else None

    def embed(self, obs: Tensor) -> Tensor:
        """(n, dim): where states lie, by f or its slow copy."""
        if self.slow_encoder is None:
            return self.representation.encode(obs).float()
        z: Tensor = self.slow_encoder(obs)
        return z.float()

    # Within the episode

    @torch.no_grad()
    def begin(self, obs: Tensor, env: Tensor) -> None:
        """Forget what these environments have seen but the first state of the new episode."""
        z = self.embed(obs)
        if len(env) > len(self._filled) or self._filled.device != env.device:
            self._memory = z.new_zeros(len(env), self.config.memory, z.shape[1])  # (N, M, dim), a ring each
            self._filled = env.new_zeros(len(env))
        if len(env) == len(self._filled):  # all of them
            self._used = 1
        self._memory[env, 0] = z
        self._filled[env] = 1

    @torch.no_grad()
    def observe(self, obs: Tensor, skill: Tensor, env: Tensor) -> Tensor:
        """(n, 1): the episodic reward of states, which are then remembered; and statistics for RND."""
        self.rnd.observe(obs, skill, env)
        z = self.embed(obs)
        reward = self.episodic_reward(z, env)
        filled = self._filled[env]
        self._memory[env, filled % self.config.memory] = z
        self._filled[env] = filled + 1
        self._used = min(self._used + 1, self.config.memory)
        return reward[:, None]

    def episodic_reward(self, z: Tensor, env: Tensor) -> Tensor:
        """(n,): 1 / (√ΣK + c) of states (n, dim) that environments (n,) have reached."""
        config, memory = self.config, self._memory[env, : self._used]  # (n, used, dim)
        # Not by products: distances of z far from the origin would be noise.
        found = torch.cdist(z[:, None], memory, compute_mode="donot_use_mm_for_euclid_dist")[:, 0].square()
        exists = torch.arange(self._used, device=z.device) < self._filled[env, None]  # (n, used)
        found = found.masked_fill(~exists, torch.inf)
        nearest = found.topk(min(config.k, self._used), largest=False).values  # (n, ≤ k)
        self.distances.update(nearest, nearest.isfinite())
        excess = (self.distances(nearest) - config.cluster_distance).clamp(min=0)
        kernel = config.kernel_epsilon / (excess + config.kernel_epsilon)  # 0 where there is no neighbor
        similarity = kernel.sum(1).sqrt() + config.pseudo_count
        reward: Tensor = (1 / similarity).masked_fill(similarity > config.max_similarity, 0)
        return reward

    # Over all episodes

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The error of RND's predictor on the states visited."""
        error = self.rnd.error(batch.next_obs)
        loss = error.mean()
        metrics = {"rnd_loss": loss.detach(), "ngu_episodic": batch.note.mean()}
        yield Loss("method", loss, {**metrics, "ngu_scale": self.scale(error.detach()).mean()})

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The episodic reward times α."""
        error = self.rnd.error(batch.next_obs)
        self.errors.update(error[:, None])
        return batch.note[:, 0] * self.scale(error)

    def scale(self, error: Tensor) -> Tensor:
        """(B,): α of states with these errors."""
        return (1 + self.errors.standardize(error)).clamp(1, self.config.max_scale)

    def after_step(self) -> None:
        """Move the slow copy of f."""
        f = self.representation.encoder
        if self.slow_encoder is not None and f is not None:
            polyak_update(self.slow_encoder, f, self.config.embedding_tau)

    def set_progress(self, steps: int, total: int) -> None:
        """Stop collecting RND's statistics after `statistics_steps`."""
        self.rnd.set_progress(steps, total)

    def metrics(self) -> Metrics:
        """The scales of both parts."""
        return {"ngu_distance": self.distances.mean, "rnd_error_std": self.errors.std[0]}
