"""A run's replay as a dataset, and back."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, CPU, DISCRETE, PIXELS, Chain, config, fill_replay, make_agent, small_method

import voidrl
from voidrl import dist
from voidrl.cli.main import main
from voidrl.config import EnvConfig
from voidrl.data.episodes import find_spans, read_episodes
from voidrl.data.export import export_data
from voidrl.data.files import METADATA, Dataset, write_dataset
from voidrl.data.fill import fill_replay as fill_from
from voidrl.data.units import action_space, observation_space
from voidrl.envs.spaces import env_action
from voidrl.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from voidrl.replay import TERMINATED, TRUNCATED, Replay
from voidrl.training.build import task_config
from voidrl.types import EnvSpec

STACKED = EnvSpec((4,), False, 3, num_actions=3, raw_shape=(4,))
MIXED = EnvSpec((1, 8, 8), True, 1, num_actions=2, num_values=3)
MAZE = "voidrl/PixelMaze-v0?size=5&image_size=15&max_episode_steps=6"
NARROW = {"learner.encoder.width": 0.1, "representation.encoder.width": 0.1, "learner.hidden_dim": 8}
SMALL = config(warmup_steps=100, env__num_envs=2, env__frame_stack=2) | NARROW  # nothing is learned
pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """The folder of Minari's datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def written(replay, name="set-v0"):
    """A replay as a dataset."""
    return write(name, replay.spec, read_episodes(replay, find_spans(replay)))


def write(name, spec, episodes):
    write_dataset(name, spec, None, {METADATA: "{}"}, episodes, overwrite=False)
    return Dataset(name)


def count_replay(steps, capacity, ends, stack=1):
    """A replay whose observation, action and reward at time t are t; episodes end with the steps `ends`."""
    spec = EnvSpec((1,), False, stack, num_actions=1000, raw_shape=(1,))
    replay = Replay(spec, 1, capacity, 0, CPU, CPU)
    replay.reset(np.zeros((1, 1), np.float32))
    t, never, nothing = 0, np.array([False]), torch.zeros(1, 0)
    while t < steps:
        over, now = np.array([t in ends]), np.array([t])
        replay.add(now, now.astype(np.float32), over, never, np.full((1, 1), t + 1, np.float32), nothing)
        t += 1
        if over.any():  # the step of the reset
            t += 1
            replay.add(np.zeros(1), np.zeros(1), never, never, np.full((1, 1), t), nothing)
    return replay


def filled(dataset, spec, num_envs, capacity, agent=None, skill_dim=0):
    """A replay that begins with a dataset, and what is said about it."""
    replay = Replay(spec, num_envs, capacity, skill_dim, CPU, CPU)
    return replay, fill_from(replay, dataset, EnvConfig(id="test"), (agent or make_agent(spec)).method)


def transitions(replay):
    """Every transition as plain values, in any order."""
    slots = replay.newest(len(replay))
    batch = replay.batch(slots, 1, 1.0)
    flat = [batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs]
    rows = torch.cat([part.reshape(len(slots), -1).double() for part in flat], 1)
    return sorted(rows.round(decimals=5).tolist())


def test_episodes_are_those_of_the_ring_in_order():
    replay = count_replay(steps=12, capacity=100, ends=(3, 7))
    episodes = [*read_episodes(replay, find_spans(replay))]
    # The frame after an end is the last of its episode; the step that resets is no step.
    for each, steps in zip(episodes, (range(4), range(5, 8), range(9, 12)), strict=True):
        assert each.observations[:, 0].tolist() == [*steps, steps[-1] + 1]
        assert each.actions.tolist() == each.rewards.tolist() == [*steps]
        assert each.terminations.tolist() == [t in (3, 7) for t in steps]
    assert [each.truncations[-1] for each in episodes] == [False, False, True]  # still being played
    assert [(span.cut, span.open) for span in find_spans(replay)] == [(False, False)] * 2 + [(False, True)]


@pytest.mark.parametrize("stack", [1, 3])
def test_an_episode_whose_beginning_was_overwritten_starts_later(stack):
    replay = count_replay(steps=12, capacity=8, ends=(7,), stack=stack)
    spans = find_spans(replay)
    first, last = read_episodes(replay, spans)
    assert [span.cut for span in spans] == [True, False]
    assert first.actions[-1] == 7
    assert first.actions[0] == 12 - replay.rows + stack  # the oldest whose stack is whole
    assert first.observations[:, 0].tolist() == [*first.actions.tolist(), 8]
    assert last.actions.tolist() == [9, 10, 11]
    assert len(first) + len(last) == len(replay)


def test_a_lost_life_is_a_termination_within_its_episode():
    replay = Replay(DISCRETE, 1, 20, 0, CPU, CPU)
    replay.reset(np.zeros((1, 4), np.float32))
    no, yes, zero = np.array([False]), np.array([True]), np.zeros(1)
    for died, over in ((no, no), (yes, no), (no, no), (yes, yes)):
        replay.add(zero, zero, died, no, np.ones((1, 4), np.float32), torch.zeros(1, 0), over)
    (game,) = read_episodes(replay, find_spans(replay))
    assert game.terminations.tolist() == [False, True, False, True]
    assert not game.truncations.any()


SPECS = {"images": (PIXELS, 0), "skills": (CONTINUOUS, 2), "discrete": (DISCRETE, 0), "mixed": (MIXED, 0)}


@pytest.mark.parametrize(("spec", "skill_dim"), SPECS.values(), ids=SPECS)
def test_a_dataset_has_every_value_of_the_replay(spec, skill_dim):
    replay = fill_replay(spec, steps=30, skill_dim=skill_dim)
    dataset = written(replay)
    spans = find_spans(replay)
    assert len(spans) > 4
    assert dataset.lengths.tolist() == [len(span.rows) for span in spans]
    assert dataset.observation_space == observation_space(spec)
    assert dataset.action_space == action_space(spec)
    for span, episode in zip(spans, dataset.episodes(range(len(spans))), strict=True):
        slots = span.rows * replay.num_envs + span.column
        frames = replay.frames[np.append(slots, slots[-1] + replay.num_envs)].numpy()
        if spec.num_values:
            assert np.array_equal(episode.observations["image"], frames[:, :1])
            numbers = frames[:, 1].reshape(len(frames), -1)[:, :12].copy().view(np.float32)
            assert np.array_equal(episode.observations["values"], numbers)
        else:
            raw = frames.transpose(0, 2, 3, 1) if spec.pixels else frames
            assert np.array_equal(episode.observations, raw)
        assert np.array_equal(episode.actions, env_action(replay.action[slots].numpy(), spec))
        assert np.array_equal(episode.rewards, replay.reward[slots].numpy())
        ending = replay.ending[slots].numpy()
        assert np.array_equal(episode.terminations, ending == TERMINATED)
        assert np.array_equal(episode.truncations[:-1], ending[:-1] == TRUNCATED)
        assert episode.truncations[-1] == (ending[-1] != TERMINATED)
        if skill_dim:
            assert np.array_equal(episode.skills, replay.skill[slots].numpy())


@pytest.mark.parametrize("spec", [CONTINUOUS, STACKED], ids=["continuous", "stacked"])
def test_what_is_read_back_is_what_was_written(spec):
    replay = fill_replay(spec, steps=40, num_envs=1)
    dataset = written(replay)
    back, said = filled(dataset.name, spec, 1, 200)
    assert said == f"the replay begins with {len(replay)} transitions from the dataset {dataset.name!r}"
    np.testing.assert_allclose(transitions(back), transitions(replay), atol=2e-5)


def test_the_columns_of_a_replay_share_the_data():
    replay = count_replay(steps=60, capacity=100, ends=(3, 14, 15, 30, 52))
    dataset = written(replay)
    for n in (2, 3, 5):
        back, said = filled(dataset.name, replay.spec, n, 200)
        assert said.startswith(f"the replay begins with {len(back)} ")
        found, all_of_them = transitions(back), transitions(replay)
        assert len(all_of_them) - 2 * n <= len(found)
        assert len({tuple(row) for row in found}) >= len(found) - n
        assert all(row in all_of_them for row in found)  # (s, a, r, γ, s') are never mixed


def test_each_rank_fills_its_own_columns(monkeypatch):
    replay = count_replay(steps=60, capacity=100, ends=(3, 14, 15, 30, 52))
    dataset = written(replay)
    env, method = EnvConfig(id="test", num_envs=5), make_agent().method
    whole = Replay(replay.spec, 5, 200, 0, CPU, CPU)
    fill_from(whole, dataset.name, env, method)
    monkeypatch.setattr(dist, "total", lambda *numbers: [*numbers])
    parts = []
    for rank in range(2):
        monkeypatch.setattr(dist, "_current", dist.ProcessGroup(rank, 2))
        n = len(dist.current().part(5))
        part = Replay(replay.spec, n, 40 * n, 0, CPU, CPU)
        fill_from(part, dataset.name, env, method)
        parts.append(part.action.unflatten(0, (-1, n)))
    assert torch.equal(torch.cat(parts, 1), whole.action.unflatten(0, (-1, 5)))


def test_of_more_data_than_fits_the_last_is_taken():
    replay = count_replay(steps=60, capacity=100, ends=(29,))
    back, said = filled(written(replay).name, replay.spec, 1, 10)
    assert f"the replay begins with {len(back)} of 59 transitions" in said
    assert len(back) == 10 - 1  # one for the first frame of the run itself
    actions = back.action[back.newest(100)].tolist()
    assert actions == [*range(59, 50, -1)]


def test_skills_come_from_the_data_or_are_drawn():
    agent = make_agent(CONTINUOUS, method=small_method("diayn"))
    with_skills = written(fill_replay(CONTINUOUS, skill_dim=3), "a-v0")
    without = written(fill_replay(CONTINUOUS), "b-v0")
    back, said = filled(with_skills.name, CONTINUOUS, 2, 200, agent, 3)
    assert "were drawn" not in said
    every = with_skills.episodes(range(len(with_skills.lengths)))
    stored = {tuple(row) for episode in every for row in episode.skills.tolist()}
    assert {tuple(row) for row in back.skill[back.newest(200)].tolist()} <= stored
    back, said = filled(without.name, CONTINUOUS, 2, 200, agent, 3)
    assert said.endswith("; skills, which it lacks, were drawn for each episode")
    skills = back.skill[back.newest(200)]
    assert (skills.sum(1) == 1).all()  # one-hot, as the method has them
    assert len(skills.unique(dim=0)) == 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run in the maze."""
    out = tmp_path_factory.mktemp("runs") / "maze"
    voidrl.pretrain(MAZE, config=SMALL, steps=40, out=out, seed=5)
    return out


def test_a_run_is_exported_and_another_begins_with_it(run, datasets, tmp_path, monkeypatch, capsys):
    import minari

    assert main(["export", str(run), "--to", "minari", "--out", "voidrl/maze-v0"]) == 0
    assert capsys.readouterr().out.startswith("voidrl/maze-v0: 40 steps of ")
    found = minari.load_dataset("voidrl/maze-v0")
    assert "voidrl/maze-v0" in minari.list_local_datasets()
    assert found.total_steps == 40
    own = json.loads(found.storage.metadata["voidrl"])
    assert own["episodes_without_end"] == [found.total_episodes - 2, found.total_episodes - 1]
    assert (own["seed"], own["step"], own["config"]["env"]["id"]) == (5, 40, MAZE)
    env = found.recover_environment()
    assert env.observation_space == found.observation_space
    # The very frames of the run: the first episode begins as any in this maze.
    assert np.array_equal(found[0].observations[0], env.reset()[0])

    out = tmp_path / "second"
    options = ["--learner.hidden-dim", "8", "--log.tensorboard", "false", "--device", "cpu"]
    options += ["--env.num-envs", "2", "--env.frame-stack", "2", "--warmup-steps", "100", "--out", str(out)]
    assert main(["train", MAZE, "--from-data", "voidrl/maze-v0", "--steps", "12", *options]) == 0
    saved = json.loads((out / "config.json").read_text())
    assert saved["replay"]["data"] == "voidrl/maze-v0"
    assert "transitions from the dataset 'voidrl/maze-v0'" in (out / "log.txt").read_text()
    total = voidrl.export_data(out, "both-v0").steps
    assert total >= 12 + 40 - 4
    # A resumed run has its data from the checkpoint, and does not need the dataset any more.
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    agent = voidrl.resume(out, steps=14)
    assert agent.steps == 14
    assert voidrl.export_data(out, "later-v0").steps == total + 2
    assert task_config(agent.config).replay.data is None  # a fine-tuned agent does not begin with it
    with pytest.raises(DataError, match="there is no dataset 'voidrl/maze-v0'"):
        voidrl.pretrain(MAZE, config=SMALL, out=tmp_path / "third", data="voidrl/maze-v0")
    assert not (tmp_path / "third").exists()


def test_bad_input_gets_one_sentence(run, datasets, tmp_path, monkeypatch):
    export_data(run, "data-v0")
    with pytest.raises(ConfigError, match=r"data-v0 exists already: .*overwrite=True"):
        export_data(run, "data-v0")
    export_data(run, "data-v0", overwrite=True)
    (datasets / "mine-v0").mkdir()
    with pytest.raises(ConfigError, match="holds no dataset and is not replaced"):
        export_data(run, "mine-v0", overwrite=True)
    with pytest.raises(ConfigError, match=r"dataset 'x\.npz' cannot be used: expected an id such as"):
        export_data(run, "x.npz")
    with pytest.raises(DataError, match=r"has pixels 3×15×15, 4 actions and environment .* has vector 6"):
        voidrl.pretrain(Chain, data="data-v0", out=tmp_path / "run", config=config(steps=10))
    assert not (tmp_path / "run").exists()
    (datasets / "data-v0" / "data" / "metadata.json").write_text("{")
    with pytest.raises(DataError, match=r"'data-v0' cannot be read .*: expected one that the"):
        Dataset("data-v0")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"needs h5py.*pip install 'minari"):
        export_data(run, "y-v0")


def test_a_run_without_its_replay_is_refused(tmp_path):
    changes = config(steps=4, warmup_steps=4, learner__hidden_dim=8, log__keep_replay=False)
    voidrl.train(Chain, config=changes, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"holds no replay: .*log\.keep_replay = True"):
        export_data(tmp_path / "run", "x-v0")


DAMAGE = [
    ({"actions": np.array([7, 0])}, r"it has actions outside of its space Discrete\(3\)"),
    ({"rewards": np.array([np.nan, 0], np.float32)}, "rewards that are not finite"),
    ({"observations": np.zeros((2, 4), np.float32)}, "it has 2 observations in an episode of 2 steps"),
]


@pytest.mark.parametrize(("change", "sentence"), DAMAGE)
def test_damaged_episodes_are_refused(change, sentence):
    replay = count_replay(steps=2, capacity=10, ends=())
    (episode,) = read_episodes(replay, find_spans(replay))
    episode = replace(episode, observations=np.zeros((3, 4), np.float32), actions=np.array([0, 1]))
    write("x-v0", DISCRETE, [replace(episode, **change)])
    with pytest.raises(DataError, match=sentence):
        filled("x-v0", DISCRETE, 1, 10)


def test_an_episode_without_a_final_flag_ends_all_the_same():
    replay = count_replay(steps=7, capacity=20, ends=(2,))
    episodes = []
    for episode in read_episodes(replay, find_spans(replay)):
        never = np.zeros(len(episode), bool)
        episodes.append(replace(episode, terminations=never, truncations=never))
    write("x-v0", replay.spec, episodes)
    back, _ = filled("x-v0", replay.spec, 1, 20)
    slots = back.newest(len(back)).flip(0)
    batch = back.batch(slots, 3, 1.0)
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 4, 5, 6]
    assert batch.reward.tolist() == [0 + 1 + 2, 1 + 2, 2, 4 + 5 + 6, 5 + 6, 6]  # never over the border at 3
    assert batch.next_obs[:, 0].tolist() == [3, 3, 3, 7, 7, 7]
