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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from voidrl.agent import Agent
from voidrl.agent.cost import REPRESENTATION_PASSES, encoder_flop
from voidrl.config import AugmentConfig, registry, require
from voidrl.entropy import RunningMoments, particle_reward
from voidrl.envs.spaces import spec_of
from voidrl.errors import CheckpointError, MissingExtraError, NonFiniteError, SpaceError, UnknownNameError
from voidrl.nets.augment import Augment
from voidrl.representations.base import Representation
from voidrl.representations.simclr import SimCLR
from voidrl.runs.tensor_files import read_tensors, write_tensors
from voidrl.system.device import pick_device, seeded
from voidrl.system.files import user_path
from voidrl.system.threads import pick_threads, using
from voidrl.training.build import build_config
from voidrl.types import EnvSpec, Frames, channels_last

try:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
except ImportError:
    raise MissingExtraError("stable-baselines3", "sb3", "voidrl.playing.sb3") from None

Encoder = Literal["auto", "identity", "fixed", "simclr"] | Agent | Callable[[Tensor], Tensor]
ENCODERS = ("auto", "identity", "fixed", "simclr")
TRAIN_BATCH = 256
MOMENTUM = 0.99  # of moments that have to follow: distances shrink as f learns and as states become familiar


class APTReward(VecEnvWrapper):
    """Adds APT's reward to each step: how far its state is from earlier states.

    The reward is eq. 5 with neighbors among `pool` states drawn from the last `memory` ones, including the
    current episode, less its running mean and divided by its running standard deviation. It is 0 while fewer
    than `k` states are known. At the end of an episode the last state counts, not the first of the next
    episode. `info` holds both rewards, as `apt_reward` and `env_reward`. SB3's `Monitor` records
    only the environment's reward.

    Args:
        venv: Environments with images or vectors as observations.
        encoder: The space of the distances: `identity`, the observation itself; `fixed`, features of a random
            network; `simclr`, features of a network with a contrastive loss, trained on the memory; a voidrl
            agent, for its representation; or a function from a batch of observations to (n, d). `auto` is
            `identity` for vectors and `fixed` for images.
        intrinsic_scale: Weight of APT's reward. It may be changed at any time; with 0, as in evaluations,
            nothing is computed or remembered.
        extrinsic_scale: Weight of the environment's reward; 0 to pre-train without it.
        k: Number of neighbors. If states repeat exactly, those with a share of the visits above `k / pool`
            are all rewarded equally: too small a share leaves little to distinguish states.
        memory: Number of states kept, the newest ones.
        pool: Number of states drawn from the memory at each step as possible neighbors.
        normalize: Standardize the reward by its running moments.
        train_every_steps: With `simclr`: environment steps between two trainings of the encoder.
        train_updates: With `simclr`: updates in each training.
        shift_pixels: With `simclr` on images: largest random shift of the two views.
        device: Device of the encoder and the memory.
        seed: Seed of the encoder and of the draws from the memory.
    """

    def __init__(
        self,
        venv: VecEnv,
        *,
        encoder: Encoder = "auto",
        intrinsic_scale: float = 1.0,
        extrinsic_scale: float = 1.0,
        k: int = 50,
        memory: int = 20_000,
        pool: int = 1000,
        normalize: bool = True,
        train_every_steps: int = 1000,
        train_updates: int = 20,
        shift_pixels: int = 4,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(venv)
        require(k >= 1, "k", k, "1 or more")
        require(pool >= k, "pool", pool, f"at least k = {k} states")
        require(memory >= pool, "memory", memory, f"at least pool = {pool} states")
        require(train_every_steps >= 1, "train_every_steps", train_every_steps, "1 or more")
        self.intrinsic_scale, self.extrinsic_scale = intrinsic_scale, extrinsic_scale
        self.k, self.memory, self.pool = k, memory, pool
        self.train_every_steps, self.train_updates = train_every_steps, train_updates
        momentum = MOMENTUM if encoder == "simclr" else None  # of everything seen, if f is frozen
        self.latent = LatentSpace(
            venv.observation_space, encoder, normalize, momentum, shift_pixels, device, seed
        )
        self._rng = np.random.default_rng(seed)
        self._particles = Ring(memory)  # encoded states
        self._states = Ring(memory)  # the states themselves, to train the encoder on
        self._untrained_steps = 0

    def reset(self) -> np.ndarray:
        """Reset all environments and remember their first states."""
        obs = self.venv.reset()
        assert isinstance(obs, np.ndarray)
        if self.intrinsic_scale:
            self._remember(self.latent.frames(obs))
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        """Return the results of the step with the new reward."""
        obs, rewards, dones, infos = self.venv.step_wait()
        if not self.intrinsic_scale:
            return obs, (self.extrinsic_scale * rewards).astype(np.float32), dones, infos
        assert isinstance(obs, np.ndarray)
        ended = np.flatnonzero(dones)
        arrived = obs.copy()
        for i in ended:  # obs[i] is already the next episode's first state
            if infos[i].get("terminal_observation") is None:
                raise SpaceError(
                    f"environment {i} ended an episode without info['terminal_observation']: expected a "
                    f"VecEnv that reports the last state, as Stable-Baselines3's do"
                )
            arrived[i] = infos[i]["terminal_observation"]
        states = self.latent.frames(arrived)
        intrinsic = self._score(states)
        self._remember(states)
        if len(ended):
            self._remember(self.latent.frames(obs[ended]))
        self._train(len(obs))
        for info, apt, extrinsic in zip(infos, intrinsic, rewards, strict=True):
            info["apt_reward"], info["env_reward"] = float(apt), float(extrinsic)
        mixed = self.intrinsic_scale * intrinsic + self.extrinsic_scale * rewards
        return obs, mixed.astype(np.float32), dones, infos

    def _score(self, states: Tensor) -> np.ndarray:
        if len(self._particles) < self.k:
            return np.zeros(len(states), np.float32)
        particles = self._particles.sample(self.pool, self._rng)
        reward = particle_reward(self.latent.encode(states), particles=particles, k=self.k)
        return self.latent.normalize(reward, "environment").cpu().numpy()

    def _remember(self, states: Tensor) -> None:
        self._particles.add(self.latent.encode(states))
        if self.latent.optimizer is not None:
            self._states.add(states)

    def _train(self, steps: int) -> None:
        """Train the encoder every `train_every_steps`, then encode the memory again with it."""
        self._untrained_steps += steps
        if self.latent.optimizer is None or self._untrained_steps < self.train_every_steps:
            return
        self._untrained_steps = 0
        for _ in range(self.train_updates):
            self.latent.learn(self._states.sample(TRAIN_BATCH, self._rng))
        batches = self._states.all().split(TRAIN_BATCH)
        self._particles.all().copy_(torch.cat([self.latent.encode(states) for states in batches]))

    def save(self, path: str | Path) -> None:
        """Write memory, moments and encoder as safetensors; SB3's `model.save` does not include them."""
        path = user_path(path)
        state = {f"latent.{name}": value for name, value in self.latent.state_dict().items()}
        state |= {f"particles.{name}": value for name, value in self._particles.state().items()}
        state |= {f"states.{name}": value for name, value in self._states.state().items()}
        temporary = path.with_name(f".tmp-{path.name}")
        try:
            write_tensors(temporary, state)
            temporary.replace(path)
        except OSError as e:
            raise CheckpointError(f"cannot write {path}: {e.strerror or e}") from e

    def load(self, path: str | Path) -> None:
        """Restore what `save` wrote, into a wrapper created with equal arguments.

        The random generator and the encoder's optimizer start from scratch.
        """
        saved = read_tensors(user_path(path))

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}

        try:
            self.latent.load_state_dict(part("latent."))
            self._particles.load(part("particles."), self.latent.device)
            self._states.load(part("states."), self.latent.device)
        except (KeyError, RuntimeError) as e:
            raise CheckpointError(
                f"{path} does not match this APTReward ({str(e).splitlines()[0]}): create it with the "
                f"arguments and the observation space of the saved one"
            ) from e


class APTReplayBuffer(ReplayBuffer):
    """A replay buffer that computes APT's reward at every sample, among the transitions of the minibatch.

    `DQN("MlpPolicy", env, gamma=0.99, replay_buffer_class=APTReplayBuffer,
    replay_buffer_kwargs={"gamma": 0.99, "extrinsic_scale": 0})`. Its samples are of n steps, each with the
    reward of the state reached. A `simclr` encoder is trained by one update per sample.

    Args:
        buffer_size: As in SB3.
        observation_space: Images or vectors.
        action_space: As in SB3.
        device: Device of the samples and the encoder.
        encoder: As in `APTReward`; here `simclr` is trained on the sampled observations.
        intrinsic_scale: Weight of APT's reward.
        extrinsic_scale: Weight of the environment's reward.
        k: Number of neighbors, less than the size of a minibatch.
        n_steps: Steps whose rewards are summed before the value is bootstrapped.
        gamma: Discount factor of the algorithm; needed with `n_steps` above 1.
        normalize: As in `APTReward`, by the moments of the last hundred samples or so.
        shift_pixels: As in `APTReward`.
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
        encoder: Encoder = "auto",
        intrinsic_scale: float = 1.0,
        extrinsic_scale: float = 1.0,
        k: int = 5,
        n_steps: int = 5,
        gamma: float | None = None,
        normalize: bool = True,
        shift_pixels: int = 4,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        require(k >= 1, "k", k, "1 or more")
        compact = kwargs.get("optimize_memory_usage", False)
        require(not compact, "optimize_memory_usage", compact, "False: each step needs the state it reached")
        require(n_steps >= 1, "n_steps", n_steps, "1 or more")
        known = n_steps == 1 or gamma is not None
        require(known, "gamma", gamma, f"the algorithm's discount factor, with n_steps = {n_steps}")
        latent = LatentSpace(  # may refuse: first
            observation_space, encoder, normalize, MOMENTUM, shift_pixels, str(device), seed
        )
        super().__init__(buffer_size, observation_space, action_space, device, **kwargs)
        self.latent, self.k = latent, k
        self._rng = np.random.default_rng(seed)
        self._features: Tensor | None = None  # (rows, environments, d) of next_observations, if f is frozen
        self.n_steps, self.gamma = n_steps, gamma
        self.intrinsic_scale, self.extrinsic_scale = intrinsic_scale, extrinsic_scale

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Store a step of all environments, and the features of the states reached if f is frozen."""
        if self.latent.optimizer is None:
            z = self.latent.encode(self.latent.frames(next_obs))  # (N, d)
            if self._features is None:
                self._features = z.new_zeros(self.buffer_size, *z.shape)
            self._features[self.pos] = z
        super().add(obs, next_obs, action, reward, done, infos)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> ReplayBufferSamples:
        envs = self._rng.integers(0, self.n_envs, len(batch_inds))
        rows = (batch_inds[:, None] + np.arange(self.n_steps)) % self.buffer_size  # (B, n)
        columns = envs[:, None]
        newest = (self.pos - 1) % self.buffer_size
        ends = (self.dones[rows, columns] > 0) | (rows == newest)  # (B, n)
        ends[:, -1] = True
        last = ends.argmax(1)  # (B,) index of the step after which the value is bootstrapped
        discounts = np.where(np.arange(self.n_steps) <= last[:, None], 1.0, 0.0)
        if self.gamma is not None:
            discounts = discounts * self.gamma ** np.arange(self.n_steps)
        rewards = self.extrinsic_scale * self._normalize_reward(self.rewards[rows, columns], env)  # (B, n)
        obs = self._read(self.observations, batch_inds, envs, env)
        total = self.to_torch((rewards * discounts).sum(1, keepdims=True).astype(np.float32))  # (B, 1)
        if self.intrinsic_scale:
            weights = self.to_torch(discounts.astype(np.float32))
            if self.latent.optimizer is not None:
                self.latent.learn(self.latent.frames(obs))
            intrinsic = self._intrinsic(rows, envs, env).to(total.device)  # (B, n)
            total = total + self.intrinsic_scale * (weights * intrinsic).sum(1, keepdim=True)
        final = rows[np.arange(len(rows)), last]
        done = self.dones[final, envs] * (1 - self.timeouts[final, envs])
        samples = ReplayBufferSamples(
            observations=self.to_torch(obs),
            actions=self.to_torch(self.actions[batch_inds, envs]),
            next_observations=self.to_torch(self._read(self.next_observations, final, envs, env)),
            dones=self.to_torch(done[:, None]),
            rewards=total,
        )
        if self.n_steps == 1:
            return samples
        assert self.gamma is not None
        bootstrap = (self.gamma ** (last + 1.0))[:, None].astype(np.float32)
        return samples._replace(discounts=self.to_torch(bootstrap))

    def _intrinsic(self, rows: np.ndarray, envs: np.ndarray, env: VecNormalize | None) -> Tensor:
        """(B, n): APT's reward of the states reached in (B, n) rows of (B,) environments."""
        z = self._encoded(rows, envs[:, None].repeat(rows.shape[1], 1), env)  # (B, n, d)
        raw = torch.cat([particle_reward(each, k=self.k) for each in z.unbind(1)])  # (n · B,)
        return self.latent.normalize(raw, "transition").view(rows.shape[::-1]).T

    def _encoded(self, rows: np.ndarray, envs: np.ndarray, env: VecNormalize | None) -> Tensor:
        """Features of the states reached, (*rows.shape, d)."""
        if self._features is not None and env is None:
            return self._features[torch.from_numpy(rows), torch.from_numpy(envs)]
        obs = self._read(self.next_observations, rows.ravel(), envs.ravel(), env)
        z = self.latent.encode(self.latent.frames(obs))
        return z.view(*rows.shape, z.shape[-1])

    def _read(
        self, array: np.ndarray, rows: np.ndarray, envs: np.ndarray, env: VecNormalize | None
    ) -> np.ndarray:
        obs = self._normalize_obs(array[rows, envs], env)
        assert isinstance(obs, np.ndarray)
        return obs


class LatentSpace(nn.Module):
    """The space of the distances: an encoder f, and the running moments of the rewards."""

    def __init__(
        self,
        observation_space: spaces.Space,
        encoder: Encoder,
        normalize: bool,
        momentum: float | None,
        shift_pixels: int,
        device: str,
        seed: int,
    ) -> None:
        super().__init__()
        spec = spec_of(observation_space, spaces.Discrete(2), frame_stack=1)  # actions do not matter
        if spec.parts:
            raise SpaceError(
                f"observation space {observation_space} is not supported here: expected one Box, a uint8 "
                f"image or numbers; gymnasium.wrappers.FlattenObservation makes a vector of most spaces"
            )
        self.spec, self.device = spec, pick_device(device)
        self.function: Callable[[Tensor], Tensor] | None = None
        self.representation: Representation | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.moments = RunningMoments(momentum=momentum) if normalize else None
        with seeded(seed, self.device):
            if isinstance(encoder, Agent):
                self.representation = _copy_from_agent(encoder, spec)
            elif isinstance(encoder, str):
                self.representation = _make_representation(encoder, spec)
            else:
                self.function = encoder
        self.threads, _ = pick_threads(torch.get_num_threads(), self._gflop())
        self.to(self.device).eval()
        if encoder == "simclr" and self.representation is not None:  # an agent's is frozen
            self.augment = Augment(AugmentConfig(shift_pixels=shift_pixels))
            rate = self.representation.config.learning_rate
            self.optimizer = torch.optim.Adam(self.representation.parameters(), rate)

    def frames(self, obs: np.ndarray | Tensor) -> Tensor:
        """Convert SB3's observations to (n, *frame_shape), images as uint8 and channels first."""
        frames = torch.as_tensor(obs, device=self.device)
        if not self.spec.pixels:
            return frames.float().flatten(1)
        if channels_last(self.spec.raw_shape):
            frames = frames.permute(0, 3, 1, 2)
        return frames.reshape(len(frames), *self.spec.frame_shape).contiguous()

    def _gflop(self) -> float:
        """Cost of a contrastive update; other encoders take less, and a function's cost is unknown."""
        f = self.representation
        if f is None or f.encoder is None:
            return 0.0
        return REPRESENTATION_PASSES * TRAIN_BATCH * encoder_flop(self.spec.obs_shape, f.config.encoder) / 1e9

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames as features, (n, d)."""
        if self.representation is not None:
            with using(self.threads):
                return self.representation.encode(frames).float()
        assert self.function is not None
        z = self.function(frames)
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(frames):
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise SpaceError(
                f"the encoder returned {got} for {len(frames)} observations: expected ({len(frames)}, d)"
            )
        return z.to(self.device).float()

    def normalize(self, reward: Tensor, what: str) -> Tensor:
        """Update the running moments with (n,) rewards and standardize these."""
        bad = (~torch.isfinite(reward)).nonzero()
        if len(bad):
            i, expected = int(bad[0]), "expected finite observations and features"
            raise NonFiniteError(f"APT's reward of {what} {i} is {float(reward[i])}: {expected}")
        if self.moments is None:
            return reward
        self.moments.update(reward)
        return self.moments.standardize(reward)

    def learn(self, frames: Tensor) -> None:
        """Update the encoder once with its contrastive loss."""
        f = self.representation
        assert isinstance(f, SimCLR)
        assert self.optimizer is not None
        index = torch.arange(len(frames), device=self.device).repeat(2)[:, None]  # two views each
        f.train()
        with using(self.threads):
            loss, _ = f.contrast(self.augment(Frames(frames, index), f.layout))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        f.eval()


class Ring:
    """A ring buffer of rows."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.count = capacity, 0  # rows ever added
        self.rows: Tensor | None = None  # (capacity, …), allocated by the first add

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, rows: Tensor) -> None:
        """Add rows, replacing the oldest."""
        if self.rows is None:
            self.rows = torch.empty(self.capacity, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        rows = rows[-self.capacity :]
        slots = torch.arange(self.count, self.count + len(rows), device=rows.device) % self.capacity
        self.rows[slots] = rows
        self.count += len(rows)

    def all(self) -> Tensor:
        """All stored rows, in any order."""
        assert self.rows is not None
        return self.rows[: len(self)]

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Draw n different rows, or return all of them if there are no more than n."""
        if len(self) <= n:
            return self.all()
        chosen = torch.from_numpy(rng.choice(len(self), n, replace=False, shuffle=False))
        return self.all()[chosen.to(self.all().device)]

    def state(self) -> dict[str, Tensor]:
        """The state for `load`: the rows, oldest first."""
        if self.rows is None:
            return {}
        oldest = self.count % self.capacity if self.count > self.capacity else 0
        return {"rows": self.all().roll(-oldest, 0)}

    def load(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Restore what `state` returned; a smaller buffer keeps the newest rows."""
        self.count, self.rows = 0, None
        if state:
            self.add(state["rows"].to(device))


def _make_representation(name: str, spec: EnvSpec) -> Representation:
    if name not in ENCODERS:
        remedy = "It may also be a voidrl agent, or a function from observations to (n, d)."
        raise UnknownNameError("encoder", name, ENCODERS, remedy)
    name = ("fixed" if spec.pixels else "identity") if name == "auto" else name
    config = build_config(spec, [{"representation": name}]).representation
    cls: type[Representation] = registry.find("representation", name)
    return cls(spec, config, cls.make_encoder(spec, config))


def _copy_from_agent(agent: Agent, spec: EnvSpec) -> Representation:
    """A frozen copy. SB3 stacks frames along the channels, like the agent's replay."""
    if (agent.spec.obs_shape, agent.spec.pixels) != (spec.obs_shape, spec.pixels):
        raise SpaceError(
            f"the agent expects observations of shape {agent.spec.obs_shape}, got {spec.obs_shape}: use the "
            f"environments it was trained in, with frames stacked"
        )
    return copy.deepcopy(agent.representation).requires_grad_(False)
