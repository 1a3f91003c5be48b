"""Means and ranges over seeds, computed by hand, also for runs that log at other steps or end early."""

import numpy as np
import pytest

from voidrl.report.curves import mean_curve, rounded


def series(*points):
    steps, values = zip(*points, strict=True)
    return np.array(steps, float), np.array(values, float)


def lists(curve):
    return [part.tolist() for part in (curve.steps, curve.mean, curve.low, curve.high, curve.runs)]


def test_mean_and_range_at_equal_steps():
    curve = mean_curve([series((10, 1), (20, 5)), series((10, 3), (20, 5)), series((10, 8), (20, 2))])
    assert lists(curve) == [[10, 20], [4, 4], [1, 2], [8, 5], [3, 3]]


def test_a_run_that_logs_less_often_is_interpolated():
    curve = mean_curve([series((0, 0), (10, 1), (20, 2)), series((0, 0), (20, 4))])
    assert lists(curve) == [[0, 10, 20], [0, 1.5, 3], [0, 1, 2], [0, 2, 4], [2, 2, 2]]


def test_beyond_the_end_of_a_run_the_mean_is_over_the_others():
    curve = mean_curve([series((10, 1), (20, 1), (30, 1), (40, 1)), series((10, 3), (20, 3))])
    assert lists(curve) == [[10, 20, 30, 40], [2, 2, 1, 1], [1, 1, 1, 1], [3, 3, 1, 1], [2, 2, 1, 1]]


def test_runs_that_end_a_few_steps_apart_are_averaged():
    curve = mean_curve([series((100, 1), (200, 2)), series((96, 3), (208, 4))])
    assert curve.runs.tolist() == [2] * len(curve.runs)
    assert curve.mean[-1] == 3


def test_a_gap_between_runs_stays_empty():
    curve = mean_curve([series((0, 1), (10, 1)), series((90, 5), (100, 5))])
    assert lists(curve) == [[0, 10, 90, 100], [1, 1, 5, 5], [1, 1, 5, 5], [1, 1, 5, 5], [1, 1, 1, 1]]


def test_many_rows_are_averaged_over_equal_intervals():
    steps = np.arange(1, 1001, dtype=float)
    curve = mean_curve([(steps, steps**2)], points=10)
    assert len(curve.steps) == 10
    expected = [float(np.mean(np.arange(start + 1, start + 101) ** 2)) for start in range(0, 1000, 100)]
    np.testing.assert_allclose(curve.mean, expected, rtol=1e-2)  # the mean step of an interval is rounded


def test_a_run_with_one_row_is_a_point():
    assert lists(mean_curve([series((50, 7))])) == [[50], [7], [7], [7], [1]]


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123456, 0.12346), (1234567.0, 1234600), (3.0, 3), (-2e-9, -2e-9), (0.0, 0)]
)
def test_numbers_for_the_page_have_five_digits(value, shown):
    assert rounded(np.array([value])) == [shown]
