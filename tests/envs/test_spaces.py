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


@pytest.mark.parametrize("shape", [(10, 12, 3), (3, 10, 12), (1, 10, 12), (10, 12, 1), (10, 12)])
def test_a_plain_image_is_only_transposed(shape):
    spec = spec_of(image(*shape), TWO, 4)
    channels = 3 if 3 in shape else 1
    assert spec == EnvSpec((channels, 10, 12), True, 4, 2, raw_shape=shape)
    assert spec.obs_shape == (4 * channels, 10, 12)
    raw = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    frames = to_frames(raw, spec)
    assert frames.flags["C_CONTIGUOUS"]
    expected = np.moveaxis(raw, -1, 1) if shape[-1] in (1, 3) else raw.reshape(2, channels, 10, 12)
    assert np.array_equal(frames, expected)


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


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.3), (-1e-9, 1e9), (-3e38, 3e38), (0.7, 0.7)])
def test_scaled_actions_lie_in_their_space(low, high):
    for dtype in (np.float32, np.float64):
        space = spaces.Box(low, high, (1,), dtype)
        actions = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
        for taken in env_action(actions, spec_of(vector(3), space, 1), space.dtype):
            assert np.isfinite(taken).all()
            assert space.contains(taken), taken


@pytest.mark.parametrize(
    ("observation", "action", "masks"),
    [
        (image(10, 12, 3), spaces.Box(-2, 3, (2, 2)), "none"),
        (EVERYTHING, TWO, "info"),
        (spaces.Dict({"a": vector(2), "action_mask": spaces.MultiBinary(2)}), TWO, "auto"),
        (spaces.Dict({"a": image(8, 8, 3), "action_mask": image(5)}), spaces.MultiDiscrete([2, 3]), "key"),
        (vector(3), spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 1], [2, 3]]), "method"),
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
        ({"frame_shape": "3"}, "spec.frame_shape = '3' cannot be used: expected a list"),
        ({"frame_shape": [1, 3, 3]}, r"expected one size, or three with pixels"),
        ({"frame_shape": [1] * 70_000}, "spec.frame_shape cannot be used: expected at most 65536"),
        ({"frame_shape": [4]}, r"spec.raw_shape = \(3,\) cannot be used: expected the values of a frame"),
        ({"frame_stack": 0}, "sizes above 0"),
        ({"num_actions": 10**12}, "spec.num_actions = 1000000000000"),
        ({"action_low": [-1, 10**400]}, "spec.action_low = .* expected a number below"),
        ({"action_low": [-1, float("nan")]}, "expected 2 finite bounds"),
        ({"action_high": [1]}, "expected 2 finite bounds, and as many"),
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
    with pytest.raises(SpaceError, match="expected an object with frame_shape, pixels"):
        spec_from_json(None)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (0, {"path": [[]]}, r"spec.parts\[0\].path = \[\] cannot be used"),
        (0, {"kind": "number"}, r"spec.parts\[0\].kind = .* expected 'image' or 'numbers'"),
        (0, {"kind": "mask"}, "sizes or bounds of 'a'"),
        (0, {"shape": [2**27, 2**27]}, "at most 268435456 values"),
        (0, {"shape": [2**20]}, r"spec.frame_shape = .*, as its parts have it"),
        (0, {"shape": [1.5]}, r"parts\[0\].shape = 1.5 cannot be used: expected a whole number"),
        (0, {"sizes": [3], "start": [0]}, "sizes or bounds of 'a'"),
        (1, {"sizes": [10**9]}, "sizes or bounds of 'b'"),
        (2, {"low": 2.0, "high": 1.0}, "sizes or bounds of 'c'"),
        (2, {"dtype": "object"}, "sizes or bounds of 'c'"),
    ],
)
def test_parts_that_no_observation_has_are_refused(part, changes, message):
    space = spaces.Dict([("a", vector(2)), ("b", spaces.Discrete(4)), ("c", spaces.Box(0, 1, (8, 8, 3)))])
    spec = json.loads(json.dumps(spec_of(space, TWO, 1).to_json()))
    spec["parts"][part] |= changes
    with pytest.raises(SpaceError, match=message):
        spec_from_json(spec)
