"""The demo: that it ends with its table and picture, and (slow) that what it shows is real."""

import json

import pytest

from voidrl.config import EnvConfig
from voidrl.demo import FINETUNE_STEPS, PRETRAIN_STEPS, TASK, run_demo
from voidrl.envs import make_envs, parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.presets import DEMO_ENV


def test_a_short_demo_ends_with_table_picture_and_numbers(tmp_path, capsys):
    results = run_demo(tmp_path, seeds=(2,), scale=0.01)
    shown = capsys.readouterr().out
    assert "maze seen in 160 steps" in shown
    assert "goal reached after 80 steps" in shown
    assert str(tmp_path / "demo.png") in shown
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "demo.json").read_text())
    assert set(numbers["seeds"]) == {"2"}
    for result in results:
        assert result.random_visits.sum() == result.apt_visits.sum() > 160  # the start of each episode counts
        assert (result.random_visits[result.walls] == 0).all()
        assert result.random_coverage[-1][0] == 160
        assert result.summary() == numbers["seeds"][str(result.seed)]


def test_the_goal_is_eighteen_steps_away_and_not_shown():
    maze = PixelMazeVector(num_envs=1, **parse_id(TASK)[1])
    assert maze.shortest_path_lengths()[maze.goal_cell] == 18
    assert make_envs(EnvConfig(id=TASK)).spec == make_envs(EnvConfig(id=DEMO_ENV)).spec


@pytest.mark.slow
def test_apt_explores_more_and_adapts_where_scratch_fails(tmp_path):
    for result in run_demo(tmp_path, seeds=(2, 3, 4)):
        summary = result.summary()
        assert result.apt_coverage[-1][0] >= PRETRAIN_STEPS
        assert result.finetuned_success[-1][0] >= FINETUNE_STEPS
        assert summary["coverage_apt"] >= 1.5 * summary["coverage_random"]
        assert summary["success_finetuned"] >= 0.8
        assert summary["success_scratch"] < 0.3
