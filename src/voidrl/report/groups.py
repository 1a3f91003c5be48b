"""Runs that differ in their seed alone make an arm; arms of one environment and phase are compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from voidrl.config import flat
from voidrl.report.read import Run

Stage = Literal["pretrain", "task"]
STAGES: dict[Stage, str] = {"pretrain": "Without reward", "task": "With the task's reward"}
PHASE_NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning", "train": "from scratch"}
MAX_NAMED_DIFFERENCES = 3

# Where and how a run is computed and written down, which makes no other experiment of it.
_INCIDENTAL = (
    *("seed", "device", "engine", "phase", "env.id", "env.backend", "env.count_states"),
    *("env.dmc.processes", "env.dmc.timeout_s", "replay.device", "log."),
)
# What a phase does not use.
_UNUSED = {"pretrain": ("finetune.", "reward_scale"), "train": ("finetune.", "method."), "finetune": ()}


@dataclass(frozen=True, eq=False)
class Arm:
    """One line of a chart, one row of a table."""

    env: str
    env_name: str
    """As short as it stays distinct from the others."""
    phase: str
    label: str
    style: int
    """Color and dashes, the same for a label everywhere."""
    runs: list[Run]

    @property
    def stage(self) -> Stage:
        """Which arms it is compared with."""
        return "pretrain" if self.phase == "pretrain" else "task"

    @property
    def seeds(self) -> list[int]:
        """Each once."""
        return sorted({run.seed for run in self.runs})

    @property
    def complete(self) -> list[Run]:
        """The runs whose last numbers are those of the steps asked for."""
        return [run for run in self.runs if run.took_all_steps]

    @property
    def counted(self) -> list[Run]:
        """The runs that final numbers are of: complete ones, or, where there is none, all as they are."""
        return self.complete or self.runs

    @property
    def protocol_steps(self) -> int | None:
        """What the experiment's protocol would take."""
        return max((run.protocol_steps for run in self.runs if run.protocol_steps is not None), default=None)


def make_arms(runs: Sequence[Run]) -> list[Arm]:
    """Set the label of every run, and put those together that differ in their seed alone."""
    _label(runs)
    names = env_names(run.env for run in runs)
    styles: dict[str, int] = {}
    for run in runs:
        styles.setdefault(run.label, len(styles))
    together: dict[tuple[Path | None, str, str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((_root(run), run.env, run.phase, run.label), []).append(run)
    for members in together.values():
        _mark_gaps(members)
    return [
        Arm(env, names[env], phase, label, styles[label], sorted(members, key=lambda run: run.seed))
        for (_, env, phase, label), members in together.items()
    ]


def _root(run: Run) -> Path | None:
    return None if run.experiment is None else run.experiment.root


def _mark_gaps(runs: Sequence[Run]) -> None:
    """Where nobody says which runs are evaluated, a run is due to have what others of its arm have."""
    if any(run.evaluation is not None for run in runs):
        for run in runs:
            unsaid = run.cell is None or run.cell.evaluated is None
            if unsaid and run.status == "complete" and run.evaluation is None:
                run.evaluation_gap = "missing"


def stages_of(arms: Sequence[Arm]) -> dict[Stage, dict[str, list[Arm]]]:
    """Arms by stage, and within it by environment, in the order in which they came."""
    found: dict[Stage, dict[str, list[Arm]]] = {}
    for stage in STAGES:
        for arm in arms:
            if arm.stage == stage:
                found.setdefault(stage, {}).setdefault(arm.env, []).append(arm)
    return found


def _label(runs: Sequence[Run]) -> None:
    """The experiment's name for it; else the method, and where settings differ, those."""
    alike: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.cell is not None:
            run.label = run.cell.label
            continue
        run.label = "scratch" if run.phase == "train" else run.method.rpartition(":")[2]
        alike.setdefault((run.env, run.phase, run.label), []).append(run)
    for members in alike.values():
        settings = [essential(run) for run in members]
        differ = differing(settings)
        for run, setting in zip(members, settings, strict=True):
            shown = [f"{name} {show(setting.get(name))}" for name in differ[:MAX_NAMED_DIFFERENCES]]
            rest = len(differ) - len(shown)
            if shown:
                run.label += (
                    f" ({', '.join(shown)}{f', {rest} more {setting_key(setting, differ)}' if rest else ''})"
                )
    _tell_steps_apart([run for run in runs if run.cell is not None])
    _tell_experiments_apart(runs)
    for stage_of in ({"pretrain"}, {"finetune", "train"}):
        _tell_phases_apart([run for run in runs if run.phase in stage_of])


def setting_key(setting: Mapping[str, Any], differ: Sequence[str]) -> str:
    """A short sign that is equal for equal settings, where there are too many to name."""
    import hashlib

    text = repr([(name, setting.get(name)) for name in differ])
    return "#" + hashlib.sha256(text.encode()).hexdigest()[:4]


def _tell_steps_apart(runs: Sequence[Run]) -> None:
    """Of one experiment, which can be gone on with at another length."""
    lengths: dict[tuple[Path | None, str, str, str], set[int]] = {}
    for run in runs:
        lengths.setdefault((_root(run), run.env, run.phase, run.label), set()).add(run.asked_steps)
    for run in runs:
        if len(lengths[_root(run), run.env, run.phase, run.label]) > 1:
            run.label += f" (steps {run.asked_steps})"


def _tell_experiments_apart(runs: Sequence[Run]) -> None:
    """A label that several experiments have, or one and runs without any, has the experiment's name added."""
    roots: dict[str, set[Path | None]] = {}
    for run in runs:
        roots.setdefault(run.label, set()).add(_root(run))
    experiments = {run.experiment.root: run.experiment for run in runs if run.experiment is not None}
    names = [experiment.name for experiment in experiments.values()]
    shared = os.path.commonpath([*experiments]) if experiments else ""
    for run in runs:
        if run.experiment is not None and len(roots[run.label]) > 1:
            name, folder = run.experiment.name, os.path.relpath(run.experiment.root, shared)
            run.label += f", {name}" if names.count(name) == 1 else f", {name} in {folder}"


def _tell_phases_apart(runs: Sequence[Run]) -> None:
    phases: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        phases.setdefault((run.env, run.label), set()).add(run.phase)
    twice = {key for key, found in phases.items() if len(found) > 1}
    for run in runs:
        if (run.env, run.label) in twice:
            run.label += f", {PHASE_NAMES[run.phase]}"


def essential(run: Run) -> dict[str, Any]:
    """The settings that make a run another experiment, by dotted names."""
    return {
        name: value
        for name, value in flat(run.config).items()
        if name == "log.eval_epsilon"
        or (is_used(name, run.phase) and not any(_is_under(name, other) for other in _INCIDENTAL))
    }


def is_used(name: str, phase: str) -> bool:
    """Whether a setting has a meaning in a phase."""
    return not any(_is_under(name, other) for other in _UNUSED[phase])


def _is_under(name: str, other: str) -> bool:
    return name.startswith(other) if other.endswith(".") else name == other


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values are not the same in all of them."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    missing = object()
    return [
        name
        for name in names
        if any(setting.get(name, missing) != settings[0].get(name, missing) for setting in settings)
    ]


def show(value: Any) -> str:
    """A setting as people write it."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(show, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def env_names(ids: Iterable[str]) -> dict[str, str]:
    """Each environment by its name, with the options in which it differs from others of that name."""
    by_name: dict[str, list[str]] = {}
    for env in dict.fromkeys(ids):
        by_name.setdefault(env.partition("?")[0], []).append(env)
    shown = {}
    for name, envs in by_name.items():
        short = name.removeprefix("voidrl/")
        options = [dict(parse_qsl(env.partition("?")[2], keep_blank_values=True)) for env in envs]
        differ = differing(options)
        for env, mine in zip(envs, options, strict=True):
            told = "&".join(f"{key}={mine[key]}" for key in differ if key in mine)
            shown[env] = f"{short}?{told}" if told else short
    return shown
