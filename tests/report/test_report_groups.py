"""Arms and their names, and the summary of a report."""

import pytest
from synthetic_runs import MAZE, report_of, write_experiment, write_run

from voidrl.config import flat, merge
from voidrl.presets.presets import preset_for
from voidrl.report.curves import chart_data
from voidrl.report.groups import env_names, stages_of
from voidrl.report.provenance import settings_table
from voidrl.report.summary import overview
from voidrl.runs.experiment_record import write_failure

ROWS = [{"step": 100, "episode/return": 1.0}]


def arms_of(*paths):
    return report_of(*paths).arms


def runs_of(*paths):
    """Runs by name."""
    return {run.name: run for run in report_of(*paths).collection.runs}


def caveats_of(*paths):
    """Details by title."""
    return {caveat.title: caveat.details for caveat in report_of(*paths).caveats}


def test_runs_that_differ_in_their_seed_alone_make_an_arm(tmp_path):
    for seed in (1, 2, 3):
        # The third seed differs in the device, and in what pre-training does not use.
        other = {"device": "cuda", "finetune__heads": "random", "reward_scale": 5.0} if seed == 3 else {}
        write_run(tmp_path / f"apt{seed}", seed=seed, rows=ROWS, **other)
        write_run(tmp_path / f"tuned{seed}", seed=seed, phase="finetune", env=f"{MAZE}&goal=far", rows=ROWS)
    write_run(tmp_path / "scratch", phase="train", env=f"{MAZE}&goal=far", rows=ROWS)
    write_run(tmp_path / "other", env="atari/pong", rows=ROWS)
    arms = arms_of(tmp_path)
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
    arms = arms_of(tmp_path)
    assert {(arm.label, len(arm.runs)) for arm in arms} == {
        ("apt (learner.n_step 1)", 1),
        ("apt (learner.n_step 3)", 2),
    }


def test_a_bonus_makes_another_arm_and_its_method_counts(tmp_path):
    settings = {"phase": "train", "rows": ROWS}
    write_run(tmp_path / "plain", **settings)
    write_run(tmp_path / "other", method="rnd", seed=2, **settings)  # which plain training does not use
    write_run(tmp_path / "rnd", method="rnd", bonus__coefficient=0.1, **settings)
    write_run(tmp_path / "apt", method="apt", bonus__coefficient=0.1, **settings)
    write_run(tmp_path / "apt3", method="apt", method__k=3, bonus__coefficient=0.1, **settings)
    write_run(tmp_path / "tuned", phase="finetune", method="apt", bonus__coefficient=0.1, rows=ROWS)
    labels = {run.path.name: arm.label for arm in arms_of(tmp_path) for run in arm.runs}
    assert labels.pop("apt").startswith("scratch + apt (method.k ")
    assert labels == {
        "plain": "scratch",
        "other": "scratch",
        "rnd": "scratch + rnd",
        "apt3": "scratch + apt (method.k 3)",
        "tuned": "apt + bonus",
    }


def test_an_arm_of_an_experiment_keeps_its_label_and_says_where_its_settings_differ(tmp_path):
    write_run(tmp_path / "s1", rows=ROWS, learner__n_step=1)
    write_run(tmp_path / "s2", rows=ROWS, learner__n_step=3, seed=2)
    cells = [{"folder": "s1", "label": "mine"}, {"folder": "s2", "label": "mine", "seed": 2}]
    write_experiment(tmp_path, cells)
    assert [arm.label for arm in arms_of(tmp_path)] == ["mine"]
    assert caveats_of(tmp_path)["Different settings within an arm"] == [
        "mine in PixelMaze-v0: learner.n_step"
    ]


def test_environments_are_named_by_the_options_that_differ():
    assert env_names(["atari/pong", "voidrl/M?a=1&b=2", "voidrl/M?a=1&b=3", "voidrl/M?a=1"]) == {
        "atari/pong": "atari/pong",
        "voidrl/M?a=1&b=2": "M?b=2",
        "voidrl/M?a=1&b=3": "M?b=3",
        "voidrl/M?a=1": "M",
    }


def test_mixed_runs_are_sorted_and_never_compared_across_environments_and_phases(tmp_path):
    for seed in (2, 1):
        rows = [{"step": 100, "coverage/cells": 5, "episode/return": 0.0}]
        write_run(tmp_path / f"zz{seed}", seed=seed, rows=rows)
        write_run(tmp_path / f"aa{seed}", seed=seed, phase="finetune", env=f"{MAZE}&goal=far", rows=rows)
    write_run(tmp_path / "m", phase="train", env="CartPole-v1", rows=ROWS)
    write_run(tmp_path / "q", env="CartPole-v1", rows=ROWS)
    write_run(tmp_path / "demo" / "s1", rows=ROWS)
    write_experiment(tmp_path / "demo", [{"folder": "s1", "label": "mine"}], about="A maze.")
    report = report_of(tmp_path)
    arms = report.arms
    assert report.title == "PixelMaze-v0, CartPole-v1"  # most runs are of no experiment
    assert [(arm.env_name, arm.phase, arm.label, arm.seeds) for arm in arms] == [
        ("PixelMaze-v0", "pretrain", "mine", [1]),  # experiments first
        ("CartPole-v1", "pretrain", "apt", [1]),
        ("CartPole-v1", "train", "scratch", [1]),
        ("PixelMaze-v0", "pretrain", "apt", [1, 2]),
        ("PixelMaze-v0?goal=far", "finetune", "apt", [1, 2]),
    ]
    panels = chart_data(arms)["panels"]
    shown = [(each["stage"], each["env"], [arm["label"] for arm in each["arms"]]) for each in panels]
    assert shown == [
        ("pretrain", "PixelMaze-v0", ["mine", "apt"]),
        ("pretrain", "CartPole-v1", ["apt"]),
        ("task", "CartPole-v1", ["scratch"]),
        ("task", "PixelMaze-v0?goal=far", ["apt"]),
    ]
    assert panels[-1]["arms"][0]["phase"] == "fine-tuning"
    said = [text.partition(" after")[0] for text in report.findings]
    assert said == [  # each environment by what it measures
        "Pre-training without reward, PixelMaze-v0: maze coverage",
        "Pre-training without reward, CartPole-v1: training return",
        "Training with task reward, CartPole-v1: training return",
        "Training with task reward, PixelMaze-v0?goal=far: training return",
    ]
    assert dict(overview(report.collection, report.arms))["About own"] == "A maze."


def test_only_settings_that_differ_are_shown(tmp_path):
    write_run(tmp_path / "a", rows=ROWS, learner__n_step=3)
    write_run(tmp_path / "b", rows=ROWS, learner__n_step=3, method="random")
    write_run(tmp_path / "c", rows=ROWS, phase="train", learner__n_step=5, steps=200)
    table = settings_table(arms_of(tmp_path))
    assert table.columns == ["setting", "apt, pre-training", "random, pre-training", "scratch"]
    assert table.rows == [
        ["learner.n_step", "3", "3", "5"],
        ["method.name", "apt", "random", "–"],  # training from scratch has no use for it
        ["steps", "100", "100", "200"],
    ]


def test_the_source_of_fine_tuning_is_the_experiments_or_the_only_one_that_fits(tmp_path):
    write_run(tmp_path / "free" / "walker", env="dmc/walker", rows=ROWS)
    write_run(tmp_path / "free" / "hopper", env="dmc/hopper", rows=ROWS)
    write_run(tmp_path / "free" / "tuned", env="dmc/walker_run", phase="finetune", rows=ROWS)
    runs = runs_of(tmp_path / "free")
    assert runs["tuned"].source is runs["walker"]
    write_run(tmp_path / "free" / "again", env="dmc/walker", rows=ROWS)
    runs = runs_of(tmp_path / "free")
    assert runs["tuned"].source is None
    cells = [{"folder": "again"}, {"folder": "tuned", "phase": "finetune", "source": "again"}]
    write_experiment(tmp_path / "free", cells)
    runs = runs_of(tmp_path / "free")
    assert runs["tuned"].source is runs["again"]


def test_agents_from_scratch_are_named_by_their_presets(tmp_path):
    def write(folder, env, preset, **changes):
        values = flat(merge(preset_for(env, preset), changes))
        settings = {name.replace(".", "__"): value for name, value in values.items() if name != "steps"}
        write_run(tmp_path / folder, env=env, phase="train", rows=ROWS, **settings)

    write("a", "atari/pong", "drq")
    write("b", "atari/pong", "curl")
    write("c", MAZE, "bbf", learner={"encoder": {"stack": "drq"}})  # `auto` in the preset
    write("d", "atari/pong", "spr", learner={"n_step": 7})
    write("g", "atari/freeway", "drq", log={"eval_epsilon": 0.2, "eval_episodes": 3})
    write("h", "atari/freeway", "spr", log={"eval_episodes": 3})
    runs = {run.name: run.label for arm in arms_of(tmp_path) for run in arm.runs}
    assert (runs.pop("g"), runs.pop("h")) == ("scratch", "spr")
    assert runs == {"a": "drq", "b": "curl", "c": "bbf", "d": "scratch"}


def test_the_summary_lists_what_was_run(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"apt{seed}", seed=seed, rows=ROWS)
    write_run(tmp_path / "random", method="random", rows=ROWS)
    write_run(tmp_path / "scratch", phase="train", rows=ROWS)
    report = report_of(tmp_path)
    assert dict(overview(report.collection, report.arms)) == {
        "Runs": "3 pre-training, 1 from scratch",
        "Environments": "PixelMaze-v0",
        "Arms": "apt; random; scratch",
        "Seeds": "1, 2",
        "Dates": "2026-11-15",
        "voidrl": "0.1.0",
    }


@pytest.mark.parametrize(
    ("apt", "random", "verdict"),
    [
        ((3, 7), (1, 2), "Ahead: apt (no overlap of ranges)."),
        ((3, 7), (1, 4), "Not told apart, as their ranges overlap: apt; random."),
        ((3, 7), (1,), "Highest mean: apt (no spread with one seed)."),
        ((3, 7), (5,), "Equal means: apt; random."),
    ],
)
def test_the_summary_says_who_is_ahead(tmp_path, apt, random, verdict):
    for method, counts in (("apt", apt), ("random", random)):
        for seed, cells in enumerate(counts, start=1):
            rows = [{"step": 100, "coverage/cells": cells}]
            write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, rows=rows)
    (found,) = report_of(tmp_path).findings
    # A perfect maze of 5 × 5 has 4 rooms and 3 doors: 7 open cells.
    assert "PixelMaze-v0: maze coverage after 100 steps: apt 71.4% (42.9% to 100%); random " in found
    assert found.endswith(verdict)


def test_many_environments_are_summarized_by_wins_and_a_tie_is_none(tmp_path):
    for number, (apt, random) in enumerate([(6, 4), (5, 4), (4, 5), (0, 0), (3, 3)]):
        for method, bins in (("apt", apt), ("random", random)):
            rows = [{"step": 100, "coverage/bins": bins}]
            write_run(tmp_path / f"{method}{number}", env=f"dmc/env{number}", method=method, rows=rows)
    (found,) = report_of(tmp_path).findings
    assert found.endswith("5 environments: highest mean bins: apt in 2, random in 1, equal in 2.")


def test_everything_that_limits_the_numbers_is_a_caveat(tmp_path):
    write_run(tmp_path / "done", rows=ROWS)
    write_run(tmp_path / "failed", rows=[{"step": 40}], seed=2, error="diverged")
    write_run(tmp_path / "again", rows=ROWS, machine={"git": {"commit": "fedcba9876"}})
    cells = [
        {"folder": "done", "protocol_steps": 10_000},
        {"folder": "failed", "seed": 2},
        {"folder": "again"},
        {"folder": "later", "seed": 3},
    ]
    write_experiment(tmp_path, cells, departure="changed: learner.n_step=3")
    assert report_of(tmp_path).caveats[0].kind == "failed"
    found = caveats_of(tmp_path)
    assert found["Failed runs"] == ["failed: 40 of 100 steps: diverged"]
    assert found["Runs not started"] == ["later"]
    assert found["Experiments that differ from their file"] == ["own: changed: learner.n_step=3"]
    assert found["Fewer steps than the protocol: not comparable with published numbers"] == [
        "apt in PixelMaze-v0: 100 of 10k steps (1%)"
    ]
    assert found["Several runs with the same seed: each counts"] == [
        "apt in PixelMaze-v0: done, again, failed"
    ]
    assert [line.split(", ")[2] for line in found["Different versions or hardware"]] == [
        "commit 0123456789",
        "commit fedcba9876",
    ]


def test_an_experiment_knows_why_the_process_of_a_run_failed(tmp_path):
    write_run(tmp_path / "crashed", rows=ROWS, steps=1000)
    write_run(tmp_path / "killed", rows=ROWS, steps=1000, seed=2)
    cells = [{"folder": "crashed"}, {"folder": "killed", "seed": 2}, {"folder": "never", "seed": 3}]
    write_experiment(tmp_path, cells)
    write_failure(tmp_path, "crashed", "ValueError: no such color")
    write_failure(tmp_path, "never", "atari needs ale-py")
    runs = runs_of(tmp_path)
    assert runs["crashed"].status == "failed"
    assert runs["crashed"].progress == "100 of 1,000 steps: ValueError: no such color"
    assert runs["killed"].status == "stopped"
    assert caveats_of(tmp_path)["Failed before the first step"] == ["never: atari needs ale-py"]


def test_neither_experiments_that_share_a_label_nor_lengths_of_one_are_averaged(tmp_path):
    for name, steps in (("a", 100), ("b", 1000)):
        write_run(tmp_path / name / "run", steps=steps, rows=[{"step": steps, "coverage/cells": 2}])
        write_experiment(tmp_path / name, [{"folder": "run", "label": "APT", "steps": steps}], name=name)
    write_run(tmp_path / "loose", method="pkg:APT", rows=ROWS)
    arms = arms_of(tmp_path)
    assert [(arm.label, len(arm.runs)) for arm in arms] == [("APT, a", 1), ("APT, b", 1), ("APT", 1)]
    assert "after 100 to 1k steps" in report_of(tmp_path).findings[0]
    write_experiment(tmp_path / "b", [{"folder": "run", "label": "APT"}], name="a")
    assert [arm.label for arm in arms_of(tmp_path)][:2] == ["APT, a in a", "APT, a in b"]
    cells = [{"folder": f"{name}/run", "seed": seed} for seed, name in enumerate("ab")]
    write_experiment(tmp_path, cells)
    (tmp_path / "a/experiment.json").unlink()
    (tmp_path / "b/experiment.json").unlink()
    labels = [arm.label for arm in arms_of(tmp_path)]
    assert labels == ["apt (steps 100)", "apt (steps 1000)", "APT"]


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
    found = caveats_of(tmp_path)
    assert found["Only one seed: differences may be chance"] == ["apt in dmc/walker_run"]
    assert found["Fewer seeds in the numbers than were started"] == ["apt in dmc/walker_run: 1 of 3 (1)"]
    assert found["Missing evaluations"] == ["s2"]


def test_a_run_whose_evaluation_failed_still_counts(tmp_path):
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
    report = report_of(tmp_path)
    runs = report.collection.runs
    assert [run.status for run in runs] == ["failed", "done", "done"]
    assert [run.evaluation_gap for run in runs] == ["failed", "missing", ""]
    assert len(report.arms[0].complete) == 1
    assert caveats_of(tmp_path)["Failed evaluations"] == ["failed: 100 of 100 steps: no such game"]


def test_environments_have_the_names_of_the_experiments_file(tmp_path):
    cells = [("far", f"{MAZE}&goal=far"), ("near", f"{MAZE}&goal=near"), ("a", "X-v0"), ("b", "X-v0")]
    named = [{"folder": name, "task": env, "task_name": name} for name, env in cells]
    write_experiment(tmp_path, named)
    for name, env in cells:
        write_run(tmp_path / name, env=env, rows=ROWS, learner__n_step=2 if name == "b" else 1)
    write_run(tmp_path / "new", env="X-v0?size=2", rows=ROWS)
    arms = arms_of(tmp_path)
    assert {arm.env_name for arm in arms} == {"far", "near", "X-v0", "X-v0?size=2"}
    # Two tasks of one environment are not one arm with two seeds.
    assert {arm.label for arm in arms if arm.env == "X-v0"} == {"apt (a)", "apt (b)"}
