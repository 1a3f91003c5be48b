"""The grid of an experiment in a report: its ranking, its fields and its pictures."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

from done_cells import make_done, make_started, write_status

from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.contents import Report
from voidrl.report.grids import GridSection, grid_sections
from voidrl.report.groups import make_arms
from voidrl.report.page import write_report
from voidrl.report.provenance import settings_table
from voidrl.report.read import read_all
from voidrl.report.scores.grids import GridResult, PointResult
from voidrl.report.terminal import print_results
from voidrl.runs.status import PRUNING

HALVES = ["90%", "92.5%", "95%", "97.5%", "100%"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Eleven points of the shipped grid with two seeds, whatever k; the twelfth was pruned."""
    request = ExperimentRequest(device="cpu", seeds=(1, 2))
    plan = make_plan(read_experiment("maze-grid"), request, tmp_path_factory.mktemp("grid") / "out")
    for cell in plan.cells:
        rate, k = cell.point["learner.learning_rate"], cell.point["method.k"]
        if (rate, k) == (1e-5, 24):
            write_status(make_started(plan, cell), "stopped", callback=PRUNING)
            continue
        cells = {1e-5: 10, 1e-4: 20, 1e-3: 40, 1e-2: 30}[rate] + cell.seed
        make_done(plan, cell, **{"coverage/cells": cells})
    write_record(plan, ["voidrl", "experiment", "maze-grid"])
    return plan


def test_the_terminal_and_the_report_have_the_same_ranking(plan, capsys):
    [section] = grid_sections(read_all([plan.out], print))
    assert section.title == "APT in PixelMaze-v0: cells, highest first"
    table = section.table()
    assert table.columns[:4] == ["rank", "learning_rate", "k", "mean"]
    assert table.rows[0][:6] == ["1", "0.001", "3", "41.5", "41", "42"]
    assert [row[-1] for row in table.rows[:4]] == [
        "",
        *["equal to the best within the spread of seeds"] * 2,
        "",
    ]
    assert table.rows[-1][-1] == "pruned"
    print_results(Report.read([plan.out], print))
    printed = capsys.readouterr().out
    ranked = [line.split()[:3] for line in printed.splitlines() if re.match(r"\d+  ", line)]
    assert ranked == [row[:3] for row in table.rows[:-1]]
    assert "Best of 11 points: learning_rate 0.001, k 3 with 41.5 (2 seeds)." in printed
    assert "pruned" in printed


def test_the_page_shows_fields_and_points(plan, tmp_path):
    page = write_report([plan.out], tmp_path / "report.html", media=False, say=lambda text: None)
    text = page.read_text()
    assert 'id="grid"' in text
    assert text.count('<figure class="field">') == 2
    assert "learner.learning_rate<br><small>" in text
    assert "log axis" in text
    assert "NaN" not in text
    assert "2 pruned" in text  # runs
    assert "Pruned by --tune" in text
    # The summary names the grid rather than each of its points, whose table is folded.
    assert "APT at 12 points of a grid" in text
    assert re.search(r"APT at 11 points of a grid, [\d.]+% to [\d.]+%\. The points are ranked below\.", text)
    summary = text.partition('id="grid"')[0]
    assert summary.count("APT (learning_rate 0.001, k 3)") == 1
    assert "seeds and steps of 12 points</summary>" in summary
    assert text.count("voidrl experiment maze-grid") == 1
    markdown = write_report([plan.out], tmp_path / "report.md", say=lambda text: None).read_text()
    assert "Which fields mattered" in markdown


def test_a_plot_has_a_log_axis_with_even_distances(plan):
    [section] = grid_sections(read_all([plan.out], print))
    plot = next(plot for plot in section.plots() if plot.effect.short == "learning_rate")
    assert plot.log
    places = [x for x, _, _ in plot.means]
    gaps = [b - a for a, b in pairwise(places)]
    assert gaps == [pytest.approx(gaps[0])] * 3
    assert [tick.text for tick in plot.x] == ["1e-05", "0.0001", "0.001", "0.01"]
    heights = [y for _, y, _ in plot.means]
    assert min(heights) == heights[2]  # 0.001 is the highest


@pytest.mark.parametrize(
    ("measure", "values", "axis", "bar", "ticks"),
    [
        ("success", (1.0, 1.0), "All runs have the same value, 100%.", "50.0%", HALVES[2:]),
        ("success", (0.9, 1.0), "The axis goes from 90% to 100%.", "100.0%", HALVES),
        ("human_normalized", (1.0, 1.2), "The axis goes from 100% to 120%.", "100.0%", None),
    ],
)
def test_ends_and_ticks_of_rates(measure, values, axis, bar, ticks):
    points = [PointResult({"k": k}, [value], 1) for k, value in zip((3, 6), values, strict=True)]
    result = GridResult("apt", "APT", "maze", measure, True, {"k": False}, points)
    section = GridSection(result, "maze", "mine")
    assert section.axis == axis
    assert section.bar(section.result.ranked[0])["mean"] == bar
    found = [tick.text for tick in section.plots()[0].y]
    assert len({*found}) == len(found) > 1
    assert ticks is None or found == ticks


def test_settings_have_a_column_for_a_method_rather_than_for_each_of_its_points(plan):
    table = settings_table(make_arms(read_all([plan.out], print).runs))
    assert table.columns == ["setting", "APT, pre-training"]
    assert {row[0] for row in table.rows} >= {"learner.learning_rate", "method.k"}
