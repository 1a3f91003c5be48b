"""Rows are read back whole, torn last lines dropped, and damage is named."""

import pytest

from voidrl.errors import RunFolderError
from voidrl.runs.metrics import read_metrics


def test_read_metrics_drops_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": null}\n{"step": 2}\n\x00\x00\xff')
    assert read_metrics(path) == [{"step": 1, "loss": None}, {"step": 2}]
    assert read_metrics(tmp_path) == read_metrics(path)
    path.write_text("")
    assert read_metrics(path) == []


@pytest.mark.parametrize(
    "damage", ['{"step": 2, "lo', "", "7", f'{{"step": {10**4000}}}', f'{{"step": 2, "x": {"[" * 200_000}']
)
def test_read_metrics_names_a_damaged_line(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{damage}\n{{"step": 3}}\n')
    with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        read_metrics(path)


def test_read_metrics_of_nothing(tmp_path):
    with pytest.raises(RunFolderError, match="no metrics file at"):
        read_metrics(tmp_path)


def test_damaged_lines_can_be_skipped_with_a_sentence(tmp_path):
    path, said = tmp_path / "metrics.jsonl", []
    path.write_text('{"step": 1}\n###\n{"no": 1}\n{"step": 3}\n{"step": 4, "lo')
    assert [row["step"] for row in read_metrics(tmp_path, skip=said.append)] == [1, 3]
    assert said == ["metrics.jsonl is damaged: 2 of its 5 lines are left out"]
