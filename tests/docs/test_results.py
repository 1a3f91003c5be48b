"""Records of results, their index, and the tables of README and docs that are made of them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from voidrl.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("results")
    yield module
    sys.modules.pop("results")


def test_the_index_and_all_tables_are_up_to_date(results):
    results.main(["check"])


def test_no_number_of_the_readme_rests_on_an_invalid_record(results):
    tables = results.tomllib.loads((ROOT / "results" / "tables.toml").read_text())
    invalid = {row.benchmark for row in results.index() if row.status == "invalid"}
    assert invalid == {"atari-panel", "atari100k"}
    assert not invalid & {spec.get("benchmark") for spec in tables.values()}
    with pytest.raises(SystemExit, match="no valid record"):
        results.score(results.index(), "atari-panel/freeway/apt", [])


def test_intervals_are_students(results):
    # Mean 2, deviation 1, standard error 1 / √3; t(2) at 0.95 is 2.920.
    assert results.interval([1.0, 2.0, 3.0]) == (0.314, 3.69)
    assert results.interval([5.0]) == (None, None)


def test_a_finished_run_becomes_a_record(results, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    run, task = tmp_path / "run", "voidrl/PointMass-v0?task=pickup"
    main(["pretrain", task, "--method", "random", "--steps", "16", "--seed", "3", "--out", str(run)])
    main(["evaluate", str(run), "--episodes", "1"])
    machine = json.loads((run / "environment.json").read_text())
    git = {"commit": "0123456789", "clean": False}
    (run / "environment.json").write_text(json.dumps({**machine, "git": git, "date": "2026-01-02T03:04:05"}))
    results.add(run, "points", "random", "valid")
    record = json.loads((tmp_path / "results/points/random/seed3/record.json").read_text())
    found = record["tasks"]["PointMass-v0?task=pickup"]
    assert (found["pretrain_steps"], found["steps"], len(found["episodes"])) == (16, 0, 1)
    assert record["provenance"] == {
        "command": machine["command"],
        "commit": "0123456",
        "clean": False,
        "machine": machine["cpu"]["model"],
        "date": "2026-01-02",
    }
