"""What the agent's actions become in each action space, and masks of them."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from test_observations import World

from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs, probe_env
from voidrl.envs.spaces import env_action, observed_frames, read_spaces, spec_of
from voidrl.envs.spaces.frames import masks_of
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError

LINE = spaces.Box(-1, 1, (2,))


def spec_for(action):
    return spec_of(LINE, action, 1)


# Choices


def test_a_shifted_discrete():
    spec = spec_for(spaces.Discrete(3, start=-1))
    assert spec.num_actions == 3
    assert env_action(np.array([0, 2, 1]), spec).tolist() == [-1, 1, 0]


def test_a_multi_discrete_is_enumerated_the_last_component_fastest():
    spec = spec_for(spaces.MultiDiscrete([2, 3], start=[5, 0]))
    assert (spec.num_actions, spec.action_dim, spec.action_shape) == (6, 0, (2,))
    expected = [[5, 0], [5, 1], [5, 2], [6, 0], [6, 1], [6, 2]]
    assert env_action(np.arange(6), spec).tolist() == expected


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([4, 5], dtype=np.int32),
        spaces.MultiBinary((2, 3)),
        spaces.Box(-3, 9, (2, 2), np.int16),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Box(0, 1, (3,), np.bool_),
        spaces.Box(-2, 7, (), np.float64),
    ],
)
def test_actions_lie_in_their_space(space):
    class Strict(World):
        def step(self, action):
            assert isinstance(action, np.ndarray if space.shape else np.generic)
            assert space.contains(action), action
            return super().step(action)

    envs = make_envs(EnvConfig("world"), lambda: Strict(LINE, [np.zeros(2)], space))
    envs.reset(0)
    rng, spec = np.random.default_rng(0), envs.spec
    for _ in range(30):
        if spec.discrete:
            envs.step(rng.integers(spec.num_actions, size=1))
        else:
            envs.step(rng.uniform(-1, 1, (1, spec.action_dim)).astype(np.float32))
    envs.close()


def test_whole_numbers_are_rounded():
    spec = spec_for(spaces.Box(np.array([0, -5]), np.array([2, 5]), dtype=np.int64))
    assert (spec.num_actions, spec.action_dim) == (0, 2)
    actions = np.array([[-1, -1], [-0.6, 0.04], [-0.4, 0.06], [1, 1]], np.float32)
    taken = env_action(actions, spec)
    assert taken.dtype == np.int64
    assert taken.tolist() == [[0, -5], [0, 0], [1, 0], [2, 5]]


# What is refused, and what helps


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "expected finite bounds"),
        (spaces.Box(-(2**62), 2**62, (2,), np.int64), "expected finite bounds"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)}), "expected Discrete, Box"),
        (spaces.MultiBinary(13), "expected 1 to 4096 combinations of choices"),
    ],
)
def test_refused_actions_name_the_wrapper_that_helps(space, advice):
    with pytest.raises(SpaceError) as caught:
        spec_for(space)
    assert str(caught.value).startswith(f"action space {space} is not supported: {advice}")
    assert "gymnasium.wrappers.TransformAction(env, " in str(caught.value)


# Masks


THREE = spaces.Discrete(3)
GRID = spaces.Box(0, 255, (7, 7, 3), np.uint8)


class Masked(World):
    """Its method says which actions are allowed."""

    masks = ([1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0])

    def action_masks(self):
        return np.array(self.masks[self.steps], np.int8)


def masked_frames(factory, config=None, backend="sync"):
    """The config after probing, and the frames of one episode of three steps."""
    spec, config = probe_env(config or EnvConfig("world", backend=backend), factory)
    envs = make_envs(config, factory)
    frames = [envs.reset(0)[0][0]]
    frames += [envs.step(np.zeros(1, np.int64)).frames[0] for _ in range(3)]
    envs.close()
    assert envs.spec == spec
    return config, spec, np.stack(frames)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("key", ["action_mask", "action_masks"])
def test_masks_in_info_stand_behind_the_numbers(key, backend):
    infos = [{key: np.array(mask, bool)} for mask in ([1, 1, 0], [0, 1, 0], [1, 0, 1])] + [{}]
    seen = [np.full(2, i / 4) for i in range(4)]
    config, spec, frames = masked_frames(lambda: World(LINE, seen, THREE, infos), backend=backend)
    assert config.action_masks == "info"
    assert spec.masked
    assert spec.frame_shape == (5,)
    assert spec.describe() == "vector 2, 3 masked actions"
    expected = [[0, 0, 1, 1, 0], [0.25, 0.25, 0, 1, 0], [0.5, 0.5, 1, 0, 1], [0.75, 0.75, 1, 1, 1]]
    assert frames.tolist() == expected  # after the last step nothing is chosen, and its mask may be missing


def test_masks_of_a_compiled_method_which_has_no_signature():
    class Compiled(World):
        action_masks = staticmethod(partial(max, [1, 1, 0], [0, 1, 1]))

    config, _, frames = masked_frames(lambda: Compiled(LINE, [np.zeros(2)], THREE))
    assert (config.action_masks, frames[0, 2:].tolist()) == ("method", [1, 1, 0])


def test_masks_of_a_method_behind_an_image():
    config, spec, frames = masked_frames(lambda: Masked(GRID, [np.full((7, 7, 3), 9, np.uint8)], THREE))
    assert config.action_masks == "method"
    assert (spec.frame_shape, spec.num_values, spec.stored_shape) == ((3, 7, 7), 3, (4, 7, 7))
    assert (frames[:, :3] == 9).all()
    masks = np.ascontiguousarray(frames[:, 3].reshape(4, -1)[:, :12]).view("<f4")
    assert masks.tolist() == [[1, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_masks_among_the_observations_are_no_observation():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "observation": LINE})
    seen = [{"action_mask": np.array(mask, np.int8), "observation": np.zeros(2)} for mask in Masked.masks]
    config, spec, frames = masked_frames(lambda: World(space, seen, THREE))
    assert config.action_masks == "key"
    assert frames[:, 2:].tolist() == [[1, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]
    frames, single = observed_frames(seen[1], spec)
    assert single
    assert frames.tolist() == [[0, 0, 0, 1, 0]]
    with pytest.raises(SpaceError, match="the mask is a part of its observations"):
        observed_frames(seen[1], spec, [1, 1, 1])
    with pytest.raises(SpaceError, match="a mask that allows no action cannot be used as action_mask"):
        observed_frames(seen[3], spec)
    both = {key: np.stack([seen[1][key], seen[3][key]]) for key in seen[1]}  # the second waits for its reset
    assert observed_frames(both, spec)[0][:, 2:].tolist() == [[0, 1, 0], [1, 1, 1]]
    plain = read_spaces(space, THREE, 1, masks="none").spec
    assert not plain.masked
    assert plain.frame_shape == (5,)


def test_masks_are_not_looked_for_where_there_can_be_none():
    config, spec, _ = masked_frames(lambda: World(LINE, [np.zeros(2)], THREE))
    assert (config.action_masks, spec.masked) == ("none", False)
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "observation": LINE})
    factory = lambda: World(space, [{"action_mask": np.zeros(3), "observation": np.zeros(2)}], LINE)  # noqa: E731
    spec, config = probe_env(EnvConfig("world"), factory)
    assert (config.action_masks, spec.frame_shape) == ("none", (5,))
    with pytest.raises(ConfigError, match=r"env.action_masks = 'info' cannot be used with action space Box"):
        make_envs(EnvConfig("world", action_masks="info"), factory)


def test_masks_of_components_are_multiplied():
    spec = read_spaces(LINE, spaces.MultiDiscrete([2, 3]), 1, masks="info").spec
    assert masks_of([1, 0, 1, 0, 1], spec).tolist() == [[1, 0, 1, 0, 0, 0]]
    assert masks_of((np.array([1, 1]), np.array([0, 1, 0])), spec).tolist() == [[0, 1, 0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (np.ones(4), r"a mask of actions of shape \(4,\) at its own step 1: expected 3 values 0 or 1"),
        (np.zeros(3), "a mask that allows no action at its own step 1: expected at least one"),
        ([0, 2, 1], r"the mask of actions \[0, 2, 1\] at its own step 1: expected 3 values 0 or 1"),
        (None, "no mask of actions at its own step 1"),
        ([1, [2]], "a mask of actions that is no array"),
    ],
)
def test_masks_that_cannot_be_used(mask, sentence):
    infos = [{"action_mask": [1, 1, 1]}, {"action_mask": mask}]
    with pytest.raises(EnvironmentFailedError, match=rf"environment 0 \('world'\) returned {sentence}"):
        masked_frames(lambda: World(LINE, [np.zeros(2)] * 2, THREE, infos))


def test_a_wrong_mask_is_found_by_probing():
    infos = [{"action_mask": np.ones(2)}]
    with pytest.raises(EnvironmentFailedError, match=r"shape \(2,\) in reset .* 'none' ignores it"):
        probe_env(EnvConfig("world"), lambda: World(LINE, [np.zeros(2)], THREE, infos))
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "observation": LINE})
    with pytest.raises(SpaceError, match=r"\['action_mask'\] is MultiBinary\(2\): expected 3 values"):
        read_spaces(space, THREE, 1, masks="auto")


def test_masks_that_are_not_there():
    factory = lambda: World(LINE, [np.zeros(2)], THREE)  # noqa: E731
    with pytest.raises(ConfigError, match=r"env.action_masks = 'method' .* without arguments"):
        make_envs(EnvConfig("world", action_masks="method"), factory)
    with pytest.raises(ConfigError, match=r"env.action_masks = 'key' .* entry 'action_mask'"):
        make_envs(EnvConfig("world", action_masks="key"), factory)


def test_masks_of_users():
    spec = read_spaces(LINE, THREE, 2, masks="info").spec
    one, many = np.zeros((2, 2)), np.zeros((4, 2, 2))
    frames, _ = observed_frames(one, spec, [0, 1, 0])
    assert frames.tolist() == [[0, 0, 1, 1, 1, 0, 0, 0, 1, 0]]  # the newest frame's is the last
    masks = np.eye(4, 3)
    masks[3] = 1
    assert observed_frames(many, spec, masks)[0][:, -3:].tolist() == masks.tolist()
    assert (observed_frames(many, spec, [1, 0, 0])[0][:, -3:] == [1, 0, 0]).all()
    with pytest.raises(SpaceError, match="no action_mask was given: expected 3 values"):
        observed_frames(one, spec)
    with pytest.raises(SpaceError, match=r"shape \(1, 2\) cannot be used as action_mask: expected 3 values"):
        observed_frames(one, spec, [0, 1])
    with pytest.raises(SpaceError, match="the mask does not exist in its environment"):
        observed_frames(one[0], spec_for(THREE), [0, 1, 0])
