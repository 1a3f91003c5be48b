"""The panel: its record, scores, table, report and picture."""

from done_cells import make_done, plan_of, printed_results

from voidrl.cli.main import main as cli
from voidrl.envs.suites.atari import baseline
from voidrl.runs.experiment_record import read_experiment_record

SHARES = {"random": 0.0, "zero_shot": 0.2, "finetuned": 0.6, "scratch": 0.4}
SHARES |= {"untrained": 0.0, "from_zero": 0.3}


def score(cell):
    random, human = baseline(cell.folder.partition("/")[0])
    return random + (SHARES[cell.arm.name] + 0.01 * cell.seed) * (human - random)


def test_results_and_reports_show_the_differences(tmp_path, monkeypatch):
    plan = plan_of("atari-panel", tmp_path, tasks=("freeway", "boxing"))
    for cell in plan.cells:
        if cell.folder != "boxing/scratch/seed6":
            make_done(plan, cell, score(cell))
    text = " ".join(printed_results(plan))
    cells = {cell.folder: cell for cell in read_experiment_record(tmp_path).cells}
    tuned = cells["boxing/finetuned/pretrain2-seed5"]
    assert (tuned.arm, tuned.pretrain_seed, tuned.seed, tuned.like) == ("finetuned", 2, 5, None)
    assert cells["boxing/scratch/seed5"].like == "finetuned"
    for expected in (
        "fine-tuned − from scratch",
        "fine-tuned has the higher mean on 2 of 2 tasks",
        "all of it above 0: in these tasks and at this scale, pre-training pays.",
        "freeway +20.0 %",
        "pooled +",
        "Runs not started",
    ):
        assert expected in text, expected
    monkeypatch.chdir(tmp_path)
    assert cli(["report", str(tmp_path), "-o", "report.html", "--no-media"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert 'id="panel"' in page
    assert "pre-training pays." in page
