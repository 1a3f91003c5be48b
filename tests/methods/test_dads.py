"""DADS: the reward is the information of a step about its skill; q finds the skill for a task."""

import math

import numpy as np
import pytest
import torch
from hand_batches import batch_of, latents_of, minimize
from helpers import CPU, make_agent, points, seen_as, shake, watch_losses

from voidrl.methods import dads
from voidrl.replay import Replay

LINE = seen_as((1,))
WIDE = seen_as((80,))
PLANE = seen_as((2,))


def make(spec=LINE, **options):
    learner = {"batch_size": 128}
    return make_agent(spec, method={"name": "dads", "hidden_dim": 32, **options}, learner=learner)


def walks(spec, skills, moves, noise, steps=150):
    """Every environment has a skill, (N, S), that moves it by (N, d); it is shown several times."""
    rng, n = np.random.default_rng(0), len(skills)
    replay = Replay(spec, n, n * (steps + 2), skills.shape[1], CPU, CPU)
    at, copies = np.zeros_like(moves), spec.obs_shape[0] // moves.shape[1]
    replay.reset(np.tile(at, copies))
    no, actions = np.zeros(n, bool), np.zeros(n, np.int64)
    for _ in range(steps):
        at = (at + moves + noise * rng.normal(size=at.shape)).astype(np.float32)
        replay.add(actions, np.zeros(n), no, no, np.tile(at, copies), torch.from_numpy(skills))
    return replay


def single_steps(noise):
    """Steps s' = s + w + noise with w = ±1 as one-hot skills, which s does not tell."""

    def draw(n):
        s, index = 3 * torch.randn(n, 1), torch.randint(2, (n,))
        reached = s + 2 * index[:, None] - 1 + noise * torch.randn(n, 1)
        return batch_of(torch.eye(2)[index], s, reached), latents_of(s, reached)

    return draw


def information(noise):
    """The mean of log q(δ | w) / q(δ) for s' = s + w + noise, w = ±1, by integration.

    δ is in deviations of the step, and q(δ | w) a Gaussian of deviation 1.
    """
    std = math.sqrt(1 + noise**2)
    x = np.linspace(-1 - 8 * noise, 1 + 8 * noise, 20_001)
    density = np.exp(-(((x - 1) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))
    log_ratio = ((x - 1) ** 2 - (x + 1) ** 2) / (2 * std**2)  # of the other skill to the own one
    return float(np.trapezoid(density * (math.log(2) - np.logaddexp(0, log_ratio)), x))


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_the_mean_reward_is_the_information_of_a_step_about_its_skill(noise):
    agent = make(discrete_skills=True, learning_rate=5e-3)
    draw = single_steps(noise)
    for _ in range(120):
        minimize(agent, agent.method.losses(*draw(128)))
    with torch.no_grad():
        reward = agent.method.reward(*draw(4000))
    assert reward.mean().item() == pytest.approx(information(noise), abs=0.04)
    assert reward.max() <= math.log(2)


def test_the_reward_by_hand_never_exceeds_its_bound_and_chunks_do_not_change_it(monkeypatch):
    agent = make(PLANE, samples=7)
    method = agent.method
    shake(method.dynamics, 0.3)
    x, change, skill = points(6, 2), points(6, 2, seed=1), points(6, 2, seed=2).tanh()
    skills = torch.cat([skill[:, None], points(6, 7, 2, seed=3).tanh()], 1)
    with torch.no_grad():
        reward = method.information(x, change, skill, skills)
        log_weight, mean = method.dynamics(x[:1].expand(8, -1), skills[0])  # of the first transition
        parts = torch.distributions.Normal(mean, 1.0).log_prob(change[0]).sum(2) + log_weight
        q = parts.exp().sum(1)  # (8,): the skill itself, and those to compare it with
        by_hand = math.log(8) - math.log(1 + (q[1:] / q[0]).sum().item())
        assert reward[0].item() == pytest.approx(by_hand, abs=1e-4)
        assert (reward <= math.log(8)).all()
        monkeypatch.setattr(dads, "MAX_ROWS", 12)  # two skills at a time
        torch.testing.assert_close(method.information(x, change, skill, skills), reward)
        far = method.information(x, 100 * change, skill, skills)  # where all likelihoods are 0 in float32
    assert far.isfinite().all()


def test_updates_learn_continuous_skills_and_reward_them():
    """From the agent's own steps: skills of the plane that are the step itself, seen in wide observations."""
    agent = make(WIDE, learning_rate=5e-3, samples=15)
    skills = np.random.default_rng(1).uniform(-1, 1, (16, 2)).astype(np.float32)
    replay, rewards = walks(WIDE, skills, skills, 0.05), []
    watch_losses(agent, lambda batch, reward: rewards.append(reward))
    for _ in range(80):
        metrics = agent.update(replay)
    assert agent.method.projection.shape == (80, 64)
    assert metrics["dads_error"] < 0.1  # of the variance of the steps
    assert torch.cat(rewards[:3]).mean() < 0.3
    assert torch.cat(rewards[-10:]).mean() > 0.5
    assert torch.cat(rewards).max() <= math.log(16)
