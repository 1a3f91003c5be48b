"""The tasks of an experiment by name: groups of them, and where each is pre-trained. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voidrl.envs.ids import ATARI, DMC, atari_game
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.suites.atari import GAMES, GAMES_26, find_game
from voidrl.suites.dmcontrol import SPARSE, URLB, find_dmc_task


@dataclass(frozen=True)
class Place:
    """An environment, and the name of the folder for the runs in it."""

    name: str
    env: str


@dataclass(frozen=True)
class Task(Place):
    """An environment with a reward."""

    pretrain: Place
    """Where agents for it are pre-trained; tasks that share it share the pre-training."""


def _dmc(tasks: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(f"{DMC}{domain}_{task}" for domain, names in tasks.items() for task in names)


GROUPS: dict[str, tuple[str, ...]] = {
    "atari26": tuple(ATARI + game for game in GAMES_26),
    "atari57": tuple(ATARI + game for game in GAMES),
    "urlb": _dmc(URLB),
    "dmc_sparse": _dmc(SPARSE),
}
"""Names that stand for several tasks."""


def make_task(env: str) -> Task:
    """The task with its usual name: DMControl's are pre-trained in their domain, all others in themselves."""
    here = Place(place_name(env), env)
    found = find_dmc_task(env)
    if found is not None and found.task is not None:
        return Task(here.name, env, Place(found.domain, DMC + found.domain))
    return Task(here.name, env, here)


def place_name(env: str) -> str:
    """`atari/MsPacman` → `ms_pacman`, `dmc/walker_run` → `walker_run`, `module:make?n=3` → `module-make`."""
    game, place = atari_game(env), find_dmc_task(env)
    if place is not None:
        return place.name
    if game is not None:
        try:
            return find_game(game)
        except UnknownNameError:  # not among the 57; whether there is such a game is known when it is made
            return clean(game)
    return clean(env.partition("?")[0].rpartition("/")[2])


def clean(name: str) -> str:
    """As the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "task"


def select(tasks: Sequence[Task], words: Iterable[str]) -> list[Task]:
    """What `--tasks` names: tasks of the experiment, groups, or others by their ids."""
    chosen: dict[str, Task] = {}
    for word in words:
        for task in _find(tasks, word):
            other = chosen.setdefault(task.name, task)
            if other != task:
                raise ConfigError(
                    f"tasks {other.env!r} and {task.env!r} would both be named {task.name!r}: leave one out, "
                    f"or name them in a file of your own"
                )
    return [*chosen.values()]


def _find(tasks: Sequence[Task], word: str) -> Sequence[Task]:
    named = {task.name: task for task in tasks} | {task.env: task for task in tasks}
    if word in named:
        return [named[word]]
    if word in GROUPS:
        return [named.get(env) or make_task(env) for env in GROUPS[word]]
    kinds = {kind for task in tasks for kind in (ATARI, DMC) if task.env.startswith(kind)}
    if "/" in word or ":" in word:
        found = make_task(word)
        return [named.get(found.name, found) if kinds else found]  # another spelling of the same
    if kinds == {ATARI}:
        try:
            game = find_game(word)
        except UnknownNameError:
            raise UnknownNameError("task", word, [*named, *GROUPS, *GAMES], "See --dry-run.") from None
        return [named.get(game) or make_task(ATARI + game)]
    if kinds == {DMC}:
        try:
            found = make_task(DMC + word)
        except UnknownNameError:
            raise UnknownNameError("task", word, [*named, *GROUPS], "See --dry-run.") from None
        return [named.get(found.name, found)]
    remedy = "Others by their ids: atari/<game>, dmc/<domain>_<task>, a Gymnasium id or module:factory."
    raise UnknownNameError("task", word, [*named, *GROUPS], remedy)
