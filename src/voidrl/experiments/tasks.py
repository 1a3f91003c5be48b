"""Tasks of experiments: names, groups, and the environment each is pre-trained in. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from voidrl.envs.ids import ATARI, DMC, atari_game
from voidrl.envs.suites.atari import GAMES, GAMES_26, find_game
from voidrl.envs.suites.dmcontrol import SPARSE, URLB, find_dmc_task
from voidrl.errors import ConfigError, UnknownNameError


@dataclass(frozen=True)
class PhaseSpec:
    """Settings of one phase."""

    steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


PhaseSpecs = Mapping[str, PhaseSpec]
PHASES = ("pretrain", "finetune", "train")
NO_PHASES: PhaseSpecs = dict.fromkeys(PHASES, PhaseSpec())


@dataclass(frozen=True)
class NamedEnv:
    """An environment id, and the name of the folder with its runs."""

    name: str
    env: str


@dataclass(frozen=True)
class Task(NamedEnv):
    """An environment with a reward."""

    pretrain: NamedEnv
    """The environment of pre-training; tasks with a common one share their pre-trained agents."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its runs, including the pre-training, on which tasks that share one agree."""
    by_phase: PhaseSpecs = field(default_factory=lambda: NO_PHASES)


def _dmc(tasks: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(f"{DMC}{domain}_{task}" for domain, names in tasks.items() for task in names)


GROUPS: dict[str, tuple[str, ...]] = {
    "atari26": tuple(ATARI + game for game in GAMES_26),
    "atari57": tuple(ATARI + game for game in GAMES),
    "urlb": _dmc(URLB),
    "dmc_sparse": _dmc(SPARSE),
}
"""Names of several tasks."""


def make_task(env: str) -> Task:
    """Make a task with its default name: DMControl pre-trains in the domain, others in the task itself."""
    here = NamedEnv(task_name(env), env)
    found = find_dmc_task(env)
    if found is not None and found.task is not None:
        return Task(here.name, env, NamedEnv(found.domain, f"{DMC}{found.domain}"))
    return Task(here.name, env, here)


def task_name(env: str) -> str:
    """`atari/MsPacman` → `ms_pacman`, `dmc/walker_run` → `walker_run`, `module:make?n=3` → `module-make`."""
    if (place := find_dmc_task(env)) is not None:
        return place.name
    if (game := atari_game(env)) is not None:
        with suppress(UnknownNameError):  # not among the 57; making the environment shows whether it exists
            return find_game(game)
    return folder_name((game or env).partition("?")[0].rpartition("/")[2])


def folder_name(name: str) -> str:
    """Make any text the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "task"


def select(tasks: Sequence[Task], words: Iterable[str]) -> list[Task]:
    """Find the tasks in `--tasks`: tasks of the experiment, groups, or others by their ids."""
    chosen: dict[str, Task] = {}
    for task in (task for word in words for task in _find(tasks, word)):
        other = chosen.setdefault(task.name, task)
        if other != task:
            raise ConfigError(
                f"tasks {other.env!r} and {task.env!r} would both be named {task.name!r}: leave one out, or "
                f"name them in a file of your own"
            )
    return [*chosen.values()]


def _find(tasks: Sequence[Task], word: str) -> Sequence[Task]:
    named = {task.name: task for task in tasks} | {task.env: task for task in tasks}
    if word in named:
        return [named[word]]
    if word in GROUPS:
        return [named.get(env) or make_task(env) for env in GROUPS[word]]
    if "/" not in word and ":" not in word:
        remedy = "Others by their ids: atari/<game>, dmc/<domain>_<task>, a Gymnasium id or module:factory."
        raise UnknownNameError("task", word, [*named, *GROUPS], remedy)
    found = make_task(word)
    is_known = found.env.startswith((ATARI, DMC))  # perhaps another spelling of a task of the experiment
    return [named.get(found.name, found) if is_known else found]
