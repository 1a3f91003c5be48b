"""URLB's scores (Laskin et al. 2021): returns divided by an expert's, over the tasks of a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

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
ABSENT = "–"
NOT_RUN = "not run"
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
    """The score of a method over the tasks of a body."""

    mean: Interval
    """Mean over tasks of each task's mean over seeds."""
    iqm: Interval
    tasks: tuple[str, ...]
    """The tasks that were run."""


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

    def score(self, body: str) -> BodyScore | None:
        """Mean and interquartile mean with 95 % intervals: seeds are resampled within each task."""
        return self._scores.get(body)

    @cached_property
    def _scores(self) -> dict[str, BodyScore]:
        found = {}
        for body, tasks in BODIES.items():
            there = {task: self.scores[task] for task in tasks if task in self.scores}
            if there:
                mean, iqm = (bootstrap(there, name, resamples=RESAMPLES) for name in ("mean", "iqm"))
                found[body] = BodyScore(mean, iqm, (*there,))
        return found

    def published_mean(self, body: str) -> float | None:
        """The published mean over the tasks of ours that are printed; without a run, over all of them."""
        score = self.score(body)
        tasks = BODIES[body] if score is None else score.tasks
        found = [self.published[task] for task in tasks if task in self.published]
        return float(np.mean(found)) if found else None


def sort_methods(methods: Sequence[MethodScores]) -> list[MethodScores]:
    """Methods by family, and within a family the highest mean over all its tasks first."""
    order = [*FAMILIES, "baseline"]

    def key(method: MethodScores) -> tuple[int, float]:
        score = method.score(ALL)
        place = order.index(method.family) if method.family in order else len(order)
        return place, -score.mean.point if score is not None else 1.0

    return sorted(methods, key=key)


def score_table(methods: Sequence[MethodScores]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: means on all tasks and on each body, published means, and the IQM over all tasks."""
    with_published = any(method.published for method in methods)
    columns, bodies = ["method", "family"], [ALL, *(body for body in BODIES if body != ALL)]
    for body in bodies:
        columns += [body, *(["published"] if with_published else [])]
    rows = []
    for method in methods:
        cells = [method.label, method.family or ABSENT]
        for body in bodies:
            cells.append(_show(method.score(body), body))
            if with_published:
                printed = method.published_mean(body)
                cells.append(ABSENT if printed is None else f"{printed:.2f}")
        score = method.score(ALL)
        rows.append([*cells, ABSENT if score is None else show_interval(score.iqm)])
    return [*columns, "IQM"], rows


def _show(score: BodyScore | None, body: str) -> str:
    """`0.74 [0.70, 0.78] (3/4)`: the mean, its interval, and how many of the tasks were run."""
    if score is None:
        return NOT_RUN
    part = f" ({len(score.tasks)}/{len(BODIES[body])})" if len(score.tasks) < len(BODIES[body]) else ""
    return show_interval(score.mean) + part


def show_interval(value: Interval) -> str:
    """`0.74 [0.70, 0.78]`, without an interval of no width, as with one seed."""
    return f"{value.point:.2f}" + ("" if value.is_flat else f" [{value.low:.2f}, {value.high:.2f}]")
