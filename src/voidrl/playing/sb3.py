"""APT's reward for Stable-Baselines3: a `VecEnv` wrapper and a replay buffer.

APT rewards a state by its distance to other visited states, so the reward needs a memory of them.

- `APTReward` wraps a `VecEnv` and computes the reward at each step. Use it with PPO and A2C, which compute
  advantages before any callback runs. With other algorithms, rewards in the replay would become outdated.
- `APTReplayBuffer` computes the reward when a transition is sampled, among its minibatch, as APT does. Use it
  with DQN, SAC and TD3.

Both return `intrinsic_scale · r_APT + extrinsic_scale · r_environment`. Their defaults are those that were
compared in results/sb3.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from voidrl.agent import Agent
from voidrl.config import registry, require
from voidrl.entropy import RunningMoments, particle_reward
from voidrl.envs.spaces import spec_of
from voidrl.errors import MissingExtraError, NonFiniteError, SpaceError
from voidrl.representations.base import Representation
from voidrl.system.device import pick_device, seeded
from voidrl.training.build import build_config
from voidrl.types import EnvSpec, channels_last

try:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
except ImportError:
    raise MissingExtraError("stable-baselines3", "sb3", "voidrl.playing.sb3") from None

Encoder = Agent | Callable[[Tensor], Tensor] | None
MOMENTUM = 0.99  # of moments that have to follow: distances shrink as states become familiar


class APTReward(VecEnvWrapper):
    """Adds APT's reward to each step: how far its state is from earlier states.

    The reward is eq. 5 with neighbors among `pool` states drawn from the last `memory` ones, including the
    current episode, less its running mean and divided by its running standard deviation. It is 0 while fewer
    than `k` states are known. At the end of an episode the last state counts, not the first of the next
    episode. `info` holds both rewards, as `apt_reward` and `env_reward`. SB3's `Monitor` records
    only the environment's reward.

    Args:
        venv: Environments with images or vectors as observations.
        encoder: The space of the distances: a voidrl agent, for its representation, or a function from a
            batch of observations to (n, d). None takes vectors as they are, and features of images by a
            random network.
        intrinsic_scale: Weight of APT's reward. It may be changed at any time; with 0, as in evaluations,
            nothing is computed or remembered.
        extrinsic_scale: Weight of the environment's reward; 0 to pre-train without it.
        k: Number of neighbors. If states repeat exactly, those with a share of the visits above `k / pool`
            are all rewarded equally: too small a share leaves little to distinguish states.
        memory: Number of states kept, the newest ones.
        pool: Number of states drawn from the memory at each step as possible neighbors.
        normalize: Standardize the reward by its running moments.
        device: Device of the encoder and the memory.
        seed: Seed of the encoder and of the draws from the memory.
    """

    def __init__(
        self,
        venv: VecEnv,
        *,
        encoder: Encoder = None,
        intrinsic_scale: float = 1.0,
        extrinsic_scale: float = 1.0,
        k: int = 50,
        memory: int = 20_000,
        pool: int = 1000,
        normalize: bool = True,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(venv)
        require(k >= 1, "k", k, "1 or more")
        require(pool >= k, "pool", pool, f"at least k = {k} states")
        require(memory >= pool, "memory", memory, f"at least pool = {pool} states")
        self.intrinsic_scale, self.extrinsic_scale = intrinsic_scale, extrinsic_scale
        self.k, self.memory, self.pool = k, memory, pool
        self.moments = RunningMoments() if normalize else None
        self.latent = LatentSpace(venv.observation_space, encoder, device, seed)
        self._rng = np.random.default_rng(seed)
        self._particles = torch.empty(0)  # (memory, d), a ring of encoded states
        self._count = 0  # of states ever remembered

    def reset(self) -> np.ndarray:
        """Reset all environments and remember their first states."""
        obs = np.asarray(self.venv.reset())
        if self.intrinsic_scale:
            self._remember(self.latent.encode(obs))
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        """Return the results of the step with the new reward."""
        obs: Any
        obs, rewards, dones, infos = self.venv.step_wait()
        if not self.intrinsic_scale:
            return obs, (self.extrinsic_scale * rewards).astype(np.float32), dones, infos
        ended, arrived = np.flatnonzero(dones), obs.copy()
        for i in ended:  # obs[i] is already the next episode's first state
            if infos[i].get("terminal_observation") is None:
                raise SpaceError(
                    f"environment {i} ended an episode without info['terminal_observation']: expected a "
                    f"VecEnv that reports the last state, as Stable-Baselines3's do"
                )
            arrived[i] = infos[i]["terminal_observation"]
        z = self.latent.encode(arrived)  # (N, d)
        intrinsic = self._score(z)
        self._remember(z)
        if len(ended):
            self._remember(self.latent.encode(obs[ended]))
        for info, apt, extrinsic in zip(infos, intrinsic, rewards, strict=True):
            info["apt_reward"], info["env_reward"] = float(apt), float(extrinsic)
        mixed = self.intrinsic_scale * intrinsic + self.extrinsic_scale * rewards
        return obs, mixed.astype(np.float32), dones, infos

    def _score(self, z: Tensor) -> np.ndarray:
        known = min(self._count, self.memory)
        if known < self.k:
            return np.zeros(len(z), np.float32)
        particles = self._particles[:known]
        if known > self.pool:
            chosen = self._rng.choice(known, self.pool, replace=False, shuffle=False)
            particles = particles[torch.from_numpy(chosen).to(z.device)]
        reward = particle_reward(z, particles=particles, k=self.k)
        return standardized(reward, self.moments, "environment").cpu().numpy()

    def _remember(self, z: Tensor) -> None:
        if not self._count:
            self._particles = z.new_empty(self.memory, z.shape[1])
        slots = torch.arange(self._count, self._count + len(z), device=z.device) % self.memory
        self._particles[slots] = z
        self._count += len(z)


class APTReplayBuffer(ReplayBuffer):
    """A replay buffer that computes APT's reward at every sample, among the transitions of the minibatch.

    `DQN("MlpPolicy", env, gamma=0.99, replay_buffer_class=APTReplayBuffer,
    replay_buffer_kwargs={"gamma": 0.99, "extrinsic_scale": 0})`. Its samples are of n steps, each with the
    reward of the state reached.

    Args:
        buffer_size: As in SB3.
        observation_space: Images or vectors.
        action_space: As in SB3.
        device: Device of the samples and the encoder.
        encoder: As in `APTReward`.
        intrinsic_scale: Weight of APT's reward.
        extrinsic_scale: Weight of the environment's reward.
        k: Number of neighbors, less than the size of a minibatch.
        n_steps: Steps whose rewards are summed before the value is bootstrapped.
        gamma: Discount factor of the algorithm; needed with `n_steps` above 1.
        normalize: As in `APTReward`, by the moments of the last hundred samples or so.
        seed: Seed of the encoder and of the environments drawn.
        **kwargs: Further arguments of SB3's `ReplayBuffer`, which the algorithm passes.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: torch.device | str = "auto",
        *,
        encoder: Encoder = None,
        intrinsic_scale: float = 1.0,
        extrinsic_scale: float = 1.0,
        k: int = 5,
        n_steps: int = 5,
        gamma: float | None = None,
        normalize: bool = True,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        require(k >= 1, "k", k, "1 or more")
        require(n_steps >= 1, "n_steps", n_steps, "1 or more")
        known = n_steps == 1 or gamma is not None
        require(known, "gamma", gamma, f"the algorithm's discount factor, with n_steps = {n_steps}")
        compact = kwargs.get("optimize_memory_usage", False)
        require(not compact, "optimize_memory_usage", compact, "False: each step needs the state it reached")
        latent = LatentSpace(observation_space, encoder, str(device), seed)  # may refuse: first
        super().__init__(buffer_size, observation_space, action_space, device, **kwargs)
        self.latent, self.k, self.n_steps = latent, k, n_steps
        self.gamma = 1.0 if gamma is None else gamma
        self.intrinsic_scale, self.extrinsic_scale = intrinsic_scale, extrinsic_scale
        self.moments = RunningMoments(momentum=MOMENTUM).to(latent.device) if normalize else None
        self._rng = np.random.default_rng(seed)
        self._features: Tensor | None = None  # (rows, environments, d) of next_observations

    def add(self, obs: np.ndarray, next_obs: np.ndarray, *args: Any, **kwargs: Any) -> None:
        """Store a step of all environments, and the features of the states reached."""
        z = self.latent.encode(next_obs)  # (N, d)
        if self._features is None:
            self._features = z.new_zeros(self.buffer_size, *z.shape)
        self._features[self.pos] = z
        super().add(obs, next_obs, *args, **kwargs)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> ReplayBufferSamples:
        envs, steps = self._rng.integers(0, self.n_envs, len(batch_inds)), np.arange(self.n_steps)
        columns, rows = envs[:, None], (batch_inds[:, None] + steps) % self.buffer_size  # (B, 1), (B, n)
        newest = (self.pos - 1) % self.buffer_size
        ends = (self.dones[rows, columns] > 0) | (rows == newest)  # (B, n)
        ends[:, -1] = True
        last = ends.argmax(1)  # (B,) index of the step after which the value is bootstrapped
        discounts = np.where(steps <= last[:, None], self.gamma**steps, 0.0)
        rewards = self.extrinsic_scale * self._normalize_reward(self.rewards[rows, columns], env)  # (B, n)
        if self.intrinsic_scale:
            rewards = rewards + self.intrinsic_scale * self._intrinsic(rows, columns, env)
        final = rows[np.arange(len(rows)), last]
        done = self.dones[final, envs] * (1 - self.timeouts[final, envs])
        samples = ReplayBufferSamples(
            observations=self.to_torch(self._array(self.observations[batch_inds, envs], env)),
            actions=self.to_torch(self.actions[batch_inds, envs]),
            next_observations=self.to_torch(self._array(self.next_observations[final, envs], env)),
            dones=self.to_torch(done[:, None]),
            rewards=self.to_torch((rewards * discounts).sum(1, keepdims=True).astype(np.float32)),
        )
        if self.n_steps == 1:
            return samples
        bootstrap = (self.gamma ** (last + 1.0))[:, None].astype(np.float32)
        return samples._replace(discounts=self.to_torch(bootstrap))

    def _intrinsic(self, rows: np.ndarray, columns: np.ndarray, env: VecNormalize | None) -> np.ndarray:
        """(B, n): APT's reward of the states reached in (B, n) rows of (B, 1) environments."""
        assert self._features is not None
        if env is None:
            z = self._features[torch.from_numpy(rows), torch.from_numpy(columns)]  # (B, n, d)
        else:  # the moments of the observations have changed since
            obs = self._array(self.next_observations[rows, columns], env)
            z = self.latent.encode(obs.reshape(-1, *obs.shape[2:])).view(*rows.shape, -1)
        raw = torch.cat([particle_reward(each, k=self.k) for each in z.unbind(1)])  # (n · B,)
        reward = standardized(raw, self.moments, "transition")
        return reward.view(rows.shape[::-1]).T.cpu().numpy()

    def _array(self, obs: np.ndarray, env: VecNormalize | None) -> np.ndarray:
        return np.asarray(self._normalize_obs(obs, env))


class LatentSpace:
    """The space of the distances: a frozen encoder f."""

    def __init__(self, observation_space: spaces.Space, encoder: Encoder, device: str, seed: int) -> None:
        spec = spec_of(observation_space, spaces.Discrete(2), frame_stack=1)  # actions do not matter
        if spec.parts:
            raise SpaceError(
                f"observation space {observation_space} is not supported here: expected one Box, a uint8 "
                f"image or numbers; gymnasium.wrappers.FlattenObservation makes a vector of most spaces"
            )
        self.spec, self.device = spec, pick_device(device)
        self._encode: Callable[[Tensor], Tensor]
        if not isinstance(encoder, Agent | None):
            self._encode = encoder
            return
        with seeded(seed, self.device):
            if encoder is None:
                name = "fixed" if spec.pixels else "identity"
                config = build_config(spec, [{"representation": name}]).representation
                cls: type[Representation] = registry.find("representation", name)
                f = cls(spec, config, cls.make_encoder(spec, config))
            else:
                f = _copy_from_agent(encoder, spec)
        self._encode = f.to(self.device).eval().encode

    @torch.no_grad()
    def encode(self, obs: np.ndarray) -> Tensor:
        """Encode SB3's observations as features, (n, d). The encoder gets images as (n, C, H, W) uint8."""
        frames = torch.as_tensor(obs, device=self.device)
        if not self.spec.pixels:
            frames = frames.float().flatten(1)
        elif channels_last(self.spec.raw_shape):
            frames = frames.permute(0, 3, 1, 2)
        z = self._encode(frames.reshape(len(frames), *self.spec.frame_shape).contiguous())
        if z.ndim != 2 or len(z) != len(frames):
            raise SpaceError(
                f"the encoder returned {tuple(z.shape)} for {len(frames)} observations: expected "
                f"({len(frames)}, d)"
            )
        return z.to(self.device).float()


def standardized(reward: Tensor, moments: RunningMoments | None, what: str) -> Tensor:
    """Update the running moments with (n,) rewards and standardize these."""
    bad = (~torch.isfinite(reward)).nonzero()
    if len(bad):
        found = f"APT's reward of {what} {int(bad[0])} is {float(reward[bad[0]])}"
        raise NonFiniteError(f"{found}: expected finite observations and features")
    if moments is None:
        return reward
    moments.to(reward.device).update(reward)
    return moments.standardize(reward)


def _copy_from_agent(agent: Agent, spec: EnvSpec) -> Representation:
    """A frozen copy. SB3 stacks frames along the channels, like the agent's replay."""
    if (agent.spec.obs_shape, agent.spec.pixels) != (spec.obs_shape, spec.pixels):
        raise SpaceError(
            f"the agent expects observations of shape {agent.spec.obs_shape}, got {spec.obs_shape}: use the "
            f"environments it was trained in, with frames stacked"
        )
    return copy.deepcopy(agent.representation).requires_grad_(False)
