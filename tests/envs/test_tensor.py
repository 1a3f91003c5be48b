"""Environments that take and return tensors."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tiny_runs import MAZE, assert_same_run, rows, tiny

import voidrl
from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.envs.maze import PixelMazeVector
from voidrl.envs.tensor import TensorVectorEnv, is_tensor_env
from voidrl.envs.torch_maze import TorchPixelMaze
from voidrl.errors import ConfigError, EnvironmentFailedError, NonFiniteError, SpaceError, VoidrlWarning

HERE = __name__
CALM = MAZE.replace("&slip=0.2", "")  # whose two versions play alike


class Drift:
    """Points in a line that move by the action and are seen; an episode ends after `length` steps."""

    autoreset_mode = AutoresetMode.NEXT_STEP

    def __init__(self, num_envs=1, device="cpu", length=3, high=100.0, nested=False, final=True):
        self.num_envs, self.device, self.length = num_envs, torch.device(device), length
        self.nested, self.final, self.closed = nested, final, False
        one = spaces.Box(-high, high, (2,), np.float32)
        part = spaces.Box(-high, high, (1,), np.float32)
        self.single_observation_space = spaces.Dict({"a": part, "b": part}) if nested else one
        self.single_action_space = spaces.Box(-2, 2, (1,), np.float32)

    def _obs(self):
        at = torch.stack([self.at, self.time.float()], 1)
        return {"a": at[:, :1], "b": at[:, 1:]} if self.nested else at

    def reset(self, *, seed=None):
        if seed is not None:
            self.random = torch.Generator(self.device).manual_seed(seed)
        self.at = torch.rand(self.num_envs, generator=self.random, device=self.device)
        self.time = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self.done = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return self._obs(), {"cell": self.time.clone()}

    def _move(self, actions):
        self.at, self.time = self.at + actions[:, 0], self.time + 1
        return self.time >= self.length

    def _restart(self, where):
        fresh = torch.rand(self.num_envs, generator=self.random, device=self.device)
        self.at = torch.where(where, fresh, self.at)
        self.time = torch.where(where, 0, self.time)

    def step(self, actions):
        ends, fresh = self._move(actions), self.done
        self._restart(fresh)
        self.done = ends & ~fresh
        reward = torch.where(fresh, 0, self.time).float()
        return self._obs(), reward, torch.zeros_like(self.done), self.done, {"cell": self.time.clone()}

    def close(self):
        self.closed = True


class SameStep(Drift):
    """Resets within the step that ends an episode."""

    autoreset_mode = AutoresetMode.SAME_STEP

    def step(self, actions):
        ends = self._move(actions)
        reward, info = self.time.float(), {"final_obs": self._obs()} if self.final else {}
        self._restart(ends)
        return self._obs(), reward, ends, torch.zeros_like(ends), info


def make(factory=Drift, num_envs=3, name="test", **config):
    return make_envs(EnvConfig(name, num_envs=num_envs, backend="tensor", **config), factory, device="cpu")


def zeros(n=3):
    return torch.zeros(n, 1)


# The maze


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"goal": "near", "loops": 0.3},
        {"continuous": True},
        {"continuous": True, "goal": "near", "image_size": 61},
    ],
)
def test_the_maze_in_torch_is_the_maze(options):
    options = {"size": 9, "max_episode_steps": 25, **options}
    n, rng = 7, np.random.default_rng(0)
    one, other = PixelMazeVector(n, **options), TorchPixelMaze(n, **options)
    assert is_tensor_env(other)
    ours, theirs = one.reset(seed=0), other.reset(seed=0)
    assert np.array_equal(ours[0], theirs[0].numpy())
    ends = 0
    for _ in range(150):
        action = rng.uniform(-1.2, 1.2, (n, 2)).astype(np.float32)
        if not one.continuous:
            action = rng.integers(0, 4, n)
        ours, theirs = one.step(action), other.step(torch.from_numpy(action))
        for mine, tensor in zip(ours[:4], theirs[:4], strict=True):
            assert np.array_equal(mine, tensor.numpy())
        for key in ("cell", "position", "success"):
            assert np.array_equal(ours[4][key], theirs[4][key].numpy()), key
        for key in ("x", "y"):
            assert np.array_equal(ours[4]["variables"][key], theirs[4]["variables"][key].numpy())
        ends += (ours[2] | ours[3]).sum()
    assert ends > n


def test_the_maze_in_torch_repeats_its_slips_with_a_seed():
    def play(seed):
        maze = TorchPixelMaze(5, slip=0.5, size=9)
        maze.reset(seed=seed)
        cells = [maze.step(torch.full((5,), 1))[4]["cell"] for _ in range(30)]
        return torch.stack(cells)

    assert torch.equal(play(1), play(1))
    assert not torch.equal(play(1), play(2))
    assert len(play(1)[-1].unique()) > 1


def test_the_maze_in_torch_refuses_what_the_maze_does():
    with pytest.raises(ConfigError, match="PixelMaze got size=8"):
        make(None, name="voidrl/PixelMaze-v0?size=8")
    maze = TorchPixelMaze(2, size=5)
    maze.reset(seed=0)
    with pytest.raises(ConfigError, match="got actions of shape"):
        maze.step(torch.zeros(3, dtype=torch.int64))


# The protocol


def test_frames_are_the_environments_own_memory():
    envs = make(lambda num_envs, device: TorchPixelMaze(num_envs, device, size=5, image_size=36))
    frames, info = envs.reset(0)
    assert frames.shape == (3, 3, 36, 36)
    assert frames.is_contiguous()  # nothing was moved: the maze draws the channels first
    assert info["cell"].tolist() == [6, 6, 6]
    kept = {}
    step = envs.vector.step
    envs.vector.step = lambda actions: kept.setdefault("result", step(actions))
    result = envs.step(torch.tensor([1, 3, 0]))
    assert result.frames.data_ptr() == kept["result"][0].data_ptr()
    assert result.info["cell"].dtype == np.int64
    assert result.info["success"].dtype == bool


def test_actions_are_scaled_and_may_come_from_the_host():
    envs = make()
    before, _ = envs.reset(0)
    before = before.clone()
    result = envs.step(np.array([[1.0], [-1.0], [0.25]], np.float32))
    assert (result.frames[:, 0] - before[:, 0]).tolist() == pytest.approx([2, -2, 0.5])
    assert result.reward.tolist() == [1, 1, 1]
    assert result.info["cell"].tolist() == [1, 1, 1]


def test_episodes_end_on_the_next_step():
    envs = make(lambda num_envs, device: Drift(num_envs, device, nested=True))
    envs.reset(0)
    results = [envs.step(zeros()) for _ in range(5)]
    assert [r.frames[0, 1].item() for r in results] == [1, 2, 3, 0, 1]
    assert [bool(r.truncated[0]) for r in results] == [False, False, True, False, False]
    assert [r.ended[0] for r in results] == [False, False, True, False, False]


@pytest.mark.parametrize("final", [True, False])
def test_same_step_resets_are_converted_on_the_device(final):
    envs = make(lambda num_envs, device: SameStep(num_envs, device, final=final))
    envs.reset(0)
    if final:
        results = [envs.step(zeros()) for _ in range(8)]
    else:
        with pytest.warns(VoidrlWarning, match="'test' resets in the step") as said:
            results = [envs.step(zeros()) for _ in range(8)]
        assert len(said) == 1
    last = 3 if final else 2  # the observation before it takes its place
    assert [r.frames[0, 1].item() for r in results] == [1, 2, last, 1, 2, last, 1, 2]
    assert [r.reward[0] for r in results] == [1, 2, 3, 0, 2, 3, 0, 2]
    assert [r.score[0] for r in results] == [1, 2, 3, 0, 1 + 2, 3, 0, 1 + 2]
    assert [bool(r.terminated[0]) for r in results] == [False, False, True, False, False, True, False, False]


def test_same_step_episodes_of_one_step_are_skipped():
    envs = make(lambda num_envs, device: SameStep(num_envs, device, length=1))
    envs.reset(0)
    results = [envs.step(zeros()) for _ in range(4)]
    assert [r.frames[0, 1].item() for r in results] == [1, 0, 1, 0]
    assert [bool(r.ended[0]) for r in results] == [True, False, True, False]
    assert [r.score[0] for r in results] == [1, 0, 1, 0]


def test_same_step_environments_are_converted_one_by_one_and_begin_anew():
    envs = make(lambda num_envs, device: SameStep(num_envs, device, length=torch.tensor([2, 4, 9])))
    for _ in range(2):
        envs.reset(0)
        results = [envs.step(zeros()) for _ in range(6)]
        frames = torch.stack([r.frames[:, 1] for r in results]).T
        assert frames.tolist() == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 5, 6]]
        ended = np.stack([r.ended for r in results]).T
        assert ended.tolist() == [[False, True] * 3, [False] * 3 + [True, False, False], [False] * 6]


class Nan(Drift):
    def step(self, actions):
        obs, *others = super().step(actions)
        return obs * (torch.nan if self.time[0] == 2 else 1), *others


class OnHost(Drift):
    def step(self, actions):
        obs, reward, *others = super().step(actions)
        return obs, reward.numpy(), *others


def test_bad_values_are_one_sentence():
    envs = make(Nan)
    envs.reset(0)
    envs.step(zeros())
    with pytest.raises(
        EnvironmentFailedError, match=r"environment 0 \('test'\) returned observation.* = nan"
    ):
        envs.step(zeros())
    envs = make(lambda num_envs, device: Drift(num_envs, device, high=2.5))
    envs.reset(0)
    envs.step(zeros())
    envs.step(zeros())
    with pytest.raises(EnvironmentFailedError, match=r"observation\[1\] = 3.* in \[-2.5, 2.5\]"):
        envs.step(zeros())
    envs = make(OnHost)
    envs.reset(0)
    with pytest.raises(
        EnvironmentFailedError, match="returned reward of ndarray: expected a tensor of shape"
    ):
        envs.step(zeros())
    envs = make()
    envs.reset(0)
    with pytest.raises(EnvironmentFailedError, match="'test' raised RuntimeError"):
        envs.step(torch.zeros(5, 1))


def test_an_action_that_is_not_finite_does_not_reach_the_environment():
    envs = make()
    envs.reset(0)
    result = envs.step(torch.tensor([[torch.nan], [0.0], [0.0]]))
    assert not envs.actions_are_finite
    assert torch.isfinite(result.frames).all()
    envs.step(zeros())
    assert envs.actions_are_finite


class Modeless(Drift):
    autoreset_mode = None


class Choices(Drift):
    def __init__(self, num_envs=1, device="cpu"):
        super().__init__(num_envs, device)
        self.single_action_space = spaces.MultiDiscrete([2, 2])


class Mixed(Drift):
    def __init__(self, num_envs=1, device="cpu"):
        super().__init__(num_envs, device)
        image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.single_observation_space = spaces.Dict({"image": image, "a": spaces.Box(-1, 1, (1,))})


def test_what_cannot_be_used_is_one_sentence():
    with pytest.raises(ConfigError, match=r"autoreset_mode None: expected .*NEXT_STEP or SAME_STEP"):
        make(Modeless)
    with pytest.raises(SpaceError, match=r"MultiDiscrete\(\[2 2\]\) is not supported for tensors"):
        make(Choices)
    with pytest.raises(SpaceError, match="expected one uint8 image, or numbers alone"):
        make(Mixed)
    with pytest.raises(ConfigError, match=r"returned Env for num_envs=3: expected a voidrl\.envs\.tensor"):
        make(lambda num_envs, device: gym.Env())
    with pytest.raises(ConfigError, match="returned 2 environments for num_envs=3"):
        make(lambda num_envs, device: Drift(2))
    with pytest.raises(
        ConfigError, match="'CartPole-v1', which has no version in torch: expected voidrl/PixelMaze"
    ):
        make(None, name="CartPole-v1")
    for name in ("atari/pong", "dmc/walker"):
        with pytest.raises(ConfigError, match=f"'{name}', which has no version in torch"):
            make(None, name=name)


def test_true_states_and_pictures_come_to_the_host():
    config = EnvConfig("voidrl/PixelMaze-v0?size=5&goal=far", backend="tensor")
    envs = make_envs(config, true_state=True, render_height=64)
    envs.reset(0)
    envs.step(np.array([3]))
    assert [variable.name for variable in envs.variables] == ["x", "y"]
    assert envs.true_state().tolist() in ([[2.0, 1.0]], [[1.0, 1.0]])
    picture = envs.render()
    assert picture.dtype == np.uint8
    assert picture.shape[0] >= 256


# Runs


def test_a_run_is_the_same_with_both_mazes(tmp_path):
    """Bit for bit, except for the name of the backend."""
    config = tiny(env__num_envs=3, log__eval_every_steps=20, log__eval_episodes=2, updates_per_step=0.25)
    for backend in ("native", "tensor"):
        voidrl.pretrain(CALM, steps=40, out=tmp_path / backend, config={**config, "env.backend": backend})
    assert rows(tmp_path / "native") == rows(tmp_path / "tensor")
    one, other = (voidrl.load(tmp_path / backend) for backend in ("native", "tensor"))
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    assert voidrl.evaluate(other, episodes=3).returns == voidrl.evaluate(one, episodes=3).returns


@pytest.mark.parametrize("env", [MAZE, f"{HERE}:SameStep"])
def test_a_run_resumes_exactly(tmp_path, env):
    config = tiny(env__num_envs=2, env__backend="tensor", env__frame_stack=2, updates_per_step=0.25)
    voidrl.pretrain(env, steps=40, out=tmp_path / "straight", config=config)
    voidrl.pretrain(env, steps=20, out=tmp_path / "resumed", config=config)
    voidrl.resume(tmp_path / "resumed", steps=40)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)


def test_environments_may_be_passed_themselves(tmp_path):
    env = Drift(4)
    agent = voidrl.pretrain(env, steps=40, out=tmp_path / "run", config=tiny())
    assert (agent.config.env.num_envs, agent.config.env.backend) == (4, "tensor")
    assert not env.closed
    with pytest.raises(ConfigError, match="cannot be imported"):
        voidrl.resume(tmp_path / "run", steps=60)
    assert voidrl.resume(tmp_path / "run", steps=60, env=env).steps >= 60
    assert len(voidrl.evaluate(agent, env, episodes=6).returns) == 6
    with pytest.raises(ConfigError, match=r"log\.eval_every_steps = 20 cannot be used with environments"):
        voidrl.pretrain(env, steps=40, out=tmp_path / "other", config=tiny(log__eval_every_steps=20))
    assert isinstance(env, TensorVectorEnv)


def test_a_policy_that_breaks_is_named_in_training_and_evaluation(tmp_path):
    agent = voidrl.pretrain(Drift(2), steps=20, out=tmp_path / "run", config=tiny())
    for parameter in agent.learner.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(NonFiniteError, match="the policy's action is not finite in an evaluation"):
        voidrl.evaluate(agent, Drift(2), episodes=2)


class Isaac:
    """The interface of Isaac Lab's environments, as far as docs/environments/tensor.md uses it."""

    def __init__(self):
        self.unwrapped, self.points = self, SameStep(2, final=False)
        self.num_envs, self.device = 2, "cpu"
        self.single_observation_space = spaces.Dict({"policy": spaces.Box(-np.inf, np.inf, (2,))})
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,))

    def reset(self, seed=None, options=None):
        obs, info = self.points.reset(seed=seed)
        return {"policy": obs}, info

    def step(self, actions):
        obs, *others = self.points.step(actions)
        return {"policy": obs}, *others


@pytest.mark.filterwarnings("ignore::voidrl.errors.VoidrlWarning")
def test_the_adapter_in_the_docs_fits(tmp_path):
    page = Path(__file__).parents[2] / "docs/environments/tensor.md"
    namespace = {}
    exec(page.read_text("utf-8").split("# isaac.py\n")[1].partition("```")[0], namespace)
    env = namespace["IsaacLab"](Isaac(), action_limit=0.5)
    agent = voidrl.pretrain(env, steps=20, out=tmp_path / "run", config=tiny(updates_per_step=0.25))
    assert agent.spec.action_high == (0.5,)
    assert agent.config.env.num_envs == 2
