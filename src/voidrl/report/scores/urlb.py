"""URLB's scores (Laskin et al. 2021): returns divided by an expert's, over the tasks of a body.

A published mean is over our tasks, as far as they are printed. A family is averaged over methods
with equal sets of tasks, so that none counts more than another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import numpy as np

from voidrl.envs.suites.dmcontrol import PREFIX, URLB, find_dmc_task
from voidrl.envs.suites.published import Published, numbers
from voidrl.errors import VoidrlError
from voidrl.report.scores.statistics import Interval, bootstrap

PRETRAIN_FRAMES = 2_000_000
TASK_FRAMES = 100_000
PROTOCOL_SEEDS = 10
ALL = "all"
BODIES: dict[str, tuple[str, ...]] = {
    body: tuple(f"{PREFIX}{body}_{task}" for task in tasks) for body, tasks in URLB.items()
}
BODIES[ALL] = tuple(task for tasks in BODIES.values() for task in tasks)
"""Environment ids of the tasks of each body, and of all of them."""
FAMILIES = ("knowledge", "data", "competence")
EXPERT = "expert"
RESAMPLES = 2000
VARIANTS = {"apt": {"icm": "apt_icm", "identity": "apt_ind"}}
"""Methods with several published rows: one for each representation."""


@cache
def _table() -> Published:
    return numbers("urlb")


@cache
def expert_returns() -> dict[str, float]:
    """The returns that scores are divided by, for each of the twelve tasks."""
    return {**next(row for row in _table().rows if row.name == EXPERT).values}


def urlb_task(env: str) -> str | None:
    """The id of one of the twelve tasks, in its usual spelling; None for other environments."""
    try:
        found = find_dmc_task(env)
    except VoidrlError:
        return None
    task = None if found is None or found.task is None else f"{PREFIX}{found.name}"
    return task if task in BODIES[ALL] else None


def expert_normalized(env: str, value: float) -> float | None:
    """A return as a share of the expert's; None outside of URLB."""
    task = urlb_task(env)
    return None if task is None else value / expert_returns()[task]


def published_name(method: str, representation: str) -> str | None:
    """The published row that a method with a representation is compared with."""
    name = VARIANTS[method].get(representation) if method in VARIANTS else method
    return name if name in published_labels() else None


def published_labels() -> dict[str, str]:
    """The published rows: names and labels."""
    return {row.name: row.label for row in _table().rows if row.name != EXPERT}


def published_scores(name: str | None) -> dict[str, float]:
    """A published row as shares of the expert's returns, by task; jaco_reach_top_right is not printed."""
    rows = (row for row in _table().rows if row.name == name)
    found = next((row.values for row in rows), {})
    return {task: value / expert_returns()[task] for task, value in found.items()}


def published_method(name: str) -> str:
    """The method of a published row: `apt` of `apt_ind`."""
    return next((method for method, rows in VARIANTS.items() if name in rows.values()), name)


@dataclass(frozen=True)
class BodyScore:
    """The score of a method, or of a family, over the tasks of a body."""

    mean: Interval
    """Mean over tasks of each task's mean over seeds."""
    iqm: Interval
    tasks: tuple[str, ...]
    runs: int
    is_flat: bool
    """Whether intervals have no width, as every task has one seed."""
    on_published: float | None
    """Our mean over the tasks that the published mean is over; None where nothing is published."""

    def show(self, statistic: Literal["mean", "iqm"] = "mean") -> str:
        """`0.74 [0.70, 0.78]`, without the interval if every task has one seed."""
        value: Interval = getattr(self, statistic)
        return f"{value.point:.2f}" + ("" if self.is_flat else f" [{value.low:.2f}, {value.high:.2f}]")


@dataclass(frozen=True)
class MethodScores:
    """Expert-normalized scores of one method, ours and published."""

    label: str
    family: str
    """One of `FAMILIES`, `baseline`, or empty."""
    scores: Mapping[str, Sequence[float]]
    """One for each seed, by task."""
    published: Mapping[str, float]
    """Published scores by task; empty where there are none."""


@dataclass(frozen=True, eq=False)
class ScoreGroup:
    """One method, or the methods of a family."""

    label: str
    members: Sequence[MethodScores]

    def members_on(self, body: str) -> list[MethodScores]:
        """The methods that are averaged on a body: those that have all of `tasks`."""
        tasks = self.tasks(body)
        return [each for each in self.members if tasks and all(task in each.scores for task in tasks)]

    def tasks(self, body: str) -> tuple[str, ...]:
        """The tasks of one of the methods: those with which most pairs of method and task count."""
        found = [tuple(t for t in BODIES[body] if t in each.scores) for each in self.members]

        def pairs(tasks: tuple[str, ...]) -> tuple[int, int]:
            return len(tasks) * sum({*tasks} <= {*others} for others in found), len(tasks)

        return max(found, key=pairs, default=())

    def score(self, body: str) -> BodyScore | None:
        """Mean and interquartile mean with 95 % intervals: seeds are resampled within method and task."""
        return self._scores.get(body)

    @cached_property
    def _scores(self) -> dict[str, BodyScore]:
        found = {body: self._score(body) for body in BODIES}
        return {body: score for body, score in found.items() if score is not None}

    def _score(self, body: str) -> BodyScore | None:
        members, tasks = self.members_on(body), self.tasks(body)
        table = {f"{i} {task}": each.scores[task] for i, each in enumerate(members) for task in tasks}
        if not table:
            return None
        compared = [
            float(np.mean(each.scores[task])) for each in members for task in tasks if task in each.published
        ]
        return BodyScore(
            mean=bootstrap(table, "mean", resamples=RESAMPLES),
            iqm=bootstrap(table, "iqm", resamples=RESAMPLES),
            tasks=tasks,
            runs=sum(map(len, table.values())),
            is_flat=all(len(scores) == 1 for scores in table.values()),
            on_published=float(np.mean(compared)) if compared else None,
        )

    def published(self, body: str) -> tuple[float, int] | None:
        """The published mean and the number of its tasks: ours, or without a run all that are printed."""
        members, tasks = self.members_on(body), self.tasks(body)
        pairs = [(each, task) for each in members for task in tasks if task in each.published]
        pairs = pairs or [
            (each, task)
            for each in self.members
            for task in BODIES[body]
            if task in each.published and not members
        ]
        if not pairs:
            return None
        mean = float(np.mean([each.published[task] for each, task in pairs]))
        return mean, len({task for _, task in pairs})

    def is_published(self, body: str) -> bool:
        """Whether every method that is averaged has published numbers, so that the two means compare."""
        return all(each.published for each in self.members_on(body))


def group_families(methods: Sequence[MethodScores]) -> list[ScoreGroup]:
    """The methods of each family that has any."""
    groups = {name: [each for each in methods if each.family == name] for name in FAMILIES}
    return [ScoreGroup(name, members) for name, members in groups.items() if members]


def sort_methods(methods: Sequence[MethodScores]) -> list[ScoreGroup]:
    """Each method as a group: by family, and within a family the highest mean over all its tasks first."""
    order = [*FAMILIES, "baseline"]

    def key(group: ScoreGroup) -> tuple[int, float]:
        family, score = group.members[0].family, group.score(ALL)
        place = order.index(family) if family in order else len(order)
        return place, -score.mean.point if score is not None else 1.0

    return sorted((ScoreGroup(each.label, [each]) for each in methods), key=key)
