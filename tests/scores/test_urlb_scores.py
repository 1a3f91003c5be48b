"""URLB's scores by hand: shares of an expert's return by body, family and published row."""

import pytest

from voidrl.report.scores.urlb import (
    ALL,
    BODIES,
    MethodScores,
    ScoreGroup,
    expert_normalized,
    group_families,
    published_name,
    published_scores,
    sort_methods,
    urlb_task,
)

STAND, WALK, RUN, FLIP = BODIES["walker"]


def method(label, scores, family="data", published=None):
    return MethodScores(label, family, scores, published or {})


def test_twelve_tasks_of_three_bodies():
    assert {body: len(tasks) for body, tasks in BODIES.items()} == {
        "walker": 4,
        "quadruped": 4,
        "jaco": 4,
        ALL: 12,
    }
    assert urlb_task("dmc/Walker-Run") == RUN
    assert [urlb_task(env) for env in ("dmc/walker", "dmc/cheetah_run", "atari/pong", "dmc/nothing")] == [
        None
    ] * 4
    assert expert_normalized("dmc/walker_run", 398.0) == pytest.approx(0.5)
    assert expert_normalized("dmc/cheetah_run", 398.0) is None


@pytest.mark.parametrize(
    ("name", "means"),
    [  # of the README of MOSS, over eleven tasks
        ("icm", (0.461, 0.543, 0.347, 0.505)),
        ("apt_ind", (0.647, 0.796, 0.515, 0.623)),
        ("apt_icm", (0.661, 0.801, 0.570, 0.596)),
        ("cic", (0.736, 0.873, 0.586, 0.753)),
        ("moss", (0.806, 0.882, 0.757, 0.769)),
    ],
)
def test_published_means_are_over_the_tasks_that_are_printed(name, means):
    group = ScoreGroup(name, [method(name, {}, published=published_scores(name))])
    for body, mean in zip((ALL, "walker", "quadruped", "jaco"), means, strict=True):
        found, tasks = group.published(body)
        assert found == pytest.approx(mean, abs=6e-4)
        assert tasks == {ALL: 11, "jaco": 3}.get(body, 4)
        assert group.score(body) is None


def test_the_row_of_apt_depends_on_its_representation():
    assert published_name("apt", "icm") == "apt_icm"
    assert published_name("apt", "identity") == "apt_ind"
    assert published_name("apt", "simclr") is None
    assert published_name("rnd", "learner") == "rnd"
    assert published_name("metra", "learner") is None


def test_a_published_mean_is_over_the_same_tasks_as_ours():
    ours = {RUN: [0.5, 0.7], BODIES["jaco"][1]: [0.2]}  # the second is not printed
    group = ScoreGroup("RND", [method("RND", ours, published=published_scores("rnd"))])
    assert group.published(ALL) == (pytest.approx(267 / 796), 1)
    score = group.score(ALL)
    assert score.mean.point == pytest.approx((0.6 + 0.2) / 2)
    assert score.on_published == pytest.approx(0.6)
    assert (len(score.tasks), score.runs) == (2, 3)
    assert group.published("quadruped")[1] == 4  # no run there: all that are printed


def test_intervals_are_of_seeds_within_tasks():
    one = ScoreGroup("a", [method("a", {RUN: [0.5], FLIP: [0.1]})]).score("walker")
    assert one.show() == "0.30"  # one seed each: no interval
    assert (one.mean.low, one.mean.high) == (one.mean.point, one.mean.point)
    two = ScoreGroup("a", [method("a", {RUN: [0.4, 0.6], FLIP: [0.1, 0.1]})]).score("walker")
    assert two.show() == "0.30 [0.25, 0.35]"  # run is 0.4 or 0.6 at the ends, flip never differs
    assert two.show("iqm").startswith("0.25 [")  # 0.1 and 0.4 are the middle of four runs


def test_a_family_is_averaged_over_methods_with_the_same_tasks():
    full = method("full", {RUN: [0.2], FLIP: [0.4]})
    also = method("also", {RUN: [0.6], FLIP: [0.8]})
    half = method("half", {RUN: [1.0]})
    other = method("other", {RUN: [0.9]}, family="knowledge")
    knowledge, data = group_families([full, also, half, other])
    assert (knowledge.label, data.label) == ("knowledge", "data")
    assert [each.label for each in data.members_on("walker")] == ["full", "also"]
    assert data.score("walker").mean.point == pytest.approx(0.5)
    assert data.score("jaco") is None
    assert [group.label for group in sort_methods([half, full, other, also])] == [
        "other",
        "half",
        "also",
        "full",
    ]
