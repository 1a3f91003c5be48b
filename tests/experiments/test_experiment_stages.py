"""Methods that are evaluated before and after fine-tuning: one row with both scores and the states seen."""

import json

import pytest
from done_cells import make_done, make_started, report_of

from voidrl.errors import ConfigError
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import make_record, write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.state import state_of
from voidrl.report.contents import Report
from voidrl.report.markdown import as_markdown
from voidrl.report.scores.panel import make_panels

SMALL = {"tasks": ("ms_pacman",), "seeds": (1,), "preset": "atari-fast", "steps_scale": 0.15}
SEEN = {"coverage/variables": 5000, "coverage/positions": 300, "coverage/ram": 90_000}


def plan_of(out, name="table3", **request):
    return make_plan(read_experiment(name), ExperimentRequest(**{**SMALL, **request}), out)


def do(plan, cell, score):
    make_done(plan, cell, score, **(SEEN if cell.phase == "pretrain" else {"coverage/ram": 7}))


def test_pretraining_alone_is_shortened_and_evaluated_too():
    first, tuned = plan_of("out", methods=("apt",)).cells
    assert (first.config.steps, tuned.config.steps) == (1_500_000, 100_000)
    assert (first.protocol_steps, tuned.protocol_steps) == (250_000_000, 100_000)
    assert [cell.evaluation["steps"] for cell in (first, tuned)] == [125_000, 125_000]
    assert [cell.config.env.count_states for cell in (first, tuned)] == [True, False]
    assert not first.is_final


def test_what_is_evaluated_can_be_changed():
    off = plan_of("out", methods=("apt",), changes={"evaluation.zero_shot": False, "evaluation.steps": "9k"})
    assert [cell.evaluation and cell.evaluation["steps"] for cell in off.cells] == [None, 9000]
    on = plan_of("out", "table4", methods=("apt",), changes={"evaluation.zero_shot": True})
    assert [cell.evaluation is not None for cell in on.cells] == [True, True]
    assert on.cells[0].evaluation["steps"] == 18_750  # there, evaluations are scaled
    with pytest.raises(ConfigError, match=r"evaluation.zero_shot = 'yes' cannot be used: expected bool"):
        plan_of("out", changes={"evaluation.zero_shot": "yes"})


def test_a_domain_without_reward_is_evaluated_in_each_task(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "tasks = ['dmc/walker_run', 'dmc/walker_walk']\nevaluation = { episodes = 3 }\n"
        "[methods.apt]\n[methods.scratch]\nphases = ['train']\nlike = 'apt'"
    )
    plan = make_plan(read_experiment(path), ExperimentRequest(seeds=(5,)), None)
    cells = {cell.folder: cell for cell in plan.cells}
    assert (cells["walker/apt/seed5"].evaluation, cells["walker/apt/seed5"].zero_shot) == (None, None)
    for task in ("walker_run", "walker_walk"):
        tuned = cells[f"{task}/apt/seed5"]
        assert tuned.zero_shot == tuned.evaluation  # the same episodes
        assert tuned.zero_shot["env"] == f"dmc/{task}"
        assert cells[f"{task}/scratch/seed5"].zero_shot is None
    without = make_plan(
        read_experiment(path), ExperimentRequest(changes={"evaluation.zero_shot": False}), None
    )
    assert {cell.zero_shot is None for cell in without.cells} == {True}


def zero_shot_in(tmp_path, name="mine", **request):
    """How many runs are evaluated before fine-tuning: pre-trainings, and as part of fine-tunings."""
    path = tmp_path / f"{name}.toml"
    plan = make_plan(read_experiment(path if path.exists() else name), ExperimentRequest(**request), None)
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
    plan = make_plan(read_experiment(path), ExperimentRequest(seeds=(1, 2)), out)
    for cell in plan.cells:
        folder = make_done(plan, cell, 0.9, successes=[True, True, True])
        if cell.zero_shot is not None:
            saved = json.loads((folder / "evaluation.json").read_text())
            score = {"mean_return": 0.25 * cell.seed, "successes": [cell.seed == 2, False]}
            saved["zero_shot"] = {**saved, **score, "settings": cell.zero_shot}
            (folder / "evaluation.json").write_text(json.dumps(saved))
    table = report_of(plan).before_after
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == [
        *("method", "steps without reward", "zero-shot return", "zero-shot success rate"),
        *("return after 100k", "success rate after 100k", "seeds"),
    ]
    assert rows["APT"] == [
        "100k",
        "0.375 (0.25 to 0.5)",
        "25% (0% to 50%)",
        "0.9",
        "100%",
        "2 (1, 2)",
    ]
    assert rows["scratch"][:3] == ["–", "–", "–"]


def test_a_pretraining_is_done_once_it_is_evaluated(tmp_path):
    first, _ = plan_of(tmp_path, methods=("apt",)).cells
    without = plan_of(tmp_path, methods=("apt",), changes={"evaluation.zero_shot": False})
    do(without, without.cells[0], 0.0)  # run before zero-shot scores were asked for
    assert state_of(without.cells[0], tmp_path / first.folder).kind == "done"
    assert state_of(first, tmp_path / first.folder).kind == "partial"  # its checkpoint is elsewhere
    (tmp_path / first.folder / "checkpoints/step_000001500000").mkdir(parents=True)
    (tmp_path / first.folder / "checkpoints/step_000001500000/manifest.json").write_text("{}")
    assert state_of(first, tmp_path / first.folder).kind == "trained"


def test_one_row_per_method_from_pieces_done_by_several_commands(tmp_path):
    parts = [plan_of(tmp_path, methods=("apt",)), plan_of(tmp_path, methods=("diayn", "diayn_contrast"))]
    for part in parts:
        write_record(part, ["voidrl", "experiment", "table3", "--methods", part.cells[0].arm.name])
    for cell, score in zip(parts[0].cells, (400.0, 900.0), strict=True):
        do(parts[0], cell, score)
    do(parts[1], parts[1].cells[0], 250.0)  # DIAYN is not fine-tuned yet
    make_started(parts[1], parts[1].cells[2])
    # The first command had not started a run when the second one wrote the record.
    assert len(json.loads((tmp_path / "experiment.json").read_text())["cells"]) == 4
    write_record(parts[0], ["voidrl", "experiment", "table3", "--methods", "apt"])
    report = Report.read([tmp_path], lambda text: None)
    table = report.before_after
    assert table.columns == [
        *("method", "steps without reward", "zero-shot return", "zero-shot human-normalized score"),
        *("positions visited", "variables visited", "RAM states visited"),
        *("return after 100k", "human-normalized score after 100k", "seeds"),
    ]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["APT"] == ["1.5M", "400", "1.4%", "300", "5,000", "90,000", "900", "8.9%", "1 (1)"]
    assert rows["DIAYN"] == ["1.5M", "250", "−0.9%", "300", "5,000", "90,000", "–", "–", "1 (1)"]
    assert "### Before and after fine-tuning: atari/ms\\_pacman" in as_markdown(report)
    # A zero-shot score is not held against a published one, which is after fine-tuning.
    [published] = report.published
    assert [(row[0], row[3]) for row in published.rows if row[1] == "ours"] == [("APT", "8.9")]


def test_panels_keep_zero_shot_scores_apart(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "tasks = ['atari/alien']\npreset = 'atari-fast'\nevaluation = { steps = 5, zero_shot = true }\n"
        "[methods.apt]\nlabel = 'APT'\n[methods.scratch]\nphases = ['train']"
    )
    plan = make_plan(read_experiment(path), ExperimentRequest(), tmp_path)
    scores = {cell.folder: {"mean_return": 1000.0 * place} for place, cell in enumerate(plan.cells)}
    [panel] = make_panels(make_record(plan, ()).cells, scores)
    assert (panel.arms.finetuned, panel.arms.zero_shot, panel.arms.scratch) == (
        *("apt", "apt-pretrain", "scratch"),
    )
    assert [panel.groups(arm, "alien") for arm in panel.arms.names] == [
        *({1: [0.0]}, {None: [2000.0]}, {1: [1000.0]}),
    ]
    assert panel.label("apt-pretrain") == "APT, zero-shot"
