"""States of cells (done, partial, other settings), results, and estimates of the rest."""

import json
from dataclasses import replace

import pytest
from done_cells import make_done, make_started, plan_of, printed, printed_results, report_of, write_status

from voidrl.cli import main as cli
from voidrl.config import flat, to_json, update
from voidrl.errors import RunFolderError
from voidrl.experiments.dry_run import _seconds, print_plan
from voidrl.experiments.experiment import show_results
from voidrl.experiments.format import read_experiment
from voidrl.experiments.record import make_record, write_record
from voidrl.experiments.state import CellState, require_same_settings, state_of


def require_all_same(plan):
    for cell in plan.cells:
        require_same_settings(cell, plan.path(cell))


def test_how_far_a_cell_has_come(tmp_path):
    plan = plan_of("demo", tmp_path)
    random, apt, tuned, scratch = plan.cells
    assert state_of(apt, plan.path(apt)).kind == "to do"
    make_started(plan, apt)
    assert state_of(apt, plan.path(apt)).kind == "partial"
    (plan.path(apt) / "metrics.jsonl").write_text('{"step": 16000}\n{"step": 160')  # torn by a kill
    # All rows are there, but the kill came before the checkpoint: it is not done, and starts again.
    assert (state_of(apt, plan.path(apt)).kind, state_of(apt, plan.path(apt)).steps) == ("partial", 0)
    # An older one is there: the kill came while the last was written, and it resumes from the older.
    (plan.path(apt) / "checkpoints/step_000000010000").mkdir(parents=True)
    write_status(plan.path(apt), "running", checkpoint=10000)
    assert (state_of(apt, plan.path(apt)).kind, state_of(apt, plan.path(apt)).steps) == ("partial", 10000)
    make_done(plan, random)
    assert state_of(random, plan.path(random)).kind == "done"  # its checkpoint was taken away
    folder = make_done(plan, scratch)
    assert state_of(scratch, folder).kind == "done"
    (folder / "checkpoints/step_000000008000").mkdir(parents=True)
    other = plan_of("demo", tmp_path, changes={"evaluation.episodes": 3}).cells[3]
    assert state_of(other, folder) == ("partial", 8000)  # that evaluation has another length
    assert state_of(tuned, plan.path(tuned)).kind == "to do"


def test_other_settings_are_refused_by_name_and_where_it_is_computed_is_none(tmp_path, capsys):
    plan = plan_of("demo", tmp_path)
    for cell in plan.cells:
        make_done(plan, cell)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    changed = plan_of("demo", tmp_path, changes={"learner.n_step": 7})
    with pytest.raises(
        RunFolderError, match=r"maze/random/seed2 .* learner.n_step is 5 there and 7 here; .*--out"
    ):
        require_all_same(changed)
    words = ["experiment", "demo", "--out", str(tmp_path), "--no-report", "--steps-scale", "0.5"]
    assert cli.main(words) == 2
    assert "steps is 16000 there and 8000 here" in capsys.readouterr().err
    elsewhere = plan_of("demo", tmp_path, device="cuda", engine="graph", changes={"env.timeout_s": 600.0})
    require_all_same(elsewhere)
    heads = plan_of("demo", tmp_path, changes={"finetune.heads": "random"})
    # pre-training does not depend on fine-tuning
    require_all_same(replace(heads, cells=heads.cells[:2]))
    with pytest.raises(RunFolderError, match=r"finetune.heads is 'auto' there and 'random' here"):
        require_all_same(heads)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_results_have_means_ranges_seeds_steps_and_published_numbers(tmp_path):
    some = {"seeds": (1, 2), "methods": ("apt", "scratch", "drq")}
    plan = plan_of("table2", tmp_path, preset="atari-fast", tasks=("ms_pacman", "alien"), **some)
    scores = {("ms_pacman", "apt"): 6951.6, ("ms_pacman", "scratch"): 307.3, ("alien", "apt"): 227.8}
    for cell in plan.cells:
        task, arm, _ = cell.folder.split("/")
        if (task, arm.removesuffix("-pretrain")) in scores:
            make_done(plan, cell, scores[task, arm.removesuffix("-pretrain")] + (10 if cell.seed == 2 else 0))
    report = report_of(plan)
    rows = {(arm.env, arm.label): arm for arm in report.results[-1].arms}
    assert rows["atari/ms_pacman", "APT"].cell("return") == "6,957 (6,952 to 6,962)"
    assert rows["atari/ms_pacman", "APT"].seed_text == "2 (1, 2)"
    tables = {each.name: each.tables[0] for each in report.sections}
    assert tables["scores"].rows[0][:3] == ["APT", "50.1 [50.0, 50.1]", "36.3"]
    table = tables["published"]
    assert ["APT", "printed", "2614.8", "2827.1"] in [row[:4] for row in table.rows]
    [apt] = [row for row in table.rows if row[1] == "ours"]
    assert apt[3] == "6,957 (6,952 to 6,962)"
    assert apt[-1] == "10M of 250M pre-training, 100k of 100k fine-tuning"
    lines = printed_results(plan)
    ours = "atari/ms_pacman APT (fine-tuning) 6,957 (6,952 to 6,962)"
    assert any(line.startswith(ours) and "10M + 100k 2 done" in line for line in lines)
    [short] = [line for line in lines if line.startswith("Fewer steps than the protocol")]
    assert "APT in atari/ms_pacman: 10M of 250M steps (4%)" in short
    [absent] = [line for line in lines if line.startswith("Runs not started")]
    assert "more" in absent


def test_a_dry_run_counts_cells_by_state_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["experiment", "table2", "--dry-run", "--games", "alien", "pong", "--seeds", "1..3"]
    assert cli.main([*words, "--methods", "apt", "bbf", "--out", str(out)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert not out.exists()
    assert "method phase steps to do" in lines
    assert "apt pretrain 250M 6" in lines
    assert "bbf train 100k 6" in lines
    assert f"18 runs in {out}" in lines
    assert "time: unknown for 18 runs, as none like them has run in this folder" in lines
    assert cli.main([*words, "--preset", "dmc-fast"]) == 2  # as the real command does
    assert "it takes continuous actions; use dqn" in capsys.readouterr().err


def test_a_dry_run_judges_as_the_command_and_takes_rates_from_the_folder(tmp_path):
    plan = plan_of("demo", tmp_path, seeds=(2, 3, 4))
    make_done(plan, plan.cells[1], rate=50.0)
    make_started(plan, plan.cells[5])
    lines = printed(print_plan, plan, 2)
    assert "method phase steps done partial to do time" in lines
    assert "apt pretrain 16k 1 1 1 10m40s" in lines  # 2 · 16 000 / 50
    assert "random pretrain 16k 3" in lines
    expected = "training: about 10m40s in all, the longest chain 5m20s; at best 5m20s with 2 at a time"
    assert f"{expected}, by the rates of runs in this folder" in lines
    assert "time: unknown for 9 runs, as none like them has run in this folder" in lines
    changed = plan_of("demo", tmp_path, seeds=(2, 3, 4), changes={"learner.n_step": 7})
    lines = printed(print_plan, changed)
    assert "apt pretrain 16k 1 2 5m20s" in lines  # to do, refused
    [why] = [line for line in lines if line.startswith("refused, as maze/apt/seed2 holds a run with other")]
    assert why.endswith("learner.n_step is 5 there and 7 here")


def test_times_are_by_task_and_by_the_updates_of_the_phase(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("tasks = ['CartPole-v1', 'Acrobot-v1']\n[methods.apt]")
    plan = plan_of(path, tmp_path / "out", device="cpu", seeds=(1, 2))
    needed = {cell.folder: CellState("partial", cell.config.steps - 1000) for cell in plan.cells}
    rates = {"CartPole-v1": 100.0, "Acrobot-v1": 10.0}
    for cell in plan.cells:
        if cell.seed == 1:
            make_done(plan, cell, rate=rates[cell.config.env.id])
    found = _seconds(plan, needed)
    assert {(cell.config.env.id, found[cell.folder]) for cell in plan.cells} == {
        ("CartPole-v1", 10.0),
        ("Acrobot-v1", 100.0),
    }
    cells = [
        replace(cell, config=update(cell.config, {"finetune.updates_per_step": 7.0}))
        if cell.seed == 2 and cell.phase == "finetune"
        else cell
        for cell in plan.cells
    ]
    found = _seconds(replace(plan, cells=cells), needed)
    assert {(cell.seed, cell.phase) for cell in cells if found[cell.folder] is None} == {(2, "finetune")}


def test_own_environments_have_the_preset_that_pretrain_would_take(tmp_path, capsys, monkeypatch):
    """On a CPU, both take preset `cpu` where the defaults would be hopeless."""
    path = tmp_path / "own.toml"
    text = "tasks = ['CartPole-v1']\n[methods.apt]\n[methods.scratch]\nphases = ['train']"
    path.write_text(text)
    assert cli.main(["config", "pretrain", "CartPole-v1", "--json", "--device", "cpu"]) == 0
    single = {name: field["value"] for name, field in json.loads(capsys.readouterr().out).items()}

    def configs(**request):
        plan = plan_of(path, tmp_path, **{"device": "cpu", **request})
        return plan, [flat(to_json(cell.config)) for cell in plan.cells]

    plan, (pretrained, tuned, scratch) = configs()
    assert {name for name in single if single[name] != pretrained[name]} == {"seed"}
    assert single["learner.batch_size"] == tuned["learner.batch_size"] == scratch["learner.batch_size"] == 64
    [note] = plan.notes
    assert note.startswith("CartPole-v1: preset cpu, since the defaults would run at about")
    for request in ({"preset": "none"}, {"device": "auto", "elsewhere": True}):
        plan, (pretrained, *_) = configs(**request)
        assert (pretrained["learner.batch_size"], plan.notes) == (256, [])
    path.write_text(f"preset = 'none'\n{text}")
    assert configs()[1][0]["learner.batch_size"] == 256


def test_experiment_json_has_the_cells_of_all_command_lines(tmp_path):
    first = plan_of("demo", tmp_path, seeds=(3,))
    write_record(first, ["voidrl", "experiment", "demo", "--seeds", "3"])
    text = (tmp_path / "experiment.json").read_text()
    write_record(first, ["voidrl", "experiment", "demo", "--seeds", "3"])
    assert (tmp_path / "experiment.json").read_text() == text
    written = json.loads(text)
    assert written["format"] == 1
    assert (written["name"], written["published"], written["departure"]) == ("demo", None, "")
    assert written["command"] == "voidrl experiment demo --seeds 3"
    assert written["cells"][2] == {
        "folder": "goal/finetuned/seed3", "label": "fine-tuned from APT",
        "task": read_experiment("demo").tasks[0].env, "method": "apt", "seed": 3, "phase": "finetune",
        "source": "maze/apt/seed3", "steps": 8000, "protocol_steps": 8000,
        "evaluated": True, "arm": "finetuned", "pretrain_seed": 3, "like": None, "point": {},
        "task_name": "goal",
    }  # fmt: skip
    make_started(first, first.cells[0])
    write_record(plan_of("demo", tmp_path), ["voidrl", "experiment", "demo"])
    joined = json.loads((tmp_path / "experiment.json").read_text())
    assert (joined["command"], joined["earlier_commands"]) == ("voidrl experiment demo", [written["command"]])
    assert [cell["folder"] for cell in joined["cells"]] == [
        *("maze/random/seed2", "maze/apt/seed2", "goal/finetuned/seed2", "goal/scratch/seed2"),
        "maze/random/seed3",  # started by the other command line; its other cells were not
    ]
    with pytest.raises(RunFolderError, match="holds the experiment 'demo' and not 'urlb'"):
        write_record(plan_of("urlb", tmp_path, methods=("scratch",)), ["voidrl"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 9}, "has format 9, newer than 1: upgrade voidrl"),
        ({"cells": [{"x": 1}]}, "is damaged: remove it"),
        ({"title": []}, "is damaged: remove it"),
        ({"earlier_commands": [1]}, "is damaged: remove it"),
        (None, "is damaged: remove it"),
    ],
)
def test_an_experiment_json_that_cannot_be_read_is_left_as_it_is(tmp_path, change, sentence):
    plan, path = plan_of("demo", tmp_path), tmp_path / "experiment.json"
    write_record(plan, ["voidrl"])
    text = "{torn" if change is None else json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(text)
    with pytest.raises(RunFolderError, match=sentence):
        write_record(plan, ["voidrl"])
    assert path.read_text() == text


def test_pixels_are_not_held_against_a_table_of_states(tmp_path):
    plan = plan_of("urlb", tmp_path, tasks=("walker_run",), preset="urlb-pixels", methods=("apt",))
    described = make_record(plan, ["voidrl"])
    assert (plan.experiment.published, described.published) == ("urlb", None)
    assert described.departure == "preset urlb-pixels instead of the experiment's urlb-states"
    # A step holds its action for two frames: half as many steps are the whole protocol.
    steps = {cell.phase: (cell.steps, cell.protocol_steps) for cell in described.cells}
    assert steps["pretrain"] == (1_000_000, 1_000_000)
    assert steps["finetune"] == (50_000, 50_000)


def test_a_folder_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    assert cli.main(["experiment", "demo", "--out", str(tmp_path / "file/out")]) == 2
    assert "cannot write to" in capsys.readouterr().err
    plan = plan_of("demo", tmp_path / "full")
    for cell in plan.cells:
        make_done(plan, cell)

    def refuse(path, content):
        raise RunFolderError(f"cannot write {path}: Read-only file system")

    monkeypatch.setattr("voidrl.runs.experiment_record.write_json_atomic", refuse)
    words = ["experiment", "demo", "--out", str(tmp_path / "full"), "--no-report"]
    assert cli.main(words) == 0  # all is done: it can be looked at all the same
    shown = capsys.readouterr()
    assert "Read-only file system" in shown.err
    assert "fine-tuning" in shown.out
    assert cli.main([*words, "--seeds", "5"]) == 2
    assert "Read-only file system" in capsys.readouterr().err


def test_urlb_ends_with_expert_normalized_scores_by_body(tmp_path):
    plan = plan_of(
        "urlb", tmp_path, methods=("apt", "rnd", "scratch"), seeds=(1, 2), tasks=("walker_run", "walker_flip")
    )
    for cell in plan.cells:
        score = {"apt": 796 * 0.5, "rnd": 796 * 0.25, "scratch": 0.0}[cell.arm.name] * cell.seed
        make_done(plan, cell, score=score if cell.task.endswith("run") else 0.0)
    lines = printed_results(plan)
    assert "Expert-normalized scores over tasks" in lines
    # APT: run 0.5 and 1.0, flip 0 and 0. Published: run 491 and flip 596, of 796 and 799.
    [row] = [line for line in lines if line.startswith("APT 37.5")]
    assert row.startswith("APT 37.5 [25.0, 50.0] 68.1 37.5 [25.0, 50.0] (2/4) – –")
    assert row.endswith("2M of 2M pre-training, 100k of 100k fine-tuning")
    [scratch] = [line for line in lines if line.startswith("from scratch 0.0 ")]
    assert "68.1" not in scratch
    assert any("jaco_reach_top_right" in line for line in lines)


def test_finished_runs_without_numbers_are_not_called_unfinished(tmp_path, capsys):
    path = tmp_path / "own.toml"
    path.write_text("tasks = ['CartPole-v1']\nevaluation = false\n[methods.apt]\nphases = ['pretrain']")
    plan = plan_of(path, tmp_path / "out")
    assert show_results(plan, with_page=False)
    assert capsys.readouterr().out == "no run is done yet: no results\n"
    make_done(plan, plan.cells[0])
    assert show_results(plan, with_page=False)
    assert "no results: no run has an evaluation" in capsys.readouterr().out
