"""list."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.cli.options import Parser
from voidrl.config import registry
from voidrl.errors import UnknownNameError
from voidrl.system.terminal.tables import is_terminal, print_table
from voidrl.system.units import human_count

SHOWN_NAMES = 12  # of one kind, in the overview on a terminal
FAMILIES = ("knowledge", "data", "competence", "baseline", "")  # in the order of the list
ABOUT_FIELDS = ("family", "year", "paper", "skills")  # of `methods.base.About`


class Listing(NamedTuple):
    """Everything of a kind; the first column is the name that other commands take."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def list_(argv: list[str]) -> None:
    """List what is available: `voidrl list methods`, or presets, envs, games, tasks, experiments."""
    parser = Parser("list", list_.__doc__)
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)} (default: all)")
    options = parser.parse_args(argv)
    if options.kind is not None and options.kind not in KINDS:
        raise UnknownNameError("kind", options.kind, KINDS)
    if options.kind is None:
        _overview()
        return
    title, columns, rows = KINDS[options.kind]()
    cells = [[human_count(x) if isinstance(x, int) and x > 9999 else x for x in row] for row in rows]
    print_table(columns, cells, title=title if is_terminal(sys.stdout) else None)


def _overview() -> None:
    whole = not is_terminal(sys.stdout)
    rows = []
    for kind, listing in KINDS.items():
        names = [str(row[0]) for row in listing().rows]
        shown = names if whole or len(names) <= SHOWN_NAMES else [*names[:SHOWN_NAMES], "…"]
        rows.append((kind, len(names), ", ".join(shown)))
    print_table(("kind", "count", "names"), rows)
    if not whole:
        print("\n`voidrl list KIND` describes them.")


def _methods() -> Listing:
    rows = []
    for name, tree in _sources("methods"):
        given = {}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "About":
                words = [(str(each.arg), each.value) for each in call.keywords]
                values = [*zip(ABOUT_FIELDS, call.args, strict=False), *words]
                given = {field: ast.literal_eval(value) for field, value in values}
        family, year, paper, skills = (given.get(field, "") for field in ABOUT_FIELDS)
        rows.append((name, family, year or None, skills or "none", _about(tree), paper))
    rows += [(name, "", None, "", about, "") for name, about in _registered("method")]
    rows.sort(key=lambda row: (FAMILIES.index(row[1]), row[2] or sys.maxsize))
    columns = ("method", "family", "year", "skills", "about", "paper")
    return Listing("Methods: intrinsic rewards", columns, rows)


def _pieces(kind: str, title: str) -> Listing:
    rows: list[tuple[Any, ...]] = [(name, _about(tree)) for name, tree in _sources(f"{kind}s")]
    return Listing(title, (kind, "about"), [*rows, *_registered(kind)])


def _registered(kind: str) -> list[tuple[str, str]]:
    """What other packages register, which is not imported."""
    return [(name, f"{point.value}, installed") for name, point in registry.registered(kind).items()]


def _sources(package: str) -> list[tuple[str, ast.Module]]:
    """The pieces' names and parsed files, which are not imported, as that would take torch."""
    files = sorted(Path(__file__).parents[1].joinpath(package).glob("[!_]*.py"))
    return [(file.stem, ast.parse(file.read_text("utf-8"))) for file in files if file.stem != "base"]


def _about(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]


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
    from voidrl.presets.presets import EXAMPLES, FAMILIES, PRESETS

    rows: list[tuple[Any, ...]] = []
    for name, preset in PRESETS.items():
        word = name.partition("-")[0]
        families = preset.families or ({"urlb": "dmc", "cpu": "any"}.get(word, word),)
        place = ", ".join("others" if each == "any" else FAMILIES[each] for each in families)
        steps = preset.values_for(EXAMPLES.get(families[0])).get("steps", Config().steps)
        rows.append((name, "any" if name == "cpu" else place, steps, preset.about))
    title = "Presets, and agents that learn from scratch (`voidrl train`), with steps in their first family"
    return Listing(title, ("preset", "for", "steps", "about"), rows)


def _experiments() -> Listing:
    from voidrl.experiments.format import read_experiment, shipped

    found = map(read_experiment, shipped())
    rows = [(each.name, each.preset, len(each.arms), each.title) for each in found]
    title = "Experiments: `voidrl experiment NAME --dry-run` shows their runs and how long they take"
    return Listing(title, ("experiment", "preset", "arms", "about"), rows)


KINDS: dict[str, Callable[[], Listing]] = {
    "methods": _methods,
    "representations": lambda: _pieces("representation", "Representations: how the encoder f is learned"),
    "learners": lambda: _pieces("learner", "Learners: RL algorithms"),
    "envs": _environments,
    "games": _games,
    "tasks": _tasks,
    "presets": _presets,
    "experiments": _experiments,
}
