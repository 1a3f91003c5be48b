"""Rankings and effects of grids by hand, and in a report."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

from done_cells import make_done, make_started, write_status

from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.contents import Report
from voidrl.report.grids import grid_results
from voidrl.report.groups import make_arms
from voidrl.report.page import write_report
from voidrl.report.provenance import settings_table
from voidrl.report.read import read_all
from voidrl.report.terminal import print_results
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, GridRecord
from voidrl.system.units import value_text


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Eleven points of the shipped grid with two seeds, whatever k; the twelfth was stopped."""
    request = ExperimentRequest(device="cpu", seeds=(1, 2))
    plan = make_plan(read_experiment("maze-grid"), request, tmp_path_factory.mktemp("grid") / "out")
    for cell in plan.cells:
        rate, k = cell.point["learner.learning_rate"], cell.point["method.k"]
        if (rate, k) == (1e-5, 24):
            write_status(make_started(plan, cell), "stopped", signal="SIGTERM")
            continue
        cells = {1e-5: 10, 1e-4: 20, 1e-3: 40, 1e-2: 30}[rate] + cell.seed
        make_done(plan, cell, **{"coverage/cells": cells})
    write_record(plan, ["voidrl", "experiment", "maze-grid"])
    return plan


def test_the_terminal_and_the_report_have_the_same_ranking(plan, capsys):
    [section] = Report.read([plan.out], print).sections
    assert section.title == "APT in maze: cells, highest first"
    table, fields = section.tables
    assert fields.rows[0] == ["learning_rate", "1e-05", "11.5", "11 to 12"]
    assert fields.rows[4] == ["k", "3", "26.5", "11 to 42"]
    assert table.columns[:4] == ["rank", "learning_rate", "k", "cells"]
    assert table.rows[0][:6] == ["1", "0.001", "3", "41.5", "41 to 42", "2"]
    assert [row[-1] for row in table.rows[:4]] == ["", *["equal to the best"] * 2, ""]
    assert [bar.style for bar in table.bars[:4]] == [2, 2, 2, 0]
    assert (table.bars[0].high, table.bars[-1].low) == (100.0, 0.0)
    print_results(Report.read([plan.out], print))
    printed = capsys.readouterr().out
    ranked = [line.split()[:3] for line in printed.splitlines() if re.match(r"\d+  ", line)]
    assert ranked == [row[:3] for row in table.rows]
    assert "Best of 11 points: learning_rate 0.001, k 3 with 41.5 (2 seeds)." in printed
    assert "Not done yet: 1 point." in printed


def test_the_page_shows_fields_and_points(plan, tmp_path):
    page = write_report([plan.out], tmp_path / "report.html", media=False, say=lambda text: None)
    text = page.read_text()
    assert 'id="grid"' in text
    assert "NaN" not in text
    # The summary names the method rather than each of its points, whose table is folded.
    summary = text.partition('id="grid"')[0]
    assert summary.count("APT (learning_rate 0.001, k 3)") == 1
    assert "Pre-training without reward: 12 rows</summary>" in summary
    assert text.count("voidrl experiment maze-grid") == 1
    assert "Which fields mattered" in text


def test_settings_have_a_column_for_a_method_rather_than_for_each_of_its_points(plan):
    table = settings_table(make_arms(read_all([plan.out], print).runs))
    assert table.columns == ["setting", "APT, pre-training"]
    assert {row[0] for row in table.rows} >= {"learner.learning_rate", "method.k"}


def results_of(runs, log=None, direction="maximize", chosen="product"):
    """`runs`: points, each with the values of its seeds; None for a run that is not done."""
    log = log or dict.fromkeys(runs[0][0], False)
    cells, values = [], {}
    for number, (point, found) in enumerate(runs):
        for seed, value in enumerate(found):
            folder = f"p{number}/seed{seed}"
            cells.append(
                CellRecord(
                    folder, "x", "env", "apt", seed, "pretrain", None, 10, 10, False, "apt", point=point
                )
            )
            values |= {} if value is None else {folder: value}
    grid = GridRecord(log, chosen, "coverage/cells", direction, short={"method.k": "k"})
    record = ExperimentRecord(Path("x"), "g", "G", "", None, "", cells, grid=grid)
    [result] = grid_results(record, grid, values, {})
    return result


def test_points_and_the_values_of_fields_are_ranked():
    runs = [
        ({"b": "x", "a": 1}, [9, 11]),
        ({"b": "y", "a": 1}, [19, 21]),
        ({"b": "x", "a": 2}, [29, 31]),
        ({"b": "y", "a": 2}, [59, 61]),
    ]
    result = results_of(runs)
    assert [*result.effects] == ["a", "b"]  # means of 15 and 45, of 20 and 40
    assert result.effects["a"] == [(1, [9, 11, 19, 21]), (2, [29, 31, 59, 61])]
    assert [point.mean for point in result.ranked] == [60, 30, 20, 10]
    assert "Best of 4 points: b y, a 2 with 60 (2 seeds)." in result.sentences()


def test_points_within_the_spread_of_seeds_are_called_equal():
    # Within points: variances 2 and 2, pooled standard deviation √2; error of a difference √2 · √(1/2 + 1/2).
    result = results_of([({"method.k": 3}, [10, 12]), ({"method.k": 6}, [8, 10]), ({"method.k": 9}, [1, 3])])
    assert [result.equals_best(point) for point in result.ranked] == [False, True, False]
    assert "Equal to it as far as these seeds tell: 1 point." in " ".join(result.sentences())
    assert next(result.sentences()).startswith("Best of 3 points: k 3 with ")


def test_one_seed_each_says_so_and_smaller_may_be_better():
    result = results_of([({"method.k": 3}, [5.0]), ({"method.k": 6}, [4.0])], direction="minimize")
    assert [point.point["method.k"] for point in result.ranked] == [6, 3]
    assert "One seed each" in " ".join(result.sentences())


def test_values_that_optuna_chose_once_are_not_listed():
    runs = [({"lr": 10.0**i, "k": k}, [float(i)]) for i, k in zip(range(6), [3, 6] * 3, strict=True)]
    effects = results_of(runs, {"lr": False, "k": False}, chosen="tune").effects
    assert effects == {"k": [(3, [0.0, 2.0, 4.0]), (6, [1.0, 3.0, 5.0])], "lr": []}


def test_unfinished_points_are_not_ranked():
    result = results_of([({"k": 3}, [5.0]), ({"k": 6}, [None]), ({"k": 12}, [7.0])])
    assert [point.point["k"] for point in result.ranked] == [12, 3]
    assert "Not done yet: 1 point." in result.sentences()


def test_with_one_seed_only_equal_results_are_called_equal():
    result = results_of([({"a": value}, [float(value)]) for value in (1, 2, 5)])
    assert not result.equals_best(result.ranked[1])
    tied = results_of([({"a": value}, [7.0]) for value in (1, 2, 5)])
    assert [tied.equals_best(point) for point in tied.ranked] == [False, True, True]
    assert "Equal to it as far as these seeds tell: 2 points." in tied.sentences()


def test_pre_trainings_of_fine_tuned_points_are_no_grid_of_their_own():
    cells = [
        CellRecord(
            f"{phase}/k={k}", "x", env, "apt", 1, phase, None, 10, 10, False, "apt", point={"method.k": k}
        )
        for k in (3, 6)
        for phase, env in (("pretrain", "maze"), ("finetune", "goal"))
    ]
    grid = GridRecord({"method.k": False}, "product", "return", "maximize")
    record = ExperimentRecord(Path("x"), "g", "G", "", None, "", cells, grid=grid)
    [result] = grid_results(record, grid, {"finetune/k=3": 1.0, "finetune/k=6": 2.0}, {})
    assert (result.task, len(result.ranked), len(result.points)) == ("goal", 2, 2)


def test_words_keep_the_order_of_the_grid_and_close_numbers_differ():
    runs = [({"a": word, "b": b}, [value + b]) for word, value in (("u", 1), ("v", 9)) for b in (1, 2)]
    assert [value for value, _ in results_of(runs).effects["a"]] == ["u", "v"]  # not the best first
    assert value_text(0.12345671) != value_text(0.12345672)
