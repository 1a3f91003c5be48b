"""A panel that is stopped and resumed does nothing twice, and its files show what is done."""

import dataclasses
import io
import json

import pytest
from done_cells import make_done, make_started, printed_results

from voidrl.cli.main import main as cli
from voidrl.envs.suites.atari import baseline, human_normalized
from voidrl.errors import ConfigError
from voidrl.experiments import run
from voidrl.experiments.board import Board
from voidrl.experiments.executors.base import Ended, Executor
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.figures import draw_panel, require_matplotlib
from voidrl.report.page import write_report
from voidrl.report.panel import panel_sections, read_section
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


class Worker(Executor):
    """Cells that are done at once; the one after `stop_after` is killed with the whole command."""

    def __init__(self, plan, stop_after=10**9):
        self.plan, self.started, self.stop_after, self.ended = plan, [], stop_after, {}

    def has_room(self):
        return len(self.ended) < 3

    def submit(self, job):
        plan = self.plan
        [cell] = [cell for cell in plan.cells if cell.folder == job["cell"]]
        if len(self.started) == self.stop_after:
            make_started(plan, cell)  # killed before its first checkpoint
            raise KeyboardInterrupt
        assert cell.source is None or (plan.path(cell.source) / "evaluation.json").is_file()
        folder = plan.path(cell)
        if folder.exists():
            (folder / "config.json").unlink()
            (folder / "environment.json").unlink()
            folder.rmdir()
        self.started.append(cell.folder)
        make_done(plan, cell, score(cell))
        self.ended[cell.folder] = Ended(0)

    def poll(self):
        ended, self.ended = self.ended, {}
        return ended

    def stop(self):
        pass

    kill = stop

    def __exit__(self, *exc):
        pass


def work(worker, monkeypatch):
    monkeypatch.setattr(run, "POLL_SECONDS", 0.0)
    return run.run_plan(worker.plan, worker, command=COMMAND, board=Board(io.StringIO()))


def test_a_killed_panel_continues_and_does_nothing_twice(plan, monkeypatch):
    write_record(plan, COMMAND)
    first, second, third = Worker(plan, stop_after=7), Worker(plan), Worker(plan)
    with pytest.raises(KeyboardInterrupt):
        work(first, monkeypatch)
    written = json.loads((plan.out / "panel.json").read_text())
    assert 0 < len(written) <= len(first.started) == 7
    assert work(second, monkeypatch).ok
    assert sorted(first.started + second.started) == sorted(cell.folder for cell in plan.cells)
    assert len(plan.cells) == 2 * (1 + 2 + 6 + 2 + 6 + 6)
    assert work(third, monkeypatch).ok
    assert third.started == []
    written = json.loads((plan.out / "panel.json").read_text())
    assert len(written) == len(plan.cells)
    by_folder = {cell.folder: cell for cell in plan.cells}
    for entry in written:
        assert [*entry] == ["game", "arm", "pretrain_seed", "seed", "steps", "score", "human_normalized"]
        assert entry["human_normalized"] == human_normalized(entry["game"], entry["score"])
        steps = {"random": 1000, "zero_shot": 1_500_000, "untrained": 0}
        assert entry["steps"] == steps.get(entry["arm"], 100_000)
    seeds = {(each["arm"], each["pretrain_seed"], each["seed"]) for each in written}
    assert seeds == {
        ("random", None, 1), ("zero_shot", 1, None), ("zero_shot", 2, None),
        ("untrained", 1, None), ("untrained", 2, None),
        *(("finetuned", 1 + (seed > 3), seed) for seed in range(1, 7)),
        *(("from_zero", 1 + (seed > 3), seed) for seed in range(1, 7)),
        *(("scratch", None, seed) for seed in range(1, 7)),
    }  # fmt: skip
    best = max(written, key=lambda each: (each["game"] == "freeway", each["score"]))
    assert best["score"] == pytest.approx(score(by_folder["freeway/finetuned/pretrain2-seed6"]))


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
        "1 run is not done yet.",
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


def test_lines_of_the_forest_lie_on_one_axis(plan, tmp_path):
    for cell in plan.cells:
        make_done(plan, cell, score(cell))
    write_record(plan, COMMAND)
    [section] = panel_sections(read_all([tmp_path], lambda text: None))
    lines = section.lines()
    assert [line.name for line in lines] == ["freeway", "boxing", "pooled"]
    assert {line.positions["zero"] for line in lines} == {"0.0%"}  # all are above 0, where the axis begins
    assert max(float(line.positions["high"].rstrip("%")) for line in lines) == 100
    write_record(plan)
    alone = read_section(tmp_path / "panel.json")
    assert alone.verdicts == section.verdicts
    assert alone.tables() == section.tables()
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"no scores of finetuned and scratch: .* found none"):
        read_section(tmp_path / "other.json")
    figure = draw_panel(require_matplotlib(["png"]), section, "A panel")
    labels = [tick.get_text() for tick in figure.axes[1].get_yticklabels()]
    assert labels == ["freeway", "boxing", "pooled"]
