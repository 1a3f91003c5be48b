"""URLB's scores by hand: shares of an expert's return by body, family and published row."""

import pytest

from voidrl.report.scores.urlb import (
    ALL,
    BODIES,
    MethodScores,
    expert_normalized,
    published_name,
    published_scores,
    score_table,
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
    found = method(name, {}, published=published_scores(name))
    for body, mean in zip((ALL, "walker", "quadruped", "jaco"), means, strict=True):
        assert found.published_mean(body) == pytest.approx(mean, abs=6e-4)
        assert found.score(body) is None


def test_the_row_of_apt_depends_on_its_representation():
    assert published_name("apt", "icm") == "apt_icm"
    assert published_name("apt", "identity") == "apt_ind"
    assert published_name("apt", "simclr") is None
    assert published_name("rnd", "learner") == "rnd"
    assert published_name("metra", "learner") is None


def test_a_published_mean_is_over_the_same_tasks_as_ours():
    ours = {RUN: [0.5, 0.7], BODIES["jaco"][1]: [0.2]}  # the second is not printed
    rnd = method("RND", ours, published=published_scores("rnd"))
    assert rnd.published_mean(ALL) == pytest.approx(267 / 796)
    assert rnd.score(ALL).mean.point == pytest.approx((0.6 + 0.2) / 2)
    assert len(rnd.score(ALL).tasks) == 2
    assert rnd.published_mean("jaco") is None
    quadruped = [value for task, value in published_scores("rnd").items() if task in BODIES["quadruped"]]
    assert rnd.published_mean("quadruped") == pytest.approx(sum(quadruped) / 4)  # no run there


def test_intervals_are_of_seeds_within_tasks():
    one = method("a", {RUN: [0.5], FLIP: [0.1]})
    two = method("b", {RUN: [0.4, 0.6], FLIP: [0.1, 0.1]}, family="")
    columns, rows = score_table([one, two])
    assert columns == ["method", "family", "all", "walker", "quadruped", "jaco", "IQM"]
    assert rows[0] == ["a", "data", "0.30 (2/12)", "0.30 (2/4)", "not run", "not run", "0.30"]  # no interval
    # Run is 0.4 or 0.6 at the ends, flip never differs. Of four runs, 0.1 and 0.4 are the middle.
    assert rows[1][:3] == ["b", "–", "0.30 [0.25, 0.35] (2/12)"]
    assert rows[1][-1].startswith("0.25 [")


def test_methods_are_sorted_by_family_and_mean():
    low, high = method("low", {RUN: [0.2]}), method("high", {RUN: [0.6]})
    never, other = method("never", {}), method("other", {RUN: [0.1]}, family="knowledge")
    found = [each.label for each in sort_methods([never, low, other, high])]
    assert found == ["other", "high", "low", "never"]
