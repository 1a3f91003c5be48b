"""The panel: its record, scores, table, report and picture."""

import dataclasses

import pytest
from done_cells import make_done, printed_results

from voidrl.cli.main import main as cli
from voidrl.envs.suites.atari import baseline
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.figures import draw_panel
from voidrl.report.page import write_report
from voidrl.report.panel import find_panels, panel_sections
from voidrl.report.read import read_all
from voidrl.runs.experiment_record import read_experiment_record

SHARES = {"random": 0.0, "zero_shot": 0.2, "finetuned": 0.6, "scratch": 0.4}
SHARES |= {"untrained": 0.0, "from_zero": 0.3}
COMMAND = ["voidrl", "experiment", "atari-panel"]


@pytest.fixture(scope="module")
def planned():
    request = ExperimentRequest(tasks=("freeway", "boxing"))
    return make_plan(read_experiment("atari-panel"), request, "out")


@pytest.fixture
def plan(planned, tmp_path):
    return dataclasses.replace(planned, out=tmp_path)


def score(cell):
    random, human = baseline(cell.folder.partition("/")[0])
    return random + (SHARES[cell.arm.name] + 0.01 * cell.seed) * (human - random)


def test_records_keep_scale_arms_and_both_seeds(plan, tmp_path):
    write_record(plan, COMMAND)
    record = read_experiment_record(tmp_path)
    assert record.departure == ""
    cells = {cell.folder: cell for cell in record.cells}
    tuned = cells["boxing/finetuned/pretrain2-seed5"]
    assert (tuned.arm, tuned.pretrain_seed, tuned.seed, tuned.like) == ("finetuned", 2, 5, None)
    assert cells["boxing/scratch/seed5"].like == "finetuned"


def test_results_and_reports_show_the_differences(plan, tmp_path, monkeypatch):
    for cell in plan.cells:
        if cell.folder != "boxing/scratch/seed6":
            make_done(plan, cell, score(cell))
    text = " ".join(printed_results(plan))
    assert "fine-tuned − from scratch" in text
    assert "Fine-tuned has the higher mean on 2 of 2 games" in text
    write_report([tmp_path], tmp_path / "report.md", say=lambda text: None)
    markdown = (tmp_path / "report.md").read_text()
    for expected in (
        "## With and without pre-training: atari-panel",
        "all of it above 0: in these games and at this scale, pre-training pays.",
        "Zero-shot is above random play on 2 of 2 games by its mean, with every pre-training seed on 2",
        "Not done yet: 1 run.",
        "| freeway | +20.0 % |",
        "| pooled |",
        "| freeway | fine-tuned | 18.8 | 63.5 % | pre-training 1: 18.1, 18.4, 18.6; pre-training 2: 18.9,",
        "Runs not started",
    ):
        assert expected in markdown, expected
    monkeypatch.chdir(tmp_path)
    options = ["--no-media", "--figures", "figures"]
    assert cli(["report", str(tmp_path), "-o", "report.html", *options]) == 0
    assert (tmp_path / "figures/panel_atari-panel.png").stat().st_size > 10_000
    page = (tmp_path / "report.html").read_text()
    assert 'id="panel"' in page
    assert "pre-training pays." in page


def test_the_forest_lies_on_one_axis(plan, tmp_path):
    for cell in plan.cells:
        make_done(plan, cell, score(cell))
    write_record(plan, COMMAND)
    collection = read_all([tmp_path], lambda text: None)
    [section] = panel_sections(find_panels(collection))
    table = section.tables[0]
    assert [row[0] for row in table.rows] == ["freeway", "boxing", "pooled"]
    assert table.position(0.0) == "0.0%"  # all are above 0, where the axis begins
    assert "100.0%" in [table.position(bar.high) for bar in table.bars]
    [panel] = find_panels(collection).values()
    figure = draw_panel(panel)
    labels = [tick.get_text() for tick in figure.axes[1].get_yticklabels()]
    assert labels == ["freeway", "boxing", "pooled"]
