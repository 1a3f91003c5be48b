"""The experiment `adapt`: tasks with settings of their own, and scores at shares of the steps."""

import json
from pathlib import Path

from done_cells import make_done

from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.training.metrics import MetricsWriter

POINT = "voidrl/PointMass-v0"


def plan_of(path, **request):
    return make_plan(read_experiment(path), ExperimentRequest(**request), "out")


def own(tmp_path, tasks, more="[methods.apt]"):
    path = tmp_path / "mine.toml"
    path.write_text(f"{tasks}\n{more}")
    return path


# --- tasks with settings ----------------------------------------------------------------------------


def test_tasks_have_their_own_settings(tmp_path):
    path = own(
        tmp_path,
        f"""
        preset = "cpu"
        [pretrain]
        steps = 400
        [finetune]
        steps = 200
        [[tasks]]
        name = "plain"
        env = "{POINT}?task=pickup"
        pretrain = {{ name = "point", env = "{POINT}" }}
        [[tasks]]
        name = "own"
        env = "{POINT}?task=touch"
        pretrain = {{ name = "other", env = "{POINT}", steps = 300, config.warmup_steps = 50 }}
        finetune = {{ steps = 100, config.updates_per_step = 1 }}
        config = {{ learner = "ddpg", finetune.warmup_steps = 70 }}
        """,
        """
        [methods.apt]
        [methods.scratch]
        phases = ["train"]
        like = "apt"
        [methods.preset]
        phases = ["train"]
        """,
    )
    cells = {cell.folder: cell for cell in plan_of(path).cells}
    assert {*cells} == {
        *("point/apt/seed1", "plain/apt/seed1", "plain/scratch/seed1", "plain/preset/seed1"),
        *("other/apt/seed1", "own/apt/seed1", "own/scratch/seed1", "own/preset/seed1"),
    }
    steps = {folder: cell.config.steps for folder, cell in cells.items()}
    assert steps["point/apt/seed1"] == 400
    assert [steps[f"plain/{arm}/seed1"] for arm in ("apt", "scratch", "preset")] == [200, 200, 200]
    assert steps["other/apt/seed1"] == 300
    assert [steps[f"own/{arm}/seed1"] for arm in ("apt", "scratch", "preset")] == [100, 100, 100]
    assert {cell.protocol_steps == cell.config.steps for cell in cells.values()} == {True}
    learners = {folder: cell.config.learner.name for folder, cell in cells.items()}
    assert {learners[folder] for folder in cells if folder.startswith(("point", "plain"))} == {"sac"}
    assert {learners[folder] for folder in cells if folder.startswith(("other", "own"))} == {"ddpg"}
    assert cells["other/apt/seed1"].config.warmup_steps == 50
    assert cells["own/apt/seed1"].config.finetune.warmup_steps == 70
    assert cells["own/apt/seed1"].config.updates_per_step == 1
    assert cells["plain/apt/seed1"].config.updates_per_step == 0.25


def test_the_command_line_overrules_the_settings_of_a_task(tmp_path):
    path = own(tmp_path, f"tasks = [{{ env = '{POINT}', config.learner.n_step = 5, pretrain.steps = 9 }}]")
    first, tuned = plan_of(path).cells
    assert (first.config.learner.n_step, first.config.steps) == (5, 9)
    first, tuned = plan_of(path, changes={"learner.n_step": 2, "pretrain.steps": 20}).cells
    assert (first.config.learner.n_step, tuned.config.learner.n_step, first.config.steps) == (2, 2, 20)


# --- the file ---------------------------------------------------------------------------------------


def test_the_script_makes_table_verdicts_and_picture(tmp_path, monkeypatch, capsys):
    plan = make_plan(
        read_experiment("adapt"), ExperimentRequest(tasks=("pickup", "stay"), seeds=(1, 2)), tmp_path / "out"
    )
    write_record(plan, ["voidrl"])
    scores = {"before": 0.0, "after": 0.75, "from_zero": 0.25, "scratch": 0.5}
    for cell in plan.cells:
        score = scores.get(cell.arm.name, 0.0) + 0.1 * cell.seed
        folder = make_done(plan, cell, score)
        if cell.is_final and cell.phase != "pretrain":
            with MetricsWriter(folder, tensorboard=False) as writer:
                for step in range(500, cell.config.steps + 1, 500):
                    writer.write(step, {"eval/return": score * step / cell.config.steps})
        if cell.zero_shot is not None:
            saved = json.loads((folder / "evaluation.json").read_text())
            zero_shot = 5.0 if cell.task.endswith("stay") else 0.2
            saved["zero_shot"] = {"mean_return": zero_shot if cell.arm.name == "after" else 0.0}
            (folder / "evaluation.json").write_text(json.dumps(saved))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import adapt_table

    picture, text = tmp_path / "adapt.png", tmp_path / "adapt.md"
    words = [str(plan.out), "--picture", str(picture), "--markdown", str(text)]
    monkeypatch.setattr("sys.argv", ["adapt_table.py", *words])
    adapt_table.main()
    lines = text.read_text().splitlines()
    assert lines[0] == (
        "| task | steps | zero-shot | fine-tuned, before | fine-tuned | from 0 steps | from scratch |"
    )
    first = "| pickup (SAC) | 10 % | 0.20 ± 0.00 | 0.01 ± 0.01 | 0.09 ± 0.01 | 0.04 ± 0.01 | 0.07 ± 0.01 |"
    assert lines[2] == first
    assert lines[4] == "|  | 100 % |  | 0.15 ± 0.07 | 0.90 ± 0.07 | 0.40 ± 0.07 | 0.65 ± 0.07 |"
    shown = capsys.readouterr().out
    assert "after fine-tuning: stay (5.00 ± 0.00 → 0.90 ± 0.07)." in shown
    assert "from scratch on 2 of 2 tasks." in shown
    assert "from 0 steps on 2 of the 2 tasks" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
