"""The demo prints its table and draws its figure, and (slow) what it shows is real."""

import numpy as np
import pytest
from done_cells import do_here, plan_of

from voidrl.cli import main as cli
from voidrl.config import update
from voidrl.experiments import demo
from voidrl.experiments.demo import read_demo, run_demo
from voidrl.presets.presets import DEMO_ENV
from voidrl.runs.evaluations import FILE_NAME, read_evaluation
from voidrl.training import build

TASK = f"{DEMO_ENV}&goal=[11,5]"


def test_a_short_demo_ends_with_table_picture_and_numbers(tmp_path, capsys, monkeypatch):
    few = {"log": {"eval_episodes": 2}, "learner": {"batch_size": 16, "encoder": {"width": 0.1}}}
    make = build.build_config
    monkeypatch.setattr(build, "build_config", lambda *args: update(make(*args), few))
    plan = plan_of("demo", tmp_path, steps_scale=0.01)
    for cell in plan.cells:
        do_here(plan, cell)
    capsys.readouterr()
    monkeypatch.setattr(
        demo, "show_results", lambda plan, **_: print(f"report of {plan.experiment.name}") or 1
    )
    assert cli.main(["demo", "--scale", "0.01", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "maze seen in 160 steps" in shown
    assert "goal reached after 80 steps" in shown
    assert str(tmp_path / "demo.png") in shown
    assert "report of demo" in shown
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    result = read_demo(plan, 2)
    assert (
        result.visits["random"].sum() == result.visits["apt"].sum() > 160
    )  # the start of each episode counts
    assert (result.visits["random"][result.maze.walls] == 0).all()
    assert result.curves["random"][-1][0] == 160
    evaluation = read_evaluation(tmp_path / "goal/finetuned/seed2" / FILE_NAME)  # what reports show
    assert result.final["finetuned"] == np.mean(evaluation["successes"])
    # What is there is kept; with another number of steps it would be another demo.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "maze").rglob("*")}
    assert cli.main(["demo", "--scale", "0.01", "--out", str(tmp_path), "--no-report"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "maze").rglob("*")} == before
    assert cli.main(["demo", "--out", str(tmp_path)]) == 2
    assert "steps is 160 there and 16000 here" in capsys.readouterr().err


def test_bad_options_are_one_sentence(tmp_path, capsys):
    assert cli.main(["demo", "--scale", "0", "--out", str(tmp_path)]) == 2
    assert "--scale 0.0 cannot be used: expected a number above 0" in capsys.readouterr().err
    assert cli.main(["demo", "--jobs", "0", "--out", str(tmp_path)]) == 2
    assert "--jobs 0 cannot be used" in capsys.readouterr().err


@pytest.mark.slow
def test_apt_explores_more_and_adapts_where_scratch_fails(tmp_path):
    seeds = (1, 3, 5)
    assert run_demo(tmp_path, seeds=seeds, jobs=2, report=False) == 0
    successes = []
    for result in (read_demo(plan_of("demo", tmp_path, seeds=seeds), seed) for seed in seeds):
        assert result.curves["apt"][-1][0] >= 16_000
        assert result.curves["finetuned"][-1][0] >= 8000
        assert result.final["apt"] >= 1.5 * result.final["random"]
        assert result.final["scratch"] < 0.3
        successes.append(result.final["finetuned"])
    assert np.mean(successes) >= 0.6  # one seed may learn late: processors round differently
