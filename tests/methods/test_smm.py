"""SMM: rare states earn more than common ones, and states of one skill more than shared ones."""

import math

import numpy as np
import pytest
import torch
from hand_batches import latents_of, minimize
from helpers import CPU, fill_replay, make_agent

from voidrl.agent.rewards import batch_latents
from voidrl.replay import Replay
from voidrl.types import EnvSpec

PLANE = EnvSpec((2,), False, 1, num_actions=3, raw_shape=(2,))
SHARED, OWN, RARE = 0, 1, 2
PLACES = np.float32([[[0, 1], [-1, 0], [0, -1]], [[0, 1], [1, 0], [0, -1]]])  # of both skills


def mixture(shares):
    """Two skills, each in three places for these shares of its steps: one of its own and two shared ones."""
    rng, steps, eye = np.random.default_rng(0), 300, np.eye(2, dtype=np.float32)
    replay = Replay(PLANE, 2, 2 * (steps + 2), 2, CPU, CPU)
    replay.reset(PLACES[:, SHARED])
    no = np.zeros(2, bool)
    for _ in range(steps):
        place = rng.choice(3, size=2, p=shares)
        frames = PLACES[[0, 1], place] + rng.normal(0, 0.05, (2, 2)).astype(np.float32)
        replay.add(np.zeros(2, np.int64), np.zeros(2), no, no, frames, torch.from_numpy(eye))
    return replay


def score(agent, place):
    """The mean reward of both skills at one of their places, over the samples of the VAE's code."""
    obs = torch.from_numpy(PLACES[:, place]).repeat(200, 1)
    batch = fill_replay(PLANE, skill_dim=2).batch(torch.zeros(400, dtype=torch.int64), 1, 1.0)
    batch = batch._replace(skill=torch.eye(2).repeat(200, 1))
    with torch.no_grad():
        return agent.method.reward(batch, latents_of(None, obs)).mean().item()


def trained(replay):
    method = {"name": "smm", "num_skills": 2, "hidden_dim": 32, "code_dim": 4}
    agent = make_agent(PLANE, method=method)
    for _ in range(120):
        batch = replay.batch(replay.sample(64), 1, 1.0)
        metrics = minimize(agent, agent.method.losses(batch, batch_latents(agent, batch, None)))
    return agent, metrics


def test_a_rare_state_earns_more_than_a_common_one():
    agent, metrics = trained(mixture([0.97, 0, 0.03]))
    assert score(agent, RARE) > score(agent, SHARED) + 1  # neither tells which skill it is
    assert metrics["smm_error"] < 2  # the variance of two standardized coordinates


def test_at_equal_density_a_state_of_one_skill_earns_more_than_a_shared_one():
    agent, metrics = trained(mixture([0.5, 0.5, 0]))
    gain = score(agent, OWN) - score(agent, SHARED)
    assert gain == pytest.approx(math.log(2), abs=0.3)
    assert metrics["smm_accuracy"] == pytest.approx(0.75, abs=0.15)  # sure of its own, guesses at shared ones


def test_the_reward_by_hand():
    """With networks that output 0, and then a code that is 1 with a variance of e."""
    agent = make_agent(method={"name": "smm", "num_skills": 3, "code_dim": 4, "density_weight": 2.0})
    for parameter in agent.method.parameters():
        parameter.data.zero_()
    method = agent.method
    method.moments.update(torch.tensor([[-1.0, 0.0, 2.0, 5.0], [3.0, 1.0, 4.0, 9.0]]))
    z = torch.tensor(
        [[3.0, 0.5, 0.0, 7.0], [1.0, 0.5, 3.0, 1000.0]]
    )  # standardized: (1, 0, −3, 0), (0, 0, 0, 5)
    replay = fill_replay(skill_dim=3)
    batch = replay.batch(replay.sample(2), 1, 1.0)._replace(skill=torch.eye(3)[:2])
    latents = latents_of(None, z)
    with torch.no_grad():  # log q + log K is 0: the classifier guesses
        torch.testing.assert_close(method.reward(batch, latents), torch.tensor([20.0, 50.0]))
        method.vae.encoder[-1].bias.fill_(1.0)  # KL of each of 4 coordinates: (1 + e − 1 − 1) / 2
        kl = 4 * (math.e - 1) / 2
        torch.testing.assert_close(method.reward(batch, latents), torch.tensor([20.0, 50.0]) + 2 * 0.5 * kl)
