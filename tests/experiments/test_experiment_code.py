"""Code that an experiment's file names: a dry run imports none of it. Files of others get a sentence."""

import importlib.util
import random
import re
import sys
from contextlib import suppress

import pytest

from voidrl.cli import main as cli
from voidrl.errors import ConfigError, VoidrlError
from voidrl.experiments import experiment
from voidrl.experiments.format import _experiment, read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest

CODE = """
tasks = [{tasks}]
seeds = [1]
[config]
learner.n_step = 3
[pretrain]
steps = 1000
[finetune]
steps = 500
[methods.mine]
{method}
[methods.scratch]
phases = ["train"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of an experiment's file, with a module that must not be imported."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # "" is the current folder
    return tmp_path


@pytest.fixture
def write(folder):
    def write(tasks="'CartPole-v1'", method="method = 'apt'"):
        (folder / "evil.toml").write_text(CODE.format(tasks=tasks, method=method))
        return "evil.toml"

    yield write
    assert "evil" not in sys.modules


@pytest.fixture
def evil(folder, write, monkeypatch):
    """The same where the module can be imported, as when it is installed."""
    monkeypatch.syspath_prepend(folder)
    return write


@pytest.mark.parametrize(
    ("given", "unknown"),
    [
        ({"tasks": "'evil:make?size=3'"}, 3),
        ({"tasks": "'evil:Name-v0'"}, 3),
        ({"tasks": "'GymV26Environment-v0?env_id=evil:Name-v0'"}, 3),
        ({"tasks": "{ env = 'CartPole-v1', pretrain = 'evil:make' }"}, 2),
        ({"tasks": "'dmc/walker_run'", "method": "method = 'evil:Method'"}, 2),
        ({"method": "method = 'evil:Method'"}, 2),
        ({"method": "config.representation.name = 'evil:Representation'"}, 2),
        ({"method": "config.learner = 'evil:Learner'"}, 2),
        ({"method": "config.learner.encoder.stack = 'evil:Stack'"}, 2),
        ({"method": "config.env.wrappers = ['evil:Wrapper']"}, 2),
        ({"method": "finetune.config.learner = 'evil:Learner'"}, 1),
    ],
    ids=str,
)
def test_a_dry_run_imports_nothing_that_a_file_names(evil, capsys, given, unknown):
    path = evil(**given)
    words = ["experiment", path, "--dry-run", "--steps-scale", "0.5", "--set", "learner.batch_size=8"]
    assert cli.main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{unknown} runs need code that the file names" in shown
    assert "which a dry run does not import" in shown
    assert re.search(r"mine(-pretrain)?/seed1 (pretrain 500|finetune 250) \? missing", shown)
    plan = make_plan(read_experiment(path), ExperimentRequest(), run_code=False)
    known = [cell for cell in plan.cells if cell.probe.spec is not None]
    assert len(plan.cells) - len(known) == unknown
    assert [cell.config.steps for cell in plan.cells] == [1000, 500, 500]
    assert all(cell.agent_bytes for cell in known)


def test_a_dry_run_does_not_import_modules_next_to_the_file(folder, write, monkeypatch, capsys):
    """torch, like many packages, imports others if they are there, under whatever name a stranger gives."""
    found = []

    def planned(*args, **options):
        found.append(importlib.util.find_spec("evil"))
        return make_plan(*args, **options)

    monkeypatch.setattr(experiment, "make_plan", planned)
    before = [*sys.path]
    assert cli.main(["experiment", write(), "--dry-run"]) == 0
    assert cli.main(["experiment", str(folder / "evil.toml"), "--dry-run"]) == 0
    assert found == [None, None]
    assert sys.path == before
    capsys.readouterr()


def test_the_command_itself_runs_the_code_next_to_its_file(write, capsys):
    assert cli.main(["experiment", write(tasks="'evil:make'"), "--no-report"]) == 2
    assert "SystemExit('imported')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 100_000, "nested more than"),
        ("a = " + "{ a = " * 5_000, "nested more than|TOML"),
        (".".join(["a"] * 2_000) + " = 1", "nested more than"),
        ("a = " + "9" * 100_000, "cannot be read"),
        ("a = 0x" + "f" * 100_000, "a number has more than"),
        ("title = '" + "x" * 2_000_000 + "'", "it has more than 1.05 MB"),
        ("tasks = ['x']\n[[methods]]\nname = 'a'", "methods = .* expected a table"),
        ("tasks = ['x']\n[[methods.apt]]\nlabel = 'a'", "methods.apt = .* expected a table"),
        ("tasks = ['x']\n[methods]\napt = 3", "methods.apt = 3 .* expected a table"),
        ("tasks = [[1]]\n[methods.apt]", r"tasks = \[1\] .* expected a table"),
        ("tasks = 1979-05-27\n[methods.apt]", "tasks = .* expected a list"),
        ("tasks = ['x']\nconfig = [1]\n[methods.apt]", r"config = \[1\] .* expected a table"),
        ("tasks = ['x']\n[[evaluation]]\n[methods.apt]", "evaluation = .* expected a table"),
        ("tasks = ['x']\n[methods.apt]\ntimes = { updates_per_step = inf }", "times.updates_per_step = inf"),
        ("tasks = ['x']\nseeds = [nan]\n[methods.apt]", r"seeds = \[nan\]"),
        ("tasks = ['x']\n[pretrain]\nsteps = inf\n[methods.apt]", "pretrain.steps"),
    ],
)
def test_hostile_files_are_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_experiment(path)
    assert "mine.toml" in str(caught.value)
    assert len(str(caught.value)) < 1000


VALID = {
    "title": "mine",
    "tasks": ["CartPole-v1", {"name": "short", "env": "CartPole-v1?sutton_barto_reward=true"}],
    "seeds": [1, 2],
    "config": {"updates_per_step": 0.5, "learner": {"n_step": 3}, "log.keep_last": 1},
    "pretrain": {"steps": "10k", "config": {"seed": 3}},
    "evaluation": {"episodes": 3},
    "methods": {
        "apt": {"method": "apt", "times": {"updates_per_step": 2}},
        "scratch": {"phases": ["train"], "train": {"config": {"learner.hidden_dim": 8}}},
    },
}
VALUES = [
    None,
    True,
    0,
    -1,
    7,
    10**30,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a:b",
    "1e9",
    "method",
    [],
    {},
]


def mutate(data, rng):
    """Change, remove or add something anywhere."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice([*data])
        changed = {name: mutate(value, rng) if name == key else value for name, value in data.items()}
        if rng.random() < 0.1:
            changed.pop(key)
        elif rng.random() < 0.2:
            changed[rng.choice([*data, *VALID, "learner", "method.k", "env"])] = data[key]
        return changed
    if isinstance(data, list) and data and rng.random() < 0.8:
        index = rng.randrange(len(data))
        return [*data[:index], mutate(data[index], rng), *data[index + rng.choice([0, 1]) :]]
    return rng.choice([*VALUES, [data], {"name": data}, {"x": data}])


def fuzz(seeds):
    for seed in seeds:
        rng = random.Random(seed)
        values = VALID
        for _ in range(rng.choice([1, 2, 4])):
            values = mutate(values, rng)
        try:
            with suppress(VoidrlError):
                make_plan(_experiment("mine.toml", values), ExperimentRequest(), run_code=False)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {values}") from error


def test_mutated_files_raise_only_our_errors():
    fuzz(range(60))


@pytest.mark.slow
def test_many_more_mutated_files_raise_only_our_errors():
    fuzz(range(60, 5000))
