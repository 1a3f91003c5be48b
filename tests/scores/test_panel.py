"""Differences with and without pre-training: intervals of known distributions, and fitting sentences."""

import dataclasses

import pytest

from voidrl.envs.suites.atari import baseline
from voidrl.report.scores.panel import (
    Panel,
    PanelArms,
    find_arms,
    make_panels,
    signed,
    span,
)
from voidrl.report.scores.statistics import Interval
from voidrl.runs.experiment_record import CellRecord

ARMS = PanelArms("finetuned", "scratch", "zero_shot", "random")
GAMES = ("freeway", "krull", "boxing")


def panel_of(tuned, scratch, zero_shot=(0.1, 0.2), random=0.0, games=GAMES, **more):
    """A panel of human-normalized scores: two pre-trainings with three seeds each, six from scratch."""
    shares = {
        "random": {None: [random]},
        "zero_shot": {p: [share] for p, share in enumerate(zero_shot, 1)},
        "finetuned": {p: [tuned + 0.01 * p * s for s in (1, 2, 3)] for p in (1, 2)},
        "scratch": {None: [scratch + 0.01 * s for s in range(1, 7)]},
    }

    def raw(game, share):
        low, human = baseline(game)
        return low + share * (human - low)

    scores = {
        arm: {
            game: {p: [raw(game, share) for share in found] for p, found in groups.items()} for game in games
        }
        for arm, groups in shares.items()
    }
    labels = {
        "finetuned": "fine-tuned",
        "scratch": "from scratch",
        "zero_shot": "zero-shot",
        "random": "random",
    }
    return Panel(ARMS, scores, labels, **more)


def test_a_clear_gain_and_a_clear_loss_are_said():
    gain = panel_of(1.0, 0.5)
    text = " ".join(gain.verdicts())
    assert "Fine-tuned has the higher mean on 3 of 3 games; its whole 90 % interval is above 0 on 3 (" in text
    assert "all of it above 0: in these games and at this scale, pre-training pays." in text
    assert "Zero-shot is above random on 3 of 3 games by its mean, with every pre-training seed on 3 " in text
    assert "intervals say little about how much pre-trainings differ, and tend to be too narrow." in text
    assert gain.gain.pooled.point == pytest.approx(0.5 + 0.03 - 0.035)
    loss = " ".join(panel_of(0.2, 0.5, zero_shot=(-0.1, 0.05)).verdicts())
    assert "higher mean on 0 of 3 games; its whole 90 % interval is above 0 on none, below 0 on 3 (" in loss
    assert "all of it below 0: in these games and at this scale, pre-training hurts." in loss
    assert "above random on 0 of 3 games by its mean, with every pre-training seed on none." in loss


def test_an_interval_that_includes_0_claims_nothing():
    text = " ".join(panel_of(0.505, 0.5, missing=4).verdicts())
    assert "which includes 0: these runs do not tell whether pre-training helps or hurts." in text
    assert "pays" not in text
    assert "Not done yet: 4 runs." in text


def test_what_is_not_there_yet_is_said():
    scores = panel_of(1.0, 0.5).scores
    few = {
        **scores,
        "scratch": {game: found for game, found in scores["scratch"].items() if game != "boxing"},
    }
    text = " ".join(dataclasses.replace(panel_of(1.0, 0.5), scores=few).verdicts())
    assert "2 of 2 games" in text
    assert "Not compared, as one of the two has no score yet: boxing." in text
    none = dataclasses.replace(panel_of(1.0, 0.5), scores={**scores, "scratch": {}})
    assert none.verdicts()[0] == "No game has scores of both fine-tuned and from scratch yet."
    single = {
        arm: {game: {p: found[:1]} for game, groups in games.items() for p, found in [*groups.items()][:1]}
        for arm, games in scores.items()
    }
    text = " ".join(dataclasses.replace(panel_of(1.0, 0.5), scores=single).verdicts())
    assert "without a spread between seeds there is no interval, and nothing follows from it" in text
    assert "its whole 90 % interval is above 0 on none." in text  # a point is no interval


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
    assert panel.scores == {"chance": {"krull": {None: [1600.0]}}, "tuned": {"krull": {1: [3000.0]}}}
    assert panel.missing == 2


def test_signs():
    assert [signed(x) for x in (0.123, -0.05, 0.0, 0.0001)] == ["+12.3 %", "-5.0 %", "0.0 %", "0.0 %"]
    assert span(Interval(-0.1, 0.0, 0.2)) == "[-10.0 %, +20.0 %]"
    assert span(Interval(0.1, 0.1, 0.1)) == ""
