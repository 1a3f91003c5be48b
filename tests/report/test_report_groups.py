"""Which runs are averaged, how they are called, and in which settings they differ."""

from synthetic_runs import MAZE, write_experiment, write_run

from voidrl.report.groups import env_names, make_arms, stages_of
from voidrl.report.published import source_of
from voidrl.report.read import read_all
from voidrl.report.settings import settings_table
from voidrl.report.summary import caveats, what_came_out, what_was_run
from voidrl.runs.experiment_record import write_failure

ROWS = [{"step": 100, "episode/return": 1.0}]


def arms_of(*paths):
    collection = read_all(paths, lambda text: None)
    return collection, make_arms(collection.runs)


def test_runs_that_differ_in_their_seed_alone_make_an_arm(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path / f"apt{seed}", seed=seed, rows=ROWS, device="cuda" if seed == 3 else "cpu")
        write_run(tmp_path / f"tuned{seed}", seed=seed, phase="finetune", env=f"{MAZE}&goal=far", rows=ROWS)
    write_run(tmp_path / "scratch", phase="train", env=f"{MAZE}&goal=far", rows=ROWS)
    write_run(tmp_path / "other", env="atari/pong", rows=ROWS)
    _, arms = arms_of(tmp_path)
    assert {(arm.env_name, arm.phase, arm.label, tuple(arm.seeds)) for arm in arms} == {
        ("PixelMaze-v0", "pretrain", "apt", (1, 2, 3)),
        ("PixelMaze-v0?goal=far", "finetune", "apt", (1, 2, 3)),
        ("PixelMaze-v0?goal=far", "train", "scratch", (1,)),
        ("atari/pong", "pretrain", "apt", (1,)),
    }
    assert [*map(len, stages_of(arms)["task"].values())] == [2]  # compared with each other
    assert len({arm.style for arm in arms if arm.label == "apt"}) == 1


def test_settings_that_differ_make_another_arm_and_name_it(tmp_path):
    write_run(tmp_path / "a", rows=ROWS)
    write_run(tmp_path / "b", rows=ROWS, learner__n_step=3, log__log_every_steps=7)
    write_run(tmp_path / "c", rows=ROWS, learner__n_step=3, seed=2)
    _, arms = arms_of(tmp_path)
    assert {(arm.label, len(arm.runs)) for arm in arms} == {
        ("apt (learner.n_step 1)", 1),
        ("apt (learner.n_step 3)", 2),
    }


def test_what_a_phase_does_not_use_makes_no_difference(tmp_path):
    write_run(tmp_path / "a", rows=ROWS, finetune__heads="random")
    write_run(tmp_path / "b", rows=ROWS, seed=2, reward_scale=5.0)
    assert len(arms_of(tmp_path)[1]) == 1


def test_an_arm_of_an_experiment_keeps_its_label_and_says_where_its_settings_differ(tmp_path):
    write_run(tmp_path / "s1", rows=ROWS, learner__n_step=1)
    write_run(tmp_path / "s2", rows=ROWS, learner__n_step=3, seed=2)
    cells = [{"folder": "s1", "label": "mine"}, {"folder": "s2", "label": "mine", "seed": 2}]
    write_experiment(tmp_path, cells)
    collection, arms = arms_of(tmp_path)
    assert [arm.label for arm in arms] == ["mine"]
    warned = next(each for each in caveats(collection, arms) if "different settings" in each.text)
    assert warned.details == ["mine in PixelMaze-v0: learner.n_step"]


def test_environments_are_as_short_as_they_stay_distinct():
    assert env_names(["atari/pong", "voidrl/M?a=1&b=2", "voidrl/M?a=1&b=3", "voidrl/M?a=1"]) == {
        "atari/pong": "atari/pong",
        "voidrl/M?a=1&b=2": "M?b=2",
        "voidrl/M?a=1&b=3": "M?b=3",
        "voidrl/M?a=1": "M",
    }


def test_only_settings_that_differ_are_shown(tmp_path):
    write_run(tmp_path / "a", rows=ROWS, learner__n_step=3)
    write_run(tmp_path / "b", rows=ROWS, learner__n_step=3, method="random")
    write_run(tmp_path / "c", rows=ROWS, phase="train", learner__n_step=5, steps=200)
    table = settings_table(arms_of(tmp_path)[1])
    assert table.columns == ["setting", "apt, pre-training", "random, pre-training", "scratch, from scratch"]
    assert table.rows == [
        ["learner.n_step", "3", "3", "5"],
        ["method.name", "apt", "random", "–"],  # training from scratch has no use for it
        ["steps", "100", "100", "200"],
    ]


def test_the_source_of_fine_tuning_is_the_experiments_or_the_only_one_that_fits(tmp_path):
    write_run(tmp_path / "free" / "walker", env="dmc/walker", rows=ROWS)
    write_run(tmp_path / "free" / "hopper", env="dmc/hopper", rows=ROWS)
    write_run(tmp_path / "free" / "tuned", env="dmc/walker_run", phase="finetune", rows=ROWS)
    runs = {run.name: run for run in arms_of(tmp_path / "free")[0].runs}
    assert source_of(runs["tuned"], [*runs.values()]) is runs["walker"]
    write_run(tmp_path / "free" / "again", env="dmc/walker", rows=ROWS)
    runs = {run.name: run for run in arms_of(tmp_path / "free")[0].runs}
    assert source_of(runs["tuned"], [*runs.values()]) is None
    cells = [{"folder": "again"}, {"folder": "tuned", "phase": "finetune", "source": "again"}]
    write_experiment(tmp_path / "free", cells)
    runs = {run.name: run for run in arms_of(tmp_path / "free")[0].runs}
    assert source_of(runs["tuned"], [*runs.values()]) is runs["again"]


def test_the_summary_says_what_was_run_and_what_came_out(tmp_path):
    for seed, cells in ((1, 4), (2, 8)):
        rows = [{"step": 100, "coverage/cells": cells}]
        write_run(tmp_path / f"apt{seed}", seed=seed, rows=rows)
    write_run(tmp_path / "random", method="random", rows=[{"step": 100, "coverage/cells": 2}])
    collection, arms = arms_of(tmp_path)
    told = what_was_run(collection, arms)
    assert told[0] == "Three runs without reward in PixelMaze-v0; compared are apt and random, seeds 1, 2."
    # A perfect maze of 5 × 5 has 4 rooms and 3 doors: 7 open cells.
    assert what_came_out(arms) == [
        "Without reward, in PixelMaze-v0 after 100 steps, maze seen: apt 85.7\u202f% (57.1\u202f% to "
        "114\u202f%), random 28.6\u202f%; means over seeds, in brackets the range."
    ]


def test_everything_that_makes_a_number_less_than_it_seems_is_said(tmp_path):
    write_run(tmp_path / "done", rows=ROWS)
    write_run(tmp_path / "failed", rows=[{"step": 40}], seed=2, error="diverged")
    write_run(tmp_path / "again", rows=ROWS, machine={"git": {"commit": "fedcba9876", "dirty": True}})
    cells = [
        {"folder": "done", "protocol_steps": 10_000},
        {"folder": "failed", "seed": 2},
        {"folder": "again"},
        {"folder": "later", "seed": 3},
    ]
    write_experiment(tmp_path, cells, missing={"cic": "not written yet"})
    collection, arms = arms_of(tmp_path)
    told = {caveat.text: caveat.details for caveat in caveats(collection, arms)}
    assert caveats(collection, arms)[0].kind == "failed"
    assert told.pop(next(text for text in told if text.startswith("One run failed"))) == [
        "failed failed after 40 of 100 steps: diverged"
    ]
    assert told["One run of the experiment has not begun."] == ["later"]
    assert told["Methods of own that do not exist yet, and are not shown."] == ["cic: not written yet"]
    short = next(text for text in told if "less than the protocol" in text)
    assert told[short] == ["apt in PixelMaze-v0: 100 of 10k steps (1 %)"]
    assert any("several runs with one seed" in text for text in told)
    assert any(text.startswith("Runs come from two commits") for text in told)
    assert "One run came from a working tree with changes that no commit holds." in told


def test_an_experiment_knows_why_the_process_of_a_run_failed(tmp_path):
    write_run(tmp_path / "crashed", rows=ROWS, steps=1000)
    write_run(tmp_path / "killed", rows=ROWS, steps=1000, seed=2)
    cells = [{"folder": "crashed"}, {"folder": "killed", "seed": 2}, {"folder": "never", "seed": 3}]
    write_experiment(tmp_path, cells)
    write_failure(tmp_path, "crashed", "ValueError: no such color")
    write_failure(tmp_path, "never", "atari needs ale-py")
    collection, arms = arms_of(tmp_path)
    crashed, killed = collection.runs
    assert (crashed.status, crashed.status_note) == (
        "failed",
        "failed after 100 of 1\u202f000 steps: ValueError: no such color",
    )
    assert killed.status == "incomplete"
    told = {caveat.text: caveat.details for caveat in caveats(collection, arms)}
    assert told["One run of the experiment failed before beginning."] == ["never: atari needs ale-py"]


def test_one_seed_is_said(tmp_path):
    write_run(tmp_path / "a", rows=ROWS)
    collection, arms = arms_of(tmp_path)
    assert "Every arm has one seed: differences may be chance, and there is no spread." in [
        caveat.text for caveat in caveats(collection, arms)
    ]


def test_experiments_that_share_a_label_are_not_averaged(tmp_path):
    for name, steps in (("a", 100), ("b", 1000)):
        write_run(tmp_path / name / "run", steps=steps, rows=[{"step": steps, "coverage/cells": 2}])
        write_experiment(tmp_path / name, [{"folder": "run", "label": "APT", "steps": steps}], name=name)
    write_run(tmp_path / "loose", method="pkg:APT", rows=ROWS)
    _, arms = arms_of(tmp_path)
    assert [(arm.label, len(arm.runs)) for arm in arms] == [("APT, a", 1), ("APT, b", 1), ("APT", 1)]
    assert "after 100 to 1k steps" in what_came_out(arms)[0]
    write_experiment(tmp_path / "b", [{"folder": "run", "label": "APT"}], name="a")
    assert [arm.label for arm in arms_of(tmp_path)[1]][:2] == ["APT, a in a", "APT, a in b"]


def test_lengths_of_one_experiment_are_not_averaged(tmp_path):
    for seed, steps in ((1, 100), (2, 1000)):
        write_run(tmp_path / f"s{seed}", seed=seed, steps=steps, rows=[{"step": steps}])
    write_experiment(tmp_path, [{"folder": "s1"}, {"folder": "s2", "seed": 2}])
    assert [arm.label for arm in arms_of(tmp_path)[1]] == ["apt (steps 100)", "apt (steps 1000)"]


def test_seeds_that_are_not_in_a_number_are_not_counted(tmp_path):
    cells = []
    for seed, returns in ((1, [100.0]), (2, None), (3, None)):
        reached = 50 if seed == 3 else 100
        row = {"step": reached, "episode/return": 1.0}
        write_run(
            tmp_path / f"s{seed}",
            env="dmc/walker_run",
            phase="train",
            seed=seed,
            rows=[row],
            evaluation=returns,
        )
        cells.append({"folder": f"s{seed}", "seed": seed, "phase": "train"})
    write_experiment(tmp_path, cells)
    collection, arms = arms_of(tmp_path)
    told = {caveat.text: caveat.details for caveat in caveats(collection, arms)}
    assert "Every arm has one seed: differences may be chance, and there is no spread." in told
    assert told["The numbers of one arm are of fewer seeds than were begun."] == [
        "apt in dmc/walker_run: 1 of 3 seeds (1)"
    ]
    assert told["Evaluation missing in one complete run."] == ["s2"]


def test_an_evaluation_that_failed_is_said_and_the_training_counts(tmp_path):
    for name in ("failed", "fine", "not_due"):
        write_run(tmp_path / name, rows=[{"step": 100, "coverage/cells": 2}])
    cells = [
        {"folder": "failed", "evaluated": True},
        {"folder": "fine", "evaluated": True, "label": "other"},
        {"folder": "not_due", "evaluated": False, "label": "third"},
    ]
    write_experiment(tmp_path, cells)
    for name in ("failed", "not_due"):
        write_failure(tmp_path, name, "no such game")
    collection, arms = arms_of(tmp_path)
    assert [run.status for run in collection.runs] == ["failed", "complete", "complete"]
    assert [run.evaluation_gap for run in collection.runs] == ["failed", "missing", ""]
    assert len(arms[0].complete) == 1
    told = {caveat.text: caveat.details for caveat in caveats(collection, arms)}
    assert told["One evaluation failed."] == [
        "failed took all its steps, but its evaluation failed: no such game"
    ]


def test_runs_that_were_not_asked_for_have_begun(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"apt/seed{seed}", seed=seed, rows=ROWS)
    write_experiment(tmp_path, [{"folder": f"apt/seed{seed}", "seed": seed} for seed in (1, 2, 3)])
    one = [caveat.text for caveat in caveats(*arms_of(tmp_path / "apt/seed1"))]
    assert "Two other runs of the experiment are not part of this report." in one
    assert not any("not begun" in text for text in one)
    assert "One run of the experiment has not begun." in [each.text for each in caveats(*arms_of(tmp_path))]


def test_what_is_not_as_the_experiments_file_has_it_is_said(tmp_path):
    write_run(tmp_path / "run", rows=ROWS)
    changed = {"preset": "atari-fast", "default_preset": "atari-paper", "changes": {"learner.n_step": 3}}
    write_experiment(tmp_path, [{"folder": "run"}], **changed)
    assert (
        "Experiment own was not run as its file has it: preset atari-fast instead of the experiment's "
        "atari-paper; changed: learner.n_step=3."
    ) in [caveat.text for caveat in caveats(*arms_of(tmp_path))]
