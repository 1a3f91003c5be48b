"""URLB's table: expert-normalized scores by body and family, alongside published ones; and missing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voidrl.config import registry
from voidrl.report.formatting import Table, join_names
from voidrl.report.groups import ArmRuns
from voidrl.report.read import Collection
from voidrl.report.scores.urlb import (
    ALL,
    BODIES,
    BodyScore,
    MethodScores,
    ScoreGroup,
    group_families,
    published_labels,
    published_method,
    published_scores,
    sort_methods,
)
from voidrl.report.urlb_runs import (
    MethodRuns,
    TaskRun,
    find_task_runs,
    group_methods,
    not_run,
    observation_of,
)

INTERVALS = (
    "Brackets are 95% bootstrap intervals: seeds are resampled within each task. A task with one seed adds "
    "no width, and with few seeds intervals are too narrow. They ignore that the tasks of a body start from "
    "the same pre-trained agent. IQM: mean of the middle half of all runs. A family is averaged over the "
    "methods that it names, which have the same tasks. “Mean where published” is over the methods and tasks "
    "with a published number, and so is the published mean."
)
ABSENT = "–"
NOT_RUN = "not run"


@dataclass(frozen=True)
class ScoreLine:
    """A method or a family in the table of a body."""

    label: str
    family: str
    mean: str
    iqm: str
    on_published: str
    published: str
    tasks: str
    seeds: str
    bar: dict[str, str]
    """Ends of the interval, mean and published mean, in percent of the scale."""
    color: str
    """The family that it is colored by."""

    def cells(self, columns: Sequence[str]) -> list[str]:
        """The texts of some columns."""
        return [str(getattr(self, name)) for name in columns]


@dataclass(frozen=True)
class BodyTable:
    """The scores on the tasks of a body, or of all of them."""

    title: str
    methods: list[ScoreLine]
    families: list[ScoreLine]
    columns: dict[str, str]
    """Fields of a line, and their headings."""

    def table(self) -> Table:
        """The table as text."""
        lines = [*self.methods, *self.families]
        rows = [[line.label, line.family, *line.cells([*self.columns])] for line in lines]
        columns = ["method", "family", *self.columns.values()]
        return Table(self.title, columns, rows, numeric=frozenset(range(2, len(columns))))


@dataclass(frozen=True)
class UrlbTable:
    """The tables for runs with one kind of observations."""

    overview: Table
    """Means of each method and body."""
    bodies: list[BodyTable]
    """Tables with intervals; all tasks first."""
    not_run: list[str]
    """Sentences about what the protocol requires and was not run."""
    intervals: str = INTERVALS
    """Method of the intervals."""

    def tables(self) -> list[Table]:
        """All of it as text."""
        return [self.overview, *(body.table() for body in self.bodies)]


def urlb_tables(collection: Collection, arms: Sequence[ArmRuns]) -> list[UrlbTable]:
    """A table for each kind of observations with a run on one of the twelve tasks."""
    kinds: dict[str, list[TaskRun]] = {}
    for found in find_task_runs(collection, arms):
        kinds.setdefault(observation_of(found.run), []).append(found)
    return [_make_table(runs, kind, collection) for kind, runs in kinds.items()]


def _make_table(runs: Sequence[TaskRun], observation: str, collection: Collection) -> UrlbTable:
    rows = group_methods(runs)
    from_states = observation == "states"
    methods = [row.scores(published=from_states) for row in rows]
    covered = {name for row in rows for name in row.covers}
    if from_states:
        for name, label in published_labels().items():
            if name not in covered:
                family = registry.read_about(published_method(name)).get("family", "")
                methods.append(MethodScores(label, str(family), {}, published_scores(name)))
    groups, families = sort_methods(methods), group_families(methods)
    seeds = {row.label: row for row in rows}
    bodies = [_body_table(body, groups, families, seeds) for body in (ALL, *(b for b in BODIES if b != ALL))]
    overview = _overview(groups, observation)
    return UrlbTable(overview, bodies, not_run(rows, collection, covered, observation))


def _overview(groups: Sequence[ScoreGroup], observation: str) -> Table:
    with_published = any(group.published(ALL) for group in groups)
    columns = ["method", "family"]
    for body in BODIES:
        columns += [body, *(["published"] if with_published else [])]
    rows = []
    for group in groups:
        cells = [group.label, group.members[0].family or ABSENT]
        for body in BODIES:
            score = group.score(body)
            cells.append(NOT_RUN if score is None else f"{score.mean.point:.2f}{_part(score, body)}")
            cells += [_published(group, body)] if with_published else []
        rows.append(cells)
    title = f"URLB from {observation}: expert-normalized mean"
    notes = [
        "Returns divided by an expert's: 1 is the expert. Means over the tasks of a body of each task's mean "
        "over seeds; “3/4” where only that many of the tasks were run."
    ]
    if with_published:
        notes.append(
            "Published: README of MOSS (Zhao et al. 2022), 2M frames of pre-training, over the same tasks as "
            "ours where these are printed, and over all printed tasks where we have no run. "
            "jaco_reach_top_right is not printed, so published means of jaco and of all tasks are without it."
        )
    elif observation != "states":
        notes.append(f"Published numbers are from states, so none is shown next to these from {observation}.")
    return Table(title, columns, rows, notes, frozenset(range(2, len(columns))))


def _part(score: BodyScore, body: str) -> str:
    """Number of tasks that were run, if not all."""
    total = len(BODIES[body])
    return "" if len(score.tasks) == total else f" ({len(score.tasks)}/{total})"


def _published(group: ScoreGroup, body: str) -> str:
    found = group.published(body)
    return ABSENT if found is None else f"{found[0]:.2f}"


def _body_table(
    body: str, groups: Sequence[ScoreGroup], families: Sequence[ScoreGroup], rows: Mapping[str, MethodRuns]
) -> BodyTable:
    scored = {group: score for group in (*groups, *families) if (score := group.score(body)) is not None}
    high = max([1.0, *(score.mean.high for score in scored.values())])
    shown = [group for group in groups if group in scored]
    shown.sort(key=lambda group: (-len(scored[group].tasks), -scored[group].mean.point))
    pooled = [group for group in families if group in scored]
    methods = [
        _line(group, body, high, group.members[0].family, _seeds(rows, group, body)) for group in shown
    ]
    lines = []
    for group in pooled:
        members = group.members_on(body)
        text = f"{len(members)} method{'s' * (len(members) > 1)}: {join_names(m.label for m in members)}"
        lines.append(_line(group, body, high, text, ""))
    columns = {"mean": "mean [95%]", "iqm": "IQM [95%]"}
    if any(line.published != ABSENT for line in methods):
        if any(line.on_published not in (ABSENT, line.mean.split(" ")[0]) for line in (*methods, *lines)):
            columns["on_published"] = "mean where published"
        columns["published"] = "published"
    columns |= {"tasks": "tasks", "seeds": "seeds"}
    title = "All tasks" if body == ALL else body.capitalize()
    return BodyTable(title, methods, lines, columns)


def _line(group: ScoreGroup, body: str, high: float, family: str, seeds: str) -> ScoreLine:
    score, published = group.score(body), group.published(body)
    assert score is not None
    bar = {"low": score.mean.low, "mean": score.mean.point, "high": score.mean.high}
    if published is not None and group.is_published(body):
        bar["published"] = published[0]
    return ScoreLine(
        label=group.label,
        family=family or ABSENT,
        mean=score.show(),
        iqm=score.show("iqm"),
        on_published=ABSENT if score.on_published is None else f"{score.on_published:.2f}",
        published=ABSENT if published is None else f"{published[0]:.2f}",
        tasks=f"{len(score.tasks)}/{len(BODIES[body])}",
        seeds=seeds,
        bar={name: f"{100 * value / high:.1f}%" for name, value in bar.items()},
        color=group.members[0].family or "none",
    )


def _seeds(rows: Mapping[str, MethodRuns], group: ScoreGroup, body: str) -> str:
    """Number of seeds of the tasks that were run: `3`, or `1 to 3`."""
    found = {len(rows[group.label].seeds(task)) for task in group.tasks(body)}
    return " to ".join(dict.fromkeys([str(min(found)), str(max(found))]))
