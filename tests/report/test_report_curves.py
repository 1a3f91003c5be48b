"""Means and ranges over seeds, computed by hand, also for runs that log at other steps or end early."""

import numpy as np
import pytest

from voidrl.report.curves import mean_curve, rounded


def series(*points):
    steps, values = zip(*points, strict=True)
    return np.array(steps, float), np.array(values, float)


CURVES = {
    "a run with one row is a point": ([((50, 7),)], [[50], [7], [7], [7], [1]]),
    "mean and range at equal steps": (
        [((10, 1), (20, 5)), ((10, 3), (20, 5)), ((10, 8), (20, 2))],
        [[10, 20], [4, 4], [1, 2], [8, 5], [3, 3]],
    ),
    "a run that logs less often is interpolated": (
        [((0, 0), (10, 1), (20, 2)), ((0, 0), (20, 4))],
        [[0, 10, 20], [0, 1.5, 3], [0, 1, 2], [0, 2, 4], [2, 2, 2]],
    ),
    "beyond the end of a run the mean is over the others": (
        [((10, 1), (20, 1), (30, 1), (40, 1)), ((10, 3), (20, 3))],
        [[10, 20, 30, 40], [2, 2, 1, 1], [1, 1, 1, 1], [3, 3, 1, 1], [2, 2, 1, 1]],
    ),
    "a gap between runs stays empty": (
        [((0, 1), (10, 1)), ((90, 5), (100, 5))],
        [[0, 10, 90, 100], [1, 1, 5, 5], [1, 1, 5, 5], [1, 1, 5, 5], [1, 1, 1, 1]],
    ),
}


@pytest.mark.parametrize(("runs", "expected"), CURVES.values(), ids=CURVES)
def test_mean_and_range_by_hand(runs, expected):
    curve = mean_curve([series(*points) for points in runs])
    assert [part.tolist() for part in curve] == expected


def test_runs_that_end_a_few_steps_apart_are_averaged():
    curve = mean_curve([series((100, 1), (200, 2)), series((96, 3), (208, 4))])
    assert curve.runs.tolist() == [2] * len(curve.runs)
    assert curve.mean[-1] == 3


def test_many_rows_are_averaged_over_equal_intervals():
    steps = np.arange(1, 1001, dtype=float)
    curve = mean_curve([(steps, steps**2)], points=10)
    assert len(curve.steps) == 10
    expected = [float(np.mean(np.arange(start + 1, start + 101) ** 2)) for start in range(0, 1000, 100)]
    np.testing.assert_allclose(curve.mean, expected, rtol=1e-2)  # the mean step of an interval is rounded


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123456, 0.12346), (1234567.0, 1234600), (3.0, 3), (-2e-9, -2e-9), (0.0, 0)]
)
def test_numbers_for_the_page_have_five_digits(value, shown):
    assert rounded(np.array([value])) == [shown]
