"""The states that examples/minigrid_doorkey.py counts, by hand, in the layout of seed 0."""

import importlib.util
from pathlib import Path

import gymnasium as gym
import pytest

from voidrl.config.registry import import_path

pytest.importorskip("minigrid")
LEFT, RIGHT, FORWARD, PICK_UP, TOGGLE = 0, 1, 2, 3, 5
OPEN, CLOSED, LOCKED = range(3)


@pytest.fixture
def example():
    path = Path(__file__).parents[2] / "examples/minigrid_doorkey.py"
    spec = importlib.util.spec_from_file_location("minigrid_doorkey", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_states_are_numbered_by_position_door_and_key(example):
    env = example.CountedStates(
        import_path("wrapper", "minigrid.wrappers:ReseedWrapper")(gym.make("MiniGrid-DoorKey-8x8-v0"))
    )
    _, info = env.reset()
    # The agent is at (3, 4) and faces down; the key lies at (4, 5), the door is at (5, 2).
    actions = (FORWARD, LEFT, PICK_UP, FORWARD, LEFT, FORWARD, FORWARD, FORWARD, RIGHT, TOGGLE, FORWARD)
    cells = [info["cell"], *(env.step(action)[-1]["cell"] for action in actions)]
    places = [(3, 4), (3, 5), (3, 5), (3, 5), (4, 5), (4, 5), (4, 4), (4, 3), (4, 2), (4, 2), (4, 2), (5, 2)]
    doors = [LOCKED] * 10 + [OPEN] * 2
    keys = [False] * 3 + [True] * 9
    assert cells == [
        example.state_number(x, y, door, key) for (x, y), door, key in zip(places, doors, keys, strict=True)
    ]
    assert len(set(cells)) == 9  # turning is no new state
    assert env.step(TOGGLE)[-1]["cell"] == cells[-1]  # the agent stands in the door
    env.close()
