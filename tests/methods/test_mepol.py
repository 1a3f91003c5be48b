"""MEPOL: weighted entropy of particles, what a rollout is, and runs whose states spread."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import CPU, DISCRETE, make_agent, points, run_loop, small_method, spec_of
from tiny_runs import MAZE, Walk, assert_same_run, newest, rows, tiny

import voidrl
from voidrl.agent import on_policy
from voidrl.entropy import neighborhoods, particle_entropy, weighted_entropy
from voidrl.replay import Replay


def gaussian(d, sigma=1.0):
    return d / 2 * math.log(2 * math.pi * math.e * sigma**2)


# The estimator


@pytest.mark.parametrize(
    ("z", "expected"),
    [(torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)), 0.0), (points(2000, 3), gaussian(3))],
    ids=["uniform", "normal"],
)
def test_equal_weights_give_the_entropy_of_the_particles_and_no_divergence(z, expected):
    for k in (4, 50):
        found, kl = weighted_entropy(neighborhoods(z, k), torch.zeros(len(z)))
        assert abs(found - expected) < 0.15
        torch.testing.assert_close(found, particle_entropy(z, k))
        assert abs(kl) < 1e-12


@pytest.mark.parametrize(("mean", "sigma"), [(0.5, 1.0), (0.0, 0.6)])
def test_weighted_samples_have_the_entropy_of_the_other_distribution(mean, sigma):
    """Samples of q = N(0, 1), weighted by p/q, as if they were of p = N(mean, σ²)."""
    x = points(4000, 1)
    log_weight = (x**2 / 2 - ((x - mean) / sigma) ** 2 / 2)[:, 0]
    found, kl = weighted_entropy(neighborhoods(x, 20), log_weight)
    assert abs(found - gaussian(1, sigma)) < 0.05
    divergence = math.log(sigma) + (1 + mean**2) / (2 * sigma**2) - 0.5
    assert abs(kl - divergence) < 0.05


# Rollouts


def test_a_path_begins_with_its_episode_and_resets_are_no_steps():
    """Two environments, the second of which ends after two steps; then both are cut by a checkpoint."""
    replay = Replay(DISCRETE, 2, 40, 0, CPU, CPU)
    frames, no, nothing = np.zeros((2, 4), np.float32), np.zeros(2, bool), torch.zeros(2, 0)
    replay.reset(frames)
    for t in range(5):
        ended = np.array([False, t == 1])
        replay.add(np.full(2, t % 3), np.full(2, float(t)), ended, no, frames, nothing)
    replay.reset(frames)
    replay.add(np.zeros(2, int), np.full(2, 9.0), no, no, frames, nothing)
    rollout = replay.rollout(len(replay), 0.5)
    assert rollout.real.int().tolist() == [[1, 1], [1, 1], [1, 0], [1, 1], [1, 1], [0, 0], [1, 1]]
    assert rollout.batch.reward.tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 9, 9]
    assert rollout.path_sums(torch.ones(11)).tolist() == [1, 1, 2, 2, 3, 4, 1, 5, 2, 1, 1]
    assert rollout.ends.int().tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0]
    assert rollout.batch.discount.tolist() == [0.5, 0.5, 0.5, 0, *[0.5] * 7]
    assert rollout.grid(torch.arange(1.0, 12))[2].tolist() == [5, 0]


# Runs


class Hall(gym.Env):
    """Places 0 … 20, seen as numbers; every episode begins in the middle and lasts 12 steps."""

    def __init__(self, continuous=False):
        self.observation_space = spaces.Box(-2, 2, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.continuous = continuous

    def _obs(self):
        return np.array([self.at / 10], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = self.np_random.uniform(-0.5, 0.5), 0
        return self._obs(), {}

    def step(self, action):
        move = float(action[0]) if self.continuous else 2.0 * action - 1
        self.at, self.time = float(np.clip(self.at + move, -10, 10)), self.time + 1
        return self._obs(), 0.0, False, self.time >= 12, {}


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_states_spread_and_no_step_leaves_the_trust_region(continuous, tmp_path, monkeypatch):
    accepted, ascend = [], on_policy.ascend

    def watched(optimizers, surrogate, **options):
        found, taken = ascend(optimizers, surrogate, **options)
        accepted.append((found, taken, surrogate().divergence.item()))
        return found, taken

    monkeypatch.setattr(on_policy, "ascend", watched)
    learner = {"name": "mepol", "rollout_steps": 12, "hidden_dim": 32, "learning_rate": 3e-3}
    agent = make_agent(
        spec_of(lambda: Hall(continuous)),
        method={"name": "mepol", "k": 6},
        learner=learner | {"kl_limit": 0.3, "max_updates": 8},
        env__num_envs=8,
        steps=1400,
    )
    loop = run_loop(tmp_path / "run", lambda: Hall(continuous), agent, num_envs=8)
    assert len(accepted) == loop.state.rollouts == loop.state.updates >= 13
    for found, taken, measured in accepted:
        assert 0 <= measured <= 0.3
        assert found.divergence.item() == pytest.approx(measured, abs=1e-9)  # that of the policy that is kept
        assert 0 < taken <= 8
    estimates = [found.metrics["mepol_entropy"].item() for found, *_ in accepted]
    assert np.mean(estimates[-3:]) > np.mean(estimates[:3]) + 0.25
    # Of the visits themselves: most of the entropy that 21 places can have, from what a random walk has.
    seen = [replay_entropy(loop.replay, part) for part in (slice(0, 200), slice(-200, None))]
    assert seen[1] > seen[0] + 0.25


def replay_entropy(replay, part):
    """Entropy of the places in some of the steps, in nats."""
    slots = replay.newest(len(replay)).flip(0)[part]
    places = (replay.observations(slots)[:, 0] * 10).round().long() + 10
    share = places.bincount(minlength=21) / len(places)
    return -(share * share.clamp(min=1e-9).log()).sum().item()


@pytest.mark.parametrize("phase", ["pretrain", "train"])
def test_a_run_that_stops_within_a_rollout_resumes_bit_for_bit(phase, tmp_path):
    learner = {"name": "mepol", "rollout_steps": 6, "max_updates": 3, "hidden_dim": 8}
    changes = tiny(env__num_envs=2, log__checkpoint_every_steps=16, learner=learner, log__log_every_steps=8)
    if phase == "pretrain":
        changes |= {"method": small_method("mepol"), "representation": {"name": "simclr", "batch_size": 8}}
        changes |= {"augment.shift_pixels": 1, "share_encoder": "all", "warmup_steps": 4}
    run = getattr(voidrl, phase)
    env = MAZE if phase == "pretrain" else Walk
    run(env, steps=40, seed=5, out=tmp_path / "straight", config=changes)
    run(env, steps=16, seed=5, out=tmp_path / "resumed", config=changes)
    stopped = newest(tmp_path / "resumed")[1]
    assert 0 < stopped["steps"] - stopped["rollout_start"] < 12
    voidrl.resume(tmp_path / "resumed", steps=40)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)
    done = newest(tmp_path / "straight")[1]
    assert done["rollouts"] == 3
    assert done["updates"] == 3 + (done["rollout_start"] - 4 if phase == "pretrain" else 0)
    assert rows(tmp_path / "straight")[-1]["rollouts"] == 3
