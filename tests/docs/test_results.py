"""Records of results, their index, and the tables of README and docs that are made of them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

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
    assert not invalid & {spec["benchmark"] for spec in tables.values()}


def test_intervals_are_students(results):
    # Mean 2, deviation 1, standard error 1 / √3; t(2) at 0.95 is 2.920.
    assert results.interval([1.0, 2.0, 3.0]) == (0.314, 3.69)
    assert results.interval([5.0]) == (None, None)


def test_a_finished_run_becomes_a_record(results, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    run = tmp_path / "run"
    run.mkdir()
    config = {"seed": 3, "steps": 100, "env": {"id": "dmc/walker_run"}}
    hardware = {"gpus": [], "cpu": {"model": "a CPU"}}
    git = {"commit": "0123456789"}
    machine = {"command": "voidrl train", "git": git, "hardware": hardware, "date": "2026-01-02T03:04:05"}
    for name, value in {"config": config, "environment": machine, "evaluation": {"returns": [1, 3]}}.items():
        (run / f"{name}.json").write_text(json.dumps(value))
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    results.add(run, "urlb", "scratch", "valid")
    record = json.loads((tmp_path / "results/urlb/scratch/seed3/record.json").read_text())
    assert record["tasks"]["walker_run"]["score"] == 2
    assert record["provenance"] == {
        "command": "voidrl train",
        "commit": "0123456",
        "machine": "a CPU",
        "date": "2026-01-02",
    }
