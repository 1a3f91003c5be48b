"""Runs on the tasks of URLB by method, and what its protocol requires beyond them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from voidrl.config import bonus_suffix, flat, registry
from voidrl.envs.suites.dmcontrol import PREFIX, find_dmc_task
from voidrl.report.formatting import join_names, seed_list, step_range, steps
from voidrl.report.groups import PHASE_NAMES, ArmRuns, family_of, source_of
from voidrl.report.outcomes import outcome
from voidrl.report.read import Collection, Run
from voidrl.report.scores.urlb import (
    ALL,
    BODIES,
    FAMILIES,
    PRETRAIN_FRAMES,
    PROTOCOL_SEEDS,
    TASK_FRAMES,
    VARIANTS,
    MethodScores,
    expert_returns,
    published_labels,
    published_method,
    published_name,
    published_scores,
    urlb_task,
)

MOST_NAMES = 14
ENOUGH = 0.995  # of the protocol's frames: parallel environments may end a few steps early


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


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method."""

    label: str
    runs: list[TaskRun]

    @property
    def first(self) -> Run:
        """Any of them: they share method and phase."""
        return self.runs[0].run

    @property
    def covers(self) -> set[str]:
        """The method, and the published row that it is compared with."""
        first = self.first
        if first.phase == "train":
            return set()
        name = published_name(first.method, representation_of(first))
        return {first.method} | ({name} if name is not None else set())

    def seeds(self, task: str) -> set[int]:
        """Seeds with a score."""
        return {each.run.seed for each in self.runs if each.task == task and each.score is not None}

    def scores(self, *, published: bool) -> MethodScores:
        """Their scores by task, with published ones if asked for; of a seed that was run twice, the last."""
        first, by_task = self.first, dict[str, dict[int, float]]()
        for each in self.runs:
            if each.score is not None:
                by_task.setdefault(each.task, {})[each.run.seed] = each.score
        name = None if first.phase == "train" else published_name(first.method, representation_of(first))
        printed = published_scores(name) if published else {}
        scores = {task: [*by_seed.values()] for task, by_seed in by_task.items()}
        return MethodScores(self.label, family_of(first), scores, printed)


def representation_of(run: Run) -> str:
    """The name of the representation."""
    return str(flat(run.config).get("representation.name", ""))


def observation_of(run: Run) -> str:
    """Observations of a DMControl agent: `states` or `pixels`."""
    return str(flat(run.config).get("env.dmc.observation", "states"))


def frames(run: Run, agent_steps: int) -> int:
    """Frames of the simulation in a number of agent steps."""
    repeat = flat(run.config).get("env.dmc.action_repeat")
    return agent_steps * int(repeat or (2 if observation_of(run) == "pixels" else 1))


def find_task_runs(collection: Collection, arms: Sequence[ArmRuns]) -> list[TaskRun]:
    """The runs that belong to URLB."""
    return [
        _task_run(arm, run, task, collection)
        for arm in arms
        if arm.stage == "task"
        for run in arm.runs
        if (task := urlb_task(run.env)) is not None and _has_protocol(run)
    ]


def _has_protocol(run: Run) -> bool:
    """Whether a run belongs to URLB, rather than to another comparison on tasks with these names."""
    if run.experiment is not None and run.experiment.published == "urlb":
        return True
    return flat(run.config).get("learner.name") == "ddpg"


def _task_run(arm: ArmRuns, run: Run, task: str, collection: Collection) -> TaskRun:
    found = outcome(run).get("return") if run.took_all_steps else None
    score = None if found is None else found / expert_returns()[task]
    return TaskRun(run, arm.label, task, score, _pretrained_frames(run, collection))


def _pretrained_frames(run: Run, collection: Collection) -> int | None:
    if run.phase != "finetune":
        return None
    agent: dict[str, Any] = (run.evaluation or {}).get("agent", {})
    total, own = agent.get("steps_with_pretraining"), agent.get("steps")
    if isinstance(total, int) and isinstance(own, int) and total > own:
        return frames(run, total - own)
    source = source_of(run, collection.runs)
    return None if source is None else frames(source, source.final_steps)


def group_methods(runs: Sequence[TaskRun]) -> list[MethodRuns]:
    """The runs of each method: the arm of an experiment, or else a method with a representation.

    Runs of one method with several lengths of pre-training, or with settings that differ on one task, are
    kept apart.
    """
    groups: dict[tuple[Any, ...], list[TaskRun]] = {}
    for each in runs:
        run = each.run
        if run.experiment is not None:
            groups.setdefault((run.experiment.root, run.phase, each.label), []).append(each)
        else:
            method = ("" if run.phase == "train" else run.method) + bonus_suffix(run.config)
            groups.setdefault((None, run.phase, method, representation_of(run)), []).append(each)
    rows = []
    for key, members in groups.items():
        if key[0] is not None:
            rows.append(MethodRuns(members[0].label, members))
            continue
        labels = {task: {each.label for each in members if each.task == task} for task in BODIES[ALL]}
        split = any(len(found) > 1 for found in labels.values())
        first = members[0].run
        is_scratch = first.phase == "train"
        method = "scratch" if is_scratch else first.method.rpartition(":")[2]
        method += bonus_suffix(first.config)
        variants = {other[3] for other in groups if other[:3] == key[:3]}
        varies = not is_scratch and (len(variants) > 1 or key[2] in VARIANTS)
        name = f"{method} ({key[3]})" if varies else method
        lengths = {_two_digits(each.pretrained) for each in members}
        parts: dict[str, list[TaskRun]] = {}
        for each in members:
            label = each.label if split else name
            if len(lengths) > 1:
                length = _two_digits(each.pretrained)
                label += f", {steps(length)} frames" if length else ", frames unknown"
            parts.setdefault(label, []).append(each)
        rows += [MethodRuns(label, found) for label, found in parts.items()]
    return rows


def _two_digits(value: int | None) -> int | None:
    return None if value is None else int(float(f"{value:.2g}"))


def not_run(
    rows: Sequence[MethodRuns], collection: Collection, covered: set[str], observation: str
) -> list[str]:
    """Sentences about missing methods, tasks, seeds and frames, and about unusable runs."""
    lines = [*_absent_methods(collection, covered, observation), *_absent_tasks(rows), *_absent_seeds(rows)]
    lines += _short_of_frames(rows)
    unusable = [each for row in rows for each in row.runs if each.score is None]
    if unusable:
        names = join_names((each.run.name for each in unusable), MOST_NAMES)
        lines.append(f"Left out, as not complete or without an evaluation: {names}.")
    return lines


def _absent_methods(collection: Collection, covered: set[str], observation: str) -> list[str]:
    published = published_labels()
    names = {name: label for name, label in published.items() if observation == "states" or name != "apt_ind"}
    variants = {published_method(name) for name in published}
    others = [method for method in registry.names("method") if method not in variants]
    names |= {each: each for each in others if registry.read_about(each).get("family") in FAMILIES}
    pretrained = {
        name
        for run in collection.runs
        if run.phase == "pretrain" and observation_of(run) == observation and _body_of(run.env) is not None
        for name in (published_name(run.method, representation_of(run)) or run.method,)
    }
    absent = {name: label for name, label in names.items() if name not in covered}
    only = [label for name, label in absent.items() if name in pretrained]
    never = [label for name, label in absent.items() if name not in pretrained]
    lines = [f"Methods without a run: {join_names(never, MOST_NAMES)}."] if never else []
    return lines + ([f"Pre-trained, but not fine-tuned: {join_names(only, MOST_NAMES)}."] if only else [])


def _body_of(env: str) -> str | None:
    found = find_dmc_task(env) if env.startswith(PREFIX) else None
    return found.domain if found is not None and found.domain in BODIES else None


def _absent_tasks(rows: Sequence[MethodRuns]) -> list[str]:
    by_gap: dict[str, list[str]] = {}
    for row in rows:
        bodies, tasks = [], []
        for body in (body for body in BODIES if body != ALL):
            absent = [task for task in BODIES[body] if not row.seeds(task)]
            if len(absent) == len(BODIES[body]):
                bodies.append(body)
            else:
                tasks += [task.removeprefix(PREFIX) for task in absent]
        if bodies or tasks:
            by_gap.setdefault(", ".join([*bodies, *tasks]), []).append(row.label)
    return [f"Not run on {gap}: {join_names(labels, MOST_NAMES)}." for gap, labels in by_gap.items()]


def _absent_seeds(rows: Sequence[MethodRuns]) -> list[str]:
    """Seeds that only other methods have, and how many the protocol has."""
    every = {seed for row in rows for task in BODIES[ALL] for seed in row.seeds(task)}
    if not every:
        return []
    lines, by_gap = [], dict[str, list[str]]()
    for row in rows:
        gaps: dict[str, list[str]] = {}
        for task in BODIES[ALL]:
            if (found := row.seeds(task)) and found < every:
                gaps.setdefault(seed_list(every - found), []).append(task.removeprefix(PREFIX))
        run = sum(bool(row.seeds(task)) for task in BODIES[ALL])
        for gap, tasks in gaps.items():
            where = "" if len(tasks) == run else f" on {join_names(tasks, 4)}"
            by_gap.setdefault(gap, []).append(f"{row.label}{where}")
    for gap, labels in by_gap.items():
        lines.append(
            f"Without seed{'s' * ('–' in gap or ',' in gap)} {gap}: {join_names(labels, MOST_NAMES)}."
        )
    if len(every) < PROTOCOL_SEEDS:
        lines.append(f"{len(every)} seed{'s' * (len(every) > 1)}; the protocol has {PROTOCOL_SEEDS}.")
    return lines


def _short_of_frames(rows: Sequence[MethodRuns]) -> list[str]:
    pretraining, task = dict[str, list[str]](), dict[str, list[str]]()
    unknown = []
    for row in rows:
        scored = [each for each in row.runs if each.score is not None]
        lengths = [each.pretrained for each in scored if each.pretrained is not None]
        if lengths and min(lengths) < ENOUGH * PRETRAIN_FRAMES:
            pretraining.setdefault(_lengths(lengths), []).append(row.label)
        if any(each.pretrained is None and each.run.phase == "finetune" for each in scored):
            unknown.append(row.label)
        taken = [frames(each.run, each.run.final_steps) for each in scored]
        if taken and min(taken) < ENOUGH * TASK_FRAMES:
            phase = PHASE_NAMES[row.first.phase]
            task.setdefault(f"{_lengths(taken)} of {steps(TASK_FRAMES)} frames {phase}", []).append(row.label)
    lines = [
        f"{length} of the protocol's {steps(PRETRAIN_FRAMES)} frames of pre-training: "
        f"{join_names(labels, MOST_NAMES)}."
        for length, labels in pretraining.items()
    ]
    lines += [f"{length}: {join_names(labels, MOST_NAMES)}." for length, labels in task.items()]
    if unknown:
        lines.append(f"Frames of pre-training unknown: {join_names(unknown, MOST_NAMES)}.")
    return lines


def _lengths(found: Iterable[int]) -> str:
    """Frames to two digits, from the shortest to the longest."""
    return step_range(float(f"{value:.2g}") for value in found)
