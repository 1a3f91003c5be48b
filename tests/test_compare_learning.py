"""`benchmarks/compare_learning.py`: rows are paired by seed and step, and p is counted exactly."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("compare_learning")


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.0, 0.0], 1),  # equal versions
        ([1.0, 1.0, 1.0], 2 / 8),  # only all of one sign
        ([3.0, 1.0], 2 / 4),  # ±4, but not ±2
        ([1.0, -1.0], 1),  # nothing is nearer to 0
        ([0.1, 0.2, -0.3, 0.1, 0.2, -0.3], 1),  # the sum is 0 but for its rounding
        ([1.0, 2.0, 3.0, -1.0], 6 / 16),  # of 1 + 2 + 3 − 1: ±7 once, ±5 twice
    ],
)
def test_p_is_the_fraction_of_signs_that_are_as_far(module, differences, p):
    assert module.sign_flip_p(differences) == p


def logged(folder, every, rows):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"log": {"log_every_steps": every}}))
    lines = [json.dumps({"step": step, "score": score}) + "\n" for step, score in rows]
    (folder / "metrics.jsonl").write_text("".join(lines) + '{"step": 400, "sc')  # killed while it wrote


def test_rows_are_paired_by_the_step_at_which_they_were_due(module, tmp_path):
    logged(tmp_path / "old-1", 100, [(103, 1.0), (207, 2.0), (301, 3.0)])
    logged(tmp_path / "new-1", 100, [(100, 1.5), (150, 9.0), (200, None), (306, 3.5)])  # 150: a stop
    runs = {name: module.rows_of(tmp_path / name) for name in ("old-1", "new-1", "old-2")}
    expected = {100: [(1.0, 1.5)], 300: [(3.0, 3.5)]}
    assert module.paired("score", runs) == expected
    module.save(tmp_path / "rows.jsonl.gz", runs)
    assert module.paired("score", module.load(tmp_path / "rows.jsonl.gz")) == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seeds", "1", "1"], "expected different seeds"),
        (["--load", "taken/notes.txt"], "expected what --save has written"),
        (["src", "src", "--out", "o", "--", "CartPole-v1", "--seed", "5"], "--seed after --: seeds and"),
        (["src", "src", "--out", "taken", "--", "CartPole-v1"], "with other arguments: choose another --out"),
    ],
)
def test_what_cannot_be_compared_is_refused(module, tmp_path, monkeypatch, capsys, words, sentence):
    (tmp_path / "taken" / "old-1").mkdir(parents=True)
    (tmp_path / "taken" / "old-1" / "status.json").touch()
    (tmp_path / "taken" / "notes.txt").write_text("runs of whatever version")
    (tmp_path / "src").symlink_to(ROOT / "src")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare_learning.py", *words])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert sentence in capsys.readouterr().err + str(ended.value)
