"""The results table of a report: a row for each arm with its seeds, steps and final numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from voidrl.report.formatting import ABSENT, Table, seed_list, step_range, steps
from voidrl.report.groups import PHASE_NAMES, STAGES, ArmRuns, Stage, stages_of
from voidrl.report.outcomes import Spread, headline_measure, main_measure, measure_of, sort_keys, spreads

MOST_ENVS = 4  # with more environments, a table of environments × arms comes first
MOST_POINTS = 6  # of grids; more are folded


@dataclass(frozen=True)
class ResultRow:
    """The results of one arm."""

    arm: ArmRuns
    seeds: list[int]
    """Seeds behind its main measure."""
    spreads: dict[str, Spread]

    @property
    def seed_text(self) -> str:
        """`2 of 3 (1, 2)`: how many seeds count, of how many, and which."""
        total = f" of {len(self.arm.seeds)}" if len(self.seeds) < len(self.arm.seeds) else ""
        return f"{len(self.seeds)}{total}" + (f" ({seed_list(self.seeds)})" if self.seeds else "")

    @property
    def statuses(self) -> dict[str, int]:
        """Number of runs by status."""
        return Counter(run.status for run in self.arm.runs)

    @property
    def steps(self) -> str:
        """Steps taken, and the requested or the protocol's steps where these are more."""
        asked = max(run.asked_steps for run in self.arm.runs)
        taken = [min(run.steps, asked) for run in self.arm.runs]  # parallel environments can overshoot
        shown = step_range(taken) + (f" of {steps(asked)}" if min(taken) < asked else "")
        protocol = self.arm.protocol_steps
        return f"{shown}; protocol {steps(protocol)}" if protocol and asked != protocol else shown

    def cell(self, key: str) -> str:
        """A measure as text, marked if no run is complete or if it has other seeds than the row."""
        if key not in self.spreads:
            return ABSENT
        spread = self.spreads[key]
        shown = spread.format(key) + ("" if self.arm.complete else " so far")
        return shown if spread.seeds == self.seeds else f"{shown}, seeds {seed_list(spread.seeds)}"


@dataclass(frozen=True)
class Results:
    """The arms of one stage."""

    stage: Stage
    measures: list[str]
    """Keys that any arm has, the headline first."""
    rows: list[ResultRow]

    @property
    def title(self) -> str:
        """The stage in words."""
        return STAGES[self.stage]

    @property
    def is_folded(self) -> bool:
        """Whether its rows are shown on a click only: points of a grid, which are ranked below."""
        return len(self.rows) > MOST_POINTS and all(row.arm.grid_label is not None for row in self.rows)

    @property
    def headline(self) -> str | None:
        """The measure that compares the arms."""
        return self.measures[0] if self.measures else None

    @property
    def by_env(self) -> dict[str, list[ResultRow]]:
        """Rows by environment name."""
        found: dict[str, list[ResultRow]] = {}
        for row in self.rows:
            found.setdefault(row.arm.env_name, []).append(row)
        return found

    def headline_of(self, env: str) -> str | None:
        """The measure that compares the arms of one environment; another one where none has the headline."""
        rows = self.by_env[env]
        if any(self.headline in row.spreads for row in rows):
            return self.headline
        return headline_measure([row.arm for row in rows], self.stage)

    def by_headline(self) -> dict[str, dict[str, list[ResultRow]]]:
        """The rows with a measure, by measure and environment, the highest mean first."""
        found: dict[str, dict[str, list[ResultRow]]] = {}
        for env, rows in self.by_env.items():
            key = self.headline_of(env)
            if key is not None:
                have = [row for row in rows if key in row.spreads]
                ordered = sorted(have, key=lambda row: -row.spreads[key].mean)
                found.setdefault(key, {})[env] = ordered
        return found

    def bar(self, row: ResultRow) -> dict[str, str] | None:
        """Positions of the headline's mean and range, in percent of its environment's scale from 0 up."""
        key = self.headline_of(row.arm.env_name)
        if key is None or key not in row.spreads:
            return None
        others = [each.spreads[key] for each in self.by_env[row.arm.env_name] if key in each.spreads]
        low = min(0.0, *(spread.low for spread in others))
        high = max(1.0 if measure_of(key).unit == "fraction" else low, *(spread.high for spread in others))
        spread, width = row.spreads[key], (high - low) or 1.0
        values = {"low": spread.low, "mean": spread.mean, "high": spread.high}
        return {name: f"{100 * (value - low) / width:.1f}%" for name, value in values.items()}

    def table(self) -> Table:
        """All measures of all arms."""
        columns = ["environment", "arm", "phase", "seeds", "steps", "runs"]
        columns += [measure_of(key).name for key in self.measures]
        rows = []
        for row in self.rows:
            statuses = ", ".join(f"{number} {status}" for status, number in row.statuses.items())
            cells = [row.arm.env_name, row.arm.label, PHASE_NAMES[row.arm.phase], row.seed_text]
            rows.append([*cells, row.steps, statuses, *map(row.cell, self.measures)])
        return Table(self.title, columns, rows, numeric=frozenset(range(6, len(columns))))

    def pivot(self) -> Table | None:
        """Environments × arms by the headline, if there are many environments."""
        key = self.headline
        if key is None or len(self.by_env) <= MOST_ENVS:
            return None
        labels = [*dict.fromkeys(row.arm.label for row in self.rows)]
        rows = []
        for env, members in self.by_env.items():
            cells = {}
            for row in members:
                main = main_measure(row.spreads, key) or key
                prefix = "" if main == key else f"{measure_of(main).name} "
                cells[row.arm.label] = prefix + row.cell(main)
            rows.append([env, *(cells.get(label, ABSENT) for label in labels)])
        title = f"{self.title}: {measure_of(key).name}"
        return Table(title, ["environment", *labels], rows, numeric=frozenset(range(1, len(labels) + 1)))


def make_results(arms: Sequence[ArmRuns]) -> list[Results]:
    """The results of each stage that has runs."""
    made = []
    for stage, by_env in stages_of(arms).items():
        members = [arm for found in by_env.values() for arm in found]
        headline = headline_measure(members, stage)
        rows = []
        for arm in members:
            found = spreads(arm)
            main = main_measure(found, headline)
            seeds = found[main].seeds if main else sorted({run.seed for run in arm.counted})
            rows.append(ResultRow(arm, seeds, found))
        keys = sort_keys({key for row in rows for key in row.spreads})
        made.append(Results(stage, sorted(keys, key=lambda key: key != headline), rows))
    return made
