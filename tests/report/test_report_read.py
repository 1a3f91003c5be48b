"""Any set of folders is read as far as it goes, and what is left out is named."""

import json
import os

import pytest
from synthetic_runs import MAZE, write_checkpoint, write_experiment, write_json, write_run

from voidrl.cli import main as cli
from voidrl.errors import RunFolderError
from voidrl.report.find import find_runs
from voidrl.report.gallery import newest, read_visits
from voidrl.report.read import read_all
from voidrl.runs import locks
from voidrl.runs.folder import RunFolder
from voidrl.system.terminal.output import say

ROWS = [{"step": step, "phase": "pretrain", "episode/return": step / 10} for step in (50, 100)]


def read(*paths):
    said = []
    return read_all(paths, said.append), said


def test_runs_are_found_at_any_depth_once_and_in_their_natural_order(tmp_path):
    for name in ("a/seed10", "a/seed2", "b"):
        write_run(tmp_path / name, rows=ROWS)
    write_run(tmp_path / "b" / "task", rows=ROWS)  # a run inside the folder of another
    (tmp_path / "b" / "checkpoints" / "step_000000000100").mkdir(parents=True)
    (tmp_path / "b" / "checkpoints" / "step_000000000100" / "config.json").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")  # somebody else's
    (tmp_path / "loop").symlink_to(tmp_path)
    found = find_runs([tmp_path, tmp_path / "a", tmp_path / "b" / "metrics.jsonl"])
    assert [place.name for place in found.places] == ["a/seed2", "a/seed10", "b", "b/task"]
    assert found.skipped == []


def test_among_others_a_path_without_runs_is_said_and_the_rest_is_reported(tmp_path):
    write_run(tmp_path / "fine", rows=ROWS)
    (tmp_path / "empty").mkdir()
    (tmp_path / "report.html").write_text("x")
    collection, said = read(*sorted(tmp_path.iterdir()))
    assert [run.path.name for run in collection.runs] == ["fine"]
    assert [each.path.name for each in collection.skipped] == ["empty"]  # a page is nothing that was lost
    assert len(said) == 1
    with pytest.raises(RunFolderError, match=r"there is nothing at .*typo"):
        read(tmp_path / "fine", tmp_path / "typo")
    with pytest.raises(RunFolderError, match=r"empty, .*report.html holds no runs: expected a run folder"):
        read(tmp_path / "empty", tmp_path / "report.html")


def test_an_experiment_that_has_not_started_says_so(tmp_path):
    write_experiment(tmp_path, [{"folder": "apt/seed1"}, {"folder": "apt/seed2"}])
    with pytest.raises(RunFolderError, match=r"no run can be reported: none in .* has started"):
        read(tmp_path)


def test_what_cannot_be_read_is_skipped_and_said_and_the_rest_is_reported(tmp_path):
    write_run(tmp_path / "good", rows=ROWS)
    (write_run(tmp_path / "torn", rows=ROWS) / "config.json").write_text("{")
    (write_run(tmp_path / "lost", rows=ROWS) / "config.json").unlink()
    write_json(write_run(tmp_path / "newer", rows=ROWS) / "config.json", {"format": 2, "world": MAZE})
    write_run(tmp_path / "dream", rows=ROWS, phase="pretrain")
    config = json.loads((tmp_path / "dream" / "config.json").read_text())
    write_json(tmp_path / "dream" / "config.json", {**config, "phase": "dream"})
    collection, said = read(tmp_path)
    assert [run.name for run in collection.runs] == ["good"]
    whys = {each.path.name: each.why for each in collection.skipped}
    assert "not JSON" in whys["torn"]
    assert "no config.json" in whys["lost"]
    assert "this version of voidrl" in whys["newer"]
    assert "phase is 'dream'" in whys["dream"]
    assert "upgrade voidrl" in whys["dream"]
    assert len(said) == 4
    with pytest.raises(RunFolderError, match=r"no run can be reported: .*torn was skipped"):
        read(tmp_path / "torn")


def test_a_torn_last_line_is_tolerated_and_a_damaged_one_is_left_out_with_a_note(tmp_path):
    torn, damaged = write_run(tmp_path / "torn", rows=ROWS), write_run(tmp_path / "damaged", rows=ROWS)
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"step": 150, "epi')
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([lines[0], "###", '{"no": 1}', lines[1]]) + "\n")
    collection, _ = read(torn, damaged)
    first, second = collection.runs
    for run in (first, second):
        assert run.series["episode/return"][1].tolist() == [5, 10]
        assert run.steps == 100
    assert first.notes == []
    assert second.notes == [
        "metrics.jsonl is damaged: 2 of its 4 lines are left out",
    ]


def test_a_run_with_absurd_metrics_is_named_and_the_others_are_read(tmp_path):
    huge, whole = write_run(tmp_path / "huge", rows=ROWS), write_run(tmp_path / "whole", rows=ROWS)
    os.truncate(huge / "metrics.jsonl", 2 << 30)
    collection, said = read(huge, whole)
    assert [run.steps for run in collection.runs] == [0, 100]
    assert [line for line in said if "more than 256 MB" in line and str(huge) in line]


def test_numbers_alone_become_series_and_of_one_step_the_last_counts(tmp_path):
    rows = [
        {"step": 10, "a": 1, "word": "x", "true": True, "null": None},
        {"step": 20, "a": 2.5, "null": 3},
        {"step": 20, "a": 4},
        {"step": 15, "a": 7},
        {"step": 30, "a": 10**400},
    ]
    run = read(write_run(tmp_path / "run", rows=rows))[0].runs[0]
    assert {name: (x.tolist(), y.tolist()) for name, (x, y) in run.series.items()} == {
        "a": ([10, 15, 20], [1, 7, 4]),
        "null": ([20], [3]),
    }


@pytest.mark.parametrize(
    ("written", "steps", "status", "why"),
    [
        ({"state": "done"}, 100, "done", ""),
        ({"state": "running"}, 400, "stopped", "its process ended and wrote no final state"),
        ({"state": "stopped", "signal": "SIGTERM"}, 400, "stopped", "stopped by SIGTERM"),
        ({"state": "failed", "error": "disk full"}, 100, "failed", "disk full"),
        (None, 100, "done", ""),
        (None, 400, "stopped", ""),
    ],
)
def test_how_far_a_run_came(tmp_path, written, steps, status, why):
    folder = write_run(tmp_path / "run", rows=ROWS, steps=steps, status=written)
    if written is None:
        (folder / "status.json").unlink()
    run = read(folder)[0].runs[0]
    assert (run.status, run.why) == (status, why)


def test_a_run_whose_lock_is_held_is_running(tmp_path):
    folder = write_run(tmp_path / "run", rows=ROWS, steps=400)
    assert read(folder)[0].runs[0].status == "stopped"  # nobody holds it
    with RunFolder(folder).lock():
        run = read(folder)[0].runs[0]
    assert (run.status, run.progress) == ("running", "100 of 400 steps")


def test_a_run_that_its_experiment_evaluates_is_running(tmp_path):
    write_run(tmp_path / "run", rows=ROWS)
    write_experiment(tmp_path, [{"folder": "run", "evaluated": True}])
    lock = locks.acquire(locks.cell_lock_path(tmp_path, "run"))
    run = read(tmp_path)[0].runs[0]
    locks.release(lock)
    assert (run.status, run.progress) == ("running", "100 of 100 steps")
    assert read(tmp_path)[0].runs[0].status == "done"


def test_an_evaluation_counts_only_if_it_is_of_the_agent_that_is_there(tmp_path):
    fresh = write_run(tmp_path / "fresh", rows=ROWS, evaluation=[1.0, 3.0])
    stale = write_run(tmp_path / "stale", rows=ROWS, evaluation=[1.0, 3.0])
    record = json.loads((stale / "evaluation.json").read_text())
    write_json(stale / "evaluation.json", {**record, "agent": {**record["agent"], "steps": 50}})
    broken = write_run(tmp_path / "broken", rows=ROWS)
    (broken / "evaluation.json").write_text('{"mean_return": "high"}')
    odd = write_run(tmp_path / "odd", rows=ROWS, evaluation=[1.0, 3.0])
    record = json.loads((odd / "evaluation.json").read_text())
    write_json(odd / "evaluation.json", {**record, "successes": True})
    runs = read(fresh, stale, broken, odd)[0].runs
    assert [run.evaluation is not None for run in runs] == [True, False, False, False]
    assert [len(run.notes) for run in runs] == [0, 1, 1, 1]
    assert "evaluate it again" in runs[1].notes[0]


def test_labels_and_missing_runs_come_from_the_experiment_above(tmp_path):
    write_run(tmp_path / "out" / "maze" / "seed1", rows=ROWS)
    cells = [{"folder": "maze/seed1", "label": "APT, k = 5"}, {"folder": "maze/seed2", "label": "APT, k = 5"}]
    write_experiment(tmp_path / "out", cells, title="Neighbors")
    collection, _ = read(tmp_path / "out" / "maze")
    assert collection.runs[0].cell.label == "APT, k = 5"
    assert collection.experiments[0].title == "Neighbors"
    assert collection.missing == {"seed2": ""}


@pytest.mark.parametrize("text", ["{", '{"format": 2, "name": "x", "cells": []}'])
def test_an_experiment_that_cannot_be_read_costs_its_labels_alone(tmp_path, text):
    write_run(tmp_path / "run", rows=ROWS)
    (tmp_path / "experiment.json").write_text(text)
    collection, said = read(tmp_path)
    assert collection.runs[0].cell is None
    assert len(collection.skipped) == 1
    assert "runs are named by their configs" in said[0]


def test_visits_come_from_the_newest_checkpoint_that_can_be_used(tmp_path):
    write_checkpoint(tmp_path, 100, [1, 2])
    write_checkpoint(tmp_path, 200, [3, 4])
    (tmp_path / "checkpoints" / "step_000000000300").mkdir()  # its manifest was never written
    saved = newest(tmp_path)
    assert saved.step == 200
    assert read_visits(saved)[0].tolist() == [3, 4]
    (saved.path / "loop.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(Exception, match=r"is (damaged|truncated|too long)"):
        read_visits(saved)
    assert newest(tmp_path / "elsewhere") is None


def test_no_control_character_of_a_stranger_reaches_the_terminal(tmp_path, capsys):
    """Names of folders, environments and errors: ESC, CSI, a carriage return, an override of direction."""
    evil = "a\x1b[2Jb\x9bc\rd\u202e"
    say(f"{evil}\nand more")
    assert capsys.readouterr().err == "a [2Jb c d \nand more\n"
    root = tmp_path / evil
    write_run(root / evil, rows=[{"step": 10, "coverage/cells": 2}], error=evil)
    write_run(
        root / "whole", rows=[{"step": 100, "coverage/cells": 2, evil: 1}], env=f"a/{evil}", method=evil
    )
    (root / "damaged").mkdir()
    (root / "damaged" / "config.json").write_text("###")
    for name in ("report.html", "report.json"):
        assert cli.main(["report", str(root), "-o", str(root / name)]) == 0
    assert cli.main(["status", str(root)]) == 0
    assert cli.main(["evaluate", str(root / "damaged")]) == 2
    seen = capsys.readouterr()
    page, data = ((root / name).read_text() for name in ("report.html", "report.json"))
    assert "a [2Jb c d" in page
    lines = [line for text in (seen.out, seen.err, page, data) for line in text.split("\n")]
    assert [line for line in lines if {*line} & {*"\x1b\x9b\r\u202e"}] == []
