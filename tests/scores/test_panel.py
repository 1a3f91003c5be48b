"""Differences with and without pre-training: intervals of known distributions, and fitting sentences."""

import dataclasses
import json

import numpy as np
import pytest

from voidrl.envs.suites.atari import baseline, human_normalized
from voidrl.errors import ConfigError
from voidrl.report.scores.differences import differences
from voidrl.report.scores.panel import (
    Panel,
    PanelArms,
    PanelEntry,
    find_arms,
    make_panels,
    read_panel,
    signed,
    span,
)
from voidrl.report.scores.statistics import Interval
from voidrl.runs.experiment_record import CellRecord

ARMS = PanelArms("finetuned", "scratch", "zero_shot", "random")
GAMES = ("freeway", "krull", "boxing")


def test_identical_scores_have_no_difference_and_no_interval():
    same = differences({"a": [[2.0, 2.0], [2.0]], "b": [[5.0]]}, {"a": [2.0, 2.0], "b": [5.0]})
    assert same.pooled == Interval(0.0, 0.0, 0.0)
    assert same.games == {"a": Interval(0.0, 0.0, 0.0), "b": Interval(0.0, 0.0, 0.0)}


def test_the_mean_is_over_pretrainings_then_over_games():
    found = differences({"a": [[1.0, 2.0, 3.0], [10.0]], "b": [[4.0]]}, {"a": [1.0, 3.0], "b": [5.0]})
    assert found.games["a"].point == (2.0 + 10.0) / 2 - 2.0
    assert found.pooled.point == (4.0 - 1.0) / 2
    assert found.games["b"] == Interval(-1.0, -1.0, -1.0)  # one run each: no width


def test_no_interval_depends_on_the_order_of_games_or_seeds():
    one = differences({"a": [[1.0, 2.0], [5.0, 4.0]], "b": [[3.0]]}, {"a": [1.0, 3.0], "b": [2.0, 0.0]})
    other = differences({"b": [[3.0]], "a": [[4.0, 5.0], [2.0, 1.0]]}, {"b": [0.0, 2.0], "a": [3.0, 1.0]})
    assert one.games == other.games
    assert one.pooled == other.pooled


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
        names = "abcde"
        pooled = differences(
            {name: [*tuned[i]] for i, name in enumerate(names)},
            {name: scratch[i] for i, name in enumerate(names)},
            resamples=200,
        ).pooled
        hits += pooled.low <= 0.3 <= pooled.high
    assert low <= hits / repetitions <= high


@pytest.mark.parametrize(
    ("nested", "plain", "message"),
    [
        ({}, {}, "no scores: expected at least one game"),
        ({"a": [[1.0]]}, {"b": [1.0]}, "same games, but 'a' is only in one, 'b' is only in one"),
        ({"a": [[]]}, {"a": [1.0]}, "of game 'a': expected a finite number for each seed"),
        ({"a": [[1.0]]}, {"a": []}, "game 'a' has no score of one of the methods"),
        ({"a": [[float("nan")]]}, {"a": [1.0]}, "expected a finite number"),
    ],
)
def test_scores_that_cannot_be_compared(nested, plain, message):
    with pytest.raises(ConfigError, match=message):
        differences(nested, plain)
    with pytest.raises(ConfigError, match="level = 1"):
        differences({"a": [[1.0]]}, {"a": [1.0]}, level=1.0)


def entry(game, arm, share, pretrain_seed=None, seed=None):
    random, human = baseline(game)
    score = random + share * (human - random)
    return PanelEntry(game, arm, pretrain_seed, seed, 100, score, human_normalized(game, score))


def panel_of(tuned, scratch, zero_shot=(0.1, 0.2), random=0.0, games=GAMES, **more):
    entries = []
    for game in games:
        entries += [entry(game, "random", random, seed=1)]
        entries += [entry(game, "zero_shot", share, p) for p, share in enumerate(zero_shot, 1)]
        for p in (1, 2):
            entries += [entry(game, "finetuned", tuned + 0.01 * p * s, p, s) for s in (1, 2, 3)]
        entries += [entry(game, "scratch", scratch + 0.01 * s, None, s) for s in range(1, 7)]
    labels = {
        "finetuned": "fine-tuned",
        "scratch": "from scratch",
        "zero_shot": "zero-shot",
        "random": "random",
    }
    return Panel(ARMS, entries, labels, **more)


def test_a_clear_gain_and_a_clear_loss_are_said():
    gain = panel_of(1.0, 0.5)
    text = " ".join(gain.verdicts())
    assert "Fine-tuned has the higher mean on 3 of 3 games; its whole 90 % interval is above 0 on 3 (" in text
    assert "all of it above 0: in these games and at this scale, pre-training pays." in text
    assert "Zero-shot is above random on 3 of 3 games by its mean, with every pre-training seed on 3 " in text
    assert "With two pre-trainings of a game, one difference shows how much they vary:" in text
    assert gain.gain.pooled.point == pytest.approx(0.5 + 0.03 - 0.035)
    loss = " ".join(panel_of(0.2, 0.5, zero_shot=(-0.1, 0.05)).verdicts())
    assert "higher mean on 0 of 3 games; its whole 90 % interval is above 0 on none, below 0 on 3 (" in loss
    assert "all of it below 0: in these games and at this scale, pre-training hurts." in loss
    assert "above random on 0 of 3 games by its mean, with every pre-training seed on none." in loss


def test_an_interval_that_includes_0_claims_nothing():
    text = " ".join(panel_of(0.505, 0.5, missing=4).verdicts())
    assert "which includes 0: these runs do not tell whether pre-training helps or hurts." in text
    assert "pays" not in text
    assert "4 runs are not done yet." in text


def test_what_is_not_there_yet_is_said():
    panel = panel_of(1.0, 0.5)
    few = [e for e in panel.entries if (e.game, e.arm) != ("boxing", "scratch")]
    text = " ".join(dataclasses.replace(panel, entries=few).verdicts())
    assert "2 of 2 games" in text
    assert "Not compared, as one of the two has no score yet: boxing." in text
    none = dataclasses.replace(panel, entries=[e for e in panel.entries if e.arm != "scratch"])
    assert none.verdicts()[0] == "No game has scores of both fine-tuned and from scratch yet."
    single = [e for e in panel.entries if e.seed in (None, 1) and e.pretrain_seed in (None, 1)]
    text = " ".join(dataclasses.replace(panel, entries=single).verdicts())
    assert "without a spread between seeds there is no interval, and nothing follows from it" in text
    assert "With one pre-training of a game, its interval says nothing about" in text
    assert "its whole 90 % interval is above 0 on none." in text  # a point is no interval
    assert "With 1 run of an arm in some game, the pooled interval is a little too narrow." in text


def cell(folder, phase, arm, **more):
    fields = {"source": None, "steps": 100, "protocol_steps": 100, "evaluated": True, "seed": 1, **more}
    method = fields.pop("method", "apt")
    return CellRecord(folder, arm, "atari/krull", method, phase=phase, arm=arm, **fields)


def test_arms_are_found_by_what_they_are_for():
    cells = [
        cell("r", "pretrain", "chance", method="random", pretrain_seed=1),
        cell("p", "pretrain", "apt", pretrain_seed=1),
        cell("f", "finetune", "tuned", source="p", pretrain_seed=1),
        cell("s", "train", "plain"),
    ]
    expected = PanelArms("tuned", "plain", "apt", "chance")
    assert find_arms(cells) == [expected]
    other = cell("d", "train", "der")
    assert find_arms([*cells, other]) == []  # two from scratch, and nothing says which one is meant
    like = dataclasses.replace(cells[3], like="tuned")
    assert find_arms([*cells[:3], like, other]) == [expected]
    unevaluated = dataclasses.replace(cells[1], evaluated=False)
    assert find_arms([unevaluated, cells[2], cells[3]]) == [PanelArms("tuned", "plain")]
    assert find_arms([dataclasses.replace(each, task="dmc/walker_run") for each in cells]) == []
    evaluations = {"r": {"mean_return": 1600.0}, "f": {"mean_return": 3000.0}, "s": None}
    [panel] = make_panels(cells, evaluations)
    assert [(e.arm, e.pretrain_seed, e.seed) for e in panel.entries] == [("chance", None, 1), ("tuned", 1, 1)]
    assert panel.missing == 2


def test_a_panel_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "panel.json"
    entries = panel_of(1.0, 0.5).entries
    path.write_text(json.dumps([dataclasses.asdict(each) for each in entries]))
    assert read_panel(path) == entries
    wrong = json.dumps([{**dataclasses.asdict(entries[0]), "human_normalized": "much"}])
    for text in ("{", "[1]", '[{"game": "krull"}]', wrong):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"cannot be read as a panel .*expected a list of entries with"):
            read_panel(path)


def test_signs():
    assert [signed(x) for x in (0.123, -0.05, 0.0, 0.0001)] == ["+12.3 %", "-5.0 %", "0.0 %", "0.0 %"]
    assert span(Interval(-0.1, 0.0, 0.2)) == "[-10.0 %, +20.0 %]"
    assert span(Interval(0.1, 0.1, 0.1)) == ""
