"""Evaluations: whole episodes, a fixed share for each environment, and no trace in the run."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import BOX, LINE, make_agent
from tiny_runs import MAZE, Skilled, Walk, tiny

import voidrl
from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError
from voidrl.training.evaluation import Evaluation, evaluate_agent
from voidrl.types import EnvSpec


class Ladder(gym.Env):
    """The n-th made has episodes of 4n + 1, 4n + 2, … steps, rewards 1, 2, 3, …, success in even ones."""

    made = itertools.count()

    def __init__(self, tells=True, said=None):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
        self.length, self.tells, self.said, self.seeds = 4 * next(Ladder.made), tells, said, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.length, self.time = self.length + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        succeeded = self.length % 2 == 0 and self.time == 1
        info = {"success": succeeded if self.said is None else self.said} if self.tells else {}
        return np.zeros(1, np.float32), float(self.time), self.time == self.length, False, info


@pytest.fixture
def ladders():
    Ladder.made = itertools.count()

    def build(n, **options):
        return make_envs(EnvConfig(id="ladder", num_envs=n), lambda: Ladder(**options))

    return build


@pytest.mark.parametrize("said", ["no", float("nan"), [True, False]])
def test_a_success_is_true_or_false(ladders, said):
    with pytest.raises(
        EnvironmentFailedError, match=r"returned info\['success'\] = .*expected True or False"
    ):
        evaluate_agent(make_agent(LINE), ladders(2, said=np.array(said)), episodes=2, seed=1)


def test_every_environment_plays_its_share_of_whole_episodes(ladders):
    result = evaluate_agent(make_agent(LINE), ladders(3), episodes=5, seed=1)
    assert result.lengths == [1, 2, 5, 6, 9]  # two, two and one of environments 0, 1, 2
    assert result.returns == [1, 3, 15, 21, 45]  # 1 + 2 + … + length
    assert result.successes == [False, True, False, True, False]
    assert result.mean_return == 17
    assert result.success_rate == 0.4
    row = result.metrics()
    assert (row["eval/return"], row["eval/length"], row["eval/episodes"]) == (17, 4.6, 5)
    assert row["eval/return_std"] == pytest.approx(np.std([1, 3, 15, 21, 45]))


def test_returns_are_of_unclipped_rewards_and_without_the_reset_step(ladders, monkeypatch):
    """Rewards are clipped to 1 as on Atari, and the environments report 100 for the reset step."""
    envs, ended = ladders(2), np.zeros(2, bool)
    receive = envs.recv

    def recv(counted):
        nonlocal ended
        result, is_reset = receive(counted), ended
        ended = result.ended
        score = np.where(is_reset, 100, result.score)
        return result._replace(reward=score.clip(-1, 1), score=score)

    monkeypatch.setattr(envs, "recv", recv)
    result = evaluate_agent(make_agent(LINE), envs, episodes=4, seed=1)
    assert result.lengths == [1, 2, 5, 6]
    assert result.returns == [1, 3, 15, 21]  # 1 + 2 + … + length


def test_seeds_are_the_evaluations_own_and_random_numbers_are_left_alone(ladders):
    envs, agent = ladders(2), make_agent(LINE)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    evaluate_agent(agent, envs, episodes=4, seed=123, deterministic=False)
    assert torch.equal(before, torch.get_rng_state())
    assert [env.unwrapped.seeds[:2] for env in envs.vector.envs] == [[123, None], [124, None]]


@pytest.mark.parametrize("method", ["apt", "random", Skilled])
def test_the_seed_decides_an_evaluation(tmp_path, method):
    agent = voidrl.pretrain(Walk, method, steps=12, out=tmp_path / "run", config=tiny())

    def play(seed):
        return voidrl.evaluate(agent, episodes=3, seed=seed, deterministic=False)

    assert play(1) == play(1) != play(2)
    assert isinstance(play(1), Evaluation)


@pytest.mark.parametrize("spec", [LINE, EnvSpec((1,), False, 1, num_actions=0, raw_shape=(1,), **BOX)])
def test_epsilon_is_the_share_of_random_actions(spec):
    agent, taken = make_agent(spec), []

    class Recorder(gym.Env):
        observation_space = spaces.Box(-1, 1, (1,))
        action_space = spaces.Discrete(2) if spec.discrete else spaces.Box(-1, 1, (2,))

        def reset(self, *, seed=None, options=None):
            self.time = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.time += 1
            taken.append(np.array(action))
            return np.zeros(1, np.float32), 0.0, self.time == 300, False, {}

    greedy = agent.act(np.zeros(1, np.float32))
    envs = make_envs(EnvConfig(id="recorder"), Recorder)
    for epsilon in (0.0, 0.4, 1.0):
        taken.clear()
        evaluate_agent(agent, envs, episodes=1, seed=1, epsilon=epsilon)
        others = np.mean([not np.array_equal(action, greedy) for action in taken])
        expected = epsilon / 2 if spec.discrete else epsilon  # half of two random actions are the greedy one
        assert others == pytest.approx(expected, abs=0.08 if epsilon else 0)


def test_other_spaces_and_no_episodes_are_refused(tmp_path):
    agent = voidrl.pretrain(Walk, "random", steps=9, out=tmp_path / "run", config=tiny())
    with pytest.raises(SpaceError, match=r"vector 3, 3 actions and environment .* pixels 3×36×36, 4 actions"):
        voidrl.evaluate(agent, MAZE)
    for episodes in (0, -1, 1.5, "many"):
        with pytest.raises(ConfigError, match="episodes must be a positive whole number"):
            voidrl.evaluate(agent, episodes=episodes)
    with pytest.raises(ConfigError, match="seed = -1"):
        voidrl.evaluate(agent, seed=-1)


def test_an_evaluation_prints_as_one_line_with_mean_and_deviation():
    one = Evaluation([1.0, 2.0, 6.0], [3, 4, 4], [True, False, False])
    assert repr(one) == "Evaluation(return 3.000 ± 2.160 over 3 episodes, length 3.7, success 33%)"
    assert one.returns == [1.0, 2.0, 6.0]
    game = Evaluation([60.0], [9], None, 9, {"rooms": 2}, "breakout")  # random play 1.7, a human 30.5
    expected = "return 60.000 ± 0.000 over 1 episode, length 9.0, human-normalized 202.4%, rooms 2 in 9 steps"
    assert repr(game) == f"Evaluation({expected})"


def test_a_policy_that_is_a_distribution_is_sampled(monkeypatch, ladders):
    agent, asked = make_agent(LINE, method={"name": "mepol", "k": 2}, learner="mepol"), []

    def choose(obs, skill, deterministic):
        asked.append(deterministic)
        return agent.learner.act(obs, skill, deterministic=deterministic)

    monkeypatch.setattr(agent, "choose", choose)
    evaluate_agent(agent, ladders(2), episodes=2, seed=1)
    assert set(asked) == {False}
