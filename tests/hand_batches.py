"""Batches and latents written by hand, for calling a method without a replay."""

import numpy as np
import pytest
import torch

from voidrl.config import AugmentConfig
from voidrl.methods.base import Latents
from voidrl.nets.augment import Augment
from voidrl.replay import Replay
from voidrl.representations.base import Views
from voidrl.types import Batch, Layout


def batch_of(skill=None, obs=None, next_obs=None, reward=None, *, action=None, discount=0.0, weight=None):
    """Transitions with these fields, of which nothing else is read."""
    given = next(field for field in (skill, obs, reward) if field is not None)
    nothing, none = torch.zeros(len(given)), torch.zeros(len(given), 0)
    skill = none if skill is None else skill
    reward = nothing if reward is None else reward
    next_obs = obs if next_obs is None else next_obs
    action = nothing.long() if action is None else torch.as_tensor(action)
    weight = nothing + 1 if weight is None else torch.as_tensor(weight)
    return Batch(obs, action, reward, nothing + discount, next_obs, skill, weight, nothing, none)


def latents_of(z=None, z_next=None, pool=None):
    """Latents, of which those that are None must not be read."""

    def given(value, name):
        return lambda: pytest.fail(f"{name} is read") if value is None else value

    return Latents(given(z, "z"), given(z_next, "z_next"), pool)


def views_of(replay, slots, learner=None):
    """Transitions without augmentation, so that each read is the same."""
    segment = replay.segment(torch.as_tensor(slots), 1, 1.0)
    return Views(replay, segment, Augment(AugmentConfig(shift_pixels=0)), Layout(), learner)


def rooms_replay(agent, rooms, k=4, steps=60):
    """A replay in which skill i of k stays in room i, or all skills in room 0, if there is only one."""
    replay, eye, no = Replay(agent.spec, k, 400, k, agent.device, agent.device), np.eye(k), np.zeros(k, bool)
    frames = np.float32(eye if rooms == k else eye[[0] * k])
    replay.reset(frames)
    for _ in range(steps):
        replay.add(np.zeros(k, np.int64), np.zeros(k), no, no, frames, torch.eye(k))
    return replay


def minimize(agent, losses):
    """Minimize a method's losses by the agent's optimizers; returns their metrics."""
    metrics = {}
    for loss in losses:
        agent.optimizers.minimize([loss.optimizer], loss.value)
        metrics |= loss.metrics
    return metrics
