"""An experiment's file: read, checked, and every mistake one sentence with the file and the key.

docs/experiments.md describes each key. Imports no torch.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voidrl.errors import ConfigError, UnknownNameError
from voidrl.experiments.tasks import GROUPS, Place, Task, clean, make_task, place_name
from voidrl.protocols.presets import PRESETS
from voidrl.suites import published
from voidrl.units import parse_count

PHASES = ("pretrain", "finetune", "train")
ALLOWED_PHASES = (("pretrain",), ("pretrain", "finetune"), ("finetune",), ("train",))
_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "a table", list: "a list"}


@dataclass(frozen=True)
class Evaluation:
    """How an agent is evaluated when its training has ended."""

    episodes: int | None = None
    steps: int | None = None
    count_states: bool = False


@dataclass(frozen=True)
class Phase:
    """What is special about one phase."""

    steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    """Of an arm's runs in this phase; None takes the arm's own."""


@dataclass(frozen=True)
class Arm:
    """A method of the experiment: one row of its table."""

    name: str
    label: str
    about: str
    phases: tuple[str, ...]
    method: str | None
    """What is rewarded while pre-training; None leaves it to the preset."""
    source: str | None
    """The arm whose pre-trained agents are fine-tuned; None for its own."""
    config: Mapping[str, Any]
    times: Mapping[str, float]
    """Values of the config that are multiplied, whatever preset they come from."""
    of_phase: Mapping[str, Phase]
    evaluation: Evaluation | None
    measures: tuple[str, ...]
    """What the table of results shows of it."""


@dataclass(frozen=True)
class Variation:
    """What changes with another preset."""

    config: Mapping[str, Any] = field(default_factory=dict)
    of_phase: Mapping[str, Phase] = field(default_factory=dict)
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class Experiment:
    """A whole file."""

    name: str
    path: str
    title: str
    about: str
    published: str | None
    """The table in `voidrl.suites.published` that it is held against."""
    preset: str | None
    seeds: tuple[int, ...]
    tasks: tuple[Task, ...]
    config: Mapping[str, Any]
    of_phase: Mapping[str, Phase]
    arms: Mapping[str, Arm]
    missing: Mapping[str, str]
    """Methods that it would take, and that voidrl does not have: what they are."""
    with_preset: Mapping[str, Variation]
    threads: int | None
    """CPU threads of each run; None divides those that there are."""


def shipped() -> dict[str, str]:
    """The experiments that come with voidrl, and their titles."""
    folder = importlib.resources.files("voidrl.experiments")
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {name.removesuffix(".toml"): read_experiment(name.removesuffix(".toml")).title for name in files}


def read_experiment(name: str | Path) -> Experiment:
    """The experiment of this name, or the one in a file of your own."""
    text, path = _text(str(name))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    return _Reader(path).experiment(table, clean(Path(path).stem))


def _text(name: str) -> tuple[str, str]:
    """What stands in the file, and how to call it."""
    if not name.endswith(".toml") and not Path(name).is_file():
        folder = importlib.resources.files("voidrl.experiments")
        known = sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))
        if name not in known:
            remedy = "Your own is a file whose name ends in .toml."
            raise UnknownNameError("experiment", name, known, remedy)
        return folder.joinpath(f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml"
    path = Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}: expected an experiment's file, or a name such as demo"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: it is no UTF-8 text ({error.reason})") from None


class _Reader:
    """Tables of one file as the dataclasses above."""

    def __init__(self, file: str) -> None:
        self.file = file

    def experiment(self, table: Mapping[str, Any], name: str) -> Experiment:
        known = ("title", "about", "published", "preset", "seeds", "tasks", "measures", "threads", "config")
        self._known("the experiment", table, (*known, "evaluation", "methods", "missing", "presets", *PHASES))
        preset = self._get(table, "preset", str)
        for given in (preset, *self._get(table, "presets", dict, {})):
            if given is not None and given not in PRESETS:
                raise UnknownNameError(
                    f"preset in {self.file}:", given, PRESETS, "See `voidrl list presets`."
                )
        held = self._get(table, "published", str)
        if held is not None and held not in published.names():
            raise UnknownNameError(f"published table in {self.file}:", held, published.names())
        threads = self._get(table, "threads", int)
        if threads is not None and threads < 1:
            raise self._wrong("threads", threads, "a whole number above 0")
        evaluation = self._evaluation(table, "", Evaluation(episodes=10))
        measures = self._words(table, "measures", "", ("return",))
        missing = self._get(table, "missing", dict, {})
        arms = self._arms(table, evaluation, measures)
        for key, about in missing.items():
            if not isinstance(about, str):
                raise self._wrong(f"missing.{key}", about, "text that says what it is")
            if key in arms:
                raise self._wrong(
                    f"missing.{key}", about, f"a name other than those in [methods], as {key!r}"
                )
        return Experiment(
            name=name,
            path=self.file,
            title=self._get(table, "title", str, name),
            about=" ".join(self._get(table, "about", str, "").split()),
            published=held,
            preset=preset,
            seeds=self._seeds(table),
            tasks=self._tasks(table),
            config=self._get(table, "config", dict, {}),
            of_phase=self._phases(table, ""),
            arms=arms,
            missing=missing,
            with_preset={
                name: self._variation(name, values)
                for name, values in self._get(table, "presets", dict, {}).items()
            },
            threads=threads,
        )

    def _arms(
        self, table: Mapping[str, Any], evaluation: Evaluation | None, measures: tuple[str, ...]
    ) -> dict[str, Arm]:
        tables = self._get(table, "methods", dict, {})
        if not tables:
            raise ConfigError(f"{self.file} has no methods: expected at least one table [methods.NAME]")
        arms = {name: self._arm(name, values, evaluation, measures) for name, values in tables.items()}
        for arm in arms.values():
            where = f"methods.{arm.name}"
            if arm.source is not None and arm.source not in arms:
                raise UnknownNameError(f"source of [{where}] in {self.file}:", arm.source, arms)
            if arm.source is not None and "pretrain" not in arms[arm.source].phases:
                raise self._wrong(f"{where}.source", arm.source, "a method with the phase 'pretrain'")
        labels = [arm.label for arm in arms.values()]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise self._wrong("label", twice, "each label once, as tables tell methods apart by them")
        return arms

    def _arm(self, name: str, table: Any, evaluation: Evaluation | None, measures: tuple[str, ...]) -> Arm:
        where = f"methods.{name}"
        if not isinstance(table, dict):
            raise self._wrong(where, table, "a table")
        known = ("label", "about", "phases", "method", "source", "config", "times", "evaluation", "measures")
        self._known(f"[{where}]", table, (*known, *PHASES))
        if clean(name) != name:
            raise self._wrong(where, name, f"the name of a folder, such as {clean(name)!r}")
        source = self._get(table, "source", str, where=where)
        usual = ("finetune",) if source is not None else ("pretrain", "finetune")
        phases = self._words(table, "phases", where, usual)
        for phase in phases:
            if phase not in PHASES:
                raise UnknownNameError(f"phase in [{where}] of {self.file}:", phase, PHASES)
        if phases not in ALLOWED_PHASES:
            allowed = ", ".join(str([*each]) for each in ALLOWED_PHASES)
            raise self._wrong(f"{where}.phases", [*phases], f"one of {allowed}")
        if (source is not None) != (phases == ("finetune",)):
            raise self._wrong(
                f"{where}.source", source, "the method whose agents are fine-tuned, and phases = ['finetune']"
            )
        method = self._get(table, "method", str, where=where)
        if method is not None and "pretrain" not in phases:
            raise self._wrong(
                f"{where}.method", method, "none, as a method is rewarded while pre-training and it has none"
            )
        times = self._get(table, "times", dict, {}, where=where)
        for key, value in times.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise self._wrong(
                    f"{where}.times.{key}", value, "a number above 0, by which it is multiplied"
                )
        return Arm(
            name=name,
            label=self._get(table, "label", str, name, where=where),
            about=" ".join(self._get(table, "about", str, "", where=where).split()),
            phases=phases,
            method=method,
            source=source,
            config=self._get(table, "config", dict, {}, where=where),
            times=times,
            of_phase=self._phases(table, where),
            evaluation=self._evaluation(table, where, evaluation),
            measures=self._words(table, "measures", where, measures),
        )

    def _variation(self, name: str, table: Any) -> Variation:
        where = f"presets.{name}"
        if not isinstance(table, dict):
            raise self._wrong(where, table, "a table")
        self._known(f"[{where}]", table, ("config", "evaluation", *PHASES))
        config = self._get(table, "config", dict, {}, where=where)
        return Variation(config, self._phases(table, where), self._evaluation(table, where, None))

    def _phases(self, table: Mapping[str, Any], where: str) -> dict[str, Phase]:
        found = {}
        for phase in PHASES:
            if phase in table:
                values = self._get(table, phase, dict, {}, where=where)
                inside = f"{where}.{phase}" if where else phase
                keys = ("steps", "config", "label") if where.startswith("methods.") else ("steps", "config")
                self._known(f"[{inside}]", values, keys)
                steps = values.get("steps")
                found[phase] = Phase(
                    steps=None if steps is None else self._count(f"{inside}.steps", steps),
                    config=self._get(values, "config", dict, {}, where=inside),
                    label=self._get(values, "label", str, where=inside),
                )
        return found

    def _evaluation(
        self, table: Mapping[str, Any], where: str, usual: Evaluation | None
    ) -> Evaluation | None:
        if "evaluation" not in table:
            return usual
        values, name = table["evaluation"], f"{where}.evaluation" if where else "evaluation"
        if values is False:
            return None
        if not isinstance(values, dict):
            raise self._wrong(name, values, "a table with episodes or steps, or false for none")
        self._known(f"[{name}]", values, ("episodes", "steps", "count_states"))
        if ("episodes" in values) == ("steps" in values):
            raise self._wrong(name, values, "one of episodes and steps")
        return Evaluation(
            episodes=self._count(f"{name}.episodes", values["episodes"]) if "episodes" in values else None,
            steps=self._count(f"{name}.steps", values["steps"]) if "steps" in values else None,
            count_states=self._get(values, "count_states", bool, False, where=name),
        )

    def _tasks(self, table: Mapping[str, Any]) -> tuple[Task, ...]:
        given = table.get("tasks")
        listed = [given] if isinstance(given, str) else given
        if not isinstance(listed, list) or not listed:
            raise self._wrong("tasks", given, f"a list of environments, or a group: {', '.join(GROUPS)}")
        tasks = [task for entry in listed for task in self._task(entry)]
        places: dict[str, str] = {}
        for place in (place for task in tasks for place in (task, task.pretrain)):
            other = places.setdefault(place.name, place.env)
            if other != place.env:
                raise ConfigError(
                    f"{self.file}: {other!r} and {place.env!r} would both be named {place.name!r}; give one "
                    f'a name: {{ name = "…", env = "…" }}'
                )
        if len({task.name for task in tasks}) < len(tasks):
            raise self._wrong("tasks", given, "each of them once")
        return tuple(tasks)

    def _task(self, entry: Any) -> Iterable[Task]:
        if isinstance(entry, str):
            return [make_task(env) for env in GROUPS.get(entry, (entry,))]
        if not isinstance(entry, dict):
            raise self._wrong("tasks", entry, "an environment's id, a group, or a table with env")
        self._known("a task", entry, ("name", "env", "pretrain"))
        place = self._place(entry, "tasks")
        usual = make_task(place.env)
        if "pretrain" not in entry:
            own = usual.pretrain if usual.pretrain.env != usual.env else place
            return [Task(place.name, place.env, own)]
        inside = entry["pretrain"]
        if isinstance(inside, str):
            return [Task(place.name, place.env, Place(place_name(inside), inside))]
        if not isinstance(inside, dict):
            raise self._wrong("tasks.pretrain", inside, "an environment's id, or a table with env and name")
        self._known("tasks.pretrain", inside, ("name", "env"))
        return [Task(place.name, place.env, self._place(inside, "tasks.pretrain"))]

    def _place(self, table: Mapping[str, Any], where: str) -> Place:
        env = self._get(table, "env", str, where=where)
        if not env:
            raise self._wrong(where, dict(table), 'a table with env, such as { env = "atari/pong" }')
        name = self._get(table, "name", str, place_name(env), where=where)
        if clean(name) != name:
            raise self._wrong(f"{where}.name", name, f"the name of a folder, such as {clean(name)!r}")
        return Place(name, env)

    def _seeds(self, table: Mapping[str, Any]) -> tuple[int, ...]:
        seeds = self._get(table, "seeds", list, [1])
        whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
        if not seeds or not whole or len({*seeds}) < len(seeds):
            raise self._wrong("seeds", seeds, "a list of whole numbers from 0 on, each of them once")
        return tuple(seeds)

    # Single values

    def _get(
        self, table: Mapping[str, Any], key: str, kind: type, usual: Any = None, *, where: str = ""
    ) -> Any:
        """The value of a key as its kind, or what is usual where there is none."""
        if key not in table:
            return usual
        value = table[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._wrong(f"{where}.{key}" if where else key, value, _KINDS[kind])
        return value

    def _words(
        self, table: Mapping[str, Any], key: str, where: str, usual: tuple[str, ...]
    ) -> tuple[str, ...]:
        words = self._get(table, key, list, [*usual], where=where)
        if not words or not all(isinstance(word, str) for word in words):
            raise self._wrong(f"{where}.{key}" if where else key, words, "a list of words")
        return tuple(words)

    def _count(self, name: str, value: Any) -> int:
        try:
            return parse_count(value, name)
        except ConfigError as error:
            raise ConfigError(f"{self.file}: {error}") from None

    def _known(self, what: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
        known = [*known]
        for key in table:
            if key not in known:
                raise UnknownNameError(f"key in {what} of {self.file}:", key, known)

    def _wrong(self, name: str, value: object, expected: str) -> ConfigError:
        return ConfigError(f"{self.file}: {name} = {value!r} cannot be used: expected {expected}")
