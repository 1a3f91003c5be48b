"""The results table of a report: a row for each arm with its final numbers, seeds and steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from voidrl.report.formatting import ABSENT, ONE_SEED, Table, draw_bars
from voidrl.report.groups import STAGES, ArmRuns, Stage, stages_of
from voidrl.report.outcomes import measure_of, sort_keys

MOST_ENVS = 4  # with more environments, a table of environments × arms comes first
MOST_POINTS = 6  # of grids; more are folded


@dataclass(frozen=True)
class Results:
    """The arms of one stage."""

    stage: Stage
    measures: list[str]
    """Keys that any arm has, the headline first."""
    arms: list[ArmRuns]

    @property
    def title(self) -> str:
        """The stage in words."""
        return STAGES[self.stage]

    @cached_property
    def by_env(self) -> dict[str, list[ArmRuns]]:
        """Arms by environment name."""
        found: dict[str, list[ArmRuns]] = {}
        for arm in self.arms:
            found.setdefault(arm.env_name, []).append(arm)
        return found

    def ranked(self, env: str) -> list[ArmRuns]:
        """The arms of an environment that have its headline, the highest mean first."""
        have = [arm for arm in self.by_env[env] if arm.headline in arm.spreads]
        return sorted(have, key=lambda arm: -arm.spreads[arm.headline or ""].mean)

    def table(self) -> Table:
        """All measures of all arms, the highest mean of an environment first."""
        columns = ["environment", "arm", *(measure_of(key).name for key in self.measures)]
        columns += ["seeds", "steps", "runs"]
        rows, bars = [], []
        for env, members in self.by_env.items():
            key = members[0].headline
            ordered = [*dict.fromkeys([*self.ranked(env), *members])]
            for arm in ordered:
                hint = arm.phase_hint if self.stage == "task" else ""
                name = f"{arm.label} ({hint})" if hint else arm.label
                seeds = arm.seed_text + ONE_SEED * (len(arm.final_seeds) == 1)
                rows.append([env, name, *map(arm.cell, self.measures), seeds, arm.steps, arm.statuses])
            top = [1.0] if key and measure_of(key).unit == "fraction" else []
            bars += draw_bars((arm.bar(key) for arm in ordered), 0.0, *top)
        # Points of a grid are ranked below.
        folded = len(rows) > MOST_POINTS and all(arm.grid_label is not None for arm in self.arms)
        return Table(
            self.title, columns, rows, numeric=frozenset(range(2, len(columns) - 3)), bars=bars,
            status_column=len(columns) - 1, has_lines=True, is_grouped=True,
            is_folded=folded or self.pivot() is not None,
        )  # fmt: skip

    def pivot(self) -> Table | None:
        """Environments × arms by the headline, if there are many environments."""
        if not self.measures or len(self.by_env) <= MOST_ENVS:
            return None
        labels = [*dict.fromkeys(arm.label for arm in self.arms)]
        rows = []
        for env, members in self.by_env.items():
            cells = {}
            for arm in members:
                main = arm.main or self.measures[0]
                prefix = "" if main == self.measures[0] else f"{measure_of(main).name} "
                cells[arm.label] = prefix + arm.cell(main)
            rows.append([env, *(cells.get(label, ABSENT) for label in labels)])
        title = f"{self.title}: {measure_of(self.measures[0]).name}"
        return Table(title, ["environment", *labels], rows, numeric=frozenset(range(1, len(labels) + 1)))


def make_results(arms: Sequence[ArmRuns]) -> list[Results]:
    """The results of each stage that has runs."""
    made = []
    for stage, by_env in stages_of(arms).items():
        members = [arm for found in by_env.values() for arm in found]
        headlines = Counter(arm.headline for arm in members)
        keys = sort_keys({key for arm in members for key in arm.spreads})
        made.append(Results(stage, sorted(keys, key=lambda key: -headlines[key]), members))
    return made
