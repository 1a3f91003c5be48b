"""N environments behind one interface: backends that agree, ids and factories, failures with a name."""

import inspect
import json
import os
import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from voidrl.config import EnvConfig
from voidrl.envs.ids import parse_id
from voidrl.envs.make import make_envs
from voidrl.envs.maze import PixelMazeVector
from voidrl.envs.parallel import ParallelVector
from voidrl.envs.registration import MAZE_ID
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlWarning

HERE = __name__


class Walk(gym.Env):
    """A walk of `length` steps by real actions in [0, 10], from a start drawn from its seed."""

    def __init__(
        self, length=3, fail_at=None, fail_seed=None, fail_in_reset=None, die_at=None, action_space=None
    ):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action_space or spaces.Box(0, 10, (1,), np.float64)
        self.length, self.fail_at, self.fail_seed = length, fail_at, fail_seed
        self.fail_in_reset, self.die_at = fail_in_reset, die_at
        self.total, self.resets = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        if seed is not None and self.fail_seed not in (None, seed):
            self.fail_at = self.die_at = None
        if self.resets == self.fail_in_reset:
            raise ValueError("no start")
        self.time, self.position = 0, self.np_random.random()
        return np.array([self.time, self.position]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        assert action.dtype == self.action_space.dtype
        self.time, self.total = self.time + 1, self.total + 1
        if self.total == self.fail_at:
            raise KeyError("lost")
        if self.total == self.die_at:
            os._exit(3)
        self.position += float(np.sum(action))
        end = self.time >= self.length
        obs = np.array([self.time, self.position])
        return (
            obs,
            self.position,
            end and self.length % 2 == 1,
            end and self.length % 2 == 0,
            {"cell": self.time},
        )


def broken():
    raise OSError("no display")


A_NUMBER = 3


@pytest.fixture
def make():
    """`make_envs` whose environments are closed when the test ends."""
    made = []

    def made_envs(env_id="", factory=None, num_envs=None, **config):
        made.append(make_envs(EnvConfig(env_id, **config), factory, num_envs))
        return made[-1]

    yield made_envs
    for envs in made:
        envs.close()


def played(envs, steps=9, seed=3):
    rng = np.random.default_rng(0)
    trace = [envs.reset(seed)[0]]
    for _ in range(steps):
        trace += envs.step(rng.uniform(-1, 1, (envs.num_envs, 1)).astype(np.float32))[:4]
    return trace


def line_of(function, text):
    """`file:line` of a line of code in a function, as an error message shows it."""
    lines, first = inspect.getsourcelines(function)
    path = Path(__file__)
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{path}:{first + next(i for i, line in enumerate(lines) if text in line)}"


# --- stepping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 4])
def test_sync_and_async_agree(make, length):
    sync = make(f"{HERE}:Walk?length={length}", num_envs=3, backend="sync")
    workers = make(f"{HERE}:Walk?length={length}", num_envs=3, backend="async")
    assert isinstance(sync.vector, SyncVectorEnv)
    assert isinstance(workers.vector, ParallelVector)
    assert sync.spec == workers.spec
    for mine, theirs in zip(played(sync), played(workers), strict=True):
        assert np.array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_a_step_by_hand(make):
    envs = make(f"{HERE}:Walk?length=2", num_envs=2)
    frames, _ = envs.reset(5)
    starts = [gym.utils.seeding.np_random(5 + i)[0].random() for i in range(2)]
    assert frames.dtype == np.float32
    assert frames == pytest.approx(np.array([[0, starts[0]], [0, starts[1]]]))
    result = envs.step(np.array([[-1.0], [0.5]], np.float32))
    assert result.frames == pytest.approx(np.array([[1, starts[0]], [1, starts[1] + 7.5]]))
    assert result.reward.dtype == np.float32
    assert result.reward == pytest.approx([starts[0], starts[1] + 7.5])
    assert result.info["cell"].tolist() == [1, 1]
    ended = envs.step(np.zeros((2, 1), np.float32))
    assert ended.truncated.tolist() == [True, True]
    assert not ended.terminated.any()
    assert ended.frames[:, 0].tolist() == [2, 2]  # the last frame of the episode is seen
    fresh = envs.step(np.zeros((2, 1), np.float32))
    assert fresh.frames[:, 0].tolist() == [0, 0]  # and the next step only resets
    assert not fresh.truncated.any()
    assert fresh.reward.tolist() == [0, 0]


@pytest.mark.parametrize("mode", [None, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_another_autoreset_mode_is_refused(mode):
    vector = SyncVectorEnv([Walk], autoreset_mode=mode or AutoresetMode.NEXT_STEP)
    if mode is None:
        del vector.metadata["autoreset_mode"]
        vector.autoreset_mode = None
    found = getattr(mode, "name", None)
    with pytest.raises(
        ConfigError, match=f"'walk' has autoreset_mode {found}: expected gymnasium.*NEXT_STEP,"
    ):
        Envs(vector, EnvConfig("walk"))
    assert vector.closed


@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
def test_a_factory_may_return_a_vector_environment(make, cls):
    config = {"num_envs": 3, "backend": "native"}
    envs = make("mine", lambda num_envs: cls([Walk] * num_envs), **config)
    assert played(envs)[-4][:, 0].tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match=r"takes num_envs, with env\.backend = 'native'"):
        make("mine", lambda: cls([Walk]))
    with pytest.raises(ConfigError, match="returned 1 environments for num_envs=3"):
        make("mine", lambda num_envs: cls([Walk]), **config)
    with pytest.raises(ConfigError, match=r"returned Walk for num_envs=3: expected a gymnasium\.vector"):
        make("mine", lambda num_envs: Walk(), **config)


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_that_raises_in_a_step_is_named(make, backend):
    envs = make("mine", lambda: Walk(fail_at=5, fail_seed=4), num_envs=3, backend=backend)
    with pytest.raises(EnvironmentFailedError) as caught:
        played(envs, seed=3)
    line = line_of(Walk.step, 'raise KeyError("lost")')
    assert str(caught.value) == f"environment 1 ('mine') raised KeyError('lost') in {line} at its own step 5"
    envs.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(("which", "steps"), [(1, 0), (2, 3)])
def test_an_environment_that_raises_in_a_reset_is_named(make, backend, which, steps):
    envs = make("mine", lambda: Walk(fail_in_reset=which), num_envs=1, backend=backend)
    with pytest.raises(EnvironmentFailedError) as caught:
        played(envs)
    line = line_of(Walk.reset, 'raise ValueError("no start")')
    sentence = f"environment 0 ('mine') raised ValueError('no start') in {line} in reset after {steps} steps"
    assert str(caught.value) == sentence
    envs.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_factory_that_raises_is_named_with_its_line(backend):
    with pytest.raises(EnvironmentFailedError) as caught:
        make_envs(EnvConfig(f"{HERE}:broken", backend=backend))
    line = line_of(broken, "raise")
    name = f"environment 0 ('{HERE}:broken')"
    assert str(caught.value) == f"{name} raised OSError('no display') in {line} when it was created"
    assert 'raise OSError("no display")' in "".join(traceback.format_exception(caught.value))


def test_the_line_is_the_users_even_if_a_library_raised():
    class Parsing(Walk):
        def step(self, action):
            return self.parsed()

        def parsed(self):
            return json.loads("{")

    envs = make_envs(EnvConfig("mine"), Parsing)
    envs.reset(0)
    with pytest.raises(EnvironmentFailedError, match=line_of(Parsing.parsed, "json.loads")):
        envs.step(np.zeros((1, 1), np.float32))


class Restless(Walk):
    """Ends Python instead of an episode."""

    def __init__(self, where, error):
        super().__init__()
        self.where, self.error = where, error
        self.fail("created")

    def fail(self, where):
        if where == self.where:
            raise self.error

    def reset(self, **options):
        self.fail("reset")
        return super().reset(**options)

    def step(self, action):
        self.fail("step")
        return super().step(action)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("where", ["created", "reset", "step"])
def test_sys_exit_is_a_failure_of_the_environment(make, backend, where):
    with pytest.raises(EnvironmentFailedError, match=rf"environment 0 .*SystemExit\(3\).*{where}"):
        played(make("mine", lambda: Restless(where, SystemExit(3)), backend=backend))


def test_an_environment_that_fails_to_close_is_a_warning(make):
    class Stuck(Walk):
        def close(self):
            raise OSError("door")

    envs = make("mine", Stuck)
    with pytest.warns(VoidrlWarning, match=r"environment 0 \('mine'\) raised OSError\('door'\) .* closed"):
        envs.close()


@pytest.mark.parametrize("backend", ["auto", "native", "sync"])
def test_the_maze_in_all_backends(make, backend):
    envs = make(f"{MAZE_ID}?size=7", num_envs=2, backend=backend, frame_stack=2)
    assert isinstance(envs.vector, PixelMazeVector) == (backend != "sync")
    assert (envs.spec.frame_shape, envs.spec.obs_shape) == ((3, 42, 42), (6, 42, 42))
    reference = PixelMazeVector(2, size=7)
    reference.reset(seed=0), envs.reset(0)
    for action in ([1, 3], [1, 1], [3, 3]):
        images, *_ = reference.step(np.array(action))
        assert np.array_equal(envs.step(np.array(action)).frames, images.transpose(0, 3, 1, 2))


# --- ids and options --------------------------------------------------------------------------------------


def test_options_in_an_id():
    assert parse_id("a/B-v0") == ("a/B-v0", {})
    name, options = parse_id(
        "a/B-v0?n=3&x=0.5&on=true&off=False&none=None&cell=[1,2]&word=far&empty=&q=%22a%26b%22"
    )
    assert name == "a/B-v0"
    assert options.pop("off") is False
    assert options.pop("none") is None
    assert options == {"n": 3, "x": 0.5, "on": True, "cell": [1, 2], "word": "far", "empty": "", "q": "a&b"}
    with pytest.raises(ConfigError, match="expected id\\?option=value"):
        parse_id("a/B-v0?size")


@pytest.mark.parametrize("backend", ["auto", "sync"])
def test_options_reach_the_environment(make, backend):
    envs = make(f"{MAZE_ID}?size=9&continuous=true&image_size=36", backend=backend)
    assert envs.spec.frame_shape == (3, 36, 36)
    assert envs.spec.action_low == (-1.0, -1.0)
    assert make(f"{MAZE_ID}?continuous=False", backend=backend).spec.discrete
    assert make(f"{HERE}:Walk?length=7").vector.envs[0].unwrapped.length == 7


@pytest.mark.parametrize("env_id", [f"{MAZE_ID}?sise=9", f"{HERE}:Walk?lenght=3"])
@pytest.mark.parametrize("backend", ["auto", "sync", "async"])
def test_an_unknown_option_is_named(env_id, backend):
    with pytest.raises(ConfigError) as caught:
        make_envs(EnvConfig(env_id, backend=backend))
    assert str(caught.value).startswith(f"environment {env_id!r} cannot be made: ")
    assert env_id.partition("?")[2].partition("=")[0] in str(caught.value)


def test_what_cannot_be_found_imported_or_called():
    with pytest.raises(ConfigError, match="no environment was given"):
        make_envs(EnvConfig())
    with pytest.raises(ConfigError, match="cannot be imported"):
        make_envs(EnvConfig("no_such_module:factory"))
    with pytest.raises(ConfigError, match=r"a function that returns a gymnasium\.Env"):
        make_envs(EnvConfig(f"{HERE}:A_NUMBER"))


def test_gymnasiums_own_way_to_import_a_module_first():
    envs = make_envs(EnvConfig(id="voidrl.envs:voidrl/PixelMaze-v0?size=5", num_envs=2))
    assert envs.num_envs == 2
    envs.close()
    with pytest.raises(ConfigError, match="No module named 'nowhere'"):
        make_envs(EnvConfig(id="nowhere:Some-v0"))
