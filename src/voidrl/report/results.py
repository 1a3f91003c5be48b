"""The first table of a report: a row for each arm, with its seeds, its steps and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voidrl.report.formatting import seeds, steps
from voidrl.report.groups import PHASE_NAMES, STAGES, Arm, Stage, stages_of
from voidrl.report.outcomes import (
    MEASURES,
    Spread,
    first_measure,
    headline,
    measure_of,
    seeds_behind,
    show_spread,
    spreads,
)
from voidrl.report.tables import Table

MOST_ENVS = 4  # more of them are first shown as a table of environments against arms


@dataclass(frozen=True)
class Row:
    """One arm."""

    arm: Arm
    counted: list[int]
    """The seeds that its first number is of."""
    steps: str
    states: dict[str, int]
    """Runs by status."""
    spreads: dict[str, Spread]

    @property
    def seeds(self) -> str:
        """How many there are, and which: `2 of 3 (seeds 1, 2)` where others are not in its number."""
        of = f" of {len(self.arm.seeds)}" if len(self.counted) < len(self.arm.seeds) else ""
        which = f" (seed{'s' * (len(self.counted) > 1)} {seeds(self.counted)})" if self.counted else ""
        return f"{len(self.counted)}{of}{which}"

    @property
    def is_partial(self) -> bool:
        """Whether none of its runs is complete."""
        return not self.arm.complete


@dataclass(frozen=True)
class Results:
    """The arms of one stage."""

    stage: Stage
    measures: list[str]
    """The keys that any of them has, the headline first."""
    rows: list[Row]
    scales: dict[str, tuple[float, float]]
    """Of the headline's values, by environment: what a small picture of a range goes from and to."""

    @property
    def title(self) -> str:
        """In words."""
        return STAGES[self.stage]

    @property
    def headline(self) -> str | None:
        """The measure that comes first."""
        return self.measures[0] if self.measures else None

    @property
    def envs(self) -> list[str]:
        """Names of the environments."""
        return [*dict.fromkeys(row.arm.env_name for row in self.rows)]

    @property
    def is_long(self) -> bool:
        """Whether environments against arms are easier to read."""
        return len(self.envs) > MOST_ENVS

    def table(self) -> Table:
        """As text."""
        columns = ["environment", "arm", "phase", "seeds", "steps", "runs"]
        columns += [measure_of(key).name for key in self.measures]
        rows = [
            [
                row.arm.env_name,
                row.arm.label,
                PHASE_NAMES[row.arm.phase],
                row.seeds,
                row.steps,
                shown_states(row.states),
                *(show_cell(row, key) for key in self.measures),
            ]
            for row in self.rows
        ]
        return Table(self.title, columns, rows, numeric=frozenset(range(6, len(columns))))

    def pivot(self) -> Table | None:
        """Environments against arms, by the headline; None where nothing was measured."""
        key = self.headline
        if key is None:
            return None
        labels = [*dict.fromkeys(row.arm.label for row in self.rows)]
        cells = {(row.arm.env_name, row.arm.label): self._pivot_cell(row, key) for row in self.rows}
        rows = [[env, *(cells.get((env, label), "–") for label in labels)] for env in self.envs]
        title = f"{self.title}: {measure_of(key).name}"
        return Table(title, ["environment", *labels], rows, numeric=frozenset(range(1, len(labels) + 1)))

    @staticmethod
    def _pivot_cell(row: Row, key: str) -> str:
        """The headline, or, in an environment that does not have it, what comes first there."""
        first = first_measure(row.spreads, key)
        if first is None or first == key:
            return show_cell(row, key)
        return f"{measure_of(first).name} {show_cell(row, first)}"


def show_cell(row: Row, key: str) -> str:
    """A measure of an arm, with a word where it is not final, or not of the row's seeds."""
    if key not in row.spreads:
        return "–"
    shown = show_spread(key, row.spreads[key]) + (" so far" if row.is_partial else "")
    mine = seeds_behind(row.arm, key)
    return shown if mine == row.counted else f"{shown}, seed{'s' * (len(mine) > 1)} {seeds(mine)}"


def shown_states(states: dict[str, int]) -> str:
    """`2 complete, 1 failed`."""
    return ", ".join(f"{number} {status}" for status, number in states.items())


def make_results(arms: Sequence[Arm]) -> list[Results]:
    """One for each stage that has runs."""
    made = []
    for stage, by_env in stages_of(arms).items():
        every = [arm for found in by_env.values() for arm in found]
        first = headline(every, stage)
        rows = [_row(arm, first) for arm in every]
        found = {key for row in rows for key in row.spreads}
        ordered = [*MEASURES, *sorted(found - {*MEASURES})]
        measures = [key for key in ordered if key in found]
        measures.sort(key=lambda key: key != first)  # keeps the order of the others
        made.append(Results(stage, measures, rows, _scales(rows, first)))
    return made


def _row(arm: Arm, headline: str | None) -> Row:
    states: dict[str, int] = {}
    for run in arm.runs:
        states[run.status] = states.get(run.status, 0) + 1
    found = spreads(arm)
    return Row(arm, seeds_behind(arm, first_measure(found, headline)), _steps(arm), states, found)


def _steps(arm: Arm) -> str:
    reached, asked = [run.steps for run in arm.runs], max(run.asked_steps for run in arm.runs)
    low, high = min(min(reached), asked), min(max(reached), asked)  # environments step past the end together
    shown = steps(low) if low == high else f"{steps(low)} to {steps(high)}"
    if low < asked:
        shown += f" of {steps(asked)}"
    protocol = arm.protocol_steps
    if protocol and asked != protocol:
        shown += f"; protocol {steps(protocol)}"
    return shown


def _scales(rows: Sequence[Row], key: str | None) -> dict[str, tuple[float, float]]:
    """Shares go from 0 to 1 at least, everything else from 0 or below to the highest."""
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        if key is None or key not in row.spreads:
            continue
        least, most = (0.0, 1.0) if measure_of(key).unit == "share" else (0.0, 0.0)
        low, high = found.get(row.arm.env, (least, most))
        spread = row.spreads[key]
        found[row.arm.env] = min(low, spread.low), max(high, spread.high)
    return found
