"""APT's reward in Stable-Baselines3: values by hand, ends of episodes, images, encoders, what is refused.

That exploration grows is shown by examples/sb3_apt.py, which tests/test_examples.py runs.
"""

import importlib
import math
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import CONTINUOUS, make_agent
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from voidrl.entropy import particle_reward
from voidrl.errors import ConfigError, MissingExtraError, NeighborError, NonFiniteError, SpaceError
from voidrl.playing.sb3 import APTReplayBuffer, APTReward
from voidrl.types import EnvSpec


class Line(gym.Env):
    """Goes through given places, whatever is done; an episode is `length` steps; the reward is 10."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, places, length=100):
        self.places, self.length = iter(places), length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([next(self.places)], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([next(self.places)], np.float32), 10.0, False, self.time == self.length, {}


class Pictures(gym.Env):
    """Random images of 36 × 36, channels last."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.integers(0, 256, (36, 36, 3), np.uint8), {}

    def step(self, action):
        self.time += 1
        image = self.np_random.integers(0, 256, (36, 36, 3), np.uint8)
        return image, 1.0, False, self.time == 9, {}


def line(*places, length=100):
    return DummyVecEnv([lambda: Line(places, length)])


def walk(venv, steps):
    """The rewards and infos of some steps after a reset."""
    venv.reset()
    taken = [venv.step(np.zeros(venv.num_envs, int)) for _ in range(steps)]
    return np.array([reward for _, reward, _, _ in taken]), [infos for *_, infos in taken]


def plain(venv, **options):
    """Only APT's reward from the nearest neighbor, as it is."""
    return APTReward(venv, **{"k": 1, "extrinsic_scale": 0, "normalize": False} | options)


def pictures(n=2, seed=3):
    return make_vec_env(Pictures, n, seed=seed)


# The wrapper


def test_the_reward_of_a_step_by_hand():
    venv = APTReward(line(0, 1, 3, 3.5, -1), k=2, extrinsic_scale=0.5, intrinsic_scale=2.0, normalize=False)
    rewards, infos = walk(venv, 4)
    expected = [
        0.0,  # only 0 is known, and k is 2
        math.log(1 + (2 + 3) / 2),  # 3, from 1 and 0
        math.log(1 + (0.5 + 2.5) / 2),  # 3.5, from 3 and 1
        math.log(1 + (1 + 2) / 2),  # −1, from 0 and 1
    ]
    np.testing.assert_allclose(rewards[:, 0], 5 + 2 * np.array(expected), rtol=1e-6)
    assert rewards.dtype == np.float32
    np.testing.assert_allclose([info[0]["apt_reward"] for info in infos], expected, rtol=1e-6)
    assert {info[0]["env_reward"] for info in infos} == {10.0}


def test_it_is_standardized_by_the_moments_of_what_was_seen():
    places = (0, 1, 3, 3.5, 9)
    raw, _ = walk(plain(line(*places)), 4)
    found, _ = walk(plain(line(*places), normalize=True), 4)
    seen = [raw[: i + 1, 0].astype(float) for i in range(4)]
    expected = [0.0] + [(r[-1] - r.mean()) / r.std() for r in seen[1:]]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_at_the_end_of_an_episode_its_last_state_counts_and_the_next_first_is_remembered():
    #           0 → 1 → 5 | 100 → 101 → 102
    venv = plain(line(0, 1, 5, 100, 101, 102, 0, 0, length=2))
    rewards, infos = walk(venv, 4)
    assert infos[1][0]["terminal_observation"] == [5]
    distances = [1, 4, 1, 1]  # 5 from 1, not 100 from anything; 101 from 100, which was never a step's end
    np.testing.assert_allclose(rewards[:, 0], np.log1p(distances), rtol=1e-6)


def test_environments_share_one_memory():
    venv = DummyVecEnv([lambda: Line([0, 1, 50]), lambda: Line([10, 2, 51])])
    rewards, _ = walk(plain(venv), 2)
    np.testing.assert_allclose(rewards[0], np.log1p([1, 2]), rtol=1e-6)  # both from 0, by now the nearest
    np.testing.assert_allclose(rewards[1], np.log1p([40, 41]), rtol=1e-6)  # from 10: not from each other


def test_only_the_newest_states_are_remembered():
    venv = plain(line(0, 100, 200, 1), memory=2, pool=2)
    rewards, _ = walk(venv, 3)
    np.testing.assert_allclose(rewards[2], np.log1p([99]), rtol=1e-6)  # 0 is forgotten


def test_neighbors_are_sought_in_a_pool_drawn_from_the_memory():
    places = [*range(100), 0]
    venv, again = (plain(line(*places), memory=200, pool=1, seed=1) for _ in range(2))
    rewards, _ = walk(venv, 99)
    distance = np.expm1(rewards[:, 0].astype(float))
    assert np.all((distance > 0.99) & (distance < 100))
    assert len(set(np.round(distance))) > 20  # not always the nearest
    assert np.array_equal(rewards, walk(again, 99)[0])  # the same seed draws the same


def test_without_a_weight_nothing_is_computed():
    venv = APTReward(line(0, 1, float("nan"), 3), intrinsic_scale=0, extrinsic_scale=0.1)
    rewards, infos = walk(venv, 3)
    np.testing.assert_allclose(rewards, 1.0)
    assert "apt_reward" not in infos[0][0]


# Encoders


def test_images_in_either_order_of_axes_and_stacked():
    last, first = (walk(plain(each), 12)[0] for each in (pictures(), VecTransposeImage(pictures())))
    assert np.array_equal(last, first)
    assert (last[2:] > 0).all()
    stacked = plain(VecFrameStack(pictures(), 2))
    assert stacked.latent.spec.obs_shape == (6, 36, 36)
    assert (walk(stacked, 5)[0][2:] > 0).all()


def test_the_fixed_encoder_is_fixed_and_of_its_seed():
    one, same, other = (APTReward(pictures(), k=1, seed=seed, extrinsic_scale=0) for seed in (0, 0, 1))
    state = torch.get_rng_state()
    a, b, c = (walk(venv, 6)[0] for venv in (one, same, other))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert torch.equal(state, torch.get_rng_state())


def test_an_agents_representation():
    spec = EnvSpec((3, 36, 36), True, 2, num_actions=3, raw_shape=(36, 36, 3))
    agent = make_agent(spec, representation="simclr")
    venv = VecFrameStack(pictures(1), 2)
    rewards, _ = walk(plain(venv, encoder=agent), 1)
    venv = VecFrameStack(pictures(1), 2)
    seen = np.concatenate([venv.reset(), venv.step(np.zeros(1, int))[0]])  # (2, 36, 36, 6)
    with torch.no_grad():
        z = agent.representation.encode(torch.from_numpy(seen.transpose(0, 3, 1, 2).copy()))
    np.testing.assert_allclose(rewards[0], math.log1p((z[0] - z[1]).norm()), rtol=1e-5)
    assert any(p.requires_grad for p in agent.representation.parameters())  # the agent itself is left alone


def test_a_function_of_ones_own():
    venv = plain(line(0, 1, 3), encoder=lambda obs: obs * 7)
    np.testing.assert_allclose(walk(venv, 2)[0][:, 0], np.log1p([7, 14]), rtol=1e-6)


# The replay buffer


def filled(n=64, scale=1.0, **options):
    box, actions = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
    buffer = APTReplayBuffer(n, box, actions, "cpu", **{"gamma": 0.9} | options)
    rng = np.random.default_rng(0)
    for i in range(n):
        obs, after = scale * rng.normal(size=(2, 1, 3)).astype(np.float32)
        buffer.add(obs, after, np.array([0]), np.array([float(i)]), np.array([False]), [{}])
    return buffer


def test_samples_are_rewarded_among_their_minibatch():
    buffer = filled(intrinsic_scale=2.0, extrinsic_scale=0.5, normalize=False, k=3, n_steps=1)
    rows = np.arange(20)
    samples = buffer._get_samples(rows)
    expected = 2 * particle_reward(samples.next_observations, k=3) + 0.5 * torch.arange(20.0)
    torch.testing.assert_close(samples.rewards[:, 0], expected)
    among_others = buffer._get_samples(np.array([0, *range(40, 60)])).rewards[0]
    assert among_others != samples.rewards[0]  # rewards are not stored
    assert (buffer.rewards[:, 0] == np.arange(64)).all()


def test_samples_are_standardized_by_recent_moments():
    buffer, halves = filled(extrinsic_scale=0.0, n_steps=1), np.arange(64).reshape(2, 32)
    first, second = (buffer._get_samples(rows).rewards[:, 0] for rows in halves)
    seen = [torch.from_numpy(buffer.next_observations[rows, 0]) for rows in halves]
    raw = [particle_reward(each, k=5).double() for each in seen]
    expected = (raw[0] - raw[0].mean()) / raw[0].std(correction=0)
    torch.testing.assert_close(first.double(), expected, rtol=1e-4, atol=1e-5)
    weights = torch.tensor([0.99 / 1.99, 1 / 1.99], dtype=torch.float64)
    mean = weights @ torch.stack([r.mean() for r in raw])
    variance = weights @ torch.stack([(r - mean).square().mean() for r in raw])
    torch.testing.assert_close(second.double(), (raw[1] - mean) / variance.sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [7, 12, 17])  # not yet full, just full, overwritten
def test_n_step_returns_are_those_of_stable_baselines3(steps):
    box, actions = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    mine = APTReplayBuffer(12, box, actions, "cpu", n_steps=3, gamma=0.5, intrinsic_scale=0.0)
    theirs = NStepReplayBuffer(12, box, actions, "cpu", n_steps=3, gamma=0.5)
    for i in range(steps):
        obs, after = np.full((2, 1, 1), i, np.float32) + np.array([[[0]], [[1]]], np.float32)
        infos = [{"TimeLimit.truncated": i % 8 == 4}]
        for buffer in (mine, theirs):
            buffer.add(obs, after, np.array([i % 2]), np.array([2.0**i]), np.array([i % 4 == 0]), infos)
    rows = np.arange(mine.size())
    for found, expected in zip(mine._get_samples(rows), theirs._get_samples(rows), strict=True):
        torch.testing.assert_close(found, expected)


def test_each_of_n_steps_earns_a_reward_until_the_episode_ends():
    box, actions = spaces.Box(-99, 99, (1,), np.float32), spaces.Discrete(2)
    options = {"n_steps": 2, "gamma": 0.5, "k": 1, "normalize": False, "extrinsic_scale": 0.0}
    buffer = APTReplayBuffer(8, box, actions, "cpu", **options)
    for place, done in ((1, False), (4, True), (10, False), (11, False)):
        obs = np.full((1, 1), place, np.float32)
        buffer.add(obs, obs, np.array([0]), np.array([5.0]), np.array([done]), [{}])
    samples = buffer._get_samples(np.array([0, 1, 2]))
    first = [3, 3, 6]  # 1 from 4, 4 from 1, 10 from 4
    second = [6, 0, 1]  # 4 and 11 among 4, 10 and 11; nothing follows the end
    expected = np.log1p(first) + 0.5 * np.log1p(second)
    np.testing.assert_allclose(samples.rewards[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(samples.discounts[:, 0], [0.25, 0.5, 0.25])


# Learning


def test_ppo_learns_with_it():
    venv = VecNormalize(APTReward(make_vec_env("CartPole-v1", 2, seed=0), extrinsic_scale=0.0))
    model = PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, device="cpu", seed=0)
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(192)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
    assert np.isfinite(model.rollout_buffer.rewards).all()
    assert model.rollout_buffer.rewards.std() > 0  # CartPole's own are all 1
    assert model.ep_info_buffer[0]["r"] == model.ep_info_buffer[0]["l"]  # and Monitor still tells them


def test_dqn_learns_with_the_buffer_from_images():
    model = DQN(
        "CnnPolicy", pictures(2), replay_buffer_class=APTReplayBuffer, learning_starts=20, batch_size=16,
        replay_buffer_kwargs={"gamma": 0.99, "extrinsic_scale": 0.0}, buffer_size=200,
        device="cpu",
    )  # fmt: skip
    model.learn(40)
    samples = model.replay_buffer.sample(16)
    assert samples.rewards.std() > 0
    assert model.replay_buffer.latent.spec.raw_shape == (3, 36, 36)  # SB3 has turned them


# What is refused


class Told(Line):
    """One with other observations."""

    def __init__(self, space):
        self.observation_space = space


@pytest.mark.parametrize(
    "space", [spaces.Dict({"a": spaces.Box(0, 1, (2,))}), spaces.Discrete(4), spaces.Box(0, 1, (8, 8, 3))]
)
def test_other_observations_are_refused_with_the_remedy(space):
    with pytest.raises(SpaceError, match=r"is not supported here: expected .*; .*FlattenObservation"):
        APTReward(DummyVecEnv([lambda: Told(space)]))


def test_values_that_cannot_be_used():
    with pytest.raises(ConfigError, match="k = 0 cannot be used"):
        APTReward(line(0), k=0)
    with pytest.raises(ConfigError, match="pool = 3 cannot be used: expected at least k = 50"):
        APTReward(line(0), pool=3)
    with pytest.raises(ConfigError, match="memory = 10 cannot be used: expected at least pool = 1000"):
        APTReward(line(0), memory=10)
    with pytest.raises(ConfigError, match=r"gamma = None .* the algorithm's discount factor, with n_steps"):
        filled(gamma=None)
    with pytest.raises(SpaceError, match=r"expects observations of shape \(4,\), got \(1,\)"):
        APTReward(line(0), encoder=make_agent(CONTINUOUS))
    with pytest.raises(SpaceError, match=r"returned \(1,\) for 1 observations: expected \(1, d\)"):
        walk(APTReward(line(0, 1), encoder=lambda obs: obs[:, 0]), 1)
    with pytest.raises(NeighborError, match="k = 5 neighbors cannot be found among 3 other"):
        filled().sample(4)


def test_what_is_not_finite_is_said():
    with pytest.raises(NonFiniteError, match="reward of environment 0 is nan: expected finite observations"):
        walk(APTReward(line(0, float("nan"), 1), k=1), 2)
    buffer = filled(n=8, scale=np.nan)
    with pytest.raises(NonFiniteError, match="reward of transition 0 is nan: expected finite observations"):
        buffer.sample(8)


def test_a_vecenv_that_hides_last_states_is_refused():
    venv = APTReward(line(0, 1, 2, 3, length=2), k=1)
    step = venv.venv.step_wait

    def hidden():
        obs, rewards, dones, infos = step()
        return obs, rewards, dones, [{} for _ in infos]

    venv.venv.step_wait = hidden
    with pytest.raises(SpaceError, match=r"environment 0 ended an episode without info\['terminal_obs"):
        walk(venv, 2)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.buffers", None)
    monkeypatch.delitem(sys.modules, "voidrl.playing.sb3")
    with pytest.raises(MissingExtraError, match=r"needs stable-baselines3, .*pip install 'stable-baselines3"):
        importlib.import_module("voidrl.playing.sb3")
