"""The results table of a report: a row for each arm with its final numbers, seeds and steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from voidrl.report.formatting import ABSENT, ONE_SEED, Bar, Table, draw_bars, seed_list, step_range, steps
from voidrl.report.groups import STAGES, ArmRuns, Stage, stages_of
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
    def statuses(self) -> str:
        """`2 done, 1 failed`."""
        found = Counter(run.status for run in self.arm.runs)
        return ", ".join(f"{number} {status}" for status, number in found.items())

    @property
    def steps(self) -> str:
        """Steps taken, `2M + 100k` after pre-training, and the steps that were asked for."""
        asked = max(run.asked_steps for run in self.arm.runs)
        taken = [min(run.steps, asked) for run in self.arm.runs]  # parallel environments can overshoot
        shown = step_range(taken) + (f" of {steps(asked)}" if min(taken) < asked else "")
        before = [run.pretraining_steps for run in self.arm.runs if run.pretraining_steps is not None]
        shown = f"{step_range(before)} + {shown}" if before else shown
        protocol = self.arm.protocol_steps
        return f"{shown}; protocol {steps(protocol)}" if protocol and asked != protocol else shown

    def cell(self, key: str) -> str:
        """A measure as text, marked if no run is complete or if it has other seeds than the row."""
        if key not in self.spreads:
            return ABSENT
        spread = self.spreads[key]
        shown = spread.format(key) + ("" if self.arm.complete else " so far")
        return shown if spread.seeds == self.seeds else f"{shown}, seeds {seed_list(spread.seeds)}"

    def bar(self, key: str | None) -> Bar | None:
        """The picture of a measure, if it has it."""
        if key is None or key not in self.spreads:
            return None
        spread = self.spreads[key]
        return Bar(spread.low, spread.mean, spread.high, self.arm.style, dots=spread.values)


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
    def by_env(self) -> dict[str, list[ResultRow]]:
        """Rows by environment name."""
        found: dict[str, list[ResultRow]] = {}
        for row in self.rows:
            found.setdefault(row.arm.env_name, []).append(row)
        return found

    def headline_of(self, env: str) -> str | None:
        """The measure that compares the arms of one environment; another one where none has the headline."""
        rows = self.by_env[env]
        if any(self.measures[0] in row.spreads for row in rows if self.measures):
            return self.measures[0]
        return headline_measure([row.arm for row in rows], self.stage)

    def ranked(self, env: str) -> list[ResultRow]:
        """The rows of an environment that have its headline, the highest mean first."""
        key = self.headline_of(env) or ""
        have = [row for row in self.by_env[env] if key in row.spreads]
        return sorted(have, key=lambda row: -row.spreads[key].mean)

    def by_headline(self) -> dict[str, dict[str, list[ResultRow]]]:
        """Ranked rows by measure and environment, without points of grids."""
        found: dict[str, dict[str, list[ResultRow]]] = {}
        for env in self.by_env:
            have = [row for row in self.ranked(env) if row.arm.grid_label is None]
            if have:
                found.setdefault(self.headline_of(env) or "", {})[env] = have
        return found

    def table(self) -> Table:
        """All measures of all arms, the highest mean of an environment first."""
        columns = ["environment", "arm", *(measure_of(key).name for key in self.measures)]
        columns += ["seeds", "steps", "runs"]
        rows, bars = [], []
        for env, members in self.by_env.items():
            key, ranked = self.headline_of(env), self.ranked(env)
            ordered = [*ranked, *(row for row in members if row not in ranked)]
            for row in ordered:
                hint = row.arm.phase_hint if self.stage == "task" else ""
                seeds = row.seed_text + ONE_SEED * (len(row.seeds) == 1)
                name = f"{row.arm.label} ({hint})" if hint else row.arm.label
                rows.append([env, name, *map(row.cell, self.measures), seeds, row.steps, row.statuses])
            top = [1.0] if key and measure_of(key).unit == "fraction" else []
            bars += draw_bars((row.bar(key) for row in ordered), 0.0, *top)
        # Points of a grid are ranked below.
        folded = len(rows) > MOST_POINTS and all(row.arm.grid_label is not None for row in self.rows)
        return Table(
            self.title, columns, rows, numeric=frozenset(range(2, len(columns) - 3)), bars=bars,
            status_column=len(columns) - 1, has_lines=True, is_grouped=True,
            is_folded=folded or self.pivot() is not None,
        )  # fmt: skip

    def pivot(self) -> Table | None:
        """Environments × arms by the headline, if there are many environments."""
        if not self.measures or len(self.by_env) <= MOST_ENVS:
            return None
        labels = [*dict.fromkeys(row.arm.label for row in self.rows)]
        rows = []
        for env, members in self.by_env.items():
            cells = {}
            for row in members:
                main = main_measure(row.spreads, self.measures[0]) or self.measures[0]
                prefix = "" if main == self.measures[0] else f"{measure_of(main).name} "
                cells[row.arm.label] = prefix + row.cell(main)
            rows.append([env, *(cells.get(label, ABSENT) for label in labels)])
        title = f"{self.title}: {measure_of(self.measures[0]).name}"
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
