"""The grid of an experiment in a report: its ranking, its fields and its pictures."""

import base64
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

from done_cells import make_done, make_started, write_status

from voidrl.errors import MissingExtraError
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.report import figures
from voidrl.report.contents import Report
from voidrl.report.figures import draw_grid
from voidrl.report.grids import find_grids
from voidrl.report.groups import make_arms
from voidrl.report.page import write_report
from voidrl.report.provenance import settings_table
from voidrl.report.read import read_all
from voidrl.report.terminal import print_results


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
    [section] = Report.read([plan.out], print).grids
    assert section.title == "APT in PixelMaze-v0: cells, highest first"
    table, fields = section.tables
    assert [row[:2] for row in fields.rows] == [["learning_rate", "–"], ["k", "–"]]  # a point is missing
    assert fields.rows[1][2].startswith("3: 26.5; ")
    assert table.columns[:4] == ["rank", "learning_rate", "k", "coverage/cells"]
    assert table.rows[0][:6] == ["1", "0.001", "3", "41.5", "41 to 42", "2"]
    assert [row[-1] for row in table.rows[:4]] == ["", *["equal to the best"] * 2, ""]
    assert [bar.color for bar in table.bars[:4]] == [*["competence"] * 3, "knowledge"]
    assert (table.position(11), table.position(42)) == ("0.0%", "100.0%")
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
    [picture] = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert base64.b64decode(picture).startswith(b"<?xml")
    assert "NaN" not in text
    # The summary names the grid rather than each of its points, whose table is folded.
    assert "APT at 12 points of a grid" in text
    assert re.search(r"APT at 11 points of a grid, [\d.]+% to [\d.]+%\. The points are ranked below\.", text)
    summary = text.partition('id="grid"')[0]
    assert summary.count("APT (learning_rate 0.001, k 3)") == 1
    assert "seeds and steps of 12 points</summary>" in summary
    assert text.count("voidrl experiment maze-grid") == 1
    markdown = write_report([plan.out], tmp_path / "report.md", say=lambda text: None).read_text()
    assert "Which fields mattered" in markdown


def test_a_plot_of_a_field_has_its_means_and_a_log_axis(plan):
    [result] = find_grids(read_all([plan.out], print)).values()
    rate, k = draw_grid(result).axes
    assert (rate.get_xscale(), k.get_xscale()) == ("log", "linear")
    assert [label.get_text() for label in rate.get_xticklabels()] == ["1e-05", "0.0001", "0.001", "0.01"]
    dots, means = rate.lines
    assert len(dots.get_xdata()) == 11
    assert [*means.get_ydata()] == [11.5, 21.5, 41.5, 31.5]


def test_without_matplotlib_the_page_names_what_is_missing(plan, tmp_path, monkeypatch):
    def absent():
        raise MissingExtraError("matplotlib", "plot", "drawing figures")

    monkeypatch.setattr(figures, "import_pyplot", absent)
    page = write_report([plan.out], tmp_path / "report.html", media=False, say=lambda text: None)
    text = page.read_text()
    assert "No plots of the fields: " in text
    assert "pip install &#39;matplotlib" in text
    assert "Which fields mattered" in text


def test_settings_have_a_column_for_a_method_rather_than_for_each_of_its_points(plan):
    table = settings_table(make_arms(read_all([plan.out], print).runs))
    assert table.columns == ["setting", "APT, pre-training"]
    assert {row[0] for row in table.rows} >= {"learner.learning_rate", "method.k"}
