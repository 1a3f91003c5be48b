"""Methods that are evaluated before and after fine-tuning: one row with both scores and the states seen."""

import json

import pytest
from done_cells import make_done, plan_of, report_of

from voidrl.errors import ConfigError

SMALL = {"tasks": ("ms_pacman",), "seeds": (1,), "preset": "atari-fast", "steps_scale": 0.15}


def small_plan(out, name="table3", **request):
    return plan_of(name, out, **{**SMALL, **request})


def test_pretraining_alone_is_shortened_and_evaluated_too():
    first, tuned = small_plan("out", methods=("apt",)).cells
    assert (first.config.steps, tuned.config.steps) == (1_500_000, 100_000)
    assert (first.protocol_steps, tuned.protocol_steps) == (250_000_000, 100_000)
    assert [cell.evaluation["steps"] for cell in (first, tuned)] == [125_000, 125_000]
    assert [cell.config.env.count_states for cell in (first, tuned)] == [True, False]
    assert not first.is_final


def test_what_is_evaluated_can_be_changed():
    off = small_plan(
        "out", methods=("apt",), changes={"evaluation.zero_shot": False, "evaluation.steps": "9k"}
    )
    assert [cell.evaluation and cell.evaluation["steps"] for cell in off.cells] == [None, 9000]
    on = small_plan("out", "table4", methods=("apt",), changes={"evaluation.zero_shot": True})
    assert [cell.evaluation is not None for cell in on.cells] == [True, True]
    assert on.cells[0].evaluation["steps"] == 18_750  # there, evaluations are scaled
    with pytest.raises(ConfigError, match=r"evaluation.zero_shot = 'yes' cannot be used: expected bool"):
        small_plan("out", changes={"evaluation.zero_shot": "yes"})


def test_a_domain_without_reward_is_evaluated_in_each_task(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "tasks = ['dmc/walker_run', 'dmc/walker_walk']\nevaluation = { episodes = 3 }\n"
        "[methods.apt]\n[methods.scratch]\nphases = ['train']\nlike = 'apt'"
    )
    plan = plan_of(path, seeds=(5,))
    cells = {cell.folder: cell for cell in plan.cells}
    assert (cells["walker/apt/seed5"].evaluation, cells["walker/apt/seed5"].zero_shot) == (None, None)
    for task in ("walker_run", "walker_walk"):
        tuned = cells[f"{task}/apt/seed5"]
        assert tuned.zero_shot == tuned.evaluation  # the same episodes
        assert tuned.zero_shot["env"] == f"dmc/{task}"
        assert cells[f"{task}/scratch/seed5"].zero_shot is None
    without = plan_of(path, changes={"evaluation.zero_shot": False})
    assert {cell.zero_shot is None for cell in without.cells} == {True}


def zero_shot_in(tmp_path, name="mine", **request):
    """How many runs are evaluated before fine-tuning: pre-trainings, and as part of fine-tunings."""
    path = tmp_path / f"{name}.toml"
    plan = plan_of(path if path.exists() else name, **request)
    pretrained = [cell for cell in plan.cells if cell.phase == "pretrain" and cell.evaluation is not None]
    return len(pretrained), sum(cell.zero_shot is not None for cell in plan.cells)


def test_pretrained_agents_are_evaluated_once_unless_the_file_says_otherwise(tmp_path):
    path = tmp_path / "mine.toml"
    arms = "[methods.apt]\nphases = ['pretrain']\n[methods.tuned]\nsource = 'apt'\n"
    tasks = "tasks = ['atari/alien', 'atari/pong']\npreset = 'atari-fast'\n"
    path.write_text(tasks + arms)  # the arm that is only pre-trained has the score
    assert zero_shot_in(tmp_path) == (2, 0)
    assert zero_shot_in(tmp_path, methods=("tuned",)) == (2, 0)
    path.write_text(tasks + arms.replace("'pretrain']", "'pretrain']\nevaluation = false"))
    assert zero_shot_in(tmp_path) == (0, 2)
    path.write_text(tasks + "[methods.apt]\n[methods.tuned]\nsource = 'apt'")  # two share one agent
    assert zero_shot_in(tmp_path) == (2, 0)
    path.write_text(tasks + "[evaluation]\nepisodes = 3\nzero_shot = false\n[methods.apt]")
    assert zero_shot_in(tmp_path) == (0, 0)
    # A method's own evaluation inherits it.
    path.write_text(path.read_text() + "\nevaluation = { episodes = 5 }")
    assert zero_shot_in(tmp_path) == (0, 0)


def test_tables_of_the_paper_show_only_the_last_agent(tmp_path):
    for name, tasks in (("table2", ("alien",)), ("table4", ("alien",)), ("table5", ()), ("figure3", ())):
        assert zero_shot_in(tmp_path, name, seeds=(1,), tasks=tasks) == (0, 0), name


def test_scores_before_fine_tuning_are_a_column_of_results_and_reports(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "evaluation = { episodes = 3 }\nmeasures = ['return', 'success']\n"
        "[[tasks]]\nname = 'pickup'\nenv = 'voidrl/PointMass-v0?task=pickup'\n"
        "pretrain = { name = 'point', env = 'voidrl/PointMass-v0' }\n"
        "[methods.apt]\nlabel = 'APT'\n[methods.scratch]\nphases = ['train']\nlike = 'apt'"
    )
    out = tmp_path / "out"
    plan = plan_of(path, out, seeds=(1, 2))
    for cell in plan.cells:
        folder = make_done(plan, cell, 0.9, successes=[True, True, True])
        if cell.zero_shot is not None:
            saved = json.loads((folder / "evaluation.json").read_text())
            score = {"mean_return": 0.25 * cell.seed, "successes": [cell.seed == 2, False]}
            saved["zero_shot"] = {**saved, **score, "settings": cell.zero_shot}
            (folder / "evaluation.json").write_text(json.dumps(saved))
    table = report_of(plan).results[-1].table()
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert table.columns == [
        *("environment", "arm", "success rate", "return", "zero-shot success rate"),
        *("seeds", "steps", "runs"),
    ]
    tuned, scratch = rows["APT (fine-tuning)"], rows["scratch"]
    assert (tuned["zero-shot success rate"], tuned["success rate"]) == ("25% (0% to 50%)", "100%")
    assert (tuned["return"], tuned["steps"]) == ("0.9", "100k + 100k")
    assert scratch["zero-shot success rate"] == "–"
