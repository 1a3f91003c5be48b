"""From an agent's frames and actions back to the environment's."""

import numpy as np
import pytest
from gymnasium import spaces

from voidrl.data.units import action_space, actions_within, agent_action, observation_space, observations_of
from voidrl.envs.spaces import env_action, spec_of, to_frames

BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (9, 8, 3), np.uint8)


ACTIONS = [
    spaces.Discrete(5),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3, 1]),
    spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 1], [5, -1]]),
    spaces.MultiBinary(4),
    spaces.Box(np.array([[-3.0, 0.0]], np.float32), np.array([[1.0, 10.0]], np.float32)),
    spaces.Box(-4, 9, (2,), np.int64),
]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_come_back(space):
    spec = spec_of(BOX, space, 1)
    own = action_space(spec)
    own.seed(0)
    actions = np.stack([own.sample() for _ in range(20)])
    assert space.contains(actions[0].astype(space.dtype)) or isinstance(space, spaces.Discrete)
    assert actions_within(actions, spec, 1e-5)
    back = env_action(agent_action(actions, spec), spec)
    assert back.shape == actions.shape
    np.testing.assert_allclose(back, actions, atol=1e-5)
    assert not actions_within(actions + 1000, spec, 1e-5)


def test_an_action_between_equal_bounds_is_the_middle():
    low, high = np.array([-3, 0, 1], np.float32), np.array([1, 10, 1], np.float32)
    spec = spec_of(BOX, spaces.Box(low, high), 1)
    np.testing.assert_array_equal(agent_action(np.array([[-3.0, 10.0, 1.0]]), spec), [[-1, 1, 0]])
    assert not actions_within(np.array([[np.nan, 0, 1]]), spec, 1e-5)


@pytest.mark.parametrize(
    "space", [IMAGE, spaces.Box(0, 255, (3, 9, 8), np.uint8), spaces.Box(0, 255, (9, 8), np.uint8), BOX]
)
def test_observations_come_back(space):
    spec = spec_of(space, spaces.Discrete(2), 2)
    space.seed(0)
    raw = np.stack([space.sample() for _ in range(5)])
    assert np.array_equal(observations_of(to_frames(raw, spec), spec), raw)
    assert observation_space(spec).shape == space.shape


def test_images_with_numbers_are_taken_apart_into_what_reads_as_the_same_frames():
    space = spaces.Dict({"camera": IMAGE, "speed": BOX, "gear": spaces.Discrete(4)})
    spec = spec_of(space, spaces.Discrete(2), 2)
    space.seed(0)
    several = [space.sample() for _ in range(5)]
    frames = to_frames({key: np.stack([each[key] for each in several]) for key in space}, spec)
    taken = observations_of(frames, spec)
    own = observation_space(spec)
    assert own.contains({key: value[0] for key, value in taken.items()})
    assert np.array_equal(taken["image"][0], several[0]["camera"].transpose(2, 0, 1))
    assert np.array_equal(to_frames(taken, spec_of(own, spaces.Discrete(2), 2)), frames)
