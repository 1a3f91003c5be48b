"""Read and check the file of an experiment; docs/experiments.md describes its keys. Imports no torch."""

from __future__ import annotations

import importlib.resources
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from voidrl.config import field_types, flat, merge, require, require_type
from voidrl.envs.suites import published
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.experiments.grid import Axis, read_axes
from voidrl.experiments.tasks import (
    GROUPS,
    PHASES,
    NamedEnv,
    PhaseSpec,
    PhaseSpecs,
    Task,
    folder_name,
    make_task,
    task_name,
)
from voidrl.system.files import MAX_TOML_BYTES, parse_toml, path_hint, read_text, user_path
from voidrl.system.units import parse_count

Phase = Literal["pretrain", "finetune", "train"]
ALLOWED_PHASES = (("pretrain",), ("pretrain", "finetune"), ("finetune",), ("train",))
Scaled = Literal[Phase, "evaluation"]
SCALED: tuple[Scaled, ...] = ("pretrain", "finetune", "train", "evaluation")


@dataclass(frozen=True)
class EvaluationSpec:
    """Evaluation of an agent after training; without episodes and steps, as in its preset."""

    episodes: int | None = None
    steps: int | None = None
    count_states: bool = False
    zero_shot: bool = True
    """Whether pre-trained agents that are fine-tuned are evaluated on the task before that, too."""


@dataclass(frozen=True)
class ArmSpec:
    """A method of the experiment: one row of its table."""

    name: str
    label: str
    phases: tuple[Phase, ...]
    evaluation: EvaluationSpec | None
    by_phase: PhaseSpecs
    method: str | None = None
    """The method in pre-training; None for the preset's."""
    source: str | None = None
    """The arm whose pre-trained agents are fine-tuned; None for its own."""
    config: Mapping[str, Any] = field(default_factory=dict)
    presets: tuple[str, ...] = ()
    """The only presets that it can be run with; all of them if empty."""
    preset: str | None = None
    """Its own preset, which no other one replaces; None for the experiment's."""
    requires: tuple[str, ...] = ()
    """Config fields that `--set` gives; without them it is left out, unless it is requested by its name."""
    seeds: tuple[int, ...] = ()
    """Its own seeds; if empty, the seeds of the experiment, or of the arm that it is `like`."""
    like: str | None = None
    """The arm whose fine-tuning settings it uses from scratch; None for the settings of the preset."""
    bonus: str | None = None
    """The method whose reward is added to the task's when training from scratch; None for no bonus."""


@dataclass(frozen=True)
class ExperimentSpec:
    """The content of an experiment's file."""

    name: str
    path: str
    title: str
    tasks: tuple[Task, ...]
    arms: Mapping[str, ArmSpec]
    by_phase: PhaseSpecs
    about: str = ""
    published: str | None = None
    """The table in `voidrl.envs.suites.published` that results are compared with."""
    preset: str | None = None
    seeds: tuple[int, ...] = (1,)
    config: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    """CPU threads of each run; None divides the machine's."""
    pretrain_seeds: tuple[int, ...] = ()
    """Seeds of pre-trainings, each of which is fine-tuned with all `seeds`; () pre-trains for every seed."""
    scaled: tuple[Scaled, ...] = SCALED
    """Phases and evaluations that `--steps-scale` shortens."""
    grid: Mapping[str, Axis] = field(default_factory=dict)
    """Fields that vary in all arms in which they make a difference."""
    measures: tuple[str, ...] = ("return",)
    """The first one ranks the points of the grid."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether the best point has the highest value or the lowest."""

    def pretrained(self, arm: ArmSpec) -> ArmSpec:
        """The arm whose pre-training it starts from, or would start from if it were not from scratch."""
        tuned = self.arms[arm.like or arm.name]
        return self.arms[tuned.source or tuned.name]


# The keys of each table of the file, and their types. A list has at least one entry, and each once.

_PHASES: dict[str, Any] = dict.fromkeys(PHASES, dict)
_RAW: dict[str, Any] = {**_PHASES, "config": dict, "about": str, "evaluation": dict | bool}
_DERIVED = ("name", "path", "arms", "by_phase")  # not in the file
KEYS: dict[str, dict[str, Any]] = {
    "experiment": field_types(ExperimentSpec) | _RAW | {"tasks": list | str, "methods": dict, "grid": dict},
    "method": field_types(ArmSpec) | _RAW,
    "task": {**_PHASES, "config": dict, "name": str, "env": str, "pretrain": dict | str},
    "phase": field_types(PhaseSpec),
    "evaluation": field_types(EvaluationSpec),
}
for _kind in ("experiment", "method"):
    KEYS[_kind] = {key: hint for key, hint in KEYS[_kind].items() if key not in _DERIVED}


def read_table(kind: str, where: str, values: Any) -> dict[str, Any]:
    """The checked values of a table, which errors call `where`."""
    require(isinstance(values, dict), where, values, "a table")
    read = {}
    for key, value in values.items():
        name = _join(where, key)
        if key not in KEYS[kind]:
            raise UnknownNameError(f"key in {where.rstrip(':')}:", key, KEYS[kind])
        if kind in ("phase", "evaluation") and key in ("steps", "episodes"):
            value = parse_count(value, name, zero=where.endswith("pretrain"))
        read[key] = require_type(value, KEYS[kind][key], name)
        if isinstance(value, list):
            ok = len(value) > 0 and not any(value.count(each) > 1 for each in value)
            require(ok, name, value, "at least one entry, and each of them once")
    return read


def _join(where: str, key: str) -> str:
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


# Reading


def shipped() -> dict[str, str]:
    """The experiments that come with voidrl, and their titles."""
    return {name: read_experiment(name).title for name in _shipped_names()}


def read_experiment(name: str | Path) -> ExperimentSpec:
    """Read a shipped experiment by its name, or your own by the path of its file."""
    path = user_path(name)
    if path.suffix != ".toml" and not path.is_file():
        if str(path) not in _shipped_names():
            remedy = "Your own is a file whose name ends in .toml."
            raise UnknownNameError("experiment", str(name), _shipped_names(), remedy)
        text = importlib.resources.files("voidrl.experiments").joinpath(f"{path}.toml").read_text("utf-8")
        return _experiment(f"{path}.toml", parse_toml(text))
    try:
        values = parse_toml(read_text(path, MAX_TOML_BYTES))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}: expected one, or a name such as demo{path_hint(path)}"
        ) from None
    except (OSError, ValueError) as error:  # no UTF-8, or no TOML
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return _experiment(str(path), values)


def _shipped_names() -> list[str]:
    folder = importlib.resources.files("voidrl.experiments")
    return sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))


def _experiment(file: str, values: dict[str, Any]) -> ExperimentSpec:
    where = f"{file}:"
    given = read_table("experiment", where, values)
    name = folder_name(Path(file).stem)
    if "published" in given:
        published.sources(given["published"])  # refuses an unknown one
    require(given.get("threads", 1) > 0, f"{where} threads", given.get("threads"), "a number above 0")
    if "pretrain_seeds" in given:  # (p − 1) N + s is a distinct seed for each pair
        for key in ("pretrain_seeds", "seeds"):
            seeds = given.get(key, (1,))
            require(min(seeds) > 0, f"{where} {key}", [*seeds], "whole numbers from 1 on")
    made = {
        "title": name,
        **{key: value for key, value in given.items() if key in field_types(ExperimentSpec)},
        "about": " ".join(given.get("about", "").split()),
        "tasks": _tasks(f"{where} tasks", given.get("tasks")),
        "by_phase": _by_phase(where, given),
        "grid": read_axes(f"{where} grid", given["grid"]) if "grid" in given else {},
    }
    return ExperimentSpec(name=name, path=file, arms=_arms(where, given), **made)


def _by_phase(where: str, given: Mapping[str, Any]) -> PhaseSpecs:
    return {p: PhaseSpec(**read_table("phase", _join(where, p), given.get(p, {}))) for p in PHASES}


def _evaluation(
    where: str, given: Mapping[str, Any], default: EvaluationSpec | None
) -> EvaluationSpec | None:
    values = given.get("evaluation")
    if values is None or values is False:
        return default if values is None else None
    read = read_table("evaluation", where, values)
    require(("episodes" in read) != ("steps" in read), where, values, "one of episodes and steps")
    return EvaluationSpec(**{"zero_shot": default is None or default.zero_shot, **read})


def _require_folder_name(where: str, name: str) -> None:
    require(folder_name(name) == name, where, name, f"the name of a folder, such as {folder_name(name)!r}")


# Methods


def _arms(where: str, given: Mapping[str, Any]) -> dict[str, ArmSpec]:
    if not given.get("methods"):
        raise ConfigError(f"{where} there are no methods: expected at least one table [methods.NAME]")
    evaluation = _evaluation(f"{where} evaluation", given, EvaluationSpec(episodes=10))
    arms = {name: _arm(where, name, each, evaluation) for name, each in given["methods"].items()}
    for name, arm in arms.items():
        for key, phase in (("source", "pretrain"), ("like", "finetune")):
            other = getattr(arm, key)
            if other is not None and other not in arms:
                raise UnknownNameError(f"{key} in {where} methods.{name}:", other, arms)
            fits = other is None or phase in arms[other].phases
            require(fits, f"{where} methods.{name}.{key}", other, f"a method with the phase {phase!r}")
    for label, number in Counter(arm.label for arm in arms.values()).items():
        require(number == 1, f"{where} label", label, "each label once, as tables tell methods apart by them")
    return arms


def _arm(where: str, name: str, values: Any, evaluation: EvaluationSpec | None) -> ArmSpec:
    _require_folder_name(f"{where} methods", name)
    table = f"{where} methods.{name}"
    given = read_table("method", table, values)
    usual = ("finetune",) if "source" in given else ("pretrain", "finetune")
    if "preset" in given and evaluation is not None:  # the agent's own
        evaluation = replace(evaluation, episodes=None, steps=None)
    made = {
        "label": name,
        "phases": usual,
        **{key: value for key, value in given.items() if key in field_types(ArmSpec)},
        "by_phase": _by_phase(table, given),
        "evaluation": _evaluation(f"{table}.evaluation", given, evaluation),
    }
    arm = ArmSpec(name=name, **made)
    tunes, scratch = arm.phases == ("finetune",), arm.phases == ("train",)
    rules = {
        "phases": (arm.phases in ALLOWED_PHASES, "pretrain, pretrain and finetune, finetune, or train"),
        "source": ((arm.source is not None) == tunes, "a source if phases = ['finetune'], and only then"),
        "method": (not arm.method or "pretrain" in arm.phases, "none without the phase 'pretrain'"),
        "preset": (not (arm.preset and (arm.presets or arm.source)), "none beside presets or source"),
        "like": (not arm.like or (scratch and not arm.preset), "none unless phases = ['train']"),
        "bonus": (not arm.bonus or (scratch and not arm.like), "none unless phases = ['train']"),
    }
    for key, (fits, expected) in rules.items():
        require(bool(fits), f"{table}.{key}", getattr(arm, key), expected)
    return arm


# Tasks


def _tasks(where: str, given: Any) -> tuple[Task, ...]:
    entries = [given] if isinstance(given, str) else given
    require(bool(entries), where, given, f"a list of environments, or a group: {', '.join(GROUPS)}")
    tasks: list[Task] = []
    for entry in entries:
        if isinstance(entry, str):
            tasks += [make_task(env) for env in GROUPS.get(entry, (entry,))]
        else:
            tasks.append(_task(where, entry))
    places: dict[str, NamedEnv] = {}
    first: dict[str, Task] = {}
    for task in tasks:
        for each in (NamedEnv(task.name, task.env), task.pretrain):
            other = places.setdefault(each.name, each)
            if other != each:
                raise ConfigError(
                    f"{where}: {other.env!r} and {each.env!r} would both be named {each.name!r}: give one a "
                    f'name, {{ name = "…", env = "…" }}'
                )
        sharing = first.setdefault(task.pretrain.name, task)
        settings = [(flat(merge(each.config)), each.by_phase["pretrain"]) for each in (sharing, task)]
        if settings[0] != settings[1]:
            raise ConfigError(
                f"{where}: {sharing.name!r} and {task.name!r} share the pre-training {task.pretrain.name!r}, "
                f"but not its settings: give them equal ones, or one of them its own pre-training: "
                f'pretrain = {{ name = "…", env = "…" }}'
            )
    return tuple(tasks)


def _task(where: str, values: Any) -> Task:
    given = read_table("task", where, values)
    here, pretrain = _named_env(where, given), given.get("pretrain", {})
    pretrain = {"env": pretrain} if isinstance(pretrain, str) else pretrain
    settings = {key: value for key, value in pretrain.items() if key not in ("name", "env")}
    if settings != pretrain:
        place = _named_env(f"{where}.pretrain", pretrain)
    elif (place := make_task(here.env).pretrain).env == here.env:
        place = here
    by_phase = _by_phase(where, {**given, "pretrain": settings})
    return Task(here.name, here.env, place, given.get("config", {}), by_phase)


def _named_env(where: str, given: Mapping[str, Any]) -> NamedEnv:
    env, name = given.get("env"), given.get("name")
    fits = isinstance(env, str) and isinstance(name, str | None)
    require(fits, where, given, 'a table with env, such as { env = "atari/pong" }')
    name = task_name(str(env)) if name is None else name
    _require_folder_name(f"{where}.name", name)
    return NamedEnv(name, str(env))
