"""Group runs that differ only in their seed into arms, and name the arms."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from voidrl.config import bonus_method, bonus_suffix, flat, merge
from voidrl.errors import ConfigError
from voidrl.presets.presets import AGENTS, PRESETS, preset_for
from voidrl.report.formatting import ABSENT, Bar, seed_list, step_range, steps
from voidrl.report.outcomes import Spread, headline_measure, outcome, spreads_of
from voidrl.report.read import Run
from voidrl.report.scores.scales import Scale, find_scale
from voidrl.system.units import value_text

Stage = Literal["pretrain", "task"]
STAGES: dict[Stage, str] = {"pretrain": "Pre-training without reward", "task": "Training with task reward"}
PHASE_NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning", "train": "from scratch"}
MAX_NAMED_DIFFERENCES = 3
LENGTH = "pre-training steps"

# Settings of a run's device and logging: they do not change the experiment.
_INCIDENTAL = (
    *("seed", "device", "engine", "phase", "env.id", "env.backend", "env.count_states"),
    *("env.timeout_s", "env.check_bounds", "replay.device", "log."),
)
# Settings that a phase ignores.
_UNUSED = {
    "pretrain": ("finetune.", "bonus.", "reward_scale"),
    "train": ("finetune.", "method."),
    "finetune": (),
}

# Settings in which a run may differ from a preset and still be of its agent.
_FREE = ("steps", "env.id", "env.num_envs", "env.backend", "replay.device")


@dataclass(eq=False)
class ArmRuns:
    """The runs of one arm in one environment and phase: a line of a chart, a row of a table."""

    env: str
    env_name: str
    """A short name that is unique in this report."""
    phase: str
    label: str
    style: int
    """Index of its color and dashes, consistent for a label across the report."""
    runs: list[Run]
    headline: str | None = None
    """The measure that compares the arms of its environment and stage."""

    @property
    def name(self) -> str:
        """Label and environment."""
        return f"{self.label} in {self.env_name}"

    @property
    def grid_label(self) -> str | None:
        """The method's label if this is a point of its grid, which the label names as well."""
        run = self.runs[0]
        grid = None if run.experiment is None else run.experiment.grid
        if grid is None or run.cell is None or not run.cell.point:
            return None
        return grid.labels.get(run.cell.arm, run.cell.arm)

    @property
    def phase_hint(self) -> str:
        """The phase, unless the label already says so."""
        stem = {"pretrain": "pre-train", "finetune": "fine-tun", "train": "scratch"}[self.phase]
        return "" if stem in self.label else PHASE_NAMES[self.phase]

    @property
    def stage(self) -> Stage:
        """Stage within which arms are compared."""
        return "pretrain" if self.phase == "pretrain" else "task"

    @property
    def seeds(self) -> list[int]:
        """Distinct seeds, sorted."""
        return sorted({run.seed for run in self.runs})

    @property
    def complete(self) -> list[Run]:
        """Runs that took all requested steps."""
        return [run for run in self.runs if run.took_all_steps]

    @property
    def counted(self) -> list[Run]:
        """Runs that enter the final numbers: complete ones, or all runs if none is complete."""
        return self.complete or self.runs

    @property
    def protocol_steps(self) -> int | None:
        """Steps that the experiment's protocol asks for."""
        return max((run.protocol_steps for run in self.runs if run.protocol_steps is not None), default=None)

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Final numbers by measure."""
        return spreads_of(self.counted)

    @cached_property
    def scale(self) -> tuple[Scale, str] | None:
        """The scale of normalized scores, and the task on it."""
        return find_scale(self.env)

    def scores(self) -> list[tuple[Run, float]]:
        """Complete runs that were evaluated, with their normalized scores."""
        found = [(run, outcome(run).get(self.scale[0].key)) for run in self.complete] if self.scale else []
        return [(run, score) for run, score in found if score is not None]

    # Cells of a table

    @property
    def main(self) -> str | None:
        """The headline, or its own first measure where it does not have that."""
        return self.headline if self.headline in self.spreads else next(iter(self.spreads), None)

    @property
    def final_seeds(self) -> list[int]:
        """Seeds behind its main measure."""
        return self.spreads[self.main].seeds if self.main else sorted({run.seed for run in self.counted})

    @property
    def seed_text(self) -> str:
        """`2 of 3 (1, 2)`: how many seeds count, of how many, and which."""
        found = self.final_seeds
        total = f" of {len(self.seeds)}" if len(found) < len(self.seeds) else ""
        return f"{len(found)}{total}" + (f" ({seed_list(found)})" if found else "")

    @property
    def statuses(self) -> str:
        """`2 done, 1 failed`."""
        found = Counter(run.status for run in self.runs)
        return ", ".join(f"{number} {status}" for status, number in found.items())

    @property
    def steps(self) -> str:
        """Steps taken, `2M + 100k` after pre-training, and the steps that were asked for."""
        asked = max(run.asked_steps for run in self.runs)
        taken = [min(run.steps, asked) for run in self.runs]  # parallel environments can overshoot
        shown = step_range(taken) + (f" of {steps(asked)}" if min(taken) < asked else "")
        before = [run.pretraining_steps for run in self.runs if run.pretraining_steps is not None]
        shown = f"{step_range(before)} + {shown}" if before else shown
        protocol = self.protocol_steps
        return f"{shown}; protocol {steps(protocol)}" if protocol and asked != protocol else shown

    def cell(self, key: str) -> str:
        """A measure as text, marked if no run is complete or if it has other seeds than the row."""
        if key not in self.spreads:
            return ABSENT
        spread = self.spreads[key]
        shown = spread.format(key) + ("" if self.complete else " so far")
        return shown if spread.seeds == self.final_seeds else f"{shown}, seeds {seed_list(spread.seeds)}"

    def bar(self, key: str | None) -> Bar | None:
        """The picture of a measure, if it has it."""
        if key is None or key not in self.spreads:
            return None
        spread = self.spreads[key]
        return Bar(spread.low, spread.mean, spread.high, self.style, dots=spread.values)


def make_arms(runs: Sequence[Run]) -> list[ArmRuns]:
    """Label every run, and group runs that differ only in their seed."""
    _label(runs)
    names = env_names_of(runs)
    styles = {label: i for i, label in enumerate(dict.fromkeys(run.label for run in runs))}
    groups: dict[tuple[Path | None, str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((_root(run), run.env, run.phase, run.label), []).append(run)
    arms = [
        ArmRuns(env, names[env], phase, label, styles[label], sorted(members, key=lambda run: run.seed))
        for (_, env, phase, label), members in groups.items()
    ]
    for arm in arms:
        # If no experiment says which runs are evaluated, an evaluation is due as soon as one run has it.
        for run in arm.runs if any(run.evaluation is not None for run in arm.runs) else ():
            unspecified = run.cell is None or run.cell.evaluated is None
            if unspecified and run.status == "done" and run.evaluation is None:
                run.evaluation_gap = "missing"
    for stage, by_env in stages_of(arms).items():
        for members in by_env.values():
            headline = headline_measure((arm.spreads for arm in members), stage)
            for arm in members:
                arm.headline = headline
    return arms


def _root(run: Run) -> Path | None:
    return None if run.experiment is None else run.experiment.root


def stages_of(arms: Sequence[ArmRuns]) -> dict[Stage, dict[str, list[ArmRuns]]]:
    """Arms by stage and environment."""
    found: dict[Stage, dict[str, list[ArmRuns]]] = {}
    for stage in STAGES:
        for arm in arms:
            if arm.stage == stage:
                found.setdefault(stage, {}).setdefault(arm.env, []).append(arm)
    return found


def _label(runs: Sequence[Run]) -> None:
    """The experiment's label; otherwise the method or agent, and the settings that differ among its runs."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.cell is not None:
            run.label = run.cell.label
            continue
        from_scratch = run.phase == "train"
        run.label = (find_agent(run) or "scratch") if from_scratch else run.method.rpartition(":")[2]
        run.label += bonus_suffix(run.config)
        groups.setdefault((run.env, run.phase, run.label), []).append(run)
    for members in groups.values():
        settings = [defining_settings(run) for run in members]
        lengths = [run.pretraining_steps for run in members]
        if len({*lengths} - {None}) > 1:
            settings = [each | {LENGTH: length} for each, length in zip(settings, lengths, strict=True)]
        names = differing_names(settings)
        for run, setting in zip(members, settings, strict=True):
            values = [setting.get(name) for name in names]
            pairs = zip(names[:MAX_NAMED_DIFFERENCES], values, strict=False)
            shown = [f"{name} {format_value(value)}" for name, value in pairs]
            if len(names) > len(shown):  # a hash keeps different settings apart
                digest = hashlib.sha256(repr(values).encode()).hexdigest()[:4]
                shown.append(f"{len(names) - len(shown)} more #{digest}")
            run.label += f" ({', '.join(shown)})" if shown else ""
    planned = [run for run in runs if run.cell is not None]
    for run in _ambiguous(  # tasks of one environment, with other settings
        planned,
        lambda run: (_root(run), run.env, run.phase, run.label),
        lambda run: run.cell and run.cell.task_name,
    ):
        if run.cell is not None and run.cell.task_name:
            run.label += f" ({run.cell.task_name})"
    for run in _ambiguous(
        planned, lambda run: (_root(run), run.env, run.phase, run.label), lambda run: run.asked_steps
    ):
        run.label += f" (steps {run.asked_steps})"
    experiments = {run.experiment.root: run.experiment.name for run in runs if run.experiment is not None}
    shared = os.path.commonpath([*experiments]) if experiments else ""
    for run in _ambiguous(runs, lambda run: run.label, _root):
        if (experiment := run.experiment) is not None:
            is_unique = [*experiments.values()].count(experiment.name) == 1
            where = "" if is_unique else f" in {os.path.relpath(experiment.root, shared)}"
            run.label += f", {experiment.name}{where}"
    stages = _ambiguous(
        runs, lambda run: (run.env, run.label, run.phase == "pretrain"), lambda run: run.phase
    )
    for run in stages:
        run.label += f", {PHASE_NAMES[run.phase]}"


def _ambiguous(
    runs: Sequence[Run], key: Callable[[Run], Hashable], value: Callable[[Run], Hashable]
) -> list[Run]:
    """Runs that share a key with others of another value."""
    values: dict[Hashable, set[Hashable]] = {}
    for run in runs:
        values.setdefault(key(run), set()).add(value(run))
    return [run for run in runs if len(values[key(run)]) > 1]


def find_agent(run: Run, presets: Iterable[str] = AGENTS) -> str | None:
    """The most specific of these presets that matches a run's values."""
    settings = flat(run.config)
    matches = {
        name: len(fixed)
        for name in presets
        if name in PRESETS
        and (fixed := _fixed_values(run.env, name))
        and all(value in ("auto", settings.get(key)) for key, value in fixed.items())
    }
    return max(matches, key=lambda name: matches[name]) if matches else None


@cache
def _fixed_values(env: str, name: str) -> dict[str, Any]:
    """The values of a preset that define its agent, by dotted name; {} if it is not made for an environment.

    `auto` leaves a value to the environment.
    """
    try:
        values = flat(merge(preset_for(env, name)))
    except ConfigError:
        return {}
    return {
        key: value
        for key, value in values.items()
        if key not in _FREE
        and not key.startswith(("finetune.", "method."))
        and (not key.startswith("log.") or key == "log.eval_epsilon")
    }


def defining_settings(run: Run) -> dict[str, Any]:
    """The settings, by dotted name, that make a run a different experiment."""
    return {
        name: value
        for name, value in used_settings(run).items()
        if name == "log.eval_epsilon" or not _matches(name, _INCIDENTAL)
    }


def used_settings(run: Run) -> dict[str, Any]:
    """The settings, by dotted name, that have a meaning in the phase of a run."""
    unused = ("finetune.",) if run.phase == "train" and bonus_method(run.config) else _UNUSED[run.phase]
    return {k: value for k, value in flat(run.config).items() if not _matches(k, unused)}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name.startswith(each) if each.endswith(".") else name == each for each in patterns)


def differing_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose values differ between settings."""
    missing = object()
    return [
        name
        for name in dict.fromkeys(name for setting in settings for name in setting)
        if any(setting.get(name, missing) != settings[0].get(name, missing) for setting in settings)
    ]


def format_value(value: Any) -> str:
    """A setting's value as text."""
    return "none" if value in (None, [], ()) else value_text(value)


def env_names_of(runs: Sequence[Run]) -> dict[str, str]:
    """The name of each environment: the one in the experiment's file, if all of its runs have that."""
    names = env_names(run.env for run in runs)
    given: dict[str, set[str]] = {}
    for run in runs:
        given.setdefault(run.env, set()).add("" if run.cell is None else run.cell.task_name)
    named = {env: min(found) for env, found in given.items() if len(found) == 1 and found != {""}}
    free = Counter({**names, **named}.values())  # no name for two environments
    return names | {env: name for env, name in named.items() if free[name] == 1}


def env_names(ids: Iterable[str]) -> dict[str, str]:
    """A short name for each environment id, with only the options that differ from another's."""
    by_name: dict[str, list[str]] = {}
    for env in dict.fromkeys(ids):
        by_name.setdefault(env.partition("?")[0], []).append(env)
    names = {}
    for name, envs in by_name.items():
        options = [dict(parse_qsl(env.partition("?")[2], keep_blank_values=True)) for env in envs]
        differ = differing_names(options)
        for env, mine in zip(envs, options, strict=True):
            shown = "&".join(f"{key}={mine[key]}" for key in differ if key in mine)
            short = name.removeprefix("voidrl/").removeprefix("__main__:")
            names[env] = short + (f"?{shown}" if shown else "")
    return names
