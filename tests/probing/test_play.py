"""Labelled play: do labels belong to their frames, and are held-out episodes never trained on?"""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import make_agent

from voidrl.config import Config, EnvConfig
from voidrl.envs import ram_state
from voidrl.envs.maze import AGENT
from voidrl.envs.vector import Envs
from voidrl.errors import CheckpointError, ConfigError, SpaceError, UnknownNameError
from voidrl.probing.play import Play, collect

MAZE = EnvConfig(id="voidrl/PixelMaze-v0?max_episode_steps=7&goal=[1,2]", frame_stack=2)


@pytest.fixture(scope="module")
def play():
    return collect(MAZE, 200, "mixed", num_envs=4)


def cell_in(picture):
    """x and y of the agent in an image (3, H, W)."""
    at = (picture.numpy() == np.array(AGENT, np.uint8)[:, None, None]).all(0)
    return (np.argwhere(at).min(0)[::-1] - 4) / 2


def test_labels_belong_to_the_frames(play):
    index = np.arange(len(play))
    before, after = play.observations(index, before=True), play.observations(index)
    assert after.shape == (len(play), 6, 42, 42)
    for i in index:
        assert (cell_in(after[i, 3:]) == play.state[i]).all()
        assert (cell_in(before[i, 3:]) == play.state_before[i]).all()
        assert (after[i, :3] == before[i, 3:]).all()  # the stack of s' holds s
    moves = np.array([(0, -1), (0, 1), (-1, 0), (1, 0)])[play.action]  # of x and y
    moved = play.state - play.state_before
    assert ((moved == moves) | (moved == 0)).all()
    assert (moved == moves).all(1).any()


def test_episodes_are_numbered(play):
    for number in np.unique(play.episode):
        steps = np.flatnonzero(play.episode == number)
        assert play.episode_step[steps].tolist() == list(range(len(steps)))
        assert not play.ended[steps[:-1]].any()
        assert (play.state_before[steps[0]] == [1, 1]).all()  # every episode begins at the start
        assert (play.state_before[steps[1:]] == play.state[steps[:-1]]).all()
    at_goal = (play.state == [2, 1]).all(1)
    assert at_goal.any()
    assert (play.terminated == at_goal).all()
    assert (play.reward == at_goal).all()
    assert (play.score == at_goal).all()
    assert (play.ended == (at_goal | (play.episode_step == 6))).all()


def test_sticky_play_holds_actions():
    changes, endless = {}, EnvConfig(id="voidrl/PixelMaze-v0?max_episode_steps=1000")
    for policy in ("random", "sticky"):
        action = collect(endless, 1600, policy, num_envs=16).action.reshape(-1, 16)
        changes[policy] = np.mean(action[1:] != action[:-1])
    assert changes["random"] == pytest.approx(3 / 4, abs=0.05)
    assert changes["sticky"] == pytest.approx(3 / 4 / 8, abs=0.03)


def test_policies_divide_the_environments(play):
    assert play.policies == ("random", "sticky")
    assert (play.slots % 4 % 2 == play.policy).all()


def test_equal_seeds_give_equal_play(play):
    same, other = (collect(MAZE, 200, "mixed", seed, num_envs=4) for seed in (0, 1))
    assert (same.action == play.action).all()
    assert len(other) != len(play) or (other.action != play.action).any()


def test_an_agent_plays():
    steps = []

    def choose(obs, skill, *, deterministic):
        steps.append(deterministic)
        return torch.full((len(obs),), 3)

    spec = collect(MAZE, 1, num_envs=1).spec
    agent = make_agent(spec)
    agent.choose = choose
    play = collect(MAZE, 60, ["random", agent], num_envs=3, deterministic=True)
    assert play.policies == ("random", "agent")
    assert (play.action[play.policy == 1] == 3).all()
    assert len(np.unique(play.action[play.policy == 0])) == 4
    assert all(steps)
    noisy = collect(MAZE, 200, agent, num_envs=3, epsilon=0.5).action
    assert np.mean(noisy != 3) == pytest.approx(0.5 * 3 / 4, abs=0.1)


def test_held_out_episodes_are_whole(play):
    for seed in range(5):
        split = play.split(0.3, seed)
        held, trained = set(play.episode[split.held_out]), set(play.episode[split.train])
        assert not held & trained
        assert held | trained == set(play.episode)
        assert 0.2 < len(split.held_out) / len(play) < 0.5
        assert len(split.train) + len(split.held_out) == len(play)
    assert "whole episodes" in split.note
    assert (play.split(0.3, 4).held_out == split.held_out).all()


def test_few_episodes_are_cut_into_blocks():
    env = EnvConfig(id="voidrl/PixelMaze-v0?max_episode_steps=1000")
    play = collect(env, 800, num_envs=2)
    split = play.split(0.2)
    assert "fewer than 4 episodes" in split.note
    assert 0.1 < len(split.held_out) / len(play) < 0.3
    for episode in range(2):
        trained, held = (play.episode_step[part[play.episode[part] == episode]] for part in split[:2])
        if len(held):
            assert np.abs(trained[:, None] - held).min() > 9  # 400 steps in blocks of 40: a gap of 10


def test_only_training_steps_are_sampled(play):
    split = play.split(0.3)
    replay = play.replay_of(split.train)
    torch.manual_seed(0)
    drawn = set(replay.sample(5000).tolist())
    assert drawn == set(play.slots[split.train].tolist())
    assert len(replay) == len(split.train)
    assert len(play.replay) == len(play)  # the whole is as it was
    assert replay.frames is play.replay.frames


def test_play_survives_its_file(play, tmp_path):
    path = tmp_path / "play.safetensors"
    play.save(path)
    loaded = Play.load(path)
    for field in dataclasses.fields(Play):
        if field.name != "replay":
            assert np.array_equal(getattr(loaded, field.name), getattr(play, field.name)), field.name
    index = np.arange(len(play))
    for before in (True, False):
        assert (loaded.observations(index, before=before) == play.observations(index, before=before)).all()
    assert (loaded.action == play.action).all()
    assert loaded.spec == play.spec
    assert loaded.variables == play.variables
    assert len(loaded.replay) == len(play.replay)


def test_a_file_that_is_no_play_is_refused(tmp_path):
    path = tmp_path / "play.safetensors"
    with pytest.raises(CheckpointError, match="cannot be read"):
        Play.load(path)
    path.write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Play.load(path)
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(
        CheckpointError, match=r"cannot be read as play \('meta'\): expected a file that Play"
    ):
        Play.load(path)


def test_an_environment_without_state_says_so(monkeypatch):
    monkeypatch.setattr(Envs, "_read_state", lambda self, info: setattr(self, "_state", np.zeros((2, 0))))
    play = collect(MAZE, 20, num_envs=2)
    assert play.state.shape == (len(play), 0)
    assert play.variables == ()


def test_bad_input_is_one_sentence(play):
    with pytest.raises(UnknownNameError, match="unknown policy 'randon'; did you mean 'random'"):
        collect(MAZE, 10, "randon")
    with pytest.raises(ConfigError, match="steps = 0 cannot be used: expected a whole number above 0"):
        collect(MAZE, 0)
    with pytest.raises(
        ConfigError, match=r"2 policies cannot play in 1 environments: expected num_envs of 2"
    ):
        collect(MAZE, 10, "mixed", num_envs=1)
    with pytest.raises(ConfigError, match=r"share = 1\.5 cannot be used"):
        play.split(1.5)
    with pytest.raises(ConfigError, match="policy = 3 cannot be used"):
        collect(MAZE, 10, [3])
    with pytest.raises(SpaceError, match="expected the same spaces"):
        collect(MAZE, 10, make_agent())


def test_play_has_the_rules_of_pretraining_unless_a_run_learns_a_task(monkeypatch):
    made = []

    def make(*args, pretraining, **options):
        made.append(pretraining)
        raise ConfigError("made")

    monkeypatch.setattr("voidrl.probing.play.make_envs", make)
    for env in (EnvConfig(id=MAZE), Config(), Config(phase="finetune")):
        with pytest.raises(ConfigError, match="made"):
            collect(env, 10)
    assert made == [True, True, False]


def test_whole_games_are_episodes_on_atari(monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(ram_state, "TRIED_STATES", 4)  # for speed; control is not looked at
    env = EnvConfig(id="atari/breakout?noop_max=0&max_frames=600", frame_stack=4)
    play = collect(env, 300, "sticky", num_envs=1)
    ram_state.trial.cache_clear()
    paddle = play.state[:, [v.name for v in play.variables].index("player_x")]
    assert len(np.unique(paddle)) > 5
    assert play.observations(np.array([0])).shape == (1, 4, 84, 84)
    assert (play.terminated & ~play.ended).any()  # lost lives end no episode
    assert len(np.unique(play.episode)) == 1 + play.ended[:-1].sum() > 1
