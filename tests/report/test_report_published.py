"""Scores on common scales, published numbers alongside ours, and pre-training against scratch."""

import json

import pytest
from synthetic_runs import report_of, write_experiment, write_json, write_run

from voidrl.config import flat, merge
from voidrl.envs.suites.atari import baseline, human_normalized
from voidrl.envs.suites.dmcontrol import URLB
from voidrl.envs.suites.published import numbers
from voidrl.presets.presets import preset_for
from voidrl.report.comparisons import signed, span
from voidrl.report.page import write_report
from voidrl.report.scores.scales import scales
from voidrl.report.scores.statistics import Interval

STATES = {"env__dmc__observation": "states", "env__dmc__action_repeat": 1, "learner__name": "ddpg"}
EXPERT = {task: high for task, (_, high) in scales()[1].ends.items()}
WALKER = [f"dmc/walker_{task}" for task in URLB["walker"]]


def tables_of(name, *paths):
    """The tables of a section."""
    return [table for each in report_of(*paths).sections if each.name == name for table in each.tables]


def published_tables(*paths):
    return tables_of("published", *paths)


def ours(table):
    """Our rows by column."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows if row[1] == "ours"]


def games(tmp_path):
    """Two games of the paper's table, two seeds, fine-tuned for a hundredth of the protocol."""
    cells = []
    for game, scores in (("alien", (500.0, 700.0)), ("pong", (-20.0, 0.0))):
        for seed, score in enumerate(scores, start=1):
            env, name = f"atari/{game}", f"{game}/apt/seed{seed}"
            write_run(tmp_path / f"{name}-pretrain", env=env, seed=seed, rows=[{"step": 100}])
            tuned = {"env": env, "seed": seed, "phase": "finetune", "evaluation": [score]}
            write_run(tmp_path / name, rows=[{"step": 100}], **tuned)
            shared = {"label": "APT", "task": env, "seed": seed}
            cells.append({"folder": f"{name}-pretrain", "protocol_steps": 250_000_000, **shared})
            cells.append({"folder": name, "phase": "finetune", "source": f"{name}-pretrain", **shared})
            cells[-1]["protocol_steps"] = 10_000
    write_experiment(tmp_path, cells, name="table2", published="table2")


def test_our_numbers_are_next_to_the_published_ones_with_seeds_and_steps(tmp_path):
    games(tmp_path)
    [table] = published_tables(tmp_path)
    assert table.columns == [
        *("method", "", "alien", "pong", "median", "mean", "above human", "IQM"),
        *("tasks", "seeds", "steps"),
    ]
    printed, mine = (row for row in table.rows if row[0] == "APT")
    assert printed[1:8] == ["printed", "2614.8", "−8", "47.5", "69.55", "7", "–"]
    assert mine[1:4] == ["ours", "600 (500 to 700)", "−10 (−20 to 0)"]
    expected = 100 * (human_normalized("alien", 600) + human_normalized("pong", -10)) / 2
    assert float(mine[5].split()[0]) == pytest.approx(expected, abs=0.05)
    assert mine[-3:] == ["2", "2", "100 of 250M pre-training, 100 of 10k fine-tuning"]
    spr = [row[1:8] for row in table.rows if row[0] == "SPR"]
    assert spr == [
        ["printed", "801.5", "−5.9", "41.5", "70.4", "7", "–"],
        ["larger sample, 100 runs", "841.9", "−5.4", "39.6", "61.6", "–", "33.7"],
    ]
    assert {"VISR", "DrQ(ε)"} <= {row[0] for row in table.rows}
    assert [note.partition(":")[0] for note in table.notes[:2]] == ["Printed", "Larger sample"]
    assert any("demon_attack" in note and "larger samples" in note for note in table.notes)
    assert any("Tasks without a run: 24 of 26" in note for note in table.notes)


def test_agents_outside_of_experiments_are_next_to_the_published_ones(tmp_path):
    values = flat(merge(preset_for("atari/assault", "drq")))
    settings = {name.replace(".", "__"): value for name, value in values.items() if name != "steps"}
    run = {"env": "atari/assault", "phase": "train", "steps": 90_000, "rows": [{"step": 90_000}]}
    for seed, score in ((1, 500.0), (2, 700.0)):
        write_run(tmp_path / f"a{seed}", seed=seed, evaluation=[score], **run, **settings)
    # Another discount is another agent, and sticky actions are another game.
    write_run(tmp_path / "b", evaluation=[1.0], **run, **{**settings, "learner__discount": 0.9})
    sticky = {**run, "env": "atari/assault?repeat_action_probability=0.25"}
    write_run(tmp_path / "c", evaluation=[2.0], **sticky, **settings)
    [table] = published_tables(tmp_path)
    assert table.columns == ["method", "", "assault", "tasks", "seeds", "steps"]
    assert [row[1:5] for row in table.rows if row[0] == "DrQ"] == [
        ["printed", "452.4", "", ""],
        ["ours", "600 (500 to 700)", "1", "2"],
    ]
    assert ["DrQ(ε)", "larger sample, 100 runs", "579.6", "", "", ""] in table.rows
    assert "Ours: 90k steps with reward." in table.notes
    cells = [
        {"folder": f"a{seed}", "seed": seed, "label": "DrQ", "phase": "train", "env": "atari/assault"}
        for seed in (1, 2)
    ]
    write_experiment(tmp_path, cells, published="table2")
    titles = [table.title for table in published_tables(tmp_path / "a1", tmp_path / "a2")]
    assert len(titles) == 1  # that of the experiment


def test_an_unknown_published_table_is_reported(tmp_path):
    write_run(tmp_path / "a", rows=[{"step": 100}])
    write_experiment(tmp_path, [{"folder": "a"}], published="table99")
    table = published_tables(tmp_path)[0]
    assert "unknown published table 'table99'" in table.notes[0]


def test_a_seed_without_its_evaluation_is_not_among_those_of_the_mean(tmp_path):
    cells = []
    for seed, returns in ((1, [100.0]), (2, [200.0]), (3, None)):
        run = {"env": "atari/alien", "phase": "train", "seed": seed}
        write_run(tmp_path / f"s{seed}", rows=[{"step": 100}], evaluation=returns, **run)
        cells.append({"folder": f"s{seed}", "seed": seed, "phase": "train", "label": "APT, random heads"})
    write_experiment(tmp_path, cells, published="table5")
    table = published_tables(tmp_path)[0]
    [mine] = [row[2:] for row in table.rows if row[1] == "ours"]
    assert mine == ["150 (100 to 200)", "1", "2 of 3, evaluation missing", "100 of 100 from scratch"]


def test_a_published_table_has_the_arms_of_its_own_experiment(tmp_path):
    for name, score, published in (("a", 300.0, "table2"), ("b", 500.0, None)):
        run = {"env": "atari/alien", "phase": "train", "rows": [{"step": 100}], "evaluation": [score]}
        write_run(tmp_path / name / "run", **run)
        cells = [{"folder": "run", "phase": "train", "label": "APT"}]
        departure = "preset mine instead of the experiment's atari-paper"
        write_experiment(tmp_path / name, cells, name=name, published=published, departure=departure)
    tables = published_tables(tmp_path)
    assert [row[2] for row in tables[0].rows if row[:2] == ["APT", "ours"]] == ["300"]
    assert "Ours: preset mine instead of the experiment's atari-paper." in tables[0].notes


def test_columns_of_57_games_are_filled_by_games_beyond_the_26(tmp_path):
    cells = []
    for game, score in (("alien", 7127.7), ("centipede", 12017.0)):  # human scores; the second is of the 57
        write_run(
            tmp_path / game, env=f"atari/{game}", phase="train", rows=[{"step": 100}], evaluation=[score]
        )
        cells.append({"folder": game, "phase": "train", "label": "APT", "task": f"atari/{game}"})
    write_experiment(tmp_path, cells, published="table3")
    table = published_tables(tmp_path)[0]
    [mine] = ours(table)
    assert (mine["above human"], mine["above human of 57"]) == ("1 of 1", "2 of 2")
    assert mine["mean of 57"] == "100.0"
    [mine] = ours(published_tables(tmp_path / "alien")[0])
    assert mine["mean of 57"] == "–"


def test_of_several_lengths_the_longest_complete_one_is_shown(tmp_path):
    cells = []
    for asked, reached, score in ((100, 100, 5.0), (200, 200, 7.0), (300, 50, 9.0)):
        run = {"env": "atari/alien", "phase": "train", "steps": asked}
        write_run(tmp_path / str(asked), rows=[{"step": reached, "eval/return": score}], **run)
        cells.append({"folder": str(asked), "phase": "train", "label": "APT", "task": "atari/alien"})
    write_experiment(tmp_path, cells, published="table2")
    [table] = published_tables(tmp_path)
    assert [row[2] for row in table.rows if row[1] == "ours"] == ["7"]


def write_task(folder, task, share, method="rnd", phase="finetune", frames=100_000, pretrained=None, **more):
    """A run on a task of URLB that reached this share of the expert's return."""
    returns = None if share is None else [share * EXPERT[task]]
    more = {"representation__name": "learner", **STATES, **more}
    rows = [{"step": frames}]
    write_run(
        folder, env=task, phase=phase, method=method, steps=frames, rows=rows, evaluation=returns, **more
    )
    if pretrained is not None:
        record = json.loads((folder / "evaluation.json").read_text())
        record["agent"] |= {"steps": frames, "steps_with_pretraining": pretrained + frames}
        write_json(folder / "evaluation.json", record)


def scores_of(*paths):
    """The rows of the only table of normalized scores: cells by column, by method."""
    [table] = tables_of("scores", *paths)
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.mark.parametrize(
    ("name", "means"),
    [  # of the README of MOSS, over eleven tasks
        ("apt_icm", (0.661, 0.801, 0.570, 0.596)),
        ("moss", (0.806, 0.882, 0.757, 0.769)),
    ],
)
def test_published_means_are_those_of_the_published_returns(name, means):
    [row] = [row.values for row in numbers("urlb").rows if row.name == name]
    found = [row[column] for column in ("mean", "mean of walker", "mean of quadruped", "mean of jaco")]
    assert found == pytest.approx([100 * mean for mean in means], abs=0.11)
    shares = {task: value / EXPERT[task] for task, value in row.items() if "/" in task}
    assert 100 * sum(shares.values()) / len(shares) == pytest.approx(row["mean"], abs=0.05)


def test_runs_of_no_experiment_are_compared_by_their_method(tmp_path):
    run = {"env": "dmc/walker", "method": "rnd", "steps": 500_000, "rows": [{"step": 500_000}]}
    write_run(tmp_path / "rnd", **run, **STATES)
    for task, share in zip(WALKER, (0.9, 0.8, 0.4, 0.5), strict=True):
        write_task(tmp_path / f"rnd-{task[4:]}", task, share)
    write_task(tmp_path / "scratch", "dmc/walker_run", 0.3, phase="train")
    rows = scores_of(tmp_path)
    rnd, scratch = rows["rnd"], rows["scratch"]
    assert (rnd["mean"], rnd["published"], rnd["walker"], rnd["quadruped"]) == ("65.0", "60.5", "65.0", "–")
    assert (rnd["seeds"], rnd["steps"]) == ("1, one seed", "500k pre-training, 100k fine-tuning")
    assert (scratch["walker"], scratch["published"]) == ("30.0 (1/4)", "–")
    [table] = published_tables(tmp_path)
    [mine] = ours(table)
    assert (mine["method"], mine["mean of walker"], mine["tasks"]) == ("RND", "65.0", "4")
    moss = next(row for row in table.rows if row[0] == "MOSS")
    assert dict(zip(table.columns, moss, strict=True))["mean of quadruped"] == "75.7"


def test_other_lengths_and_representations_are_rows_of_their_own(tmp_path):
    for name, steps, share, f in (
        ("a", 328_000, 0.4, "icm"),
        ("b", 2_000_000, 0.6, "icm"),
        ("c", None, 0.5, "identity"),
    ):
        for task in WALKER[2:]:
            run = {"method": "apt", "representation__name": f, "pretrained": steps}
            write_task(tmp_path / name / task[4:], task, share, **run)
    rows = scores_of(tmp_path).values()
    assert {(each["mean"], each["steps"].split(",")[0]) for each in rows} == {
        ("60.0", "2M pre-training"),
        ("40.0", "328k pre-training"),
        ("50.0", "pre-training unknown"),
    }


def test_scores_have_intervals_of_seeds_within_tasks(tmp_path):
    cells = []
    for label, by_task in {
        "RND": dict.fromkeys(EXPERT, (0.5, 0.7)),
        "ICM": {WALKER[0]: (0.4, 0.6), WALKER[1]: (0.1,), WALKER[2]: (0.1, None)},
    }.items():
        for task, shares in by_task.items():
            for seed, share in enumerate(shares, start=1):
                folder = f"{task[4:]}/{label}/seed{seed}"
                write_task(tmp_path / folder, task, share, method=label.lower(), seed=seed)
                cells.append({"folder": folder, "label": label, "task": task, "method": label.lower()})
                cells[-1] |= {"seed": seed, "phase": "finetune", "steps": 100_000, "evaluated": True}
    write_experiment(tmp_path, cells, published="urlb")
    rows = scores_of(tmp_path)
    assert [*rows] == ["RND", "ICM"]
    assert rows["RND"]["mean"].startswith("60.0 [5")
    assert rows["ICM"]["walker"] == "23.3 [20.0, 26.7] (3/4)"  # 0.4, 0.5 or 0.6 in one of three tasks
    assert rows["ICM"]["seeds"] == "1 to 2"
    [table] = tables_of("scores", tmp_path)
    assert 0 < table.bars[0].low < table.bars[0].mean == 60.0 < table.bars[0].high < 100
    assert table.bars[0].mark == pytest.approx(float(rows["RND"]["published"]), abs=0.1)
    page = write_report([tmp_path], tmp_path / "r.html", media=False, say=lambda text: None).read_text()
    assert 'id="scores"' in page
    assert 'id="published"' in page


def test_pixels_and_other_learners_are_not_next_to_urlbs_numbers(tmp_path):
    for name, other in (("a", {"env__dmc__observation": "pixels"}), ("b", {"learner__name": "sac"})):
        for task in WALKER[:2]:
            write_task(tmp_path / name / task[4:], task, 0.5, method="rnd", **other)
    assert {row["published"] for row in scores_of(tmp_path).values()} == {"–"}
    assert published_tables(tmp_path) == []


# Pre-training against scratch


def write_panel(root, tuned, scratch, games=("freeway", "krull", "boxing"), pretrainings=(1, 2), seeds=3):
    """Human-normalized scores: fine-tunings of each pre-training, and as many from scratch."""
    cells = []

    def write(folder, game, phase, share, **cell):
        low, human = baseline(game)
        score = low + share * (human - low)
        run = {"env": f"atari/{game}", "phase": phase, "seed": cell["seed"], "rows": [{"step": 100}]}
        write_run(root / folder, evaluation=[score], **run)
        cells.append({"folder": folder, "task": f"atari/{game}", "phase": phase, **cell})

    for game in games:
        for p in pretrainings:
            for s in range(1, seeds + 1):
                cell = {"label": "fine-tuned", "arm": "apt", "seed": 10 * p + s, "pretrain_seed": p}
                write(f"{game}/f{p}{s}", game, "finetune", tuned + 0.01 * p * s, **cell)
        for s in range(1, 2 * seeds + 1):
            cell = {"label": "scratch", "arm": "plain", "seed": s, "like": "apt"}
            write(f"{game}/s{s}", game, "train", scratch + 0.01 * s, **cell)
    write_experiment(root, cells)


@pytest.mark.parametrize(
    ("tuned", "verdict", "clear"),
    [
        (1.0, "all of it above 0: in these tasks and at this scale, pre-training pays.", "0 on 3, below"),
        (0.2, "all of it below 0: in these tasks and at this scale, pre-training hurts.", "below 0 on 3"),
        (0.505, "which includes 0: these runs do not tell whether pre-training helps", "0 on 0, below 0"),
    ],
)
def test_differences_are_judged_by_their_intervals(tmp_path, tuned, verdict, clear):
    write_panel(tmp_path, tuned, 0.5)
    [section] = [each for each in report_of(tmp_path).sections if each.name == "panel"]
    text = " ".join(section.findings)
    assert verdict in text
    assert clear in text
    assert "With so few pre-trainings" in text
    [table] = section.tables
    assert [row[0] for row in table.rows] == ["atari/freeway", "atari/krull", "atari/boxing", "pooled"]
    # 0.01 p s over p in (1, 2), s in (1, 2, 3) is 0.03 on average, 0.01 s over six seeds 0.035.
    assert table.rows[-1][1] == signed(tuned - 0.5 - 0.005)
    assert table.rows[0][3:] == ["6 of 2 pre-trainings", "6"]
    assert all(bar.low <= bar.mean <= bar.high for bar in table.bars)


def test_one_run_of_each_arm_decides_nothing(tmp_path):
    write_panel(tmp_path, 1.0, 0.5, games=("krull",), pretrainings=(1,), seeds=1)
    record = json.loads((tmp_path / "experiment.json").read_text())
    record["cells"] = [cell for cell in record["cells"] if cell["folder"] != "krull/s2"]
    write_json(tmp_path / "experiment.json", record)
    [section] = report_of(tmp_path / "krull/f11", tmp_path / "krull/s1").sections
    assert "without a spread between seeds there is no interval, and nothing follows" in section.findings[1]
    assert section.tables[0].rows[0][2] == "no spread"


def test_what_is_compared_is_known_from_the_experiment_or_the_only_pair(tmp_path):
    write_panel(tmp_path, 1.0, 0.5, games=("krull",))
    record = json.loads((tmp_path / "experiment.json").read_text())

    def compared(changes):
        cells = [{**cell, **changes(cell)} for cell in record["cells"]]
        write_json(tmp_path / "experiment.json", {**record, "cells": cells})
        return [each.title for each in report_of(tmp_path).sections if each.name == "panel"]

    title = "fine-tuned − scratch, human-normalized"
    assert compared(lambda cell: {}) == [title]
    assert compared(lambda cell: {"like": None}) == [title]
    other = {"label": "DER", "arm": "der"}
    assert compared(lambda cell: {"like": None, **(other if cell["folder"] == "krull/s1" else {})}) == []


def test_signs():
    assert [signed(x) for x in (0.123, -0.05, 0.0, 0.0001)] == ["+12.3 %", "-5.0 %", "0.0 %", "0.0 %"]
    assert span(Interval(-0.1, 0.0, 0.2)) == "[-10.0 %, +20.0 %]"
    assert span(Interval(0.1, 0.1, 0.1)) == ""
