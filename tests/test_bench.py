"""`voidrl bench`: every measurement writes its figures. Speed itself is not tested."""

import importlib
import json
from pathlib import Path

import pytest
import torch

from voidrl.cli import main as cli
from voidrl.cli import speed
from voidrl.errors import ConfigError
from voidrl.training.build import build_config

MAZE = "voidrl/PixelMaze-v0"
SMALL = ["--preset", "maze-demo", "--device", "cpu"]


def bench(*words):
    return cli.main(["bench", *map(str, words)])


def figures(path):
    document = json.loads(path.read_text())
    assert document["command"].startswith("voidrl bench ")
    assert {"voidrl", "torch"} <= document["versions"].keys()
    assert document["threads"] == torch.get_num_threads()
    return document["rows"]


def test_environments(tmp_path, monkeypatch):
    path = tmp_path / "env.json"
    monkeypatch.setattr(speed, "SECONDS", 0.02)
    assert bench("env", "tiny_runs:Walk", "--json", path) == 0
    assert [row["num_envs"] for row in figures(path)] == [1, 16, 64]
    assert all(row["steps_per_second"] > 0 for row in figures(path))
    words = ["--env.num-envs", 2, "--env.backend", "sync", "--json", path]
    assert bench("env", MAZE, *words) == 0
    assert figures(path)[0]["backend"] == "sync"


def test_a_whole_run_and_what_limits_it(tmp_path, capsys):
    path = tmp_path / "train.json"
    words = ["--env.num-envs", 2, "--steps", 120, "--updates-per-step", 0.1, "--json", path]
    assert bench("train", MAZE, *SMALL, *words) == 0
    (row,) = figures(path)
    assert (row["num_envs"], row["updates_per_step"], row["engine"]) == (2, 0.1, "eager")
    assert 0 <= row["learner_waits"] <= 1
    assert 0 < row["steps"] < 120
    assert min(row["steps_per_second"], row["updates_per_second"]) > 0
    assert "limit this run" in capsys.readouterr().out
    assert speed.limit(0.5).startswith("Environments limit")
    assert speed.limit(0.05).startswith("Updates limit")


def test_rates_of_a_run_begin_where_they_are_steady():
    first = [(100, 0, 1000, 1), (200, 50, 1, 0), (300, 100, 5, 0)]
    rows = [
        {"step": step, "updates": updates, "time/steps_per_second": rate,
         "time/updates_per_second": rate / 2, "time/learner_waits": waits}
        for step, updates, rate, waits in [*first, (400, 150, 100, 0.25), (600, 250, 50, 0.5)]
    ]  # fmt: skip
    found = speed.steady_rates(rows)
    assert (found["steps"], found["seconds"]) == (300, pytest.approx(1 + 4))
    assert found["steps_per_second"] == pytest.approx(300 / 5)
    assert found["updates_per_second"] == pytest.approx(150 / 5)
    assert found["learner_waits"] == pytest.approx((0.25 + 4 * 0.5) / 5)
    with pytest.raises(ConfigError, match="more --steps"):
        speed.steady_rates(rows[:3])


def test_updates_of_a_workload_are_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    updates, workloads = (importlib.import_module(name) for name in ("updates", "workloads"))
    for workload in workloads.WORKLOADS.values():
        config = build_config(workload.spec, workload.layers)
        assert (config.method.name, config.phase) == ("apt", "pretrain")
    small = {"learner.batch_size": 8, "learner.hidden_dim": 8, "method.k": 2}
    spec, layers = workloads.WORKLOADS["vectors"]
    subject = updates.Updates(spec, build_config(spec, [*layers, small]), torch.device("cpu"), print)
    assert len(subject.rates(0.01)) == updates.REPEATS


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["env", MAZE, "--json", "no/such/folder.json"], "cannot be written"),
        (["train", MAZE, "--steps", "10"], "--steps 10 cannot be used with"),
        (["env", MAZE, "--env.num-envs", "0"], "env.num_envs = 0"),
    ],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert bench(*words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert says in said[-1]
    assert "Traceback" not in "".join(said)
