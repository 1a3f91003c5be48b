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
neighbors are summed at the beginning of an episode, which makes its first rewards the largest. The largest
similarity, √k + c, is below the paper's s_max = 8, so there is no s_max.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from voidrl.config import Positive, Size
from voidrl.config.checks import Momentum, Polyak
from voidrl.entropy import RunningMean, RunningMoments
from voidrl.methods.base import About, Latents, Method, momentum_encoder
from voidrl.methods.rnd import RND, RNDConfig
from voidrl.nets import polyak_update
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

CLUSTER_DISTANCE = 0.008  # ξ: squared distances up to this share of their mean count as none (the paper)
PSEUDO_COUNT = 1e-3  # c, which bounds the reward to 1/c (the paper)
MAX_SCALE = 5.0  # L, the largest α (the paper)
NEIGHBORS = 10  # k, in the episode's memory (the paper)


@dataclass(frozen=True)
class NGUConfig(RNDConfig):
    """r = clip(1 + (e − μ)/σ, 1, L) / (√(Σ_k K) + c), e being the error of RND, with RND's own fields."""

    memory: Size = 5000
    """States of an episode that are remembered, the newest; the paper's 30,000 hold any episode."""
    kernel_epsilon: Positive = 1e-4
    """ε of the kernel; the paper's table has 1e-4, its text 1e-3. A new state earns about 1/√(kε)."""
    embedding_tau: Polyak = 1.0
    """τ of the slow copy of f that places states; 1 takes f itself (the paper). As f moves, states remembered
    before look new; in long episodes with many updates the copy prevents that."""
    mean_momentum: Momentum | None = 0.999
    """Momentum of the running means of distances and errors, per environment step and per update; None
    averages over everything seen."""


class NGU(Method):
    """Rewards states that are new within the episode, more so where they are new altogether."""

    Config = NGUConfig
    config: NGUConfig
    about = About("knowledge", 2020, "Badia et al., arXiv:2002.06038")
    image_representation = "icm"
    note_dim = 1

    def __init__(self, spec: EnvSpec, config: NGUConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.rnd = RND(spec, config, representation)
        self.slow_encoder = momentum_encoder(representation) if config.embedding_tau < 1 else None
        self.distances = RunningMean(config.mean_momentum)  # d²_m
        self.errors = RunningMoments(momentum=config.mean_momentum)
        # The episodes' memories are no buffers: all episodes begin again after a checkpoint.
        self._memory = self._filled = torch.zeros(0)
        self._used = 0  # no environment has more than these, so that the rest need not be searched

    def embed(self, obs: Tensor, representation: Representation) -> Tensor:
        """(n, dim): latents of states, by f or its slow copy."""
        encode = self.slow_encoder or representation.encode
        return encode(obs).float()  # type: ignore[no-any-return]

    # Within the episode

    @torch.no_grad()
    def begin(self, obs: Tensor, env: Tensor, representation: Representation) -> None:
        """Forget all states of these environments but the first of the new episode."""
        z = self.embed(obs, representation)
        if len(env) > len(self._filled) or self._filled.device != env.device:
            self._memory = z.new_zeros(len(env), self.config.memory, z.shape[1])  # (N, M, dim), a ring each
            self._filled = env.new_zeros(len(env))
        if len(env) == len(self._filled):  # all of them
            self._used = 1
        self._memory[env, 0] = z
        self._filled[env] = 1

    @torch.no_grad()
    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> Tensor:
        """(n, 1): the episodic reward of states, which are then remembered; and statistics for RND."""
        self.rnd.observe(obs, skill, env, representation)
        z = self.embed(obs, representation)
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
        nearest = found.topk(min(NEIGHBORS, self._used), largest=False).values  # (n, ≤ k)
        self.distances.update(nearest, nearest.isfinite())
        excess = (self.distances(nearest) - CLUSTER_DISTANCE).clamp(min=0)
        kernel = config.kernel_epsilon / (excess + config.kernel_epsilon)  # 0 where there is no neighbor
        return 1 / (kernel.sum(1).sqrt() + PSEUDO_COUNT)  # type: ignore[no-any-return]

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
        return (1 + self.errors.standardize(error)).clamp(1, MAX_SCALE)

    def after_update(self, representation: Representation) -> None:
        """Move the slow copy of f."""
        if self.slow_encoder is not None and representation.encoder is not None:
            polyak_update(self.slow_encoder, representation.encoder, self.config.embedding_tau)

    def metrics(self) -> Metrics:
        """The scales of both parts."""
        return {"ngu_distance": self.distances.mean, "rnd_error_std": self.errors.std[0]}
