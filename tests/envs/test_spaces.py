"""Which spaces are supported, and how observations and actions cross the border."""

import numpy as np
import pytest
from gymnasium import spaces

from voidrl.errors import SpaceError
from voidrl.spaces import env_action, spec_from_json, spec_of, to_frames
from voidrl.types import EnvSpec

TWO = spaces.Discrete(2)


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def vector(*shape, dtype=np.float32):
    return spaces.Box(-np.inf, np.inf, shape, dtype)


@pytest.mark.parametrize(
    ("space", "frame", "pixels"),
    [
        (image(10, 12, 3), (3, 10, 12), True),
        (image(3, 10, 12), (3, 10, 12), True),
        (image(1, 10, 12), (1, 10, 12), True),
        (image(10, 12, 1), (1, 10, 12), True),
        (image(10, 12), (1, 10, 12), True),
        (image(128), (128,), False),
        (vector(5), (5,), False),
        (vector(5, dtype=np.float64), (5,), False),
    ],
)
def test_observations_become_frames(space, frame, pixels):
    spec = spec_of(space, TWO, 4)
    assert spec == EnvSpec(frame, pixels, 4, 2, raw_shape=space.shape)
    assert spec.obs_shape == (4 * frame[0], *frame[1:])
    raw = np.arange(2 * np.prod(space.shape)).reshape(2, *space.shape).astype(space.dtype)
    frames = to_frames(raw, spec)
    assert frames.shape == (2, *frame)
    assert frames.dtype == (np.uint8 if pixels else np.float32)
    assert frames.flags["C_CONTIGUOUS"]
    for n, where in enumerate(np.ndindex(*space.shape)):
        if space.shape == (10, 12, 3):
            assert frames[0, where[2], where[0], where[1]] == n % 256
        elif len(space.shape) == 2:
            assert frames[0, 0, *where] == n
        elif space.shape[-1] != 1:
            assert frames[0, *where] == n % 256


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": vector(2)}),
        spaces.Tuple((vector(2), vector(2))),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Discrete(5),
        spaces.Text(3),
        spaces.Box(0, 1, (8, 8, 3)),  # an image of floats
        spaces.Box(0, 1, ()),
        image(2, 3, 4, 5),
    ],
)
def test_observations_that_are_not_supported_are_named(space):
    with pytest.raises(SpaceError) as caught:
        spec_of(space, TWO, 1)
    assert str(caught.value).startswith(f"observation space {space} is not supported: expected a uint8 image")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Dict({"a": TWO}), "expected Discrete, or Box of floats"),
        (spaces.Tuple((TWO, TWO)), "expected Discrete, or Box of floats"),
        (spaces.MultiDiscrete([2, 3]), "expected Discrete, or Box of floats"),
        (spaces.MultiBinary(3), "expected Discrete, or Box of floats"),
        (spaces.Box(0, 9, (2,), np.int64), "expected Discrete, or Box of floats"),
        (spaces.Discrete(3, start=1), "expected actions that start at 0"),
        (spaces.Box(-np.inf, np.inf, (2,)), "expected finite bounds"),
        (
            spaces.Box(np.array([0, 0], np.float32), np.array([1, np.inf], np.float32)),
            "expected finite bounds",
        ),
    ],
)
def test_actions_that_are_not_supported_are_named(space, expected):
    with pytest.raises(SpaceError) as caught:
        spec_of(vector(3), space, 1)
    assert str(caught.value).startswith(f"action space {space} is not supported: {expected}")


def test_discrete_actions_go_as_they_are():
    spec = spec_of(vector(3), spaces.Discrete(np.int64(4)), 1)
    assert spec.discrete
    assert spec.num_actions == 4
    assert (spec.action_dim, spec.action_shape) == (0, ())
    actions = np.array([3, 0])
    assert env_action(actions, spec) is actions


def test_continuous_actions_are_scaled_to_the_bounds():
    low, high = np.array([[-2, 0], [5, -1]], np.float32), np.array([[4, 0.5], [7, -1]], np.float32)
    spec = spec_of(vector(3), spaces.Box(low, high), 1)
    assert not spec.discrete
    assert spec.action_dim == 4
    actions = np.array([[-1] * 4, [1] * 4, [0] * 4, [0.5] * 4, [-9] * 4, [9] * 4], np.float32)
    taken = env_action(actions, spec)
    assert taken.shape == (6, 2, 2)
    assert taken.dtype == np.float32
    assert np.array_equal(taken[0], low)
    assert np.array_equal(taken[1], high)
    assert np.array_equal(taken[2], [[1, 0.25], [6, -1]])
    assert np.array_equal(taken[3], [[2.5, 0.375], [6.5, -1]])
    assert np.array_equal(taken[4], low)  # what lies outside is clipped
    assert np.array_equal(taken[5], high)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.3), (-1e-9, 1e9), (-3e38, 3e38), (0.7, 0.7)])
def test_scaled_actions_lie_in_their_space(low, high, dtype):
    space = spaces.Box(low, high, (1,), dtype)
    spec = spec_of(vector(3), space, 1)
    for action in np.linspace(-1, 1, 21, dtype=np.float32):
        (taken,) = env_action(np.array([[action]]), spec, space.dtype)
        assert np.isfinite(taken).all()
        assert space.contains(taken), taken


def test_a_scalar_action():
    spec = spec_of(vector(3), spaces.Box(0, 1, ()), 1)
    assert spec.action_dim == 1
    assert env_action(np.array([[0.0], [1.0]], np.float32), spec).tolist() == [0.5, 1.0]


def test_a_spec_survives_json():
    spec = spec_of(image(10, 12, 3), spaces.Box(-2, 3, (2, 2)), 3)
    assert spec_from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"frame_shape": [10**9]},
            r"spec.frame_shape = \[1000000000\] cannot be used: expected a list of sizes",
        ),
        ({"frame_shape": [2**28], "frame_stack": 2}, "at most 268435456 values in one observation"),
        ({"frame_shape": [-3]}, "sizes above 0"),
        ({"frame_shape": ["3"]}, "sizes above 0"),
        ({"frame_shape": [3.0]}, "sizes above 0"),
        ({"frame_shape": [True]}, "sizes above 0"),
        ({"frame_shape": "3"}, "sizes above 0"),
        ({"frame_shape": [1, 3, 3]}, r"spec.frame_shape = .* expected 1 sizes, as pixels = False"),
        ({"frame_shape": [1] * 10_000}, "…"),
        ({"frame_shape": [4]}, r"spec.raw_shape = \[3\] cannot be used: expected the 4 values of a frame"),
        ({"pixels": 1}, "spec.pixels = 1 cannot be used: expected true or false"),
        ({"frame_stack": 0}, "spec.frame_stack = 0"),
        ({"num_actions": 10**12}, "spec.num_actions = 1000000000000"),
        ({"num_actions": None}, "spec.num_actions = None"),
        ({"action_low": [-1, 10**400]}, "spec.action_low = .* finite numbers"),
        ({"action_low": [-1, "1"]}, "finite numbers"),
        ({"action_high": [1]}, "expected 2 bounds, and as many above"),
        ({"num_actions": 2}, "expected 0 bounds"),
        ({"action_low": [-2, 3.5]}, r"action_low = \[-2, 3.5\] .* not above those of action_high"),
        ({"action_shape": [2] + [1] * 8}, "spec.action_shape = .* expected at most 8 sizes"),
        ({"raw_shape": [3] + [1] * 8}, "spec.raw_shape = .* expected at most 8 sizes"),
        ({"color": 1}, "expected an object with frame_shape, pixels"),
    ],
)
def test_a_spec_that_no_environment_has_is_refused(changes, message):
    spec = spec_of(vector(3), spaces.Box(-2, 3, (2,)), 1).to_json()
    with pytest.raises(SpaceError, match=message) as caught:
        spec_from_json({**spec, **changes})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("data", [None, [], "spec", {}, 3])
def test_what_is_no_spec_is_refused(data):
    with pytest.raises(SpaceError, match="expected an object with frame_shape, pixels"):
        spec_from_json(data)
