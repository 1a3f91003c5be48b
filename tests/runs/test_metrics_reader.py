"""Rows are read back whole, torn last lines dropped, and damage is named."""

import os
import tracemalloc

import pytest

from voidrl.errors import RunFolderError
from voidrl.runs import metrics
from voidrl.runs.evaluations import zero_shot
from voidrl.runs.metrics import read_metrics


def test_read_metrics_drops_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": null}\n{"step": 2}\n\x00\x00\xff')
    assert read_metrics(path) == [{"step": 1, "loss": None}, {"step": 2}]
    assert read_metrics(tmp_path) == read_metrics(path)
    path.write_text("")
    assert read_metrics(path) == []
    path.unlink()
    with pytest.raises(RunFolderError, match="no metrics file at"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        *('{"step": 2, "lo', "", "7", '{"step": true}', '{"step": -1}', '{"step": 2.0}'),
        *(f'{{"step": {10**4000}}}', f'{{"step": {"9" * 5000}}}', f'{{"step": 2, "x": {"[" * 200_000}'),
    ],
)
def test_read_metrics_names_a_damaged_line(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{damage}\n{{"step": 3}}\n')
    with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        read_metrics(path)


def test_damaged_lines_can_be_skipped_with_a_sentence(tmp_path):
    path, said = tmp_path / "metrics.jsonl", []
    path.write_text('{"step": 1}\n###\n{"no": 1}\n{"step": 3}\n{"step": 4, "lo')
    assert [row["step"] for row in read_metrics(tmp_path, skip=said.append)] == [1, 3]
    assert said == ["metrics.jsonl is damaged: 2 of its 5 lines are left out"]


def test_a_number_of_hundreds_of_digits_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "x": {10**400}, "y": {2**62}}}')
    assert read_metrics(tmp_path) == [{"step": 1, "x": None, "y": 2**62}]
    assert zero_shot(tmp_path) is None


@pytest.mark.parametrize(
    ("size", "content", "why"),
    [
        (2 << 30, b'{"step": 1}\n', "it has more than 256 MB"),
        (9 << 20, b'{"step": 0}\n', "it has a line of more than 4 MB"),
        (9 << 20, b"", "it has a line of more than 4 MB"),
        (None, b'{"step":1}\n' * 1001, "it has more than 1000 rows"),
        (None, b'{"step":1,"x":[' + b"[]," * 2000 + b"1]}\n", "it has more than 2000 values"),
    ],
)
def test_a_file_too_large_to_be_read_is_refused_in_little_memory(tmp_path, monkeypatch, size, content, why):
    monkeypatch.setattr(metrics, "MAX_ROWS", 1000)
    monkeypatch.setattr(metrics, "MAX_VALUES", 2000)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    os.truncate(path, len(content) if size is None else size)
    tracemalloc.start()
    with pytest.raises(RunFolderError, match=rf"metrics\.jsonl cannot be read: {why}"):
        read_metrics(path, skip=print)
    assert zero_shot(tmp_path) is None
    assert tracemalloc.get_traced_memory()[1] < 300 << 20
    tracemalloc.stop()
