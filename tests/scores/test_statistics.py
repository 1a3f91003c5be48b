"""Aggregates and bootstrap intervals against values computed by hand, theory and the printed tables."""

import dataclasses
import json
import math
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from voidrl.envs.suites.atari import GAMES, baseline, human_normalized, paper_table
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.report.scores import statistics as stats
from voidrl.report.scores.statistics import (
    STATISTICS,
    Interval,
    aggregate,
    bootstrap,
    probability_of_improvement,
    summarize,
)

RAGGED = {"a": [0.0, 2.0], "b": [4.0], "c": [1.0, 1.0, 7.0]}


def normal_scores(rng, games=1, seeds=25, spread=0.0):
    return {str(g): rng.normal(spread * rng.normal(), 1.0, seeds) for g in range(games)}


def test_aggregates_by_hand():
    # Means of the games 1, 4, 3. Runs 0 1 1 2 4 7: one cut from each end leaves 1 1 2 4.
    result = aggregate(RAGGED)
    assert result.mean == pytest.approx(8 / 3)
    assert result.median == pytest.approx(3.0)
    assert result.iqm == pytest.approx(2.0)
    assert result.above_human == 3  # 1 is human level
    assert (result.games, result.seeds, result.runs) == (3, 1, 6)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 1.0, 5.0], 2.0),  # ⌊3/4⌋ = 0: nothing is cut
        ([0.0, 1.0, 3.0, 100.0], 2.0),
        ([-9.0, 0.0, 1.0, 2.0, 3.0, 4.0, 90.0], 2.0),  # ⌊7/4⌋ = 1
        ([-9.0, -8.0, 1.0, 2.0, 3.0, 6.0, 80.0, 90.0], 3.0),
    ],
)
def test_the_interquartile_mean_cuts_a_quarter_rounded_down(runs, expected):
    assert aggregate({"a": runs}).iqm == pytest.approx(expected)
    assert aggregate({str(i): [run] for i, run in enumerate(runs)}).iqm == pytest.approx(expected)


@pytest.mark.parametrize(("games", "median", "mean", "above"), [(26, 47.5, 66.6, 8), (57, 33.4, 30.7, 12)])
def test_the_printed_scores_of_apt(games, median, mean, above):
    scores = {game: [human_normalized(game, row["apt"])] for game, row in paper_table(games).items()}
    result = aggregate(scores)
    assert round(100 * result.median, 1) == median
    assert round(100 * result.mean, 1) == mean
    assert (result.above_human, result.games) == (above, games)


def test_no_order_matters():
    rng = random.Random(0)
    scores = {game: [rng.gauss(0, 1) for _ in range(rng.randint(1, 4))] for game in "abcdefg"}
    names = [*scores]
    rng.shuffle(names)
    shuffled = {name: rng.sample(scores[name], len(scores[name])) for name in names}
    assert names != [*scores]
    assert aggregate(scores) == aggregate(shuffled)
    for over in ("seeds", "games", "both"):
        first = bootstrap(scores, "iqm", over=over, resamples=200)
        assert first == bootstrap(shuffled, "iqm", over=over, resamples=200)


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("over", ["seeds", "games", "both"])
def test_a_better_run_never_lowers_anything(name, over):
    rng = np.random.default_rng(1)
    scores = {str(g): [*rng.normal(0.8, 0.5, 3)] for g in range(8)}
    before = bootstrap(scores, name, over=over, resamples=300)
    for game in scores:
        better = {**scores, game: [scores[game][0] + 2.0, *scores[game][1:]]}
        after = bootstrap(better, name, over=over, resamples=300)
        assert (after.low, after.point, after.high) >= (before.low, before.point, before.high)
        assert after.low >= before.low
        assert after.high >= before.high
        assert after.point >= before.point


@pytest.mark.parametrize("name", ["mean", "median", "iqm"])
def test_shifting_and_scaling_all_scores_does_so_to_the_interval(name):
    scores = {game: [2.0 * v + 3.0 for v in row] for game, row in RAGGED.items()}
    plain, moved = (bootstrap(s, name, over="both", resamples=500) for s in (RAGGED, scores))
    for field in ("low", "point", "high"):
        assert getattr(moved, field) == pytest.approx(2.0 * getattr(plain, field) + 3.0)


def test_resamples_of_two_seeds_have_the_shares_that_theory_gives():
    # Means 0, ½, 1 with probabilities ¼, ½, ¼.
    scores = {"a": [0.0, 1.0]}
    assert bootstrap(scores, "mean") == Interval(0.0, 0.5, 1.0)
    assert bootstrap(scores, "mean", level=0.6) == Interval(0.0, 0.5, 1.0)
    assert bootstrap(scores, "mean", level=0.4) == Interval(0.5, 0.5, 0.5)


def test_seeds_are_drawn_within_their_game():
    drawn = []
    bootstrap({"a": [0.0, 1.0], "b": [10.0, 11.0]}, lambda t: drawn.append(t) or t[:, 0, 0], resamples=500)
    tables = np.concatenate(drawn)  # the first are the given scores
    assert tables.shape == (501, 2, 2)
    assert set(tables[:, 0].ravel()) == {0.0, 1.0}
    assert set(tables[:, 1].ravel()) == {10.0, 11.0}


@pytest.mark.parametrize("over", ["seeds", "games", "both"])
def test_games_keep_their_number_of_seeds_and_equally_likely_ones(over):
    drawn = []
    bootstrap(RAGGED, lambda t: drawn.append(t) or t[:, 0, 0], resamples=6000, over=over)
    tables = np.concatenate(drawn[1:])
    owner = {0.0: "a", 2.0: "a", 4.0: "b", 1.0: "c", 7.0: "c"}
    for row in tables[:300].reshape(-1, 3):
        values = row[~np.isnan(row)]
        assert np.isnan(row[len(values) :]).all()
        (game,) = {owner[value] for value in values}
        assert len(values) == len(RAGGED[game])
        if over == "games":
            assert [*values] == RAGGED[game]
    share = np.mean(tables[np.isin(tables, (1.0, 7.0))] == 7.0)
    assert share == pytest.approx(1 / 3, abs=0.02)
    first = np.mean(np.isin(tables[:, 0, 0], (0.0, 2.0)))  # the first game drawn is "a"
    assert first == pytest.approx(1.0 if over == "seeds" else 1 / 3, abs=0.02)


def test_the_width_over_seeds_is_the_standard_error():
    rng = np.random.default_rng(2)
    scores = {str(g): rng.normal(5 * g, 1 + g, 40 + 10 * g) for g in range(5)}
    error = math.sqrt(sum(np.var(row) / len(row) for row in scores.values())) / 5
    found = bootstrap(scores, "mean", level=0.9)
    assert found.high - found.low == pytest.approx(2 * 1.645 * error, rel=0.03)
    # Over games it is their spread, whatever that over seeds.
    between = np.std([np.mean(row) for row in scores.values()]) / math.sqrt(5)
    found = bootstrap(scores, "mean", level=0.9, over="games")
    assert found.high - found.low == pytest.approx(2 * 1.645 * between, rel=0.05)


@pytest.mark.parametrize(
    ("statistic", "level", "games", "over", "spread"),
    [
        ("mean", 0.95, 1, "seeds", 0.0),
        ("mean", 0.8, 4, "seeds", 0.0),
        ("iqm", 0.9, 3, "seeds", 0.0),
        ("mean", 0.9, 30, "games", 1.0),
    ],
)
def test_intervals_cover_the_truth_as_often_as_they_say(statistic, level, games, over, spread):
    rng = np.random.default_rng(3)
    repetitions, hits = 300, 0
    for _ in range(repetitions):
        scores = normal_scores(rng, games, 25 if over == "seeds" else 2, spread)
        found = bootstrap(scores, statistic, level=level, over=over, resamples=400)
        hits += found.low <= 0.0 <= found.high
    # Three standard errors of the count, and the percentile bootstrap's own 2 % at 25 samples.
    slack = 3 * math.sqrt(level * (1 - level) / repetitions)
    assert level - 0.02 - slack <= hits / repetitions <= level + slack


def test_both_is_wider_than_either_and_levels_are_nested():
    rng = np.random.default_rng(4)
    scores = normal_scores(rng, games=10, seeds=3, spread=0.6)
    widths = {}
    for over in ("seeds", "games", "both"):
        found = bootstrap(scores, "mean", over=over)
        widths[over] = found.high - found.low
        inner = bootstrap(scores, "mean", over=over, level=0.5)
        assert found.low < inner.low < inner.point < inner.high < found.high
    assert widths["both"] > max(widths["seeds"], widths["games"])


def test_the_same_seed_gives_the_same_interval_and_another_does_not():
    scores = normal_scores(np.random.default_rng(5), games=3, seeds=5)
    first = bootstrap(scores, "mean", resamples=50)
    assert first == bootstrap(scores, "mean", resamples=50)
    assert first != bootstrap(scores, "mean", resamples=50, seed=1)


def test_one_seed_a_game_has_no_width_over_seeds():
    scores = {"a": [1.0], "b": [2.0], "c": [6.0]}
    assert bootstrap(scores, "mean") == Interval(3.0, 3.0, 3.0)
    found = bootstrap(scores, "mean", over="games")
    assert found.low < 3.0 < found.high
    assert bootstrap(scores, "mean", over="both").high > 3.0
    for over in ("seeds", "games", "both"):
        assert bootstrap({"a": [2.0]}, "iqm", over=over) == Interval(2.0, 2.0, 2.0)


def test_memory_does_not_grow_with_resamples():
    scores = {game: [*range(20)] for game in GAMES}
    batches = []

    def watch(tables):
        batches.append(tables.size)
        return tables[:, 0, 0]

    tracemalloc.start()
    bootstrap(scores, watch, resamples=10_000, over="both")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(batches) <= stats.CELLS
    assert peak < 8 * 8 * stats.CELLS < 57 * 20 * 10_000 * 8  # all at once would be 91 MB for the draws alone
    probability_of_improvement(scores, scores, resamples=100)


def test_probability_of_improvement_by_hand():
    # a: of 2 × 2 pairs, 3 are won and 1 is a tie; b: of 1 × 3, one is won.
    x = {"a": [1.0, 2.0], "b": [0.0]}
    y = {"a": [1.0, 0.0], "b": [-1.0, 5.0, 6.0]}
    found = probability_of_improvement(x, y)
    assert found.point == pytest.approx((3.5 / 4 + 1 / 3) / 2)
    assert 0.0 <= found.low < found.point < found.high <= 1.0
    assert probability_of_improvement(y, x).point == pytest.approx(1.0 - found.point)


def test_probability_of_improvement_at_its_ends():
    low, high = ({g: [base + i for i in range(3)] for g in "ab"} for base in (0.0, 10.0))
    for over in ("seeds", "games", "both"):
        assert probability_of_improvement(high, low, over=over, resamples=100) == Interval(1.0, 1.0, 1.0)
        assert probability_of_improvement(low, high, over=over, resamples=100) == Interval(0.0, 0.0, 0.0)
    same = probability_of_improvement(low, low)
    assert same.point == 0.5
    assert same.low < 0.5 < same.high


def test_games_of_two_methods_are_drawn_together():
    # x wins game a and loses game b, each by far: only pairs of the same game give 0, ½ or 1 by games alone.
    x, y = {"a": [10.0], "b": [0.0]}, {"a": [5.0], "b": [20.0]}
    assert probability_of_improvement(x, y, over="games", level=0.4) == Interval(0.5, 0.5, 0.5)
    assert probability_of_improvement(x, y, over="games") == Interval(0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "no scores"),
        ({"pong": []}, r"scores \[\] of game 'pong'"),
        ({"pong": [1.0, math.nan]}, r"scores \[1.0, nan\] of game 'pong': expected a finite number"),
        ({"pong": [math.inf]}, "finite"),
        ({"pong": 3.0}, "scores 3.0 of game 'pong': expected a finite number for each seed"),
        ({"pong": [[1.0, 2.0]]}, "for each seed"),
        ({"pong": ["high"]}, "for each seed"),
        ({"pong": [[1.0], [1.0, 2.0]]}, "for each seed"),
        ({"pong": [None]}, "for each seed"),
    ],
)
def test_scores_that_cannot_be_used(scores, message):
    for use in (
        aggregate,
        summarize,
        lambda s: bootstrap(s, "mean"),
        lambda s: probability_of_improvement(s, s),
    ):
        with pytest.raises(ConfigError, match=message):
            use(scores)


def test_options_that_cannot_be_used():
    with pytest.raises(UnknownNameError, match="unknown statistic 'mena'; did you mean 'mean'"):
        bootstrap(RAGGED, "mena")
    with pytest.raises(UnknownNameError, match="unknown resampling 'seed'; did you mean 'seeds'"):
        bootstrap(RAGGED, "mean", over="seed")
    with pytest.raises(ConfigError, match="resamples = 0"):
        bootstrap(RAGGED, "mean", resamples=0)
    for level in (0.0, 1.0, 95, math.nan):
        with pytest.raises(ConfigError, match=r"level = .* such as 0.95"):
            bootstrap(RAGGED, "mean", level=level)
    with pytest.raises(ConfigError, match="expected an array of one"):
        bootstrap(RAGGED, np.nanmean)
    with pytest.raises(ConfigError, match="'b' is only in x, 'z' is only in y"):
        probability_of_improvement({"a": [1.0], "b": [1.0]}, {"a": [1.0], "z": [1.0]})


def test_a_summary_normalizes_and_aggregates():
    # Breakout is 0 at 1.7 and 1 at 30.5, Pong 0 at −20.7 and 1 at 14.6.
    summary = summarize({"ALE/Pong-v5": [14.6, -20.7], "Breakout": [30.5, 59.3]}, resamples=500)
    assert [*summary.games] == ["breakout", "pong"]
    assert summary.games["pong"].score == pytest.approx(-3.05)
    assert summary.games["pong"].normalized == pytest.approx(0.5)
    assert summary.games["breakout"].normalized == pytest.approx(1.5)
    assert summary.aggregate.mean == pytest.approx(1.0)
    assert summary.aggregate.above_human == 1
    assert {name: i.point for name, i in summary.intervals.items()} == {
        name: getattr(summary.aggregate, name) for name in STATISTICS
    }
    assert not summary.flat
    back = json.loads(json.dumps(dataclasses.asdict(summary), allow_nan=False))
    assert back["games"]["pong"]["scores"] == [14.6, -20.7]
    assert back["intervals"]["mean"]["low"] == summary.intervals["mean"].low
    assert (back["level"], back["resamples"], back["over"]) == (0.95, 500, "seeds")


def test_a_summary_as_text():
    lines = summarize({"Pong": [14.6, -20.7], "Breakout": [30.5, 59.3]}, resamples=500).table().splitlines()
    assert lines == [
        "game         seeds       score  normalized",
        "breakout         2        44.9     150.0 %",
        "pong             2        -3.0      50.0 %",
        "",
        "mean            100.0 %  [50.0 %, 150.0 %]",
        "median          100.0 %  [50.0 %, 150.0 %]",
        "IQM             100.0 %  [50.0 %, 150.0 %]",
        "above human      1 of 2  [1, 2]",
        "",
        "[95 % intervals] from 500 resamples of seeds within games.",
    ]


def test_a_summary_of_one_seed_claims_no_interval():
    human = {game: [baseline(game)[1]] for game in GAMES}
    summary = summarize(human, resamples=10)
    assert summary.flat
    assert summary.aggregate.above_human == 57
    text = summary.table()
    assert "[" not in text
    assert "57 of 57" in text
    assert text.endswith("One seed per game: no intervals over seeds.")
    assert "57 of 57  [57, 57]" in summarize(human, over="games", resamples=10).table()


def test_a_summary_says_which_games_widen_nothing():
    text = summarize({"pong": [1.0, 2.0], "alien": [227.7]}, resamples=10).table()
    assert text.endswith("Games with one seed, which add no width: 1.")
    assert " 0.0 %" in text
    assert "-0.0 %" not in text


def test_one_game_in_two_spellings_is_refused():
    with pytest.raises(ConfigError, match="'Pong' and 'ALE/Pong-v5' are the same game"):
        summarize({"Pong": [1.0], "ALE/Pong-v5": [2.0]})
    with pytest.raises(UnknownNameError, match="unknown game 'Pnog'"):
        summarize({"Pnog": [1.0]})


def test_torch_is_not_imported():
    code = "import sys, voidrl.report.scores.statistics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
