"""Environments that take and return tensors, such as simulators on a GPU.

`TensorVectorEnv` is their interface. Frames go from them into the replay on their device, and actions from
the policy to them; only rewards, flags and counted states come to the host, in one copy per step.
docs/environments/tensor.md shows how to write one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from voidrl.config import EnvConfig
from voidrl.envs.failures import creating, not_n
from voidrl.envs.spaces import ObservationCheck, Reading, read_spaces
from voidrl.envs.vector import Envs, StepResult, autoreset_of
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError, VoidrlWarning
from voidrl.kernels.copies import HostCopy
from voidrl.system.device import pick_device
from voidrl.types import EnvSpec, channels_last

COUNTED = ("cell", "success")  # entries of `info` that the host reads in each step
Observations = Any
"""A tensor (N, *shape), or tensors in dictionaries and tuples, on the environment's device."""
Info = dict[str, Any]


@runtime_checkable
class TensorVectorEnv(Protocol):
    """N environments whose observations, rewards and actions are tensors on one device.

    `autoreset_mode` is an attribute, or an entry of `metadata`: NEXT_STEP, or SAME_STEP with the last
    observations of episodes in `info["final_obs"]`. A tensor that was returned may be overwritten by the next
    step. Optional: `close()`, `render()`, `render_mode`, `metadata["render_fps"]`.
    """

    num_envs: int
    device: Any
    """Device of the tensors: a `torch.device` or its name."""
    single_observation_space: gym.Space
    """Observations of one environment: an image, numbers, or a Dict or Tuple of numbers."""
    single_action_space: gym.Space
    """Actions of one environment: Discrete or bounded Box."""

    def reset(self, *, seed: int | None = None) -> tuple[Observations, Info]:
        """Start all episodes. A seed determines the episodes, which makes resuming exact."""

    def step(self, actions: Tensor) -> tuple[Observations, Tensor, Tensor, Tensor, Info]:
        """Take actions (N, *action_shape).

        Returns observations, rewards (N,), terminated (N,), truncated (N,) and info, in which `cell` and
        `success`, if they are there, are tensors (N,).
        """


TensorFactory = Callable[..., TensorVectorEnv]
"""Called with `num_envs` and `device`, for `env.backend = "tensor"`."""


def is_tensor_env(env: object) -> TypeGuard[TensorVectorEnv]:
    """Whether this is a `TensorVectorEnv`, and not a class or function that makes one."""
    return not isinstance(env, type) and isinstance(env, TensorVectorEnv)


def make_tensor_envs(
    config: EnvConfig,
    factory: TensorFactory | TensorVectorEnv,
    num_envs: int,
    device: str,
    *,
    render: bool = False,
    true_state: bool = False,
) -> TensorEnvs:
    """Create N environments on a device, or take those that were passed, whatever their number."""
    if config.wrappers:
        raise ConfigError(
            f"env.wrappers = {[*config.wrappers]} cannot be used with env.backend = 'tensor': they wrap "
            f"single environments"
        )
    if is_tensor_env(factory):
        return TensorEnvs(factory, config, true_state=true_state, owned=False)
    options = {"render_mode": "rgb_array"} if render else {}
    with creating(config.id):
        env = cast(TensorFactory, factory)(num_envs=num_envs, device=pick_device(device), **options)
    if not is_tensor_env(env) or env.num_envs != num_envs:
        raise not_n(config.id, env, num_envs, "voidrl.envs.tensor.TensorVectorEnv", "tensor")
    return TensorEnvs(env, config, true_state=true_state)


class TensorEnvs(Envs):
    """A `TensorVectorEnv` for the training loop.

    One with SAME_STEP autoreset puts an episode's last observation into `info["final_obs"]`, and cannot reset
    while others step. So the last observation is handed out first. The next step is the first one of the new
    episode for the environment, and the reset for all other code: its observation begins the episode, and its
    transition is lost, one per episode. Its reward counts in the score.
    """

    takes_tensors = True

    def __init__(
        self, env: TensorVectorEnv, config: EnvConfig, *, true_state: bool = False, owned: bool = True
    ) -> None:
        self._owned, self.device = owned, torch.device(env.device)
        self._warned = False
        self._take(env, config.id, true_state, lambda: self._read(config))
        self._check: ObservationCheck | None = None
        if not self.spec.pixels:
            space = _flat_box(env.single_observation_space, self.spec)
            self._check = ObservationCheck(space, check_bounds=config.check_bounds)
            bounds = (torch.from_numpy(bound).float().to(self.device) for bound in self._check.bounds)
            self._low, self._high = bounds
        action_bounds = torch.tensor([self.spec.action_low, self.spec.action_high], dtype=torch.float64)
        self._action_bounds = action_bounds.to(self.device)
        dtype = env.single_action_space.dtype
        self._action_type = torch.from_numpy(np.zeros(0, dtype or np.float32)).dtype

    def _read(self, config: EnvConfig) -> Reading:
        known = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
        self._same_step = autoreset_of(self.vector, self.name, *known) is AutoresetMode.SAME_STEP
        observation, action = self.vector.single_observation_space, self.vector.single_action_space
        reading = read_spaces(observation, action, config.frame_stack, keys=config.keys)
        spec = reading.spec
        if config.action_masks not in ("auto", "none"):
            raise SpaceError(
                f"env.action_masks = {config.action_masks!r} is not supported for tensors: use 'none'"
            )
        if not isinstance(action, gym.spaces.Discrete | gym.spaces.Box) or spec.action_integer:
            raise SpaceError(
                f"action space {action} is not supported for tensors: expected Discrete, or Box of floats"
            )
        if any(part.kind != "numbers" for part in spec.parts):
            raise SpaceError(
                f"observation space {observation} is not supported for tensors: "
                f"expected one uint8 image, or numbers alone, of which env.keys chooses some"
            )
        return reading

    # Stepping

    @torch.no_grad()
    def reset(self, seed: int) -> tuple[Tensor, Info]:
        """Start new episodes."""
        self._resets[:] = True
        obs, info = self._returned(self._guarded(lambda: self.vector.reset(seed=seed)), 2)
        frames = self._frames_of(obs)
        if self._same_step:
            frames = frames.clone()  # the environment may overwrite its own
        self._newest = frames  # type: ignore[assignment]
        told = {key: info[key].cpu().numpy() for key in COUNTED if isinstance(info.get(key), Tensor)}
        self._check_values(self._within(frames).cpu().numpy(), frames)
        self._resets = np.zeros(self.num_envs, bool)
        self._uncounted = np.zeros(self.num_envs, np.float32)
        self._fresh_there = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        if self._tracks_state:
            self._read_state({**info, **told})
        return frames, {**info, **told}

    @torch.no_grad()
    def send(self, action: Tensor | np.ndarray) -> None:
        """Step all environments without waiting for the device."""
        given = torch.as_tensor(action, device=self.device)
        finite = torch.ones((), dtype=torch.bool, device=self.device)
        if given.is_floating_point():
            finite = torch.isfinite(given).all()
            given = torch.nan_to_num(given)  # a NaN as an index would end the process; `recv` reports it
        result = self._guarded(lambda: self.vector.step(self._action_there(given)))
        obs, reward, terminated, truncated, info = self._returned(result, 5)
        for name, value in {"reward": reward, "terminated": terminated, "truncated": truncated}.items():
            self._require(value, name, (self.num_envs,))
        frames = self._frames_of(obs)
        within = self._within(frames)
        if self._same_step:
            frames = self._final_there(frames, terminated.bool() | truncated.bool(), info)
        self._newest = frames  # type: ignore[assignment]
        self._info = info
        rows = [reward, terminated, truncated, within, finite.expand(self.num_envs)]
        self._counted = [key for key in COUNTED if isinstance(info.get(key), Tensor)]
        rows += [self._require(info[key], f"info[{key!r}]", (self.num_envs,)) for key in self._counted]
        self._arriving = HostCopy(torch.stack([row.to(torch.float32) for row in rows]))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for rewards and flags."""
        reward, *flags = self._arriving.numpy()
        terminated, truncated, within, finite = (flag != 0 for flag in flags[:4])
        self.actions_are_finite = bool(finite.all())
        self._own_steps += ~self._resets
        frames: Any = self._newest
        if self.actions_are_finite:
            self._check_values(within, frames)
        with self._misfits_named():
            reward = score = self._valid_reward(reward)
        if self._same_step:  # the step after an end is taken for a reset; its reward counts in the score
            fresh, uncounted = self._resets, self._uncounted
            self._uncounted = np.where(fresh & ~(terminated | truncated), reward, 0)
            score = np.where(fresh, 0, reward + uncounted)
            reward = np.where(fresh, 0, reward)
            terminated, truncated = terminated & ~fresh, truncated & ~fresh
        ended = terminated | truncated
        self._resets = ended & ~self._resets
        values = zip(self._counted, flags[4:], strict=True)
        told = {key: value.astype(np.int64 if key == "cell" else bool) for key, value in values}
        info = {**self._info, **told}
        if self._tracks_state:
            self._read_state(info)
        return StepResult(frames, reward, terminated, truncated, info, ended, score)

    def _final_there(self, frames: Tensor, ended: Tensor, info: Info) -> Tensor:
        """Frames in which episodes that ended show their last observation."""
        self._fresh_there = last = ended & ~self._fresh_there
        final = info.get("final_obs")
        if final is None and not self._warned:
            self._warned = True
            warnings.warn(
                f"environment {self.name!r} resets in the step that ends an episode and reports no "
                f"info['final_obs']: the observation before it takes its place, also for the value after a "
                f"truncation",
                VoidrlWarning,
                stacklevel=3,
            )
        source: Any = self._newest if final is None else self._frames_of(final)
        return torch.where(last.view(-1, *[1] * (frames.ndim - 1)), source, frames)

    def _action_there(self, action: Tensor) -> Tensor:
        """The actions in the environment's own range and shape."""
        spec = self.spec
        if spec.discrete:
            return action + spec.action_start[0] if spec.action_start else action
        low, high = self._action_bounds
        fraction = (action.to(torch.float64) + 1) / 2
        scaled = torch.clamp(low * (1 - fraction) + high * fraction, low, high)
        return scaled.view(len(action), *spec.action_shape).to(self._action_type)

    # Observations

    def _frames_of(self, obs: Observations) -> Tensor:
        """Frames (N, *frame_shape); of plain observations they are a view."""
        n, spec = self.num_envs, self.spec
        if spec.parts:
            values = []
            for part in spec.parts:
                found = self._require(part.find(obs), f"observation {part.name!r}", (n, *part.shape))
                values.append(found.reshape(n, -1))
            return torch.cat(values, dim=1).to(torch.float32)
        found = self._require(obs, "observation", (n, *spec.raw_shape))
        if not spec.pixels:
            return found.reshape(n, *spec.frame_shape).to(torch.float32)
        if found.dtype is not torch.uint8:
            raise self._failure(f"observations of type {found.dtype}", "torch.uint8, as in its space")
        if channels_last(spec.raw_shape):
            found = found.permute(0, 3, 1, 2)
        return found.reshape(n, *spec.frame_shape)

    def _returned(self, result: Any, count: int) -> Any:
        """The values of a step or reset."""
        if not isinstance(result, tuple) or len(result) != count or not isinstance(result[-1], dict):
            raise self._failure(type(result).__name__, f"{count} values, the last a dictionary")
        return result

    def _require(self, value: Any, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape on the environment's device."""
        is_tensor = isinstance(value, Tensor)
        if is_tensor and value.device.type == self.device.type and self.device.index is None:
            self.device = value.device  # with its number: `cuda` is whichever is the current one
        if is_tensor and value.shape == shape and value.device == self.device:
            return value  # type: ignore[no-any-return]
        what = f"shape {tuple(value.shape)} on {value.device}" if is_tensor else type(value).__name__
        raise self._failure(f"{name} of {what}", f"a tensor of shape {shape} on {self.device}")

    def _failure(self, found: str, expected: str) -> EnvironmentFailedError:
        return EnvironmentFailedError(f"environment {self.name!r} returned {found}: expected {expected}")

    def _within(self, frames: Tensor) -> Tensor:
        """(N,): whether all values are finite and within their bounds."""
        if self._check is None:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        return ((frames >= self._low) & (frames <= self._high)).all(1)

    def _check_values(self, within: np.ndarray, frames: Tensor) -> None:
        if not within.all():
            assert self._check is not None
            with self._misfits_named():
                self._check.require_values(frames.cpu().numpy())

    def close(self) -> None:
        """Close the environments, unless the caller made them."""
        if self._owned and hasattr(self.vector, "close"):
            self.vector.close()


def _flat_box(space: gym.Space, spec: EnvSpec) -> gym.spaces.Box:
    """The bounds of a vector frame."""
    boxes: list[Any] = [space]
    if spec.parts:
        boxes = [part.find(space) for part in spec.parts]
    low = np.concatenate([box.low.astype(np.float32).ravel() for box in boxes])
    high = np.concatenate([box.high.astype(np.float32).ravel() for box in boxes])
    return gym.spaces.Box(low, high, dtype=np.float32)
