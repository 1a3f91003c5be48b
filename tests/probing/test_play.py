"""Labelled play: labels belong to their frames."""

import numpy as np
import pytest
import torch
from helpers import make_agent

from voidrl.config import EnvConfig
from voidrl.envs.maze import AGENT
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, SpaceError
from voidrl.probing.play import collect

MAZE = EnvConfig(id="voidrl/PixelMaze-v0?max_episode_steps=7&goal=[1,2]", frame_stack=2)
MIXED = ("random", "sticky")


def actions(play):
    return play.replay.action.numpy()[play.slots]


@pytest.fixture(scope="module")
def play():
    return collect(MAZE, 200, MIXED, num_envs=4)


def cell_in(picture):
    """x and y of the agent in an image (3, H, W)."""
    at = (picture.numpy() == np.array(AGENT, np.uint8)[:, None, None]).all(0)
    return (np.argwhere(at).min(0)[::-1] - 4) / 2


def test_labels_belong_to_the_frames(play):
    before, after = (play.replay.observations(torch.from_numpy(s)) for s in (play.slots, play.next_slots))
    came_from = play.slot_states[play.slots]
    assert after.shape == (len(play), 6, 42, 42)
    for i in range(len(play)):
        assert (cell_in(after[i, 3:]) == play.state[i]).all()
        assert (cell_in(before[i, 3:]) == came_from[i]).all()
        assert (after[i, :3] == before[i, 3:]).all()  # the stack of s' holds s
    moves = np.array([(0, -1), (0, 1), (-1, 0), (1, 0)])[actions(play)]  # of x and y
    moved = play.state - came_from
    assert ((moved == moves) | (moved == 0)).all()
    assert (moved == moves).all(1).any()


def test_episodes_are_numbered(play):
    before = play.slot_states[play.slots]
    for number in np.unique(play.episode):
        steps = np.flatnonzero(play.episode == number)
        assert len(steps) <= 7
        assert (before[steps[0]] == [1, 1]).all()  # every episode begins at the start
        assert (before[steps[1:]] == play.state[steps[:-1]]).all()
    at_goal = (play.state == [2, 1]).all(1)
    assert at_goal.any()
    assert (play.reward == at_goal).all()


def test_sticky_play_holds_actions():
    changes, endless = {}, EnvConfig(id="voidrl/PixelMaze-v0?max_episode_steps=1000")
    for policy in MIXED:
        action = actions(collect(endless, 1600, [policy], num_envs=16)).reshape(-1, 16)
        changes[policy] = np.mean(action[1:] != action[:-1])
    assert changes["random"] == pytest.approx(3 / 4, abs=0.05)
    assert changes["sticky"] == pytest.approx(3 / 4 / 8, abs=0.03)


def test_equal_seeds_give_equal_play(play):
    same, other = (collect(MAZE, 200, MIXED, seed, num_envs=4) for seed in (0, 1))
    assert (actions(same) == actions(play)).all()
    assert len(other) != len(play) or (actions(other) != actions(play)).any()


def test_an_agent_plays_in_its_share_of_the_environments():
    agent = make_agent(collect(MAZE, 1, MIXED[:1], num_envs=1).replay.spec)
    agent.choose = lambda obs, skill, *, deterministic: torch.full((len(obs),), 3)
    play = collect(MAZE, 60, ["random", agent], num_envs=3)
    its_own = play.slots % 3 % 2 == 1
    assert (actions(play)[its_own] == 3).all()
    assert len(np.unique(actions(play)[~its_own])) == 4
    with pytest.raises(
        ConfigError, match=r"2 policies cannot play in 1 environments: expected num_envs of 2"
    ):
        collect(MAZE, 10, ["random", agent], num_envs=1)
    with pytest.raises(SpaceError, match="expected the same spaces"):
        collect(MAZE, 10, [make_agent()], num_envs=1)


def test_an_environment_without_state_says_so(monkeypatch):
    monkeypatch.setattr(Envs, "_read_state", lambda self, info: setattr(self, "_state", np.zeros((2, 0))))
    play = collect(MAZE, 20, MIXED, num_envs=2)
    assert play.state.shape == (len(play), 0)
    assert play.variables == ()
