"""Read and check the file of an experiment; docs/experiments.md describes its keys. Imports no torch."""

from __future__ import annotations

import importlib.resources
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voidrl.config import flat, merge
from voidrl.envs.suites import published
from voidrl.errors import ConfigError, UnknownNameError, shown
from voidrl.experiments.grid import Axis, read_axes
from voidrl.experiments.tasks import GROUPS, NamedEnv, PhaseSpec, Task, folder_name, make_task, task_name
from voidrl.presets.presets import PRESETS
from voidrl.system.files import MAX_TOML_BYTES, parse_toml, read_text, user_path
from voidrl.system.units import parse_count

PHASES = ("pretrain", "finetune", "train")
ALLOWED_PHASES = (("pretrain",), ("pretrain", "finetune"), ("finetune",), ("train",))
SCALED = (*PHASES, "evaluation")
_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "a table", list: "a list"}


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
    about: str
    phases: tuple[str, ...]
    method: str | None
    """The method in pre-training; None for the preset's."""
    source: str | None
    """The arm whose pre-trained agents are fine-tuned; None for its own."""
    config: Mapping[str, Any]
    times: Mapping[str, float]
    """Factors for values of the config, whichever preset these come from."""
    by_phase: Mapping[str, PhaseSpec]
    evaluation: EvaluationSpec | None
    measures: tuple[str, ...]
    """Measures in the table of results."""
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
    grid: Mapping[str, Axis] = field(default_factory=dict)
    """Fields that vary for this arm, in addition to the experiment's grid."""


@dataclass(frozen=True)
class TuneSpec:
    """Settings by which `--tune` chooses points of the grid."""

    metric: str | None = None
    """The objective: a measure, or a column of the metrics; None for the first of `measures`."""
    direction: str = "maximize"
    sampler: str = "tpe"
    pruner: str = "median"


@dataclass(frozen=True)
class ScaleSpec:
    """A size of the experiment, which `--scale` chooses."""

    config: Mapping[str, Any] = field(default_factory=dict)
    by_phase: Mapping[str, PhaseSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class PresetChanges:
    """Changes that come with another preset than the experiment's."""

    config: Mapping[str, Any] = field(default_factory=dict)
    by_phase: Mapping[str, PhaseSpec] = field(default_factory=dict)
    evaluation: EvaluationSpec | None = None


@dataclass(frozen=True)
class ExperimentSpec:
    """The content of an experiment's file."""

    name: str
    path: str
    title: str
    about: str
    published: str | None
    """The table in `voidrl.envs.suites.published` that results are compared with."""
    preset: str | None
    seeds: tuple[int, ...]
    tasks: tuple[Task, ...]
    config: Mapping[str, Any]
    by_phase: Mapping[str, PhaseSpec]
    arms: Mapping[str, ArmSpec]
    missing: Mapping[str, str]
    """Methods that voidrl does not have, each with a description."""
    preset_changes: Mapping[str, PresetChanges]
    threads: int | None
    """CPU threads of each run; None divides the machine's."""
    pretrain_seeds: tuple[int, ...] = ()
    """Seeds of pre-trainings, each of which is fine-tuned with all `seeds`; () pre-trains for every seed."""
    scales: Mapping[str, ScaleSpec] = field(default_factory=dict)
    """Sizes of the experiment; the first one is the default."""
    scale: str | None = None
    """The size whose values it has; None before `at_scale`, and where there are no sizes."""
    scaled: tuple[str, ...] = SCALED
    """Phases and evaluations that `--steps-scale` shortens."""
    grid: Mapping[str, Axis] = field(default_factory=dict)
    """Fields that vary in all arms that have them."""
    tune: TuneSpec = field(default_factory=TuneSpec)

    @property
    def has_grid(self) -> bool:
        """Whether any field varies."""
        return bool(self.grid) or any(arm.grid for arm in self.arms.values())

    def at_scale(self, name: str | None) -> ExperimentSpec:
        """The experiment with the values of a scale, by default of its first one."""
        if not self.scales:
            if name is not None:
                raise ConfigError(
                    f"--scale {name} cannot be used with experiment {self.name!r}, which has one size: use "
                    f"--steps-scale, or a file with [scales.{folder_name(name)}]"
                )
            return self
        if name is None:
            name = next(iter(self.scales))
        if name not in self.scales:
            remedy = f"Scales are those of experiment {self.name!r}."
            raise UnknownNameError("scale", name, self.scales, remedy)
        chosen, by_phase = self.scales[name], dict(self.by_phase)
        for phase, new in chosen.by_phase.items():
            old = by_phase.get(phase, PhaseSpec())
            steps = old.steps if new.steps is None else new.steps
            by_phase[phase] = PhaseSpec(steps, merge(old.config, new.config), old.label)
        return replace(self, scale=name, config=merge(self.config, chosen.config), by_phase=by_phase)


def shipped() -> dict[str, str]:
    """The experiments that come with voidrl, and their titles."""
    return {name: read_experiment(name).title for name in _shipped_names()}


def read_experiment(name: str | Path) -> ExperimentSpec:
    """Read a shipped experiment by its name, or your own by the path of its file."""
    path = user_path(name)
    known, file = _shipped_names(), str(path)
    if path.suffix != ".toml" and not path.is_file():
        if name not in known:
            remedy = "Your own is a file whose name ends in .toml."
            raise UnknownNameError("experiment", str(name), known, remedy)
        file = f"{name}.toml"
        text = importlib.resources.files("voidrl.experiments").joinpath(file).read_text("utf-8")
        return _experiment(file, parse_toml(text))
    try:
        values = parse_toml(read_text(path, MAX_TOML_BYTES))
    except FileNotFoundError:
        expected = "expected an experiment's file, or a name such as demo"
        raise ConfigError(f"there is no file {path}: {expected}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: it is no UTF-8 text ({error.reason})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} cannot be read as TOML: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    return _experiment(file, values)


def _shipped_names() -> list[str]:
    folder = importlib.resources.files("voidrl.experiments")
    return sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))


class _TomlTable:
    """A table of the file, which knows its keys and names itself in errors."""

    def __init__(self, file: str, name: str, values: Any, known: Iterable[str]) -> None:
        self.file, self.name, self.values = file, name, values
        self.require(isinstance(values, dict), "", values, "a table")
        self.require_known(f"key in {f'[{name}]' if name else 'the experiment'} of", values, known)

    def table(self, key: str, values: Any, known: Iterable[str]) -> _TomlTable:
        return _TomlTable(self.file, f"{self.name}.{key}" if self.name else key, values, known)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.values.get(key, default)
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        self.require(fits or key not in self.values, key, value, _KINDS[kind])
        return value

    def text(self, key: str) -> str:
        return " ".join(self.get(key, str, "").split())

    def words(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        words = self.get(key, list, [*default])
        self.require(words and all(isinstance(word, str) for word in words), key, words, "a list of words")
        return tuple(words)

    def count(self, key: str, *, zero: bool = False) -> int | None:
        if key not in self.values:
            return None
        try:
            return parse_count(self.values[key], f"{self.name}.{key}", zero=zero)
        except ConfigError as error:
            raise ConfigError(f"{self.file}: {error}") from None

    def require(self, ok: object, key: str, value: object, expected: str) -> None:
        if not ok:
            name = ".".join(filter(None, (self.name, key)))
            raise ConfigError(f"{self.file}: {name} = {shown(value)} cannot be used: expected {expected}")

    def require_folder_name(self, key: str, name: str) -> None:
        expected = f"the name of a folder, such as {folder_name(name)!r}"
        self.require(folder_name(name) == name, key, name, expected)

    def require_known(self, what: str, names: Iterable[str], known: Iterable[str], remedy: str = "") -> None:
        known = [*known]
        for name in names:
            if name not in known:
                raise UnknownNameError(f"{what} {self.file}:", name, known, remedy)


def _experiment(file: str, values: dict[str, Any]) -> ExperimentSpec:
    known = (
        "title",
        "about",
        "published",
        "preset",
        "seeds",
        "pretrain_seeds",
        "tasks",
        "measures",
        "threads",
        "scaled",
    )
    tables = ("config", "evaluation", "methods", "missing", "presets", "scales", "grid", "tune", *PHASES)
    table = _TomlTable(file, "", values, (*known, *tables))
    name = folder_name(Path(file).stem)
    preset, presets = table.get("preset", str), table.get("presets", dict, {})
    given = [*filter(None, [preset]), *presets]
    table.require_known("preset in", given, PRESETS, "See `voidrl list presets`.")
    compared, threads = table.get("published", str), table.get("threads", int)
    table.require_known("published table in", filter(None, [compared]), published.names())
    table.require(threads is None or threads > 0, "threads", threads, "a whole number above 0")
    scaled = table.words("scaled", SCALED)
    table.require_known("entry of scaled in", scaled, SCALED)
    arms, missing = _arms(table), table.get("missing", dict, {})
    pretrain_seeds = _seeds(table, "pretrain_seeds", ())
    if pretrain_seeds:  # (p − 1) N + s is a distinct seed for each pair
        for key, seeds in (("pretrain_seeds", pretrain_seeds), ("seeds", _seeds(table))):
            table.require(min(seeds) > 0, key, [*seeds], "whole numbers from 1 on")
    for key, about in missing.items():
        expected = f"text, and a name other than those in [methods], as {key!r}"
        table.require(isinstance(about, str) and key not in arms, f"missing.{key}", about, expected)
    return ExperimentSpec(
        name=name,
        path=file,
        title=table.get("title", str, name),
        about=table.text("about"),
        published=compared,
        preset=preset,
        seeds=_seeds(table),
        tasks=_tasks(table),
        config=table.get("config", dict, {}),
        by_phase=_by_phase(table),
        arms=arms,
        missing=missing,
        preset_changes={key: _preset_changes(table, key, changes) for key, changes in presets.items()},
        threads=threads,
        pretrain_seeds=pretrain_seeds,
        scales=_scales(table),
        scaled=scaled,
        grid=_grid(table),
        tune=_tune(table),
    )


def _grid(table: _TomlTable) -> dict[str, Axis]:
    """The fields of `[grid]`; no other value of them may be in that part of the file."""
    if "grid" not in table.values:
        return {}
    name = f"{table.name}.grid".lstrip(".")
    axes = read_axes(table.file, name, table.get("grid", dict))
    fixed = dict.fromkeys(flat(merge(table.get("config", dict, {}))), "config")
    for phase in PHASES:
        values = table.get(phase, dict, {})
        fixed |= {f"{phase}.{each}": phase for each in flat(merge(values.get("config", {})))}
        fixed |= {f"{phase}.steps": phase} if "steps" in values else {}
    for each in axes:
        if each in fixed:
            other = f"{table.name}.{fixed[each]}".lstrip(".")
            raise ConfigError(
                f"{table.file}: {each} is in [{name}] and in [{other}]: leave it out of one of them"
            )
    return axes


TUNE_CHOICES = {
    "direction": ("maximize", "minimize"),
    "sampler": ("tpe", "random"),
    "pruner": ("median", "none"),
}


def _tune(table: _TomlTable) -> TuneSpec:
    inner = table.table("tune", table.get("tune", dict, {}), ("metric", *TUNE_CHOICES))
    given = {key: inner.get(key, str) for key in ("metric", *TUNE_CHOICES) if key in inner.values}
    for key, choices in TUNE_CHOICES.items():
        inner.require(given.get(key, choices[0]) in choices, key, given.get(key), " or ".join(choices))
    return TuneSpec(**given)


def _arms(table: _TomlTable) -> dict[str, ArmSpec]:
    methods = table.get("methods", dict, {})
    if not methods:
        raise ConfigError(f"{table.file} has no methods: expected at least one table [methods.NAME]")
    known = ("label", "about", "phases", "method", "source", "config", "times", "evaluation", "measures")
    known_here = (*known, "preset", "presets", "requires", "seeds", "like", "bonus", "grid", *PHASES)
    tables = {name: table.table(f"methods.{name}", each, known_here) for name, each in methods.items()}
    evaluation = _evaluation(table, EvaluationSpec(episodes=10))
    measures = table.words("measures", ("return",))
    arms = {name: _arm(name, each, evaluation, measures) for name, each in tables.items()}
    for name, arm in arms.items():
        if arm.source is not None:
            table.require_known(f"source of [{tables[name].name}] in", [arm.source], arms)
            pretrained = "pretrain" in arms[arm.source].phases
            tables[name].require(pretrained, "source", arm.source, "a method with the phase 'pretrain'")
        if arm.like is not None:
            table.require_known(f"like of [{tables[name].name}] in", [arm.like], arms)
            tuned = arms[arm.like].phases[-1] == "finetune"
            tables[name].require(tuned, "like", arm.like, "a method with the phase 'finetune'")
    for label, number in Counter(arm.label for arm in arms.values()).items():
        table.require(number == 1, "label", label, "each label once, as tables tell methods apart by them")
    return arms


def _arm(
    name: str, table: _TomlTable, evaluation: EvaluationSpec | None, measures: tuple[str, ...]
) -> ArmSpec:
    table.require_folder_name("", name)
    source, method = table.get("source", str), table.get("method", str)
    phases = table.words("phases", ("finetune",) if source is not None else ("pretrain", "finetune"))
    table.require_known(f"phase in [{table.name}] of", phases, PHASES)
    allowed = ", ".join(str([*each]) for each in ALLOWED_PHASES)
    table.require(phases in ALLOWED_PHASES, "phases", [*phases], f"one of {allowed}")
    expected = "the method whose agents are fine-tuned, and phases = ['finetune']"
    table.require((source is not None) == (phases == ("finetune",)), "source", source, expected)
    expected = "none, as methods are for pre-training and it has none"
    table.require(method is None or "pretrain" in phases, "method", method, expected)
    times = table.get("times", dict, {})
    for key, value in times.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.require(is_number and 0 < value < math.inf, f"times.{key}", value, "a factor above 0")
    presets = table.words("presets", ()) if "presets" in table.values else ()
    preset = table.get("preset", str)
    named = [*presets, *filter(None, [preset])]
    table.require_known(f"preset in [{table.name}] of", named, PRESETS, "See `voidrl list presets`.")
    expected = "one of preset and presets, and none with a source, whose preset it has"
    table.require(preset is None or not (presets or source), "preset", preset, expected)
    like = table.get("like", str)
    expected = "none, as only training from scratch without a preset of its own follows another method"
    table.require(like is None or (phases == ("train",) and preset is None), "like", like, expected)
    bonus = table.get("bonus", str)
    expected = "none, as a bonus is for phases = ['train'] with the settings of a preset, not like another's"
    table.require(bonus is None or (phases == ("train",) and like is None), "bonus", bonus, expected)
    if preset is not None and evaluation is not None:  # the agent's own
        evaluation = replace(evaluation, episodes=None, steps=None)
    return ArmSpec(
        name=name,
        label=table.get("label", str, name),
        about=table.text("about"),
        phases=phases,
        method=method,
        source=source,
        config=table.get("config", dict, {}),
        times=times,
        by_phase=_by_phase(table, "label"),
        evaluation=_evaluation(table, evaluation),
        measures=table.words("measures", measures),
        presets=presets,
        preset=preset,
        requires=table.words("requires", ()) if "requires" in table.values else (),
        seeds=_seeds(table, "seeds", ()),
        like=like,
        bonus=bonus,
        grid=_grid(table),
    )


def _preset_changes(table: _TomlTable, name: str, values: Any) -> PresetChanges:
    inner = table.table(f"presets.{name}", values, ("config", "evaluation", *PHASES))
    usual = _evaluation(table, EvaluationSpec())
    evaluation = _evaluation(inner, usual) if "evaluation" in inner.values else None
    return PresetChanges(inner.get("config", dict, {}), _by_phase(inner), evaluation)


def _scales(table: _TomlTable) -> dict[str, ScaleSpec]:
    scales = {}
    for name, values in table.get("scales", dict, {}).items():
        table.require_folder_name(f"scales.{name}", name)
        inner = table.table(f"scales.{name}", values, ("config", *PHASES))
        scales[name] = ScaleSpec(inner.get("config", dict, {}), _by_phase(inner))
    return scales


def _by_phase(table: _TomlTable, *more: str) -> dict[str, PhaseSpec]:
    found = {}
    for phase in (phase for phase in PHASES if phase in table.values):
        inner = table.table(phase, table.values[phase], ("steps", "config", *more))
        config, label = inner.get("config", dict, {}), inner.get("label", str)
        found[phase] = PhaseSpec(inner.count("steps", zero=phase == "pretrain"), config, label)
    return found


def _evaluation(table: _TomlTable, default: EvaluationSpec | None) -> EvaluationSpec | None:
    values = table.values.get("evaluation", default)
    if values is default or values is False:
        return None if values is False else default
    expected = "a table with episodes or steps, or false for none"
    table.require(isinstance(values, dict), "evaluation", values, expected)
    inner = table.table("evaluation", values, ("episodes", "steps", "count_states", "zero_shot"))
    inner.require(("episodes" in values) != ("steps" in values), "", values, "one of episodes and steps")
    usual = default is None or default.zero_shot
    flags = {
        "count_states": inner.get("count_states", bool, False),
        "zero_shot": inner.get("zero_shot", bool, usual),
    }
    return EvaluationSpec(inner.count("episodes"), inner.count("steps"), **flags)


def _tasks(table: _TomlTable) -> tuple[Task, ...]:
    given = table.values.get("tasks")
    listed = [given] if isinstance(given, str) else given
    expected = f"a list of environments, or a group: {', '.join(GROUPS)}"
    table.require(listed and isinstance(listed, list), "tasks", given, expected)
    tasks: list[Task] = []
    for entry in listed:
        if isinstance(entry, str):
            tasks += [make_task(env) for env in GROUPS.get(entry, (entry,))]
        else:
            tasks.append(_task(table.table("tasks", entry, ("name", "env", "config", *PHASES))))
    envs: dict[str, str] = {}
    for each in (each for task in tasks for each in (task, task.pretrain)):
        other = envs.setdefault(each.name, each.env)
        if other != each.env:
            raise ConfigError(
                f"{table.file}: {other!r} and {each.env!r} would both be named {each.name!r}; give one "
                f'a name: {{ name = "…", env = "…" }}'
            )
    table.require(len({task.name for task in tasks}) == len(tasks), "tasks", given, "each of them once")
    first: dict[str, Task] = {}
    for task in tasks:
        other_task = first.setdefault(task.pretrain.name, task)
        if _pretrain_settings(other_task) != _pretrain_settings(task):
            raise ConfigError(
                f"{table.file}: tasks {other_task.name!r} and {task.name!r} share the pre-training "
                f"{task.pretrain.name!r}, but not its settings: give them equal ones, or one of them a "
                f'pre-training of its own: pretrain = {{ name = "…", env = "…" }}'
            )
    return tuple(tasks)


def _pretrain_settings(task: Task) -> tuple[dict[str, Any], PhaseSpec]:
    return flat(merge(task.config)), task.by_phase.get("pretrain", PhaseSpec())


def _task(table: _TomlTable) -> Task:
    here, pretrain = _named_env(table), table.values.get("pretrain", {})
    pretrain = {"env": pretrain} if isinstance(pretrain, str) else pretrain
    inner = table.table("pretrain", pretrain, ("name", "env", "steps", "config"))
    place = make_task(here.env).pretrain
    if "env" in pretrain or "name" in pretrain:
        place = _named_env(inner)
    elif place.env == here.env:
        place = here
    settings = {key: value for key, value in pretrain.items() if key in ("steps", "config")}
    phases = {phase: table.values[phase] for phase in PHASES if phase in table.values}
    by_phase = _by_phase(_TomlTable(table.file, table.name, {**phases, "pretrain": settings}, PHASES))
    return Task(here.name, here.env, place, table.get("config", dict, {}), by_phase)


def _named_env(table: _TomlTable) -> NamedEnv:
    env = table.get("env", str)
    table.require(env, "", table.values, 'a table with env, such as { env = "atari/pong" }')
    name = table.get("name", str, task_name(env))
    table.require_folder_name("name", name)
    return NamedEnv(name, env)


def _seeds(table: _TomlTable, key: str = "seeds", default: tuple[int, ...] = (1,)) -> tuple[int, ...]:
    if key not in table.values:
        return default
    seeds = table.get(key, list)
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    expected = "a list of whole numbers from 0 on, each of them once"
    table.require(seeds and whole and len({*seeds}) == len(seeds), key, seeds, expected)
    return tuple(seeds)
