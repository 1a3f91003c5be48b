"""Presets, among them agents, and the recipes of methods.

A preset (`<preset>.toml`) sets environment, learner, steps, fine-tuning, evaluation, replay, augmentation
and the shape of f's encoder; a table `atari`, `dmc`, `maze` or `any` is for one family of environments.

A recipe (`recipes/<method>.toml`) sets a method's values within a preset, its representation, and the
trainers of f. Its tables are for a preset, or for all presets with the same first word (`atari`), which are
read first. Tables such as `urlb+identity` or `urlb+jaco` are for a representation or a domain of DMControl,
and are read last. `representations.toml` has such tables for representations that the user names and the
method's recipe does not have. The table `bonus` is for the method as a bonus, in every preset.

An agent (`agents/<preset>.toml`) is a preset with a representation, to train from scratch in some
`families` of environments. Its tables are for a family, or for one game, domain or task: `atari+pong`,
`dmc+walker`, `dmc+walker_run`. Methods have no recipes for agents.

`atari-paper` and `dmc-paper` have the values of the paper's tables; comments say what we chose where it is
silent or contradicts itself. `atari-authors` follows the authors' released Atari code, `urlb-states` and
`urlb-pixels` follow URLB (Laskin et al. 2021) and its code.
"""

from __future__ import annotations

import tomllib
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from voidrl.config import merge
from voidrl.envs.ids import ATARI, DMC, atari_game, parse_id
from voidrl.envs.suites.atari import find_game
from voidrl.envs.suites.dmcontrol import find_dmc_task
from voidrl.errors import ConfigError, UnknownNameError

MAZE = "voidrl/PixelMaze"
DEMO_ENV = f"{MAZE}-v0?size=13&loops=0.1&layout_seed=3&image_size=39"
NAMES = (
    "cpu",
    *("maze-demo", "atari-paper", "atari-fast", "atari-demo", "atari-authors"),
    *("dmc-paper", "dmc-fast", "urlb-states", "urlb-pixels"),
)
AGENT_NAMES = (
    *("dqn", "rainbow", "der", "der-dopamine", "otrainbow", "drq", "drq-eps", "curl", "spr", "sr-spr", "bbf"),
    *("sac", "rad", "drqv2"),
)
FAMILIES = {"atari": f"{ATARI}…", "dmc": f"{DMC}…", "maze": "PixelMaze", "any": "Gymnasium environments"}
"""Families of environments for which agents have tables, and what they are called."""
EXAMPLES = {"atari": "atari/pong", "dmc": "dmc/walker_walk", "maze": DEMO_ENV}
NO_PRESET = "none"
"""Given as a preset's name: no preset, even where the environment has a default one."""


class Preset(NamedTuple):
    """Named values of the config."""

    about: str
    values: dict[str, Any]
    """Values for every environment; `values_for` has those for one of them."""
    families: tuple[str, ...] = ()
    """Families of environments that an agent is for; () for other presets, whose tables name theirs."""
    tables: dict[str, dict[str, Any]] = {}  # noqa: RUF012 – never changed
    """Values for a family; those of an agent also for one game, domain or task."""

    def values_for(self, env: object) -> dict[str, Any]:
        """The values in an environment, without the options of Atari and DMControl in any other one."""
        kind = family(env)
        values = merge(self.values, *(self.tables.get(name, {}) for name in _table_names(kind, env)))
        others = {"atari", "dmc"} - {kind}
        return {**values, "env": {k: v for k, v in values.get("env", {}).items() if k not in others}}


def family(env: object) -> str:
    """The family of an environment; a maze with continuous actions is like any other environment."""
    if not isinstance(env, str):
        return "any"
    if env.startswith(MAZE):
        return "any" if parse_id(env)[1].get("continuous") else "maze"
    return "atari" if env.startswith(ATARI) else "dmc" if env.startswith(DMC) else "any"


def _table_names(kind: str, env: object) -> list[str]:
    """The tables for an environment, from the general to the special."""
    special: list[str] = []
    if kind == "atari":
        with suppress(UnknownNameError):  # a game without a human score
            special = [find_game(str(atari_game(str(env))))]
    elif kind == "dmc" and (task := find_dmc_task(str(env))):
        special = [task.domain, task.name]
    return [kind, *(f"{kind}+{name}" for name in dict.fromkeys(special))]


def _read(*path: str) -> Preset:
    """The preset in the file `path`.toml, on top of those that it extends."""
    values = tomllib.loads(files(__package__).joinpath(f"{'/'.join(path)}.toml").read_text("utf-8"))
    about, families, extends = (values.pop(key, ()) for key in ("about", "families", "extends"))
    bases = [_read(*path[:-1], base) for base in ([extends] if isinstance(extends, str) else extends)]
    own = {key: values.pop(key) for key in [*values] if key.partition("+")[0] in FAMILIES}
    layers = [*(base.tables for base in bases), own]
    tables = {key: merge(*(layer.get(key, {}) for layer in layers)) for layer in layers for key in layer}
    families = tuple(families) or next((base.families for base in bases), ())
    return Preset(about or "", merge(*(base.values for base in bases), values), families, tables)


AGENTS = {name: _read("agents", name) for name in AGENT_NAMES}
PRESETS = {name: _read(name) for name in NAMES} | AGENTS


def find_preset(name: str) -> Preset:
    """The preset of this name, or an error with the nearest ones."""
    if name not in PRESETS:
        raise UnknownNameError("preset", name, [*PRESETS, NO_PRESET])
    return PRESETS[name]


def preset_for(env: object, name: str | None) -> dict[str, Any]:
    """The values of a preset in an environment, {} for None; an agent that does not fit is refused."""
    if name is None:
        return {"env": {}}
    preset, kind = find_preset(name), family(env)
    if preset.families and kind not in preset.families:
        places = " or ".join(FAMILIES[each] for each in preset.families)
        agents = ", ".join(name for name, agent in AGENTS.items() if kind in agent.families)
        raise ConfigError(
            f"preset {name!r} cannot be used in environment {env!r}: it is made for {places}, and agents for "
            f"{FAMILIES[kind]} are {agents}"
        )
    return preset.values_for(env)


@cache
def recipe(method: str, preset: str | None, *special: str | None) -> dict[str, Any]:
    """The values of a method's recipe for a preset; {} where it has none.

    `special` are the representation that the user names and DMControl's domain, if any.
    """
    if preset not in NAMES:
        return {}
    tables = _read_tables(f"recipes/{method}")
    names = (preset.partition("-")[0], preset)
    chosen = merge(*(tables.get(name, {}) for name in names))
    named = special[0] if special else None
    if chosen.get("representation", {}).get("name") != named:
        common = [_read_tables("representations").get(f"{name}+{named}") for name in names]
        if any(common):
            chosen = merge(without_representation(chosen), *(table or {} for table in common))
    return merge(chosen, *(tables.get(f"{name}+{each}", {}) for each in special for name in names))


@cache
def _read_tables(name: str) -> dict[str, Any]:
    file = files(__package__).joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def without_representation(chosen: dict[str, Any]) -> dict[str, Any]:
    """A recipe without its representation and what depends on it: who trains f, and a shared stack."""
    dropped = {"representation", "encoder_trainers"}
    if chosen.get("share_encoder") == "stack":  # convolutions alike, which other encoders may not have
        dropped.add("share_encoder")
    return {key: value for key, value in chosen.items() if key not in dropped}


def bonus_recipe(method: str) -> dict[str, Any]:
    """The values of a method's recipe for its reward as a bonus."""
    return dict(_read_tables(f"recipes/{method}").get("bonus", {}))


def preset_values(name: str, method: str = "apt") -> dict[str, Any]:
    """Preset and recipe in one."""
    return merge(find_preset(name).values, {"method": method}, recipe(method, name))


def default_preset(env: object) -> str | None:
    """The preset of an environment where none is named."""
    if not isinstance(env, str):
        return None
    return "atari-paper" if env.startswith(ATARI) else "urlb-states" if env.startswith(DMC) else None
