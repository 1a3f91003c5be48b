"""A run's replay as a dataset, and back."""

import json
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
from voidrl.data.files import Content, is_dataset_id, open_dataset, write_minari, write_npz
from voidrl.data.fill import fill_replay as fill_from
from voidrl.data.units import action_space, observation_space
from voidrl.envs.spaces import env_action
from voidrl.errors import CheckpointError, ConfigError, DataError, MissingExtraError, UnknownNameError
from voidrl.replay import TERMINATED, TRUNCATED, Replay
from voidrl.types import EnvSpec

STACKED = EnvSpec((4,), False, 3, num_actions=3, raw_shape=(4,))
MIXED = EnvSpec((1, 8, 8), True, 1, num_actions=2, num_values=3)
MAZE = "voidrl/PixelMaze-v0?size=5&image_size=15&max_episode_steps=6"
NARROW = {"learner.encoder.width": 0.1, "representation.encoder.width": 0.1, "learner.hidden_dim": 8}
SMALL = config(warmup_steps=100, env__num_envs=2, env__frame_stack=2) | NARROW  # nothing is learned
WRITERS = {"minari": write_minari, "npz": write_npz}


def written(replay, path, to="minari"):
    """A replay as a dataset in a file."""
    content = Content(observation_space(replay.spec), action_space(replay.spec), None, {"seed": 3}, {})
    name = WRITERS[to](path, content, read_episodes(replay, find_spans(replay)), overwrite=False)
    return open_dataset(name)


def count_replay(steps, capacity, ends, stack=1, num_envs=1):
    """A replay whose observation, action and reward at time t are t; episodes end with the steps `ends`."""
    spec = EnvSpec((1,), False, stack, num_actions=1000, raw_shape=(1,))
    replay = Replay(spec, num_envs, capacity, 0, CPU, CPU)
    t = 0
    replay.reset(np.full((num_envs, 1), t, np.float32))
    while t < steps:
        over = np.full(num_envs, t in ends)
        replay.add(
            np.full(num_envs, t),
            np.full(num_envs, t, np.float32),
            over,
            ~over & False,
            np.full((num_envs, 1), t + 1, np.float32),
            torch.zeros(num_envs, 0),
        )
        t += 1
        if over.any():  # the step of the reset
            t += 1
            zero = np.zeros(num_envs)
            replay.add(zero, zero, over & False, over & False, np.full((num_envs, 1), t), torch.zeros(1, 0))
    return replay


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
    assert [each.observations[:, 0].tolist() for each in episodes] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
    ]
    assert [each.actions.tolist() for each in episodes] == [[0, 1, 2, 3], [5, 6, 7], [9, 10, 11]]
    assert [each.rewards.tolist() for each in episodes] == [[0, 1, 2, 3], [5, 6, 7], [9, 10, 11]]
    assert [each.terminations.tolist() for each in episodes] == [
        [False] * 3 + [True],
        [False] * 2 + [True],
        [False] * 3,
    ]
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


@pytest.mark.parametrize("to", ["minari", "npz"])
@pytest.mark.parametrize(
    ("spec", "skill_dim"), [(PIXELS, 0), (CONTINUOUS, 2), (DISCRETE, 0), (MIXED, 0)], ids=["i", "c", "d", "m"]
)
def test_a_dataset_has_every_value_of_the_replay(spec, skill_dim, to, tmp_path):
    replay = stored_replay(spec, skill_dim)
    dataset = written(replay, tmp_path / "set-v0", to)
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


def stored_replay(spec, skill_dim=0, **options):
    """Random transitions; of images with numbers, in frames as they are stored."""
    if not spec.num_values:
        return fill_replay(spec, steps=30, skill_dim=skill_dim, **options)
    plain = EnvSpec(spec.stored_shape, True, 1, num_actions=2, raw_shape=spec.stored_shape)
    replay = fill_replay(plain, steps=30)
    numbers = np.random.default_rng(0).normal(size=(len(replay.frames), 3)).astype(np.float32)
    replay.frames[:, 1] = 0
    replay.frames.numpy()[:, 1].reshape(len(numbers), -1)[:, :12] = numbers.view(np.uint8)
    replay.spec = spec
    return replay


@pytest.mark.parametrize("to", ["minari", "npz"])
@pytest.mark.parametrize("spec", [CONTINUOUS, STACKED], ids=["continuous", "stacked"])
def test_what_is_read_back_is_what_was_written(spec, to, tmp_path):
    replay = fill_replay(spec, steps=40, num_envs=1)
    dataset = written(replay, tmp_path / "set-v0", to)
    back = Replay(spec, 1, 200, 0, CPU, CPU)
    said = fill_from(back, dataset.name, EnvConfig(id="test"), make_agent(spec).method)
    assert said == f"the replay begins with {len(replay)} transitions from the dataset {dataset.name!r}"
    np.testing.assert_allclose(transitions(back), transitions(replay), atol=2e-5)


def test_the_columns_of_a_replay_share_the_data(tmp_path):
    replay = count_replay(steps=60, capacity=100, ends=(3, 14, 15, 30, 52))
    dataset = written(replay, tmp_path / "set-v0", "npz")
    for n in (2, 3, 5):
        back = Replay(replay.spec, n, 200, 0, CPU, CPU)
        said = fill_from(back, dataset.name, EnvConfig(id="test"), make_agent().method)
        assert said.startswith(f"the replay begins with {len(back)} ")
        found, all_of_them = transitions(back), transitions(replay)
        assert len(all_of_them) - 2 * n <= len(found)
        assert len({tuple(row) for row in found}) >= len(found) - n
        assert all(row in all_of_them for row in found)  # (s, a, r, γ, s') are never mixed


def test_each_rank_fills_its_own_columns(tmp_path, monkeypatch):
    replay = count_replay(steps=60, capacity=100, ends=(3, 14, 15, 30, 52))
    dataset = written(replay, tmp_path / "set-v0", "npz")
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


def test_of_more_data_than_fits_the_last_is_taken(tmp_path):
    replay = count_replay(steps=60, capacity=100, ends=(29,))
    dataset = written(replay, tmp_path / "set-v0", "npz")
    back = Replay(replay.spec, 1, 10, 0, CPU, CPU)
    said = fill_from(back, dataset.name, EnvConfig(id="test"), make_agent().method)
    assert f"the replay begins with {len(back)} of 59 transitions" in said
    assert len(back) == 10 - 1  # one for the first frame of the run itself
    actions = back.action[back.newest(100)].tolist()
    assert actions == [*range(59, 50, -1)]


def test_skills_come_from_the_data_or_are_drawn(tmp_path):
    agent = make_agent(CONTINUOUS, method=small_method("diayn"))
    with_skills = written(fill_replay(CONTINUOUS, skill_dim=3), tmp_path / "a-v0", "npz")
    without = written(fill_replay(CONTINUOUS), tmp_path / "b-v0", "npz")
    back = Replay(CONTINUOUS, 2, 200, 3, CPU, CPU)
    said = fill_from(back, with_skills.name, EnvConfig(id="test"), agent.method)
    assert "were drawn" not in said
    stored = {tuple(row) for row in with_skills._arrays["skills"].tolist()}
    assert {tuple(row) for row in back.skill[back.newest(200)].tolist()} <= stored
    back = Replay(CONTINUOUS, 2, 200, 3, CPU, CPU)
    said = fill_from(back, without.name, EnvConfig(id="test"), agent.method)
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


def test_a_run_is_exported_and_another_begins_with_it(run, tmp_path, monkeypatch, capsys):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert main(["export", str(run), "--to", "minari", "--out", "voidrl/maze-v0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("voidrl/maze-v0: 40 steps of ")
    assert "2 cut where they were still being played" in out
    found = minari.load_dataset("voidrl/maze-v0")
    assert "voidrl/maze-v0" in minari.list_local_datasets()
    assert found.total_steps == 40
    assert found[0].observations.shape[1:] == (15, 15, 3)  # one frame, as the environment gives it
    own = json.loads(found.storage.metadata["voidrl"])
    assert (own["seed"], own["step"], own["config"]["env"]["id"]) == (5, 40, MAZE)
    env = found.recover_environment()
    assert env.observation_space == found.observation_space
    assert env.reset()[0].shape == (15, 15, 3)
    # The very frames of the run: the first episode begins as any in this maze.
    assert np.array_equal(found[0].observations[0], env.reset()[0])

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    voidrl.export_data(run, "./data/maze-v0")  # a relative path
    assert open_dataset("data/maze-v0").lengths.sum() == 40

    out = tmp_path / "second"
    voidrl.pretrain(MAZE, config=SMALL, steps=12, out=out, data="voidrl/maze-v0")
    saved = json.loads((out / "config.json").read_text())
    assert saved["replay"]["data"] == "voidrl/maze-v0"
    said = (out / "log.txt").read_text()
    assert "transitions from the dataset 'voidrl/maze-v0'" in said
    voidrl.export_data(out, tmp_path / "both", "npz")
    total = int(open_dataset(tmp_path / "both.npz").lengths.sum())
    assert total >= 12 + 40 - 4
    # A resumed run has its data from the checkpoint, and does not need the dataset any more.
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    agent = voidrl.resume(out, steps=14)
    assert agent.steps == 14
    voidrl.export_data(out, tmp_path / "later", "npz")
    assert int(open_dataset(tmp_path / "later.npz").lengths.sum()) == total + 2
    with pytest.raises(DataError, match="there is no dataset 'voidrl/maze-v0'"):
        voidrl.pretrain(MAZE, config=SMALL, out=tmp_path / "third", data="voidrl/maze-v0")
    assert not (tmp_path / "third").exists()


def test_the_command_line_names_the_data_by_its_absolute_path(run, tmp_path, monkeypatch):
    assert main(["export", str(run), "--to", "npz", "--out", str(tmp_path / "data")]) == 0
    monkeypatch.chdir(tmp_path)
    small = ["--learner.hidden-dim", "8", "--learner.batch-size", "8", "--log.tensorboard", "false"]
    small += ["--device", "cpu", "--warmup-steps", "9", "--out", "new", "--env.frame-stack", "2"]
    assert main(["train", MAZE, "--from-data", "data.npz", "--steps", "4", *small]) == 0
    saved = json.loads((tmp_path / "new" / "config.json").read_text())
    assert saved["replay"]["data"] == str(tmp_path / "data.npz")
    # A fine-tuned agent does not begin with the data of another run.
    agent = voidrl.load(tmp_path / "new")
    from voidrl.training.layers import task_config

    assert task_config(agent.config).replay.data is None


def test_bad_input_gets_one_sentence(run, tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match="unknown format 'minarii'; did you mean 'minari'"):
        export_data(run, tmp_path / "x", "minarii")
    path = tmp_path / "data.npz"
    export_data(run, path, "npz")
    with pytest.raises(ConfigError, match=r"data\.npz exists already: .*overwrite=True"):
        export_data(run, path, "npz")
    export_data(run, path, "npz", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    with pytest.raises(ConfigError, match="is a folder without a dataset and is not replaced"):
        export_data(run, tmp_path / "mine", "minari", overwrite=True)
    with pytest.raises(DataError, match=r"has pixels 3×15×15, 4 actions and environment .* has vector 6"):
        voidrl.pretrain(Chain, data=path, out=tmp_path / "run", config=config(steps=10))
    (tmp_path / "broken.npz").write_bytes(b"no")
    with pytest.raises(DataError, match=r"broken\.npz' cannot be read"):
        open_dataset(tmp_path / "broken.npz")
    with pytest.raises(DataError, match=r"there is no dataset 'nothing' in nothing: expected the path"):
        open_dataset("nothing")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs minari.*pip install 'voidrl\[minari\]'"):
        export_data(run, tmp_path / "y", "minari")


def test_a_run_without_its_replay_is_refused(tmp_path):
    changes = config(steps=4, warmup_steps=4, learner__hidden_dim=8, log__keep_replay=False)
    voidrl.train(Chain, config=changes, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"holds no replay: .*log\.keep_replay = True"):
        export_data(tmp_path / "run", tmp_path / "x", "npz")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"actions": np.array([7, 0])}, r"it has actions outside of its space Discrete\(3\)"),
        ({"rewards": np.array([np.nan, 0], np.float32)}, "rewards that are not finite"),
        ({"observations": np.zeros((2, 4), np.float32)}, "it has 2 observations in an episode of 2 steps"),
    ],
)
def test_damaged_episodes_are_refused(change, sentence, tmp_path):
    replay = count_replay(steps=2, capacity=10, ends=())
    (episode,) = read_episodes(replay, find_spans(replay))
    episode = replace(episode, observations=np.zeros((3, 4), np.float32), actions=np.array([0, 1]))
    content = Content(observation_space(DISCRETE), action_space(DISCRETE), None, {}, {})
    write_npz(tmp_path / "x", content, [replace(episode, **change)], overwrite=False)
    with pytest.raises(DataError, match=sentence):
        fill_from(
            Replay(DISCRETE, 1, 10, 0, CPU, CPU), str(tmp_path / "x.npz"), EnvConfig(), make_agent().method
        )


def test_an_episode_without_a_final_flag_ends_all_the_same(tmp_path):
    replay = count_replay(steps=7, capacity=20, ends=(2,))
    episodes = []
    for episode in read_episodes(replay, find_spans(replay)):
        never = np.zeros(len(episode), bool)
        episodes.append(replace(episode, terminations=never, truncations=never))
    content = Content(observation_space(replay.spec), action_space(replay.spec), None, {}, {})
    write_npz(tmp_path / "x", content, episodes, overwrite=False)
    back = Replay(replay.spec, 1, 20, 0, CPU, CPU)
    fill_from(back, str(tmp_path / "x.npz"), EnvConfig(), make_agent().method)
    slots = back.newest(len(back)).flip(0)
    batch = back.batch(slots, 3, 1.0)
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 4, 5, 6]
    assert batch.reward.tolist() == [0 + 1 + 2, 1 + 2, 2, 4 + 5 + 6, 5 + 6, 6]  # never over the border at 3
    assert batch.next_obs[:, 0].tolist() == [3, 3, 3, 7, 7, 7]


def test_ids_are_told_from_paths():
    assert is_dataset_id("maze-v0")
    assert is_dataset_id("D4RL/door/human-v2")
    assert not is_dataset_id("./maze-v0")
    assert not is_dataset_id("/data/maze-v0")
    assert not is_dataset_id("data/maze")
