"""Aggregates, intervals and differences against values computed by hand, theory and the printed tables."""

import math
import random

import numpy as np
import pytest

from voidrl.envs.suites.atari import paper_table
from voidrl.errors import ConfigError
from voidrl.report.scores.scales import find_scale, normalize
from voidrl.report.scores.statistics import (
    STATISTICS,
    Interval,
    bootstrap,
    differences,
    percent,
)


def aggregate(scores):
    """Each statistic of the scores."""
    return {name: bootstrap(scores, name, resamples=1).point for name in STATISTICS}


RAGGED = {"a": [0.0, 2.0], "b": [4.0], "c": [1.0, 1.0, 7.0]}


def test_aggregates_by_hand():
    # Means of the games 1, 4, 3. Runs 0 1 1 2 4 7: one cut from each end leaves 1 1 2 4.
    expected = {"mean": 8 / 3, "median": 3.0, "iqm": 2.0, "above": 3}  # 1 is human level
    assert aggregate(RAGGED) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([5.0], 5.0),
        ([0.0, 1.0, 5.0], 2.0),  # ⌊3/4⌋ = 0: nothing is cut
        ([-9.0, 0.0, 1.0, 2.0, 3.0, 4.0, 90.0], 2.0),  # ⌊7/4⌋ = 1
        ([-9.0, -8.0, 1.0, 2.0, 3.0, 6.0, 80.0, 90.0], 3.0),
    ],
)
def test_the_interquartile_mean_cuts_a_quarter_rounded_down(runs, expected):
    assert aggregate({"a": runs})["iqm"] == pytest.approx(expected)
    assert aggregate({str(i): [run] for i, run in enumerate(runs)})["iqm"] == pytest.approx(expected)


@pytest.mark.parametrize(("games", "median", "mean", "above"), [(26, 47.5, 66.6, 8), (57, 33.4, 30.7, 12)])
def test_the_printed_scores_of_apt(games, median, mean, above):
    scores = {
        game: [normalize(f"atari/{game}", row["apt"])["normalized"]]
        for game, row in paper_table(games).items()
    }
    result = aggregate(scores)
    assert round(100 * result["median"], 1) == median
    assert round(100 * result["mean"], 1) == mean
    assert result["above"] == above


def test_no_order_matters():
    rng = random.Random(0)
    scores = {game: [rng.gauss(0, 1) for _ in range(rng.randint(1, 4))] for game in "abcdefg"}
    names = [*scores]
    rng.shuffle(names)
    shuffled = {name: rng.sample(scores[name], len(scores[name])) for name in names}
    assert names != [*scores]
    assert aggregate(scores) == aggregate(shuffled)
    assert bootstrap(scores, "iqm", resamples=200) == bootstrap(shuffled, "iqm", resamples=200)
    one = differences({"a": [[1.0, 2.0], [5.0, 4.0]], "b": [[3.0]]}, {"a": [1.0, 3.0], "b": [2.0, 0.0]})
    other = differences({"b": [[3.0]], "a": [[4.0, 5.0], [2.0, 1.0]]}, {"b": [0.0, 2.0], "a": [3.0, 1.0]})
    assert (one.games, one.pooled) == (other.games, other.pooled)


def test_resamples_of_two_seeds_have_the_shares_that_theory_gives():
    # Means 0, ½, 1 with probabilities ¼, ½, ¼.
    scores = {"a": [0.0, 1.0]}
    assert bootstrap(scores, "mean", level=0.6) == Interval(0.0, 0.5, 1.0)
    assert bootstrap(scores, "mean", level=0.4) == Interval(0.5, 0.5, 0.5)


def test_seeds_are_drawn_within_their_game_and_equally_likely(monkeypatch):
    drawn = []
    monkeypatch.setitem(STATISTICS, "first", lambda tables: drawn.append(tables) or tables[:, 0, 0])
    bootstrap(RAGGED, "first", resamples=6000)
    [tables] = [tables for tables in drawn if len(tables) > 1]
    for game, (place, values) in zip(
        tables[:300].transpose(1, 0, 2), enumerate(RAGGED.values()), strict=True
    ):
        assert {*game[:, : len(values)].ravel()} == {*values}, place
        assert np.isnan(game[:, len(values) :]).all()
    assert np.mean(tables[:, 2] == 7.0) == pytest.approx(1 / 3, abs=0.02)


def test_the_width_is_the_standard_error():
    rng = np.random.default_rng(2)
    scores = {str(g): rng.normal(5 * g, 1 + g, 40 + 10 * g) for g in range(5)}
    error = math.sqrt(sum(np.var(row) / len(row) for row in scores.values())) / 5
    found = bootstrap(scores, "mean", level=0.9)
    assert found.high - found.low == pytest.approx(2 * 1.645 * error, rel=0.03)


def test_one_seed_a_game_has_no_width():
    found = bootstrap({"a": [1.0], "b": [2.0], "c": [6.0]}, "mean")
    assert found == Interval(3.0, 3.0, 3.0)
    assert found.is_flat
    assert not bootstrap(RAGGED, "mean").is_flat


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "no scores"),
        ({"pong": []}, r"scores \[\] of game 'pong'"),
        ({"pong": [1.0, math.nan]}, r"scores \[1.0, nan\] of game 'pong': expected a finite number"),
        ({"pong": 3.0}, "scores 3.0 of game 'pong': expected a finite number for each seed"),
    ],
)
def test_scores_that_cannot_be_used(scores, message):
    with pytest.raises(ConfigError, match=message):
        bootstrap(scores, "mean")


def test_the_difference_is_of_means_over_pretrainings_then_over_games():
    found = differences({"a": [[1.0, 2.0, 3.0], [10.0]], "b": [[4.0]]}, {"a": [1.0, 3.0], "b": [5.0]})
    assert found.games["a"].point == (2.0 + 10.0) / 2 - 2.0
    assert found.pooled.point == (4.0 - 1.0) / 2
    assert found.games["b"] == Interval(-1.0, -1.0, -1.0)  # one run each: no width
    with pytest.raises(ConfigError, match="same games, but 'a' is only in one, 'b' is only in one"):
        differences({"a": [[1.0]]}, {"b": [1.0]})


def test_pretrainings_are_drawn_before_their_fine_tunings():
    # All fine-tunings of a pre-training agree: six runs, but two values. Their difference is 2 d.
    found = differences({"a": [[1.0] * 3, [-1.0] * 3]}, {"a": [0.0]})
    ends = np.sqrt(2.0)  # both draws are the same pre-training, deviations multiplied by √(2 / 1)
    assert (found.games["a"].low, found.games["a"].high) == pytest.approx((-ends, ends))
    # Without nesting the same six values would give a much narrower interval.
    flat = differences({"a": [[value] for value in (1.0, 1.0, 1.0, -1.0, -1.0, -1.0)]}, {"a": [0.0]})
    assert flat.games["a"].high < 0.8


def test_drawn_means_have_the_variance_of_means():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=12)
    found = differences({"a": [[0.0]]}, {"a": [*scores]}, level=0.6827, resamples=40_000)
    half = (found.games["a"].high - found.games["a"].low) / 2  # one standard deviation
    assert half == pytest.approx(scores.std(ddof=1) / np.sqrt(12), rel=0.03)


@pytest.mark.parametrize(("between", "low", "high"), [(0.0, 0.87, 0.98), (1.0, 0.84, 0.96)])
def test_coverage_of_the_pooled_difference_is_near_its_level(between, low, high):
    rng, hits, repetitions = np.random.default_rng(1), 0, 120
    for _ in range(repetitions):
        tuned = 0.3 + between * rng.normal(size=(5, 2, 1)) + rng.normal(size=(5, 2, 3))
        scratch = rng.normal(size=(5, 6))
        nested = {name: [*tuned[i]] for i, name in enumerate("abcde")}
        plain = {name: scratch[i] for i, name in enumerate("abcde")}
        pooled = differences(nested, plain, resamples=200).pooled
        hits += pooled.low <= 0.3 <= pooled.high
    assert low <= hits / repetitions <= high


def test_scores_are_normalized_by_task_in_any_spelling():
    # Breakout is 0 at 1.7 and 1 at 30.5; the expert's return on walker_run is 796.
    assert normalize("atari/Breakout", 30.5) == {"normalized": pytest.approx(1.0)}
    assert normalize("atari/breakout?repeat_action_probability=0.25", 1.7) == {"normalized": 0.0}
    assert normalize("dmc/Walker-Run", 398.0) == {"expert_normalized": pytest.approx(0.5)}
    assert find_scale("dmc/Walker-Run")[1] == "dmc/walker_run"
    for env in ("dmc/walker", "dmc/cheetah_run", "dmc/nothing", "atari/nothing", "CartPole-v1"):
        assert normalize(env, 1.0) == {}


def test_percentages_have_no_negative_zero():
    assert [percent(x) for x in (0.5, -0.0001, -0.05)] == ["50.0 %", "0.0 %", "-5.0 %"]
