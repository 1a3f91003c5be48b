"""The examples run as a user runs them, print what they promise, and leave nothing behind."""

import ast
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """`run(name, *words)`: what a script prints, in this process, which has imported what it needs."""
    monkeypatch.chdir(tmp_path)

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert not list(tmp_path.iterdir()), "an example keeps its runs in a temporary folder"
        return capsys.readouterr().out

    return run


# Some steps only show that a script runs; how much more is explored takes many.
@pytest.mark.parametrize("steps", [300, pytest.param(3500, marks=pytest.mark.slow)])
def test_a_script_with_a_loop_of_its_own_explores_by_particle_reward(run, steps):
    def seen(scale):
        out = run("cleanrl_style.py", "--intrinsic-scale", scale, "--total-steps", steps)
        return int(re.match(rf"(\d+) places of 20 × 20 seen in {steps} steps", out)[1])

    assert seen(1) > (1.3 if steps > 300 else 0) * seen(0)


@pytest.mark.parametrize("steps", [200, pytest.param(800, marks=pytest.mark.slow)])
def test_ppo_and_dqn_of_stable_baselines3_explore_by_apts_reward(run, steps):
    lines = run("sb3_apt.py", steps).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ppo", "dqn"]
    for line in lines:
        mine, without = map(
            ast.literal_eval, re.search(r"(\[.*\]) with APT, (\[.*\]) without", line).groups()
        )
        assert len(mine) == len(without) == 2
        assert sum(mine) > (1.3 if steps > 200 else 0) * sum(without)


@pytest.mark.parametrize("steps", [[100], pytest.param([], marks=pytest.mark.slow, id="by default")])
def test_pretraining_makes_a_users_own_task_learnable(run, steps):
    out = run("own_environment.py", *steps)
    tuned, scratch = map(float, re.search(r": (\S+) fine-tuned, (\S+) trained from scratch", out).groups())
    assert scratch < 1  # random actions do not cross the corridor, so there is nothing to learn from
    assert (0 if steps else 10) <= tuned <= 38  # some steps only show that the script runs


def test_a_method_in_one_file_explores_more_than_random_actions(run):
    out = run("own_method.py", 500)
    mine, random = map(ast.literal_eval, re.search(r"(\[.*\]) by counts, (\[.*\]) at random", out).groups())
    assert len(mine) == len(random) == 2
    assert sum(mine) > 1.1 * sum(random)


def test_a_frozen_front_end_stays_frozen_and_the_rest_is_trained(run):
    lines = dict(line.split() for line in run("own_encoder.py", 400).splitlines())
    assert lines == {
        "stack.front.0.weight": "frozen",
        "stack.front.0.bias": "frozen",
        "stack.back.0.weight": "trained",
        "stack.back.0.bias": "trained",
    }


def test_a_temporal_contrast_learns_to_recognize_successors(run):
    before, after = (
        re.fullmatch(r"step (\d+): loss (\S+), (\d+)% of successors recognized", line).groups()
        for line in run("own_representation.py", 400).splitlines()
    )
    assert (before[0], after[0]) == ("304", "400")
    assert float(after[1]) < 0.8 * float(before[1])
    assert int(after[2]) > 1.5 * int(before[2])


@pytest.mark.parametrize("name", ["own_representation", "own_encoder"])
def test_the_page_shows_the_class_of_its_example(name):
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    source = ast.get_source_segment(text, classes[-1])
    assert source in (ROOT / "docs" / "own_representation.md").read_text("utf-8")


def test_a_pendulum_is_explored_with_and_without_apt(run):
    pytest.importorskip("dm_control")
    lines = run("dmcontrol.py", 600).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["random", "apt"]
    for line in lines:
        counts, steps, score = re.fullmatch(
            r"\w+: (\{.*\}) after (\d+) steps, zero-shot return (\d+) of 1000", line
        ).groups()
        assert int(steps) == 600
        assert 0 <= int(score) <= 1000
        assert ast.literal_eval(counts)["coverage/bins"] > 1


def test_positions_in_a_game_are_counted_with_and_without_apt(run):
    pytest.importorskip("ale_py")
    lines = run("atari.py", 320).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["random", "apt"]
    for line in lines:
        counts, steps = re.fullmatch(r"\w+: (\{.*\}) after (\d+) steps", line).groups()
        assert int(steps) >= 320
        assert ast.literal_eval(counts)["coverage/ram"] > 1  # nobody moves in the first second


def test_a_search_continues_where_it_was_and_draws_something_new(run, tmp_path_factory):
    optuna = pytest.importorskip("optuna")
    folder = tmp_path_factory.mktemp("search")
    assert len(run("optuna_search.py", folder, 1, 64).splitlines()) == 2
    *trials, best = run("optuna_search.py", folder, 2, 64).splitlines()
    assert [re.match(r"trial (\d): (complete|pruned), ", line)[1] for line in trials] == ["0", "1"]
    assert re.fullmatch(r"best: trial \d with \d+ cells", best)
    study = optuna.load_study(study_name="apt-maze", storage=f"sqlite:///{folder / 'study.db'}")
    assert len({trial.params["learner.learning_rate"] for trial in study.trials}) == 2
    for trial in study.trials:
        config = json.loads((folder / f"trial-{trial.number}" / "config.json").read_text())
        assert config["method"]["k"] == trial.params["method.k"]
        assert len(trial.intermediate_values) >= 3  # a pruner has something to compare
