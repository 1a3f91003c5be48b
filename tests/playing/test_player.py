"""Agents in plain Gymnasium loops."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from helpers import CONTINUOUS, Point, make_agent, shake, small_method, spec_of

import voidrl
from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, SpaceError
from voidrl.nets.observations import unpack
from voidrl.training.evaluation import evaluate_agent
from voidrl.types import EnvSpec

MAZE = "voidrl/PixelMaze-v0?size=9&image_size=36&slip=0.5&max_episode_steps=12"
CONFIG = EnvConfig(id=MAZE, frame_stack=3)
STACKED = EnvSpec((4,), False, 3, num_actions=3, raw_shape=(4,))


def trained(spec, **changes):
    """An agent whose actions depend on everything that it sees."""
    agent = make_agent(spec, **changes)
    shake(agent.learner, 0.3)
    return agent


@pytest.mark.parametrize("method", ["apt", "diayn", "mepol"])
def test_plays_the_very_episodes_of_an_evaluation(method):
    with_envs = make_envs(CONFIG, num_envs=1, evaluation=True)
    agent = trained(with_envs.spec, method=small_method(method))
    seen = []
    evaluate_agent(agent, with_envs, 3, 7, watch=seen.append)
    steps = [result for result in seen if result is not None]

    env, player = voidrl.make_env(MAZE), agent.player(seed=7)
    before = torch.get_rng_state()
    obs, _ = env.reset(seed=7)
    player.reset()
    skills = []
    for result in steps:
        obs, reward, terminated, truncated, _ = env.step(player(obs))
        assert np.array_equal(obs.transpose(2, 0, 1), result.frames[0])
        assert reward == result.reward[0]
        skills.append(tuple(player.skill))
        assert (terminated or truncated) == result.ended[0]
        if result.ended[0] and len(skills) < len(steps):
            break
    first = len(skills)
    assert len(set(skills)) == 1  # held for the episode
    # After the end the evaluation's next step was the reset, whose action was ignored; then both play on.
    player(obs)
    obs, _ = env.reset()
    player.reset()
    assert np.array_equal(obs.transpose(2, 0, 1), steps[first].frames[0])
    for result in steps[first + 1 : 2 * first]:
        obs, *_ = env.step(player(obs))
        assert np.array_equal(obs.transpose(2, 0, 1), result.frames[0])
    assert torch.equal(torch.get_rng_state(), before)
    with_envs.close()


def recorded(num_envs=None):
    """A player, and the frames that its agent sees, of which each is one number."""
    agent, seen = make_agent(STACKED), []
    agent.act = lambda obs, *_: seen.append(obs[..., 0].tolist()) or np.zeros(len(obs))
    return agent.player(num_envs=num_envs), seen


def test_stacks_frames_of_each_episode_alone():
    player, seen = recorded()
    reused = np.zeros(4, np.float32)  # an environment that writes all observations into the same memory
    for value in (1, 2, 3, 4):
        reused[:] = value
        player(reused)
    player.reset()
    player(reused + 1)
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [5, 5, 5]]


def test_plays_in_several_environments_whose_episodes_end_at_different_times():
    player, seen = recorded(num_envs=2)
    for one in (1, 2, 3, 4):
        if one == 3:
            player.reset(np.array([False, True]))
        player(np.array([[one] * 4, [10 * one] * 4], np.float32))
    assert [one for one, _ in seen] == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert [other for _, other in seen] == [[10, 10, 10], [10, 10, 20], [30, 30, 30], [30, 30, 40]]
    with pytest.raises(SpaceError, match=r"ended of shape \(3,\) cannot be used: expected \(2,\)"):
        player.reset(np.zeros(3, bool))


def test_acts_in_a_vector_environment_with_actions_in_its_range():
    envs = SyncVectorEnv([Point, Point])
    agent = trained(spec_of(Point))
    player = agent.player(num_envs=2)
    obs, _ = envs.reset(seed=0)
    action = player(obs)
    assert action.shape == (2, 2)
    assert np.array_equal(action, agent.act(obs))
    np.testing.assert_allclose(agent.player()(obs[0]), action[0], atol=1e-5)
    envs.step(action)
    envs.close()


def test_skills_are_given_held_or_changed():
    agent = make_agent(CONTINUOUS, method=small_method("diayn", skill_every_steps=2))
    obs, player = np.zeros(4, np.float32), agent.player(seed=1)
    held = []
    for _ in range(40):
        player(obs)
        held.append(tuple(player.skill))
    assert all(a == b for a, b in zip(held[::2], held[1::2], strict=True))
    assert len(set(held)) == 3  # all skills in twenty draws
    for _ in range(10):  # each episode of three steps counts its own
        player.reset()
        first, second, _ = [(player(obs), tuple(player.skill))[1] for _ in range(3)]
        assert first == second
    given = np.eye(3, dtype=np.float32)[1]
    fixed = agent.player(given)
    np.testing.assert_array_equal(fixed(obs), agent.act(obs, skill=given))
    fixed.reset()
    assert np.array_equal(fixed.skill, given)
    agent.task_skill.copy_(torch.tensor([0.0, 0.0, 1.0]))
    agent.task_skill_chosen.fill_(True)
    task = agent.player()
    for _ in range(5):
        np.testing.assert_array_equal(task(obs), agent.act(obs))
    with pytest.raises(SpaceError, match="skill of shape"):
        agent.player(np.zeros(5)).reset()


def test_noise_has_its_own_seed():
    agent, obs = make_agent(CONTINUOUS), np.zeros(4, np.float32)
    players = [agent.player(deterministic=False, seed=seed) for seed in (1, 1, 2)]
    one, same, other = ([player(obs) for _ in range(2)] for player in players)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one[0], one[1])


class Rooms(gym.Env):
    """An image and numbers; which of the six actions are allowed is only in the info."""

    def __init__(self):
        image = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({"image": image, "at": gym.spaces.Box(-1, 1, (2,))})
        self.action_space = gym.spaces.MultiDiscrete([2, 3])

    def _seen(self):
        self.time += 1
        image = self.np_random.integers(0, 256, (8, 8, 3), np.uint8)
        at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        mask = np.ones(5, np.int8)
        mask[[0, 2 + self.time % 3]] = 0  # of each component, one is forbidden
        return {"image": image, "at": at}, {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen()

    def step(self, action):
        assert action[0] == 1
        assert action[1] != self.time % 3
        obs, info = self._seen()
        return obs, float(action[1]), False, self.time == 9, info


def test_nested_observations_masks_and_several_choices():
    settings = EnvConfig(id="rooms", frame_stack=2, action_masks="info")
    envs = make_envs(settings, Rooms, num_envs=1)
    agent, seen = trained(envs.spec), []
    act = agent.learner.act
    agent.learner.act = lambda obs, *rest, **how: seen.append(obs.clone()) or act(obs, *rest, **how)
    score = evaluate_agent(agent, envs, 1, 3)
    expected, seen[:] = [*seen], []
    env, player = voidrl.make_env(Rooms, voidrl.Config(env=settings)), agent.player()
    (obs, info), ended, total = env.reset(seed=3), False, 0.0
    assert env.observation_space.contains(obs)  # the environment's own, even where agents see frames
    while not ended:
        obs, reward, _, ended, info = env.step(player(obs, info["action_mask"]))
        total += reward
    assert total == score.returns[0]
    assert len(seen) == len(expected) == score.lengths[0] == 8
    # Only the mask of the newest frame matters, and is known to the player.
    images, numbers = zip(*(unpack(obs, agent.spec) for obs in seen), strict=True)
    for mine, theirs, image in zip(numbers, expected, images, strict=True):
        other, whole = unpack(theirs, agent.spec)
        assert torch.equal(image, other)
        assert torch.equal(mine[:, 8:], whole[:, 8:])
        assert torch.equal(mine[:, :2], whole[:, :2])


def test_a_bad_number_of_environments_is_refused():
    with pytest.raises(ConfigError, match=r"num_envs = 0 cannot be used: expected None \(one environment\)"):
        make_agent().player(num_envs=0)
