"""Environments of EnvPool: the real one where it is installed, and a stand-in with its interface."""

import importlib.machinery
import sys
import types

import numpy as np
import pytest
from gymnasium import spaces
from tiny_runs import assert_same_run, tiny

import voidrl
from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError


class Pool:
    """What `envpool.make_gymnasium` returns: seeds fixed at creation, answers in any order, next-step resets.

    Copy i counts from its seed + i and truncates after 3 steps.
    """

    made: list[int] = []  # noqa: RUF012

    def __init__(self, num_envs, seed, render_mode=None):
        self.n, self.first = num_envs, seed + np.arange(num_envs)
        self.rng = np.random.default_rng(0)
        self.time, self.done = np.zeros(num_envs, np.int32), np.zeros(num_envs, bool)
        self.closed = False
        Pool.made.append(seed)

    def _answer(self, *others):
        order = self.rng.permutation(self.n).astype(np.int32)
        info = {"env_id": order, "players": {"env_id": order}, "elapsed_step": self.time[order]}
        obs = np.stack([self.first, -self.time], 1).astype(np.float64)
        return obs[order], *(other[order] for other in others), info

    def reset(self, env_id=None):
        self.time[:], self.done[:] = 0, False
        return self._answer()

    def step(self, actions):
        assert actions.shape == (self.n,)
        self.time = np.where(self.done, 0, self.time + 1).astype(np.int32)
        reward = np.where(self.done, 0, actions).astype(np.float32)
        self.done = self.time == 3
        return self._answer(reward, np.zeros(self.n, bool), self.done)

    def render(self):
        return np.full((1, 8, 9, 3), 7, np.uint8)

    def close(self):
        self.closed = True


def make_spec(task, *, num_envs, players=1, speed=1.0):
    if speed < 0:
        raise ValueError("speed should not be negative")
    tiny = np.finfo(np.float64).tiny  # EnvPool's lower bound of what has none
    return types.SimpleNamespace(
        gymnasium_observation_space=spaces.Box(tiny, np.finfo(np.float64).max, (2,), np.float64),
        gymnasium_action_space=spaces.Discrete(4),
        config=types.SimpleNamespace(max_num_players=players),
    )


@pytest.fixture
def envpool(monkeypatch):
    module = types.ModuleType("envpool")
    module.__spec__ = importlib.machinery.ModuleSpec("envpool", None)
    module.list_all_envs = lambda: ["Count-v1", "Pong-v5"]
    module.make_spec = make_spec
    module.make_gymnasium = lambda task, **options: Pool(**options)
    monkeypatch.setitem(sys.modules, "envpool", module)
    monkeypatch.setattr(Pool, "made", [])
    return module


@pytest.mark.usefixtures("envpool")
def test_rows_belong_to_their_environments_and_seeds_work():
    envs = make_envs(EnvConfig("envpool/Count-v1", num_envs=5))
    assert Pool.made == []  # to look at the spaces takes no pool
    frames, info = envs.reset(10)
    assert frames.tolist() == [[10 + i, 0] for i in range(5)]
    assert info.keys() == {"elapsed_step"}
    results = [envs.step(np.arange(5) % 4) for _ in range(4)]
    assert [r.frames[:, 1].tolist() for r in results] == [[-1.0] * 5, [-2.0] * 5, [-3.0] * 5, [-0.0] * 5]
    assert [r.ended.all() for r in results] == [False, False, True, False]
    assert results[0].reward.tolist() == [0, 1, 2, 3, 0]
    assert not results[3].reward.any()
    assert envs.reset(20)[0][:, 0].tolist() == [20, 21, 22, 23, 24]
    assert Pool.made == [10, 20]


@pytest.mark.usefixtures("envpool")
def test_the_picture_is_that_of_environment_0():
    envs = make_envs(EnvConfig("envpool/Count-v1"), render_height=64)
    envs.reset(0)
    assert envs.render().shape == (8, 9, 3)


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("envpool/Cont-v1", "did you mean 'Count-v1'"),
        ("envpool/Count-v1?seed=3", "got seed=3: set the seed of the run"),
        ("envpool/Count-v1?batch_size=3", "set env.num_envs, since all"),
        ("envpool/Count-v1?speeed=3", "cannot be made: .*unexpected keyword argument 'speeed'"),
        ("envpool/Count-v1?speed=-3", "cannot be made: speed should not be negative"),
        ("envpool/Count-v1?players=2", "has 2 players: expected one"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(env, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_envs(EnvConfig(env))


@pytest.mark.usefixtures("envpool")
def test_it_has_no_single_environments():
    with pytest.raises(ConfigError, match=r"'sync' or 'async' cannot be used .* EnvPool"):
        make_envs(EnvConfig("envpool/Count-v1", backend="sync"))


def test_a_missing_envpool_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        ConfigError, match=r"'envpool/Pong-v5' needs the package envpool.* pip install envpool$"
    ):
        make_envs(EnvConfig("envpool/Pong-v5"))


REAL = {
    "CartPole-v1": (4,),
    "Pendulum-v1": (3,),
    "HalfCheetah-v4": (17,),
    "WalkerWalk-v1": (24,),
    "MiniGrid-DoorKey-8x8-v0": (3, 7, 7),
    "Pong-v5?stack_num=1&noop_max=1": (1, 84, 84),
}


@pytest.mark.parametrize("task", REAL)
def test_the_real_one_repeats_itself_with_a_seed(task):
    pytest.importorskip("envpool")
    envs = make_envs(EnvConfig(f"envpool/{task}", num_envs=2))
    assert envs.spec.frame_shape == REAL[task]

    def played():
        frames, rng = [envs.reset(3)[0]], np.random.default_rng(0)
        for _ in range(210):
            discrete = rng.integers(envs.spec.num_actions or 2, size=2)
            continuous = rng.uniform(-1, 1, (2, envs.spec.action_dim)).astype(np.float32)
            frames.append(envs.step(discrete if envs.spec.discrete else continuous).frames)
        return np.stack(frames)

    assert np.array_equal(played(), played())


def test_a_run_in_the_real_one_resumes_exactly(tmp_path):
    pytest.importorskip("envpool")
    config = tiny(env__num_envs=2)
    voidrl.pretrain("envpool/CartPole-v1", steps=40, out=tmp_path / "straight", config=config)
    voidrl.pretrain("envpool/CartPole-v1", steps=20, out=tmp_path / "resumed", config=config)
    voidrl.resume(tmp_path / "resumed", steps=40)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)
