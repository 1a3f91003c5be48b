"""A replay full of random transitions, written as a run writes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from voidrl.config import ReplayConfig
from voidrl.replay import Replay, make_replay
from voidrl.types import EnvSpec

NUM_ENVS = 16
STEPS = {"cuda": 4096, "cpu": 512}  # of each environment; enough that a GPU's caches do not hold the frames
EPISODE_STEPS = 250
FRAME_SETS = 64  # frames come back after this many steps: drawing all of them would take longer than the rest


def random_replay(
    spec: EnvSpec, device: torch.device, skill_dim: int, say: Callable[[str], None], steps: int | None = None
) -> Replay:
    """Episodes of about `EPISODE_STEPS`, half of them terminated."""
    steps = steps or STEPS[device.type]
    rng = np.random.default_rng(0)
    config = ReplayConfig(capacity_steps=(steps + 1) * NUM_ENVS)
    replay = make_replay(config, spec, NUM_ENVS, skill_dim, device, say)
    shape = (min(steps, FRAME_SETS), NUM_ENVS, *spec.frame_shape)
    frames: np.ndarray
    if spec.pixels:
        frames = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        frames = rng.standard_normal(shape, dtype=np.float32)
    if spec.discrete:
        action = rng.integers(spec.num_actions, size=(steps, NUM_ENVS))
    else:
        action = rng.uniform(-1, 1, (steps, NUM_ENVS, spec.action_dim)).astype(np.float32)
    reward = rng.standard_normal((steps, NUM_ENVS), dtype=np.float32)
    ends = rng.random((steps, NUM_ENVS)) < 1 / EPISODE_STEPS
    terminated = ends & (rng.random((steps, NUM_ENVS)) < 0.5)
    skill = torch.randn(NUM_ENVS, skill_dim, device=device)
    replay.reset(frames[0])
    for t in range(steps):
        following = frames[(t + 1) % len(frames)]
        replay.add(action[t], reward[t], terminated[t], ends[t] & ~terminated[t], following, skill)
    return replay
