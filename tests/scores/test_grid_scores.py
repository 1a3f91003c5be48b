"""Rankings and effects of grids, against numbers computed by hand."""

from pathlib import Path

import pytest

from voidrl.report.scores.grids import grid_results
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, GridRecord
from voidrl.system.units import value_text


def results_of(runs, log=None, direction="maximize", chosen="product"):
    """`runs`: points, each with the values of its seeds; None for a run that is not done."""
    log = log or dict.fromkeys(runs[0][0], False)
    cells, values = [], {}
    for number, (point, found) in enumerate(runs):
        for seed, value in enumerate(found):
            folder = f"p{number}/seed{seed}"
            cells.append(
                CellRecord(
                    folder, "x", "env", "apt", seed, "pretrain", None, 10, 10, False, "apt", point=point
                )
            )
            values |= {} if value is None else {folder: value}
    grid = GridRecord(log, chosen, "coverage/cells", direction, short={"method.k": "k"})
    record = ExperimentRecord(Path("x"), "g", "G", "", None, "", cells, grid=grid)
    [result] = grid_results(record, values)
    return result


def test_variance_of_a_full_product_is_split_into_fields_interactions_and_seeds():
    # Means by (a, b): 10, 20 / 30, 60, two seeds ±1 around each. The mean of all is 30.
    # a: means 15 and 45, 4 runs each: 4 (15² + 15²) = 1800. b: means 20 and 40: 4 (10² + 10²) = 800.
    # Points: 2 (20² + 10² + 0² + 30²) = 2800, so interactions are 200. Seeds: 8 · 1 = 8. All: 2808.
    runs = [
        ({"a": 1, "b": "x"}, [9, 11]),
        ({"a": 1, "b": "y"}, [19, 21]),
        ({"a": 2, "b": "x"}, [29, 31]),
        ({"a": 2, "b": "y"}, [59, 61]),
    ]
    result = results_of(runs)
    shares = {effect.name: effect.share for effect in result.effects}
    assert shares == {"a": pytest.approx(1800 / 2808), "b": pytest.approx(800 / 2808)}
    assert result.rest == {"interactions": pytest.approx(200 / 2808), "seeds": pytest.approx(8 / 2808)}
    assert [(each.value, each.mean, each.low, each.high, each.runs) for each in result.effects[0].means] == [
        (1, 15.0, 9, 21, 4),
        (2, 45.0, 29, 61, 4),
    ]
    assert [point.mean for point in result.ranked] == [60, 30, 20, 10]
    text = " ".join(result.sentences(str))
    assert "Best of 4 points: a 2, b y with 60.0 (2 seeds)." in text
    assert "more than two standard errors" in text
    assert "a 64%, b 28%, interactions 7%, seeds 0%" in text


def test_points_within_the_spread_of_seeds_are_called_equal():
    # Within points: variances 2 and 2, pooled standard deviation √2; error of a difference √2 · √(1/2 + 1/2).
    result = results_of([({"method.k": 3}, [10, 12]), ({"method.k": 6}, [8, 10]), ({"method.k": 9}, [1, 3])])
    assert [result.equals_best(point) for point in result.ranked] == [False, True, False]
    assert "Equal to it as far as these seeds tell: 1 point within two standard errors" in " ".join(
        result.sentences(str)
    )
    assert result.name(result.ranked[0]) == "k 3"


def test_one_seed_each_says_so_and_smaller_may_be_better():
    result = results_of([({"method.k": 3}, [5.0]), ({"method.k": 6}, [4.0])], direction="minimize")
    assert [point.point["method.k"] for point in result.ranked] == [6, 3]
    assert "One seed each" in " ".join(result.sentences(str))
    assert result.rest == {}


def test_points_that_optuna_chose_have_no_shares():
    runs = [({"lr": 10.0**i, "k": k}, [float(i)]) for i, k in zip(range(6), [3, 6] * 3, strict=True)]
    lr, k = results_of(runs, {"lr": False, "k": False}, chosen="tune").effects
    assert (lr.share, k.share) == (None, None)
    assert lr.log  # over five orders of magnitude
    assert lr.dots == [(10.0**i, float(i)) for i in range(6)]
    assert not lr.means  # no value repeats
    assert [(each.value, each.mean) for each in k.means] == [(3, 2.0), (6, 3.0)]


def test_unfinished_points_are_not_ranked():
    runs = [({"k": 3}, [5.0]), ({"k": 6}, [None]), ({"k": 12}, [7.0])]
    result = results_of(runs)
    assert [point.point["k"] for point in result.ranked] == [12, 3]
    assert (result.missing, result.is_balanced) == (1, False)
    text = " ".join(result.sentences(str))
    assert "Not done yet: 1 point." in text


def test_one_run_at_each_value_of_one_field_says_nothing_of_chance():
    result = results_of([({"a": value}, [float(value)]) for value in (1, 2, 5)])
    assert [effect.share for effect in result.effects] == [None]  # it would be 100 % of any noise
    assert not result.equals_best(result.ranked[1])
    tied = results_of([({"a": value}, [7.0]) for value in (1, 2, 5)])
    assert [tied.equals_best(point) for point in tied.ranked] == [False, True, True]
    assert "With exactly the same value: 2 points." in tied.sentences(str)
    assert result.rest == {}
    assert "Share" not in " ".join(result.sentences(str))


def test_pre_trainings_of_fine_tuned_points_are_no_grid_of_their_own():
    cells = [
        CellRecord(
            f"{phase}/k={k}", "x", env, "apt", 1, phase, None, 10, 10, False, "apt", point={"method.k": k}
        )
        for k in (3, 6)
        for phase, env in (("pretrain", "maze"), ("finetune", "goal"))
    ]
    grid = GridRecord({"method.k": False}, "product", "return", "maximize")
    record = ExperimentRecord(Path("x"), "g", "G", "", None, "", cells, grid=grid)
    [result] = grid_results(record, {"finetune/k=3": 1.0, "finetune/k=6": 2.0})
    assert (result.task, len(result.ranked), result.missing) == ("goal", 2, 0)


def test_words_keep_the_order_of_the_grid_and_close_numbers_differ():
    runs = [({"a": word, "b": b}, [value + b]) for word, value in (("u", 1), ("v", 9)) for b in (1, 2)]
    [effect, _] = results_of(runs).effects
    assert [each.value for each in effect.means] == ["u", "v"]  # not the best first
    assert value_text(0.12345671) != value_text(0.12345672)
