"""Experiment files: shipped ones can be read, and every mistake in a custom one is a sentence."""

import random
from contextlib import suppress

import numpy as np
import pytest
from helpers import mutate

from voidrl.cli import main as cli
from voidrl.config import registry
from voidrl.envs.suites import published
from voidrl.envs.suites.atari import GAMES_26, human_normalized
from voidrl.errors import ConfigError, VoidrlError
from voidrl.experiments.format import EvaluationSpec, _experiment, read_experiment, shipped
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.tasks import make_task, select

LEAST = """
tasks = ["voidrl/PixelMaze-v0"]
[methods.apt]
"""


def read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return read_experiment(str(path))


def test_what_is_shipped():
    assert {*shipped()} == {
        *("table2", "table3", "table4", "table5", "exploration", "figure3", "urlb", "demo", "zoo"),
        *("atari-panel", "outlook", "maze-grid", "adapt"),
    }
    assert [task.env for task in read_experiment("table2").tasks] == [f"atari/{game}" for game in GAMES_26]
    methods = {*registry.names("method")} - {"positive", "random"}
    urlb, zoo = read_experiment("urlb"), read_experiment("zoo")
    assert {arm.method for arm in urlb.arms.values()} - {None} == methods
    assert {arm.method for arm in zoo.arms.values()} == {*methods, "random"}
    figure3 = read_experiment("figure3")
    assert sum(task.env.endswith("_sparse") for task in figure3.tasks) == 7
    assert {task.pretrain.env for task in figure3.tasks} == {"dmc/walker", "dmc/cheetah", "dmc/hopper"}


def test_every_published_row_that_is_compared_names_an_arm():
    for name in {*published.names()} - {"atari100k"}:
        labels = {arm.label for arm in read_experiment(name).arms.values()}
        for table in published.sources(name):
            compared = {row.ours for row in table.rows} - {None}
            assert compared
            assert compared <= labels, table.name
    # Every row of the paper's tables but SimPLe's has an arm.
    left = {"table2": {"random", "human", "simple"}, "urlb": {"expert"}}
    for name in ("table2", "table3", "table4", "table5", "exploration", "urlb"):
        without = {row.name for row in published.numbers(name).rows if row.ours is None}
        assert without == left.get(name, set()), name


def test_larger_samples_have_every_game_and_give_the_stated_aggregates():
    printed, larger = published.sources("table2")
    assert (printed.heading, larger.heading) == ("printed", "larger sample")
    assert larger.tasks == tuple(f"atari/{game}" for game in GAMES_26)
    whole = [row for row in larger.rows if any(task in row.values for task in larger.tasks)]
    assert len(whole) == 9
    for row in whole:
        scores = [human_normalized(game, row.values[f"atari/{game}"]) for game in GAMES_26]
        # The stated ones are of scores with all their digits.
        assert 100 * np.mean(scores) == pytest.approx(row.values["mean"], abs=0.15), row.name
        assert 100 * np.median(scores) == pytest.approx(row.values["median"], abs=0.15), row.name
    assert all(row.runs for row in larger.rows)


def test_the_shortest_file_and_its_defaults(tmp_path):
    mine = read(tmp_path, LEAST)
    assert (mine.name, mine.title, mine.seeds, mine.preset) == ("mine", "mine", (1,), None)
    arm = mine.arms["apt"]
    assert (arm.label, arm.phases, arm.method) == ("apt", ("pretrain", "finetune"), None)
    assert arm.evaluation == EvaluationSpec(episodes=10)
    assert (mine.tasks[0].name, mine.tasks[0].pretrain.env) == ("PixelMaze-v0", "voidrl/PixelMaze-v0")


def test_names_of_tasks():
    assert make_task("atari/MsPacman").name == "ms_pacman"
    assert make_task("dmc/Walker-Run").pretrain.env == "dmc/walker"
    assert make_task("my_envs:make?size=3").name == "my_envs-make"
    tasks = read_experiment("table5").tasks
    assert [task.env for task in select(tasks, ["atari/MsPacman", "atari/pong"])] == [
        "atari/ms_pacman",
        "atari/pong",
    ]
    assert len(select(tasks, ["atari57"])) == 57
    assert len(select(tasks, ["atari/alien", "alien"])) == 1
    for known, word, near in (
        (tasks, "alient", "alien"),
        (read_experiment("urlb").tasks, "walker_rum", "walker_run"),
        (read_experiment("demo").tasks, "gaol", "goal"),
    ):
        with pytest.raises(ConfigError, match=f"unknown task '{word}'; did you mean '{near}'"):
            select(known, [word])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("titel = 'x'\n" + LEAST, "unknown key in .*mine.toml: 'titel'; did you mean 'title'"),
        (LEAST + "phases = ['finetune', 'pretrain']", "phases = .* cannot be used: expected pretrain, "),
        (LEAST + "phases = ['finetune']", "source = None cannot be used: expected a source if"),
        (LEAST + "source = 'ap'", "source in .*'ap'; did you mean 'apt'"),
        (LEAST + "[methods.b]\nlabel = 'apt'", "label = 'apt' cannot be used: expected each label once"),
        (LEAST + "[methods.b]\nphases = ['train']\nlike = 'b'", "like = 'b' .* the phase 'finetune'"),
        (LEAST + "[methods.'a b']", "the name of a folder, such as 'a-b'"),
        (LEAST + "preset = 'drq'\npresets = ['drq']", "preset = 'drq' cannot be used: expected none beside"),
        (LEAST + "[evaluation]\nepisodes = 3\nsteps = 5", "expected one of episodes and steps"),
        ("seeds = [1, 1]\n" + LEAST, r"seeds = \[1, 1\] cannot be used: .*each of them once"),
        ("published = 'table22'\n" + LEAST, "did you mean 'table2'"),
        ("threads = 0\n" + LEAST, "threads = 0 cannot be used"),
        ("[methods.apt]", "tasks = None cannot be used: expected a list of .* or a group: atari26"),
        ("tasks = ['urlb']", "there are no methods"),
        ("tasks = ['a:b?x=1', 'a:b?x=2']\n[methods.apt]", "would both be named 'a-b': give one a name"),
        ("tasks = [{ name = 'x' }]\n[methods.apt]", "expected a table with env"),
        (
            "tasks = [{ name = 'a', env = 'x-v0?a=1', pretrain = { env = 'x-v0', steps = 5 } }, "
            "{ name = 'b', env = 'x-v0?a=2', pretrain = 'x-v0' }]\n[methods.apt]",
            "'a' and 'b' share the pre-training 'x-v0', but not its settings",
        ),
        ("tasks = [\n=", "mine.toml cannot be read: .*line 2"),
        ("a = " + "[" * 100_000, "nested more than"),
        ("tasks = ['x']\nconfig = [1]\n[methods.apt]", r"config = \[1\] .* expected a table"),
    ],
)
def test_mistakes_are_sentences(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert "mine.toml" in str(caught.value) or "did you mean" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_files_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, sentence in (
        ("tabel2", "unknown experiment 'tabel2'; did you mean 'table2'"),
        (str(tmp_path / "none.toml"), "there is no file"),
        (str(tmp_path / "folder.toml"), "cannot be read: it is not a regular file"),
        (str(tmp_path / "bytes.toml"), "cannot be read: 'utf-8' codec"),
    ):
        assert cli.main(["experiment", name]) == 2
        assert sentence in capsys.readouterr().err


VALID = {
    "title": "mine",
    "tasks": ["CartPole-v1", {"name": "short", "env": "CartPole-v1?sutton_barto_reward=true"}],
    "seeds": [1, 2],
    "config": {"updates_per_step": 0.5, "learner": {"n_step": 3}, "log.keep_last": 1},
    "pretrain": {"steps": "10k", "config": {"seed": 3}},
    "evaluation": {"episodes": 3},
    "methods": {
        "apt": {"method": "apt", "seeds": [3]},
        "scratch": {"phases": ["train"], "train": {"config": {"learner.hidden_dim": 8}}},
    },
}
VALUES = [None, True, 0, -1, 10**30, 0.5, float("nan"), float("inf"), "", "a:b", "1e9", "method", [], {}]


def test_mutated_files_raise_only_our_errors():
    for seed in range(60):
        rng = random.Random(seed)
        values = VALID
        for _ in range(rng.choice([1, 2, 4])):
            values = mutate(values, rng, VALUES, [*VALID, "learner", "method.k", "env"])
        try:
            with suppress(VoidrlError):
                make_plan(_experiment("mine.toml", values), ExperimentRequest())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {values}") from error
