"""list."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.cli.options import Parser
from voidrl.config import registry
from voidrl.errors import UnknownNameError
from voidrl.system.terminal.tables import is_terminal, print_table
from voidrl.system.units import human_count

GB = 10**9
SHOWN_NAMES = 12  # of one kind, in the overview on a terminal
FAMILIES = ("knowledge", "data", "competence", "baseline", "")  # in the order of the list


class Listing(NamedTuple):
    """Everything of a kind; the first column is the name that other commands take."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def list_(argv: list[str]) -> None:
    """List what is available: `voidrl list methods`, or presets, agents, envs, games, tasks, experiments."""
    parser = Parser("list", list_.__doc__)
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(argv)
    if options.kind is not None and options.kind not in KINDS:
        raise UnknownNameError("kind", options.kind, KINDS)
    if options.kind is None:
        _overview(as_json=options.json)
        return
    title, columns, rows = KINDS[options.kind]()
    if options.json:
        keys = ("name", *(column.replace(" ", "_") for column in columns[1:]))
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
    else:
        print_table(columns, [_shown(row) for row in rows], title=title if is_terminal(sys.stdout) else None)


def _shown(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Large numbers as 250M."""
    return tuple(human_count(cell) if isinstance(cell, int) and cell > 9999 else cell for cell in row)


def _overview(*, as_json: bool) -> None:
    found = {kind: [str(row[0]) for row in listing().rows] for kind, listing in KINDS.items()}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    whole = not is_terminal(sys.stdout)
    rows = []
    for kind, names in found.items():
        shown = names if whole or len(names) <= SHOWN_NAMES else [*names[:SHOWN_NAMES], "…"]
        rows.append((kind, len(names), ", ".join(shown)))
    print_table(("kind", "count", "names"), rows)
    if not whole:
        print("\n`voidrl list KIND` describes them.")


def _methods() -> Listing:
    rows = []
    for file in _files("methods"):
        about = registry.parse_about(file.read_text("utf-8"))
        family, year, skills, paper = (about.get(name, "") for name in ("family", "year", "skills", "paper"))
        rows.append((file.stem, family, year or None, skills or "none", _first_line(file), paper))
    rows += [(name, "", None, "", about, "") for name, about in _registered("method")]
    rows.sort(key=lambda row: (FAMILIES.index(row[1]), row[2] or sys.maxsize))
    columns = ("method", "family", "year", "skills", "about", "paper")
    return Listing("Methods: intrinsic rewards", columns, rows)


def _pieces(kind: str, title: str) -> Listing:
    rows: list[tuple[Any, ...]] = [(file.stem, _first_line(file)) for file in _files(kind)]
    return Listing(title, (kind[:-1], "about"), [*rows, *_registered(kind[:-1])])


def _registered(kind: str) -> list[tuple[str, str]]:
    """What other packages register, which is not imported."""
    return [(name, f"{point.value}, installed") for name, point in registry.registered(kind).items()]


def _files(package: str) -> list[Path]:
    """The files of pieces, which are not imported."""
    files = sorted(Path(__file__).parents[1].joinpath(package).glob("[!_]*.py"))
    return [file for file in files if file.stem != "base"]


def _first_line(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]


def _environments() -> Listing:
    from voidrl.envs.ids import PACKAGES

    others = f"of {', '.join(package.pip for package in PACKAGES)}, such as {PACKAGES[0].example}"
    rows = [
        ("atari/<game>", "atari", "57 games and more, such as atari/ms_pacman?sticky=0.25 (list games)"),
        ("dmc/<domain>", "dmc", "DMControl without a task, to pre-train, such as dmc/walker"),
        ("dmc/<domain>_<task>", "dmc", "the same with a reward, such as dmc/walker_run (list tasks)"),
        ("voidrl/PixelMaze-v0", None, "a maze observed as an image; options as a query: ?size=13&goal=far"),
        ("voidrl/PointMass-v0", None, "a point in a box, with small tasks: ?task=pickup, ?discrete=true"),
        ("any Gymnasium id", None, "any space but Text, Sequence and Graph, such as Pendulum-v1"),
        ("ids of packages", None, others),
        ("module:factory", None, "a custom function that returns a gymnasium.Env"),
    ]
    return Listing("Environments", ("environment", "extra", "about"), rows)


def _games() -> Listing:
    from voidrl.envs.suites.atari import GAMES, GAMES_26, baseline

    rows = [(f"atari/{game}", *baseline(game), "yes" if game in GAMES_26 else None) for game in GAMES]
    title = "Atari games: scores of random play and of a human, and the 26 compared after 100K steps"
    return Listing(title, ("game", "random", "human", "of the 26"), rows)


def _tasks() -> Listing:
    from voidrl.envs.suites.dmcontrol import NEED_GL, OTHER_OBSERVATIONS, SPARSE, SUITE, TASKS, URLB

    sources = {"suite": SUITE, "URLB": URLB, "paper's sparse": SPARSE}
    rows: list[tuple[Any, ...]] = []
    for domain, tasks in TASKS.items():
        for task in tasks:
            name = f"{domain}_{task}"
            origin = ", ".join(label for label, found in sources.items() if task in found.get(domain, ()))
            origin += ", needs OpenGL" if name in NEED_GL else ""
            # These have other observations than their domain, on which agents would be pre-trained.
            before = None if name in OTHER_OBSERVATIONS else f"dmc/{domain}"
            rows.append((f"dmc/{name}", before, origin))
    title = "DMControl tasks, and the domain without a task on which an agent for them is pre-trained"
    return Listing(title, ("task", "pre-train on", "from"), rows)


def _presets() -> Listing:
    from voidrl.config import Config
    from voidrl.presets.presets import NAMES, PRESETS, replay_bytes

    places = {"maze": "PixelMaze", "atari": "atari/…", "dmc": "dmc/…", "urlb": "dmc/…", "cpu": "any"}
    rows: list[tuple[Any, ...]] = []
    for name in NAMES:
        preset = PRESETS[name]
        place, steps = places.get(name.partition("-")[0]), preset.values.get("steps", Config().steps)
        rows.append((name, place, steps, replay_bytes(name) / GB, preset.about))
    title = "Presets, with the memory of their replay, and agents that learn from scratch (`voidrl train`)"
    return Listing(title, ("preset", "for", "steps", "replay GB", "about"), [*rows, *_agents().rows])


def _agents() -> Listing:
    """The presets that are agents."""
    from voidrl.presets.presets import AGENTS, EXAMPLES, FAMILIES, replay_bytes

    rows: list[tuple[Any, ...]] = []
    for name, agent in AGENTS.items():
        values = agent.values_for(EXAMPLES[agent.families[0]])
        place = ", ".join("others" if family == "any" else FAMILIES[family] for family in agent.families)
        rows.append((name, place, values["steps"], replay_bytes(name) / GB, agent.about))
    title = "Agents that learn from scratch, with `voidrl train`; steps and replay in the first family"
    return Listing(title, ("agent", "for", "steps", "replay GB", "about"), rows)


def _experiments() -> Listing:
    from voidrl.experiments.format import read_experiment, shipped

    found = map(read_experiment, shipped())
    rows = [(each.name, each.preset, len(each.arms), each.title) for each in found]
    title = "Experiments: `voidrl experiment NAME --dry-run` shows their runs and how long they take"
    return Listing(title, ("experiment", "preset", "arms", "about"), rows)


KINDS: dict[str, Callable[[], Listing]] = {
    "methods": _methods,
    "representations": lambda: _pieces("representations", "Representations: how the encoder f is learned"),
    "learners": lambda: _pieces("learners", "Learners: RL algorithms"),
    "envs": _environments,
    "games": _games,
    "tasks": _tasks,
    "presets": _presets,
    "agents": _agents,
    "experiments": _experiments,
}
