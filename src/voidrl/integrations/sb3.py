"""APT's reward for Stable-Baselines3: a wrapper around its environments, and a replay buffer.

What a state is worth depends on the other states that were seen, so the reward needs a memory of them.

- `APTReward` wraps a `VecEnv` and rewards each step as it is made. It is the one for PPO and A2C, whose
  advantages are computed before any callback hears that a rollout has ended. Others can use it too, but what
  they keep in a replay is then worth for ever what it was worth when it was new.
- `APTReplayBuffer` rewards each transition when it is sampled, among the others of its minibatch, as APT
  itself does: the one for DQN, SAC and TD3.

Both give `intrinsic_scale · r_APT + extrinsic_scale · r_environment`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from voidrl import checkpoint, registry
from voidrl.agent import Agent
from voidrl.augment import Augment
from voidrl.build import build_config
from voidrl.config import AugmentConfig, require
from voidrl.device import pick_device, seeded
from voidrl.entropy import RunningMean, particle_reward
from voidrl.errors import CheckpointError, MissingExtraError, NonFiniteError, SpaceError, UnknownNameError
from voidrl.representations.base import Representation
from voidrl.representations.simclr import SimCLR
from voidrl.spaces import channels_last, spec_of
from voidrl.types import EnvSpec, Frames

try:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
except ImportError:
    raise MissingExtraError("stable-baselines3", "sb3", "voidrl.integrations.sb3") from None

Encoder = Literal["auto", "identity", "fixed", "simclr"] | Agent | Callable[[Tensor], Tensor]
NAMES = ("auto", "identity", "fixed", "simclr")
CONTRAST_BATCH = 256


class APTReward(VecEnvWrapper):
    """Adds to each step how far its state lies from those that were seen before.

    A step is rewarded by eq. 5 among `pool` states drawn from the last `memory` ones, its own episode's too,
    divided by the running mean of such rewards; while fewer than `k` are known, by 0. Where an episode ends,
    it is the last state that counts, not the first of the next episode. `info` tells both rewards apart, as
    `apt_reward` and `env_reward`. Statistics of SB3's `Monitor` are of the environment's reward alone.

    Args:
        venv: Environments with images or vectors as observations.
        encoder: The space in which distances are taken: `identity`, the observation itself; `fixed`, features
            of a random network; `simclr`, features of a network trained by contrast on the memory; those of a
            voidrl agent; or a function from a batch of observations to (n, d). `auto` is `identity` for
            vectors and `fixed` for images.
        intrinsic_scale: Weight of APT's reward, about 1 on average. It may be changed at any time; with 0
            nothing is computed or remembered, which is what an evaluation wants.
        extrinsic_scale: Weight of the environment's reward; 0 to pre-train without it.
        k: Neighbors.
        memory: States that are kept, the newest ones.
        pool: States drawn from them at each step, among which the neighbors are sought.
        normalize: Divide by the running mean.
        train_every_steps: With `simclr`: environment steps between two trainings of the encoder.
        train_updates: With `simclr`: updates in each.
        device: Of the encoder and the memory.
        seed: Of the encoder and of what is drawn.
    """

    def __init__(
        self,
        venv: VecEnv,
        *,
        encoder: Encoder = "auto",
        intrinsic_scale: float = 1.0,
        extrinsic_scale: float = 1.0,
        k: int = 5,
        memory: int = 10_000,
        pool: int = 1000,
        normalize: bool = True,
        train_every_steps: int = 1000,
        train_updates: int = 20,
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
        self.latent = LatentSpace(venv.observation_space, encoder, normalize, device, seed)
        self._rng = np.random.default_rng(seed)
        self._particles = Ring(memory)  # f of the states
        self._states = Ring(memory)  # the states themselves, for an encoder that is trained on them
        self._untrained_steps = 0

    def reset(self) -> np.ndarray:
        """Reset all environments; their first states are remembered."""
        obs = self.venv.reset()
        assert isinstance(obs, np.ndarray)
        if self.intrinsic_scale:
            self._remember(self.latent.frames(obs))
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        """What the environments give, with the other reward."""
        obs, rewards, dones, infos = self.venv.step_wait()
        if not self.intrinsic_scale:
            return obs, (self.extrinsic_scale * rewards).astype(np.float32), dones, infos
        assert isinstance(obs, np.ndarray)
        ended = np.flatnonzero(dones)
        arrived = obs.copy()
        for i in ended:  # SB3 has already begun the next episode
            if infos[i].get("terminal_observation") is None:
                raise SpaceError(
                    f"environment {i} ended an episode without info['terminal_observation']: expected a "
                    f"VecEnv that tells the last state, as Stable-Baselines3's own do"
                )
            arrived[i] = infos[i]["terminal_observation"]
        states = self.latent.frames(arrived)
        intrinsic = self._score(states)
        self._remember(states)
        if len(ended):
            self._remember(self.latent.frames(obs[ended]))
        self._train(len(obs))
        for info, apt, own in zip(infos, intrinsic, rewards, strict=True):
            info["apt_reward"], info["env_reward"] = float(apt), float(own)
        mixed = self.intrinsic_scale * intrinsic + self.extrinsic_scale * rewards
        return obs, mixed.astype(np.float32), dones, infos

    def _score(self, states: Tensor) -> np.ndarray:
        if len(self._particles) < self.k:
            return np.zeros(len(states), np.float32)
        particles = self._particles.drawn(self.pool, self._rng)
        reward = self.latent.reward(self.latent.encode(states), particles, self.k)
        _require_finite(reward, "environment")
        return reward.cpu().numpy()

    def _remember(self, states: Tensor) -> None:
        self._particles.add(self.latent.encode(states))
        if self.latent.optimizer is not None:
            self._states.add(states)

    def _train(self, steps: int) -> None:
        """Between two trainings f stands still, so that all particles lie in one space."""
        self._untrained_steps += steps
        if self.latent.optimizer is None or self._untrained_steps < self.train_every_steps:
            return
        self._untrained_steps = 0
        for _ in range(self.train_updates):
            self.latent.learn(self._states.drawn(CONTRAST_BATCH, self._rng))
        known = self._states.all().split(CONTRAST_BATCH)
        self._particles.replace(torch.cat([self.latent.encode(states) for states in known]))

    def save(self, path: str | Path) -> None:
        """Write memory, running mean and encoder as safetensors; SB3's `model.save` has nothing of them."""
        path = Path(path).expanduser()
        state = {f"latent.{name}": value for name, value in self.latent.state_dict().items()}
        state |= {f"particles.{name}": value for name, value in self._particles.state().items()}
        state |= {f"states.{name}": value for name, value in self._states.state().items()}
        scrap = path.with_name(f".tmp-{path.name}")
        try:
            checkpoint.write_tensors(scrap, state)
            scrap.replace(path)
        except OSError as e:
            raise CheckpointError(f"cannot write {path}: {e.strerror or e}") from e

    def load(self, path: str | Path) -> None:
        """The inverse of `save`, for a wrapper made with the same arguments.

        Random draws and the optimizer of an encoder that is trained begin afresh.
        """
        saved = checkpoint.read_tensors(Path(path).expanduser())

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}

        try:
            self.latent.load_state_dict(part("latent."))
            self._particles.load(part("particles."), self.latent.device)
            self._states.load(part("states."), self.latent.device)
        except (KeyError, RuntimeError) as e:
            raise CheckpointError(
                f"{path} is not of an APTReward like this one ({str(e).splitlines()[0]}): make it with the "
                f"arguments and for the observations of the one that was saved"
            ) from e


class APTReplayBuffer(ReplayBuffer):
    """A replay whose transitions are rewarded anew at every sample, among the others of their minibatch.

    `DQN("MlpPolicy", env, replay_buffer_class=APTReplayBuffer, replay_buffer_kwargs={"extrinsic_scale": 0})`.
    An encoder that learns is trained by one update per sample. Transitions are single steps.

    Args:
        buffer_size: As in SB3, like all up to `handle_timeout_termination`; the algorithm passes them.
        observation_space: Images or vectors.
        action_space: Any.
        device: Also of the encoder.
        n_envs: Number of environments.
        optimize_memory_usage: As in SB3.
        handle_timeout_termination: As in SB3.
        encoder: As in `APTReward`; here `simclr` is trained on the observations that are sampled.
        intrinsic_scale: Weight of APT's reward, about 1 on average.
        extrinsic_scale: Weight of the environment's reward.
        k: Neighbors, fewer than there are transitions in a minibatch.
        normalize: Divide by the running mean.
        seed: Of the encoder.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        encoder: Encoder = "auto",
        intrinsic_scale: float = 1.0,
        extrinsic_scale: float = 1.0,
        k: int = 5,
        normalize: bool = True,
        seed: int = 0,
    ) -> None:
        require(k >= 1, "k", k, "1 or more")
        latent = LatentSpace(
            observation_space, encoder, normalize, str(device), seed
        )  # refuses before memory is taken
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
        )
        self.latent, self.k = latent, k
        self.intrinsic_scale, self.extrinsic_scale = intrinsic_scale, extrinsic_scale

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> ReplayBufferSamples:
        samples = super()._get_samples(batch_inds, env)
        rewards = self.extrinsic_scale * samples.rewards  # (B, 1)
        if self.intrinsic_scale:
            if self.latent.optimizer is not None:
                self.latent.learn(self.latent.frames(samples.observations))
            z = self.latent.encode(self.latent.frames(samples.next_observations))
            intrinsic = self.latent.reward(z, None, self.k)
            _require_finite(intrinsic, "transition")
            rewards = rewards + self.intrinsic_scale * intrinsic[:, None].to(rewards.device)
        replaced: ReplayBufferSamples = samples._replace(rewards=rewards)
        return replaced


class LatentSpace(nn.Module):
    """Where distances are taken: an encoder f, and the running mean of the rewards that come of them."""

    def __init__(
        self, observation_space: spaces.Space, encoder: Encoder, normalize: bool, device: str, seed: int
    ) -> None:
        super().__init__()
        spec = spec_of(observation_space, spaces.Discrete(2), frame_stack=1)  # any actions will do
        self.spec, self.device, self.normalize = spec, pick_device(device), normalize
        self.function: Callable[[Tensor], Tensor] | None = None
        self.representation: Representation | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.mean = RunningMean()
        with seeded(seed, self.device):
            if isinstance(encoder, Agent):
                self.representation = _taken_from(encoder, spec)
            elif isinstance(encoder, str):
                self.representation = _made(encoder, spec)
            else:
                self.function = encoder
        self.to(self.device).eval()
        if encoder == "simclr" and self.representation is not None:  # an agent's stands still
            self.augment = Augment(AugmentConfig())
            rate = self.representation.config.learning_rate
            self.optimizer = torch.optim.Adam(self.representation.parameters(), rate)

    def frames(self, obs: np.ndarray | Tensor) -> Tensor:
        """Observations as SB3 has them → (n, *frame_shape), images as uint8 and channels first."""
        given = torch.as_tensor(obs, device=self.device)
        if not self.spec.pixels:
            return given.float()
        if channels_last(self.spec.raw_shape):
            given = given.permute(0, 3, 1, 2)
        return given.reshape(len(given), *self.spec.frame_shape).contiguous()

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """The encoder's features of them, (n, d)."""
        if self.representation is not None:
            return self.representation.encode(frames).float()
        assert self.function is not None
        z = self.function(frames)
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(frames):
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise SpaceError(
                f"the encoder made {got} of {len(frames)} observations: expected ({len(frames)}, d)"
            )
        return z.to(self.device).float()

    def reward(self, z: Tensor, particles: Tensor | None, k: int) -> Tensor:
        """(n,) eq. 5 among the particles, or among z itself, on a scale of about 1."""
        reward = particle_reward(z, particles=particles, k=k)
        if not self.normalize or not torch.isfinite(reward).all():
            return reward
        self.mean.update(reward)
        scaled: Tensor = self.mean(reward)
        return scaled

    def learn(self, frames: Tensor) -> None:
        """One update of an encoder that is trained by contrast."""
        f = self.representation
        assert isinstance(f, SimCLR)
        assert self.optimizer is not None
        index = torch.arange(len(frames), device=self.device).repeat(2)[:, None]  # two views of each
        f.train()
        loss, _ = f.contrast(self.augment(Frames(frames, index), f.layout))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        f.eval()


class Ring:
    """The last rows that were added."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.count = capacity, 0  # of all that was ever added
        self.rows: Tensor | None = None  # (capacity, …), once it is known how wide they are

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, rows: Tensor) -> None:
        """Add some, which take the places of the oldest."""
        if self.rows is None:
            self.rows = torch.empty(self.capacity, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        rows = rows[-self.capacity :]
        places = torch.arange(self.count, self.count + len(rows), device=rows.device) % self.capacity
        self.rows[places] = rows
        self.count += len(rows)

    def all(self) -> Tensor:
        """All that are there."""
        assert self.rows is not None
        return self.rows[: len(self)]

    def replace(self, rows: Tensor) -> None:
        """New rows in the places of those that are there."""
        self.all().copy_(rows)

    def drawn(self, n: int, rng: np.random.Generator) -> Tensor:
        """Different ones at random, or all of them if they are no more than n."""
        if len(self) <= n:
            return self.all()
        chosen = torch.from_numpy(rng.choice(len(self), n, replace=False, shuffle=False))
        return self.all()[chosen.to(self.all().device)]

    def state(self) -> dict[str, Tensor]:
        """All that `load` needs: the rows, oldest first."""
        if self.rows is None:
            return {}
        oldest = self.count % self.capacity if self.count > self.capacity else 0
        return {"rows": self.all().roll(-oldest, 0)}

    def load(self, state: dict[str, Tensor], device: torch.device) -> None:
        """The inverse of `state`; a smaller one keeps the newest."""
        self.count, self.rows = 0, None
        if state:
            self.add(state["rows"].to(device))


def _require_finite(reward: Tensor, what: str) -> None:
    bad = (~torch.isfinite(reward)).nonzero()
    if len(bad):
        i = int(bad[0])
        raise NonFiniteError(
            f"APT's reward of {what} {i} is {float(reward[i])}: expected observations and features without "
            f"NaN or infinity"
        )


def _made(name: str, spec: EnvSpec) -> Representation:
    if name not in NAMES:
        remedy = "Or a voidrl agent, or a function from observations to (n, d)."
        raise UnknownNameError("encoder", name, NAMES, remedy)
    name = ("fixed" if spec.pixels else "identity") if name == "auto" else name
    config = build_config(spec, [{"representation": name}]).representation
    cls: type[Representation] = registry.find("representation", name)
    return cls(spec, config, cls.make_encoder(spec, config))


def _taken_from(agent: Agent, spec: EnvSpec) -> Representation:
    """A copy, which stands still. SB3 stacks frames along the channels, as the agent's replay does."""
    if (agent.spec.obs_shape, agent.spec.pixels) != (spec.obs_shape, spec.pixels):
        raise SpaceError(
            f"the agent reads observations of shape {agent.spec.obs_shape} and these environments give "
            f"{spec.obs_shape}: expected those the agent was trained in, with their frames stacked"
        )
    return copy.deepcopy(agent.representation).requires_grad_(False)
