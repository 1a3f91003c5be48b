"""Tries custom pieces on made-up transitions, so that a mistake in them is found before training."""

from __future__ import annotations

import copy

import numpy as np
import torch

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.diagnosis import failed_piece
from voidrl.agent.dry_build import has_custom_code
from voidrl.agent.on_policy import representation_step
from voidrl.errors import ConfigError
from voidrl.replay import Replay
from voidrl.system.device import seeded

STEPS, NUM_ENVS = 8, 2


def rehearse(agent: Agent) -> None:
    """Update a copy of an agent with custom pieces once; random numbers are left untouched."""
    if not (agent.learns and has_custom_code(agent.config)):
        return
    with seeded(agent.config.seed, agent.device), dist.alone():
        try:
            copied = copy.deepcopy(agent)
            replay = _made_up_replay(copied)
            if agent.config.learner.on_policy:
                representation_step(copied, replay, 0)
            else:
                copied.update(replay)
        except Exception as error:
            if not (failure := failed_piece(agent.config, error)):
                raise
            raise ConfigError(f"{failure}, given made-up transitions") from error


def _made_up_replay(agent: Agent) -> Replay:
    """A few steps of zeros, with random actions and skills."""
    spec, device, method, n = agent.spec, agent.device, agent.method, NUM_ENVS
    replay = Replay(spec, n, STEPS * n, method.skill_dim, device, device, note_dim=agent.note_dim)
    zeros = np.zeros((n, *spec.stored_shape), np.uint8 if spec.pixels else np.float32)
    skill, no = method.sample_skill(torch.zeros(n, dtype=torch.int64, device=device)), np.zeros(n, bool)
    replay.reset(zeros)
    for _ in range(STEPS):
        action = agent.random_actions(replay.latest()).cpu().numpy()
        replay.add(action, np.zeros(n), no, no, zeros, skill)
    return replay
