"""A replay full of random transitions, filled the way a run fills it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from voidrl.config import ReplayConfig
from voidrl.replay import Replay, make_replay
from voidrl.types import EnvSpec

NUM_ENVS = 16
STEPS = {"cuda": 4096, "cpu": 512}  # per environment; on CUDA more frames than the caches hold
ENTRIES = {"cuda": 2**20, "cpu": 2**14}  # of a prioritized replay
EPISODE_STEPS = 250
DISTINCT_FRAMES = 64  # frames repeat after this many steps: drawing all of them would dominate the set-up


def random_replay(
    spec: EnvSpec,
    device: torch.device,
    skill_dim: int,
    say: Callable[[str], None],
    steps: int | None = None,
    config: ReplayConfig | None = None,
    note_dim: int = 0,
) -> Replay:
    """Fill a replay with episodes of about `EPISODE_STEPS`, half of them terminated.

    With a prioritized `config` it has room for `ENTRIES`, and each batch reads all priorities.
    """
    steps = steps or STEPS[device.type]
    rng = np.random.default_rng(0)
    prioritized = config is not None and config.priority_exponent > 0
    capacity = (steps + 1) * NUM_ENVS
    capacity = max(capacity, ENTRIES[device.type]) if prioritized else capacity
    config = dataclasses.replace(config or ReplayConfig(), capacity_steps=capacity, device="auto")
    replay = make_replay(config, spec, NUM_ENVS, skill_dim, device, say, note_dim)
    shape = (min(steps, DISTINCT_FRAMES), NUM_ENVS, *spec.stored_shape)
    frames: np.ndarray
    if spec.pixels:
        frames = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        frames = rng.standard_normal(shape, dtype=np.float32)
    action = random_actions(spec, rng, (steps, NUM_ENVS))
    reward = rng.standard_normal((steps, NUM_ENVS), dtype=np.float32)
    ended = rng.random((steps, NUM_ENVS)) < 1 / EPISODE_STEPS
    terminated = ended & (rng.random((steps, NUM_ENVS)) < 0.5)
    skill = torch.randn(NUM_ENVS, skill_dim, device=device)
    replay.reset(frames[0])
    for t in range(steps):
        next_frames = frames[(t + 1) % len(frames)]
        replay.add(action[t], reward[t], terminated[t], ended[t] & ~terminated[t], next_frames, skill)
    return replay


def random_actions(spec: EnvSpec, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform random actions: `shape` integers, or vectors in [−1, 1]."""
    if spec.discrete:
        return rng.integers(spec.num_actions, size=shape)
    return rng.uniform(-1, 1, (*shape, spec.action_dim)).astype(np.float32)
