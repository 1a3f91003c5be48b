"""Each method before and after fine-tuning: states visited, zero-shot score, and the score with reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from voidrl.report.formatting import Table, step_range
from voidrl.report.groups import ArmRuns, source_of
from voidrl.report.outcomes import MEASURES, Spread, measure_of, spreads, zero_shot
from voidrl.report.read import Collection

ABSENT = "–"
SCORES = ("return", "normalized", "expert_normalized", "success")


class _Stages(NamedTuple):
    """An arm in an environment: pre-trained, and trained with reward; None where there is no such run."""

    env_name: str
    label: str
    before: ArmRuns | None
    after: ArmRuns | None


def stage_table(collection: Collection, arms: Sequence[ArmRuns]) -> Table | None:
    """A row for each method, if pre-trained agents were evaluated and then fine-tuned."""
    by_run = {run.resolved: arm for arm in arms for run in arm.runs}
    first: dict[int, ArmRuns] = {}  # the pre-training of each fine-tuned arm
    for arm in arms:
        sources = [source_of(run, collection.runs) for run in arm.runs]
        found = [by_run[source.resolved] for source in sources if source is not None]
        if found:
            first[id(arm)] = found[0]
    started = {id(arm) for arm in first.values()}
    rows = []
    for env in dict.fromkeys(arm.env for arm in arms if arm.stage == "task"):
        here = [arm for arm in arms if arm.env == env]
        tasks = [arm for arm in here if arm.stage == "task"]
        if not any(_is_zero_shot(first[id(arm)], arm) for arm in tasks if id(arm) in first):
            continue
        alone = [arm for arm in here if arm.stage == "pretrain" and id(arm) not in started]
        rows += [_Stages(arm.env_name, arm.label, first.get(id(arm)), arm) for arm in tasks]
        rows += [_Stages(arm.env_name, arm.label, arm, None) for arm in alone if _is_evaluated(arm)]
    return _table(rows) if rows else None


def _is_zero_shot(before: ArmRuns, after: ArmRuns) -> bool:
    """Whether the pre-trained agents of an arm were evaluated, by themselves or when they were fine-tuned."""
    return _is_evaluated(before) or any(zero_shot(run) for run in after.counted)


def _is_evaluated(arm: ArmRuns) -> bool:
    return any(run.evaluation is not None for run in arm.counted)


def _table(rows: Sequence[_Stages]) -> Table:
    found = [(_before(row), _spreads(row.after)) for row in rows]
    keys = {key for stages in found for stage in stages for key in stage}
    scores = [key for key in SCORES if key in keys]
    seen = {key for before, _ in found for key in before if key == "maze" or key.startswith("coverage/")}
    states = [key for key in (*MEASURES, *sorted(seen - {*MEASURES})) if key in seen]
    length = step_range(run.asked_steps for row in rows if row.after for run in row.after.runs)
    several = len({row.env_name for row in rows}) > 1
    columns = [*(["environment"] if several else []), "method", "steps without reward"]
    columns += [f"zero-shot {measure_of(key).name}" for key in scores]
    columns += [f"{measure_of(key).name} visited" for key in states]
    columns += [f"{measure_of(key).name} after {length}" for key in scores]
    lines = []
    for row, (before, after) in zip(rows, found, strict=True):
        taken = ABSENT if row.before is None else step_range(run.final_steps for run in row.before.counted)
        cells = [*([row.env_name] if several else []), row.label, taken]
        cells += [_cell(before, key) for key in (*scores, *states)]
        lines.append([*cells, *(_cell(after, key) for key in scores)])
    title = "Before and after fine-tuning" + ("" if several else f": {rows[0].env_name}")
    note = (
        "Zero-shot: the pre-trained agent as it is, which has never seen a reward. States are those visited "
        "in the whole pre-training. Mean, with the lowest and highest seed in parentheses."
    )
    return Table(title, columns, lines, [note], frozenset(range(1 + several, len(columns))))


def _before(row: _Stages) -> Mapping[str, Spread]:
    """States visited in pre-training, and scores on the task."""
    if row.before is None or row.after is None:
        return _spreads(row.before)
    visited = {key: spread for key, spread in spreads(row.before).items() if key not in SCORES}
    scored = spreads(row.before) if _is_evaluated(row.before) else spreads(row.after, zero_shot)
    return visited | scored


def _spreads(arm: ArmRuns | None) -> Mapping[str, Spread]:
    return {} if arm is None else spreads(arm)


def _cell(stage: Mapping[str, Spread], key: str) -> str:
    return stage[key].format(key) if key in stage else ABSENT
