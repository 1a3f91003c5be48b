"""Vector environments with other autoreset modes than NEXT_STEP."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, VoidrlWarning

SAME = AutoresetMode.SAME_STEP


class Episodes(gym.Env):
    """Sees (number of the episode, step); step t pays t; the k-th episode ends after `lengths[k]` steps."""

    def __init__(self, lengths=(3,), truncates=False):
        self.lengths, self.truncates, self.episode = lengths, truncates, -1
        self.observation_space = spaces.Box(-1, 100, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        return np.array([self.episode, self.time], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = (0 if seed is not None else self.episode + 1), 0
        return self._obs(), {"success": False}

    def step(self, action):
        self.time += 1
        over = self.time >= self.lengths[self.episode % len(self.lengths)]
        ends = (False, over) if self.truncates else (over, False)
        return self._obs(), float(self.time), *ends, {"success": over}


class Foreign(VectorWrapper):
    """Somebody's vector environment, of which nothing is known but its interface."""

    def __init__(self, env, drop=()):
        super().__init__(env)
        self.drop = drop

    def step(self, actions):
        *result, info = self.env.step(actions)
        return *result, {k: v for k, v in info.items() if k.strip("_") not in self.drop}


def foreign(mode, *lengths, drop=(), **options):
    makers = [lambda lengths=each: Episodes(lengths, **options) for each in lengths]
    return Foreign(SyncVectorEnv(makers, autoreset_mode=mode), drop)


def play(envs, steps):
    """Rows (frame, reward, score, terminated, truncated, success) of environment 0."""
    rows = [(*envs.reset(0)[0][0].tolist(), None, None, None, None, None)]
    for _ in range(steps):
        result = envs.step(np.zeros(envs.num_envs, np.int64))
        flags = result.terminated[0], result.truncated[0], result.info["success"][0]
        rows.append((*result.frames[0].tolist(), result.reward[0], result.score[0], *map(bool, flags)))
    return rows


def converted(vector):
    return Envs(vector, "test", 1)


def test_the_last_observation_comes_before_the_reset_and_one_step_is_lost():
    rows = play(converted(foreign(SAME, (3,))), 7)
    assert [row[:2] for row in rows] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1)]
    assert [row[2] for row in rows[1:]] == [1, 2, 3, 0, 2, 3, 0]  # as in the transitions
    assert [row[3] for row in rows[1:]] == [1, 2, 3, 0, 1 + 2, 3, 0]  # each episode is worth 6
    assert [row[4] for row in rows[1:]] == [False, False, True, False, False, True, False]
    assert not any(row[5] for row in rows[1:])
    assert [row[6] for row in rows[1:]] == [False, False, True, False, False, True, False]


def test_an_episode_of_one_step_is_skipped():
    """It begins and ends in the step that is taken for the reset: its successor's beginning is seen."""
    rows = play(converted(foreign(SAME, (2, 1, 1, 3))), 8)
    assert [row[:2] for row in rows] == [
        *((0, 0), (0, 1), (0, 2)),
        *((2, 0), (2, 1)),  # episode 1 is lost, 2 is seen whole, with its only step
        *((3, 1), (3, 2), (3, 3)),
        (4, 1),
    ]
    assert [row[3] for row in rows[1:]] == [1, 2, 0, 1, 0, 1 + 2, 3, 0]
    assert [row[4] for row in rows[1:]] == [False, True, False, True, False, False, True, False]


def test_environments_are_converted_one_by_one():
    envs = converted(foreign(SAME, (2,), (4,)))
    envs.reset(0)
    results = [envs.step(np.zeros(2, np.int64)) for _ in range(6)]
    assert [r.frames[0].tolist() for r in results] == [[0, 1], [0, 2], [1, 1], [1, 2], [2, 1], [2, 2]]
    assert [r.frames[1].tolist() for r in results] == [[0, 1], [0, 2], [0, 3], [0, 4], [1, 1], [1, 2]]
    assert [r.ended.tolist() for r in results] == [
        [False, False],
        [True, False],
        [False, False],
        [True, True],
        [False, False],
        [True, False],
    ]


def test_a_reset_forgets_what_had_ended():
    envs = converted(foreign(SAME, (2,)))
    for _ in range(2):
        rows = play(envs, 2)
        assert [row[:2] for row in rows] == [(0, 0), (0, 1), (0, 2)]
        assert [row[3] for row in rows[1:]] == [1, 2]


@pytest.mark.parametrize("truncates", [False, True])
def test_without_a_final_observation_the_one_before_takes_its_place_and_it_is_said_once(truncates):
    envs = converted(foreign(SAME, (3,), drop=("final_obs",), truncates=truncates))
    with pytest.warns(VoidrlWarning, match="'test' resets in the step .* no info\\['final_obs'\\]") as said:
        rows = play(envs, 7)
    assert len(said) == 1
    assert [row[:2] for row in rows] == [(0, 0), (0, 1), (0, 2), (0, 2), (1, 1), (1, 2), (1, 2), (2, 1)]
    assert [row[4 + truncates] for row in rows[1:]] == [False, False, True, False, False, True, False]


class Nested(gym.Env):
    """The same in a dictionary."""

    def __init__(self):
        self.env = Episodes((2,))
        self.observation_space = spaces.Dict({"a": self.env.observation_space, "b": spaces.Discrete(100)})
        self.action_space = self.env.action_space

    def _nested(self, obs, *others):
        return {"a": obs, "b": int(obs[1])}, *others

    def reset(self, *, seed=None, options=None):
        return self._nested(*self.env.reset(seed=seed))

    def step(self, action):
        return self._nested(*self.env.step(action))


def test_nested_observations_are_converted():
    envs = converted(Foreign(SyncVectorEnv([Nested] * 2, autoreset_mode=SAME)))
    envs.reset(0)
    seen = [envs.step(np.zeros(2, np.int64)).frames[1] for _ in range(4)]
    assert [row[:2].tolist() for row in seen] == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert [row[2:].argmax() for row in seen] == [1, 2, 1, 2]


class Arrays(VectorEnv):
    """`final_obs` as one array, and its buffer reused, as compiled environments do it."""

    metadata = {"autoreset_mode": "SameStep"}  # noqa: RUF012

    def __init__(self, num_envs=1):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-1, 100, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.buffer = np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, actions):
        self.buffer += 1
        over = self.buffer[:, 0] >= 3
        final = self.buffer.copy()
        self.buffer[over] = 0
        no = np.zeros(self.num_envs, bool)
        return self.buffer, np.ones(self.num_envs, np.float32), over, no, {"final_obs": final}


def test_a_factory_may_return_a_vector_environment():
    config = EnvConfig("test", num_envs=3, backend="native")
    envs = make_envs(config, Arrays)
    envs.reset(0)
    frames = [envs.step(np.zeros(3, np.int64)).frames.copy()[:, 0].tolist() for _ in range(5)]
    assert frames == [[1.0] * 3, [2.0] * 3, [3.0] * 3, [1.0] * 3, [2.0] * 3]
    with pytest.raises(ConfigError, match=r"takes num_envs, with env\.backend = 'native'"):
        make_envs(EnvConfig("test"), Arrays)
    with pytest.raises(ConfigError, match="returned 1 environments for num_envs=3"):
        make_envs(config, lambda num_envs: Arrays())
    with pytest.raises(ConfigError, match=r"returned Episodes for num_envs=3: expected a gymnasium\.vector"):
        make_envs(config, lambda num_envs: Episodes())


@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasiums_own_vectors(cls):
    envs = Envs(cls([Episodes] * 2, autoreset_mode=SAME), "test", 1)
    assert [row[:2] for row in play(envs, 5)] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    envs.close()


def test_what_cannot_be_converted_is_refused():
    with pytest.raises(ConfigError, match=r"'test' has autoreset_mode DISABLED: expected .*SAME_STEP"):
        Envs(foreign(AutoresetMode.DISABLED, (3,)), "test", 1)
    with pytest.raises(ConfigError, match="before a mask of actions for the new one is read"):
        Envs(foreign(SAME, (3,)), "test", 1, masks="info")
