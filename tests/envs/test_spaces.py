"""Which spaces are supported, and how observations and actions cross the border."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from voidrl.envs.spaces import env_action, read_spaces, spec_from_json, spec_of, to_frames
from voidrl.errors import SpaceError
from voidrl.types import EnvSpec

TWO = spaces.Discrete(2)


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def vector(*shape, dtype=np.float32):
    return spaces.Box(-np.inf, np.inf, shape, dtype)


EVERYTHING = spaces.Dict(
    {
        "image": image(9, 8, 3),
        "gray": image(12, 7),
        "agent": spaces.Dict({"at": vector(2), "held": spaces.Discrete(3, start=1)}),
        "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))),
        "mission": spaces.Text(9),
    }
)


@pytest.mark.parametrize(
    ("space", "frame", "pixels"),
    [
        (image(10, 12, 3), (3, 10, 12), True),
        (image(3, 10, 12), (3, 10, 12), True),
        (image(1, 10, 12), (1, 10, 12), True),
        (image(10, 12, 1), (1, 10, 12), True),
        (image(10, 12), (1, 10, 12), True),
        (image(7, 7, 3), (3, 7, 7), True),
        (image(6, 7, 3), (126,), False),  # too small for an image
        (image(2, 8, 8, 3), (384,), False),
        (vector(), (1,), False),
        (vector(2, 3), (6,), False),
        (vector(3, 4, 5, dtype=np.int64), (60,), False),
        (spaces.Box(0, 9, (2, 2), np.int16), (4,), False),
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
        if not pixels:
            assert frames[0, n] == (n % 256 if space.dtype == np.uint8 else n)
        elif space.shape in ((10, 12, 3), (7, 7, 3)):
            assert frames[0, where[2], where[0], where[1]] == n % 256
        elif len(space.shape) == 2:
            assert frames[0, 0, *where] == n
        elif space.shape[-1] != 1:
            assert frames[0, *where] == n % 256


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


@pytest.mark.parametrize(
    ("observation", "action", "masks"),
    [
        (image(10, 12, 3), spaces.Box(-2, 3, (2, 2)), "none"),
        (EVERYTHING, TWO, "none"),
        (EVERYTHING, TWO, "info"),
        (spaces.Dict({"a": vector(2), "action_mask": spaces.MultiBinary(2)}), TWO, "auto"),
        (spaces.Dict({"a": image(8, 8, 3), "action_mask": image(5)}), spaces.MultiDiscrete([2, 3]), "key"),
        (spaces.Discrete(4000), spaces.Discrete(3, start=-1), "none"),
        (vector(3), spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 1], [2, 3]]), "method"),
        (spaces.MultiBinary((2, 2)), spaces.MultiBinary(9), "none"),
        (spaces.Box(0, 1, (10, 10, 7), np.bool_), spaces.Box(-3, 9, (2,), np.int32), "none"),
        (spaces.Box(-1, 1, (3, 9, 8)), spaces.Box(0, 1, (3,), np.bool_), "info"),
    ],
)
def test_a_spec_survives_json(observation, action, masks):
    spec = read_spaces(observation, action, 3, masks=masks).spec
    saved = json.loads(json.dumps(spec.to_json()))
    assert spec_from_json(saved) == spec
    assert hash(spec_from_json(saved)) == hash(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frame_shape": [10**9]}, r"spec.frame_shape = \(1000000000,\) cannot be used: expected at most"),
        ({"frame_shape": [2**28], "frame_stack": 2}, "at most 268435456 values in one observation"),
        ({"frame_shape": [-3]}, "sizes above 0"),
        ({"frame_shape": "3"}, "spec.frame_shape = '3' cannot be used: expected a list"),
        ({"frame_shape": [1, 3, 3]}, r"expected one size, or three with pixels"),
        ({"frame_shape": [1] * 70_000}, "…"),
        ({"frame_shape": [4]}, r"spec.raw_shape = \(3,\) cannot be used: expected the values of a frame"),
        ({"pixels": 1}, "spec.pixels = 1 cannot be used: expected bool"),
        ({"frame_stack": 0}, "sizes above 0"),
        ({"num_actions": 10**12}, "spec.num_actions = 1000000000000"),
        ({"action_low": [-1, 10**400]}, r"spec.action_low\[1\] = .* expected int or float"),
        ({"action_low": [-1, float("nan")]}, r"spec.action_low\[1\] = nan .* expected int or float"),
        ({"action_high": [1]}, "expected 2 bounds, and as many"),
        ({"num_actions": 2}, "expected 0 bounds"),
        ({"action_low": [-2, 3.5]}, "as many that are not below them in action_high"),
        ({"color": 1}, "expected an object with frame_shape, pixels"),
        ({"masked": True}, "spec.masked = True cannot be used: expected false"),
        ({"action_sizes": [2], "action_start": [0]}, "spec.action_sizes = .* combinations of num_actions"),
        ({"parts": None}, "spec.parts = None cannot be used: expected a list"),
        ({"parts": [3]}, r"spec.parts\[0\] = 3 cannot be used: expected an object with path, kind"),
    ],
)
def test_a_spec_that_no_environment_has_is_refused(changes, message):
    spec = spec_of(vector(3), spaces.Box(-2, 3, (2,)), 1).to_json()
    with pytest.raises(SpaceError, match=message) as caught:
        spec_from_json({**spec, **changes})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (0, {"path": [[]]}, r"spec.parts\[0\].path\[0\]"),
        (0, {"kind": "number"}, r"spec.parts\[0\].kind = .* expected image, numbers, one_hot, mask"),
        (0, {"kind": "mask"}, "sizes or bounds of 'a'"),
        (0, {"shape": [2**27, 2**27]}, "at most 268435456 values"),
        (0, {"shape": [2**20]}, r"spec.frame_shape = .*, as its parts have it"),
        (0, {"shape": [1.5]}, r"parts\[0\].shape\[0\] = 1.5 cannot be used: expected int"),
        (0, {"sizes": [3], "start": [0]}, "sizes or bounds of 'a'"),
        (1, {"sizes": []}, "sizes or bounds of 'b'"),
        (1, {"sizes": [10**9]}, "sizes or bounds of 'b'"),
        (2, {"low": 2.0, "high": 1.0}, "sizes or bounds of 'c'"),
        (2, {"shape": [8, 3]}, "sizes or bounds of 'c'"),
        (2, {"dtype": "object"}, "sizes or bounds of 'c'"),
    ],
)
def test_parts_that_no_observation_has_are_refused(part, changes, message):
    space = spaces.Dict([("a", vector(2)), ("b", spaces.Discrete(4)), ("c", spaces.Box(0, 1, (8, 8, 3)))])
    spec = json.loads(json.dumps(spec_of(space, TWO, 1).to_json()))
    spec["parts"][part] |= changes
    with pytest.raises(SpaceError, match=message):
        spec_from_json(spec)


@pytest.mark.parametrize("data", [None, "spec", {}])
def test_what_is_no_spec_is_refused(data):
    with pytest.raises(SpaceError, match="expected an object with frame_shape, pixels"):
        spec_from_json(data)
