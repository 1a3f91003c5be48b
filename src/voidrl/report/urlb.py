"""URLB's table: expert-normalized scores by body, alongside published ones, with seeds and frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voidrl.config import flat, registry
from voidrl.report.formatting import Bar, Section, Table, join_names, step_range, steps
from voidrl.report.groups import ArmRuns, family_of, source_of
from voidrl.report.outcomes import outcome
from voidrl.report.read import Collection, Run
from voidrl.report.scores.urlb import (
    ABSENT,
    ALL,
    FAMILIES,
    PRETRAIN_FRAMES,
    PROTOCOL_SEEDS,
    TASK_FRAMES,
    MethodScores,
    expert_returns,
    published_labels,
    published_method,
    published_name,
    published_scores,
    score_table,
    sort_methods,
    urlb_task,
)

MOST_NAMES = 14
SCORES = (
    "Returns divided by an expert's: 1 is the expert. Means over the tasks of a body of each task's mean "
    "over seeds; “3/4” where only that many of the tasks were run. IQM: mean of the middle half of all runs."
)
LEGEND = "The dot is the mean over all tasks, the bar its interval, the upright line the published mean."
INTERVALS = (
    "Brackets are 95% bootstrap intervals: seeds are resampled within each task. A task with one seed adds "
    "no width, and with few seeds intervals are too narrow. They ignore that the tasks of a body start from "
    "the same pre-trained agent."
)
PROTOCOL = (
    f"The protocol: {steps(PRETRAIN_FRAMES)} frames of pre-training, {steps(TASK_FRAMES)} with task reward, "
    f"{PROTOCOL_SEEDS} seeds."
)
PUBLISHED = (
    "Published: README of MOSS (Zhao et al. 2022), over the same tasks as ours where these are printed, and "
    "over all printed tasks where we have no run. jaco_reach_top_right is not printed, so published means of "
    "jaco and of all tasks are without it."
)


@dataclass(frozen=True)
class TaskRun:
    """A run on one of the twelve tasks."""

    run: Run
    label: str
    task: str
    score: float | None
    """Expert-normalized score; None where the run is not complete or not evaluated."""
    pretrained: int | None
    """Frames of pre-training; None where unknown, and from scratch."""

    @property
    def representation(self) -> str:
        """The name of the representation."""
        return str(flat(self.run.config).get("representation.name", ""))

    @property
    def published_row(self) -> str | None:
        """The published row that its method is compared with."""
        is_scratch = self.run.phase == "train"
        return None if is_scratch else published_name(self.run.method, self.representation)


def urlb_sections(collection: Collection, arms: Sequence[ArmRuns]) -> list[Section]:
    """A table for each kind of observations with a run on one of the twelve tasks."""
    kinds: dict[str, list[TaskRun]] = {}
    for arm in arms:
        for run in arm.runs if arm.stage == "task" else ():
            task = urlb_task(run.env)
            if task is not None and _has_protocol(run):
                found = outcome(run).get("return") if run.took_all_steps else None
                score = None if found is None else found / expert_returns()[task]
                made = TaskRun(run, arm.label, task, score, _pretrained_frames(run, collection))
                kinds.setdefault(_observation(run), []).append(made)
    return [_section(runs, kind) for kind, runs in kinds.items()]


def _has_protocol(run: Run) -> bool:
    """Whether a run belongs to URLB, rather than to another comparison on tasks with these names."""
    if run.experiment is not None and run.experiment.published == "urlb":
        return True
    return flat(run.config).get("learner.name") == "ddpg"


def _observation(run: Run) -> str:
    """Observations of a DMControl agent: `states` or `pixels`."""
    return str(flat(run.config).get("env.dmc.observation", "states"))


def _frames(run: Run, agent_steps: int) -> int:
    """Frames of the simulation in a number of agent steps."""
    repeat = flat(run.config).get("env.dmc.action_repeat")
    return agent_steps * int(repeat or (2 if _observation(run) == "pixels" else 1))


def _pretrained_frames(run: Run, collection: Collection) -> int | None:
    if run.phase != "finetune":
        return None
    agent: dict[str, Any] = (run.evaluation or {}).get("agent", {})
    total, own = agent.get("steps_with_pretraining"), agent.get("steps")
    if isinstance(total, int) and isinstance(own, int) and total > own:
        return _frames(run, total - own)
    source = source_of(run, collection.runs)
    return None if source is None else _frames(source, source.final_steps)


def _section(runs: Sequence[TaskRun], observation: str) -> Section:
    from_states = observation == "states"
    groups = _group_methods(runs)
    methods = []
    for label, members in groups.items():
        printed = published_scores(members[0].published_row) if from_states else {}
        methods.append(MethodScores(label, family_of(members[0].run), _scores(members), printed))
    tuned = [each for each in runs if each.run.phase != "train"]
    covered = {name for each in tuned for name in (each.published_row, each.run.method)}
    absent = {name: label for name, label in published_labels().items() if name not in covered}
    notes = [SCORES, INTERVALS, PROTOCOL]
    if from_states:
        for name, label in absent.items():
            family = str(registry.read_about(published_method(name)).get("family", ""))
            methods.append(MethodScores(label, family, {}, published_scores(name)))
        notes.append(PUBLISHED)
    else:
        notes.append(f"Published numbers are from states, so none is shown next to these from {observation}.")
    title = f"URLB from {observation}: expert-normalized mean"
    table = _table(title, sort_methods(methods), groups, notes)
    return Section(title, [table], missing=[*_missing(runs, absent, covered)])


def _scores(runs: Sequence[TaskRun]) -> dict[str, list[float]]:
    """Scores by task; of a seed that was run twice, the last."""
    by_task: dict[str, dict[int, float]] = {}
    for each in runs:
        if each.score is not None:
            by_task.setdefault(each.task, {})[each.run.seed] = each.score
    return {task: [*by_seed.values()] for task, by_seed in by_task.items()}


def _group_methods(runs: Sequence[TaskRun]) -> dict[str, list[TaskRun]]:
    """The runs of each method, by label.

    Outside of experiments, runs with several representations or lengths of pre-training are kept apart.
    """
    groups: dict[tuple[str, str, str], list[TaskRun]] = {}
    for each in runs:
        parts = "", ""
        if each.run.experiment is None and each.run.phase != "train":
            length = "frames unknown" if each.pretrained is None else f"{_short(each.pretrained)} frames"
            parts = each.representation, length
        groups.setdefault((each.label, *parts), []).append(each)
    found = {}
    for (label, representation, length), members in groups.items():
        same = [other for other, *_ in groups if other == label]
        suffix = f" ({representation}, {length})" if len(same) > 1 else ""
        found[label + suffix] = members
    return found


def _short(frames: int) -> str:
    return steps(float(f"{frames:.2g}"))


def _table(
    title: str, methods: Sequence[MethodScores], groups: Mapping[str, Sequence[TaskRun]], notes: list[str]
) -> Table:
    columns, rows = score_table(methods)
    bars: list[Bar | None] = []
    for method, row in zip(methods, rows, strict=True):
        score = method.score(ALL)
        scored = [each for each in groups.get(method.label, ()) if each.score is not None]
        if score is None or not scored:
            row += [ABSENT, ABSENT]
            bars.append(None)
            continue
        seeds = {len(values) for values in method.scores.values()}
        row += [" to ".join(dict.fromkeys([str(min(seeds)), str(max(seeds))])), _lengths(scored)]
        mark, mean = method.published_mean(ALL), score.mean
        bars.append(Bar(mean.low, mean.point, mean.high, method.family or "none", mark))
    columns += ["seeds", "frames"]
    numeric = frozenset(range(2, len(columns)))
    return Table(title, columns, rows, notes, numeric, bars=bars, axis=(0.0, 1.0), legend=LEGEND)


def _lengths(runs: Sequence[TaskRun]) -> str:
    """Frames of pre-training and with task reward: `2M + 100k`."""
    tuned = [each for each in runs if each.run.phase == "finetune"]
    known = [float(f"{each.pretrained:.2g}") for each in tuned if each.pretrained is not None]
    before = step_range(known) if known else "unknown"
    after = step_range(float(f"{_frames(each.run, each.run.final_steps):.2g}") for each in runs)
    return f"{before} + {after}" if tuned else after


def _missing(runs: Sequence[TaskRun], absent: Mapping[str, str], covered: set[str | None]) -> list[str]:
    """Methods without a run, and runs without a score."""
    printed = {published_method(name) for name in published_labels()}
    others = [name for name in registry.names("method") if name not in covered | printed]
    never = [*absent.values(), *(n for n in others if registry.read_about(n).get("family") in FAMILIES)]
    unusable = [each.run.name for each in runs if each.score is None]
    lines = [f"Methods without a run: {join_names(never, MOST_NAMES)}."] if never else []
    if unusable:
        names = join_names(unusable, MOST_NAMES)
        lines.append(f"Left out, as not complete or without an evaluation: {names}.")
    return lines
