"""Each method before and after fine-tuning: states visited, zero-shot score, and the score with reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from voidrl.report.formatting import ABSENT, Table, step_range
from voidrl.report.groups import source_of
from voidrl.report.outcomes import Spread, measure_of, sort_keys, spreads, zero_shot
from voidrl.report.read import Collection
from voidrl.report.results import ResultRow, Results

SCORES = ("return", "normalized", "expert_normalized", "success")


class _Stages(NamedTuple):
    """A method in an environment: pre-trained, and trained with reward; None where there is no such run."""

    env_name: str
    label: str
    before: ResultRow | None
    after: ResultRow | None

    @property
    def found(self) -> Mapping[str, Spread]:
        """States visited in pre-training, and scores on the task before training with its reward."""
        if self.before is None or self.after is None:
            return {} if self.before is None else self.before.spreads
        visited = {key: spread for key, spread in self.before.spreads.items() if key not in SCORES}
        is_scored = _is_evaluated(self.before)
        return visited | (self.before.spreads if is_scored else spreads(self.after.arm, zero_shot))

    @property
    def seeds(self) -> str:
        """Seeds in the numbers of both stages; only once if they are the same."""
        texts = [row.seed_text for row in (self.before, self.after) if row is not None]
        return " + ".join(dict.fromkeys(texts))


def stage_table(collection: Collection, stages: Sequence[Results]) -> Table | None:
    """A row for each method, if pre-trained agents were evaluated and then fine-tuned."""
    every = [row for results in stages for row in results.rows]
    by_run = {run.resolved: row for row in every for run in row.arm.runs}
    first: dict[int, ResultRow] = {}  # the pre-training of each fine-tuned arm
    for row in every:
        sources = [source_of(run, collection.runs) for run in row.arm.runs]
        found = [by_run[source.resolved] for source in sources if source is not None]
        if found:
            first[id(row)] = found[0]
    started = {id(row) for row in first.values()}
    rows = []
    for env in dict.fromkeys(row.arm.env for row in every if row.arm.stage == "task"):
        tasks = [row for row in every if row.arm.env == env and row.arm.stage == "task"]
        if not any(_is_zero_shot(first[id(row)], row) for row in tasks if id(row) in first):
            continue
        rows += [_Stages(row.arm.env_name, row.arm.label, first.get(id(row)), row) for row in tasks]
        alone = [row for row in every if row.arm.env == env and row.arm.stage == "pretrain"]
        alone = [row for row in alone if id(row) not in started and _is_evaluated(row)]
        rows += [_Stages(row.arm.env_name, row.arm.label, row, None) for row in alone]
    return _table(rows) if rows else None


def _is_zero_shot(before: ResultRow, after: ResultRow) -> bool:
    """Whether the pre-trained agents of an arm were evaluated, by themselves or when they were fine-tuned."""
    return _is_evaluated(before) or any(zero_shot(run) for run in after.arm.counted)


def _is_evaluated(row: ResultRow) -> bool:
    return any(run.evaluation is not None for run in row.arm.counted)


def _table(rows: Sequence[_Stages]) -> Table:
    keys = {key for row in rows for key in (*row.found, *(row.after.spreads if row.after else ()))}
    scores = [key for key in SCORES if key in keys]
    states = sort_keys(
        {key for row in rows for key in row.found if key == "maze" or key.startswith("coverage/")}
    )
    length = step_range(run.asked_steps for row in rows if row.after for run in row.after.arm.runs)
    several = len({row.env_name for row in rows}) > 1
    columns = [*(["environment"] if several else []), "method", "steps without reward"]
    columns += [f"zero-shot {measure_of(key).name}" for key in scores]
    columns += [f"{measure_of(key).name} visited" for key in states]
    columns += [f"{measure_of(key).name} after {length}" for key in scores]
    columns.append("seeds")
    lines = []
    for row in rows:
        before, after = row.found, row.after
        taken = (
            ABSENT if row.before is None else step_range(run.final_steps for run in row.before.arm.counted)
        )
        cells = [*([row.env_name] if several else []), row.label, taken]
        cells += [before[key].format(key) if key in before else ABSENT for key in (*scores, *states)]
        cells += [ABSENT if after is None else after.cell(key) for key in scores]
        lines.append([*cells, row.seeds])
    title = "Before and after fine-tuning" + ("" if several else f": {rows[0].env_name}")
    note = (
        "Zero-shot: the pre-trained agent as it is, which has never seen a reward. States are those visited "
        "in the whole pre-training. Mean, with the lowest and highest seed in parentheses."
    )
    return Table(title, columns, lines, [note], frozenset(range(1 + several, len(columns) - 1)))
