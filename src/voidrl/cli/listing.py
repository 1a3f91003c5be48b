"""list."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.cli.options import make_parser
from voidrl.config import registry
from voidrl.errors import UnknownNameError
from voidrl.system.terminal.screen import is_terminal
from voidrl.system.terminal.tables import print_table

GB = 10**9
SHOWN_NAMES = 12  # of one kind, in the overview on a terminal
FAMILIES = {
    "knowledge": "Knowledge-based: what a model predicts badly is rewarded",
    "data": "Data-based: visiting many different states is rewarded",
    "competence": "Competence-based: skills that can be told apart are rewarded",
    "baseline": "Baselines: they show what a method adds",
    None: "Other methods",
}
SHORT = {"none": None, "both": "any"}  # kinds of skills and actions, on a terminal
# Facts about a method, with the defaults of `voidrl.methods.base.About`, whose module imports torch.
ABOUT: dict[str, Any] = {**dict.fromkeys(registry.ABOUT_FIELDS), "skills": "none", "actions": "both"}


class Count(int):
    """A number that prints as 250M, and is exact in JSON."""

    def __str__(self) -> str:
        from voidrl.system.units import human_count

        return human_count(self)


class Bytes(int):
    """A size that prints as 7.1 GB, and is exact in JSON."""

    def __str__(self) -> str:
        return f"{self / GB:.1f} GB"


class Listing(NamedTuple):
    """Everything of a kind; the first column is the name that other commands take."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    show: Callable[[], None] | None = None
    """Prints it on a terminal, if not as one table."""


def list_(argv: list[str]) -> None:
    """List what is available: `voidrl list methods`, or presets, agents, envs, games, tasks, experiments."""
    parser = make_parser("list", list_.__doc__)
    parser.epilog = f"KIND is one of {', '.join(KINDS)}; without one, all of them in short."
    parser.add_argument("kind", nargs="?", metavar="KIND", help="what to list (default: an overview)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(argv)
    if options.kind is not None and options.kind not in KINDS:
        raise UnknownNameError("kind", options.kind, KINDS)
    if options.kind is None:
        _overview(as_json=options.json)
        return
    title, columns, rows, show = KINDS[options.kind]()
    if options.json:
        keys = ("name", *(column.replace(" ", "_") for column in columns[1:]))
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    if show is not None and is_terminal(sys.stdout):
        show()
        return
    print_table(columns, rows, title=title if is_terminal(sys.stdout) else None)


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
    families = list(FAMILIES)
    found = [_method(file) for file in _paths("methods")]
    found.sort(key=lambda each: (families.index(_family(each)), each["year"] or sys.maxsize))
    rows = [tuple(each.values()) for each in found]
    title = "Methods: intrinsic rewards"
    return Listing(title, ("method", *ABOUT, "page"), rows, lambda: _print_families(found))


def _method(file: Path) -> dict[str, Any]:
    """The `about` of a method, without importing it; its docstring where there is none."""
    source = file.read_text("utf-8")
    about = {**dict.fromkeys(ABOUT), "reward": _first_line(source)}
    if given := registry.parse_about(source):
        about = {name: given.get(name, default) for name, default in ABOUT.items()}
    return {"name": file.stem, **about, "page": _page(f"docs/methods/{file.stem}.md")}


def _family(method: dict[str, Any]) -> str | None:
    return method["family"] if method["family"] in FAMILIES else None


def _print_families(methods: list[dict[str, Any]]) -> None:
    """A table for each family, with the papers behind the intrinsic rewards."""
    for family, heading in FAMILIES.items():
        rows = []
        for each in methods:
            if _family(each) == family:
                skills, actions = (SHORT.get(each[name], each[name]) for name in ("skills", "actions"))
                rewards = f"{each['reward']} ({each['paper']})" if each["paper"] else each["reward"]
                rows.append((each["name"], each["year"], skills, actions, rewards))
        if rows:
            print_table(("method", "year", "skills", "actions", "rewards"), rows, title=heading)
            print()


def _files(package: str) -> list[tuple[Any, ...]]:
    """Name and first line of each file, without importing it."""
    return [(file.stem, _first_line(file.read_text("utf-8"))) for file in _paths(package)]


def _paths(package: str) -> list[Path]:
    files = sorted(Path(__file__).parents[1].joinpath(package).glob("[!_]*.py"))
    return [file for file in files if file.stem != "base"]


def _first_line(source: str) -> str:
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _page(path: str) -> str | None:
    """The page about it, in a checkout; an installed package comes without."""
    return path if (Path(__file__).parents[3] / path).is_file() else None


def _environments() -> Listing:
    from voidrl.envs.packages import PACKAGES

    games = "57 games and more, such as atari/ms_pacman?sticky=true (voidrl list games)"
    others = f"of {', '.join(package.pip for package in PACKAGES)}, such as {PACKAGES[0].example}"
    rows = [
        ("atari/<game>", "atari", games),
        ("dmc/<domain>", "dmc", "DMControl without a task, to pre-train, such as dmc/walker"),
        ("dmc/<domain>_<task>", "dmc", "the same with a reward, such as dmc/walker_run (voidrl list tasks)"),
        ("voidrl/PixelMaze-v0", None, "a maze observed as an image; options as a query: ?size=13&goal=far"),
        ("voidrl/PointMass-v0", None, "a point in a box, with small tasks: ?task=pickup, ?discrete=true"),
        ("any Gymnasium id", None, "any space but Text, Sequence and Graph, such as Pendulum-v1"),
        ("ids of packages", None, others),
        (
            "module:factory",
            None,
            "a custom function that returns a gymnasium.Env; --env.backend tensor: tensors",
        ),
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
    from voidrl.presets.presets import PROTOCOLS, replay_bytes

    places = {"maze": "PixelMaze", "atari": "atari/…", "dmc": "dmc/…", "urlb": "dmc/…", "cpu": "any"}
    protocols: list[tuple[Any, ...]] = []
    for name, preset in PROTOCOLS.items():
        steps = Count(preset.values.get("steps", Config().steps))
        place = places.get(name.partition("-")[0])
        protocols.append((name, place, steps, Bytes(replay_bytes(name)), preset.about))
    title = "Protocols, and the memory of their replay, on the GPU if there is one"
    columns = ("preset", "for", "steps", "replay", "about")
    agents = _agents()

    def show() -> None:
        print_table(columns, protocols, title=title)
        print()
        print_table(columns, agents.rows, title=agents.title)

    return Listing(title, columns, [*protocols, *agents.rows], show)


def _agents() -> Listing:
    """The presets that are agents."""
    from voidrl.presets.presets import AGENTS, EXAMPLES, FAMILIES, replay_bytes

    rows: list[tuple[Any, ...]] = []
    for name, agent in AGENTS.items():
        values = agent.values_for(EXAMPLES[agent.families[0]])
        place = ", ".join("others" if family == "any" else FAMILIES[family] for family in agent.families)
        rows.append((name, place, Count(values["steps"]), Bytes(replay_bytes(name)), agent.about))
    title = "Agents that learn from scratch, with `voidrl train`; steps and replay in the first family"
    return Listing(title, ("agent", "for", "steps", "replay", "about"), rows)


def _experiments() -> Listing:
    from voidrl.experiments.format import read_experiment, shipped

    found = map(read_experiment, shipped())
    rows = [(each.name, each.preset, len(each.arms), each.title) for each in found]
    title = "Experiments: `voidrl experiment NAME --dry-run` shows their runs and how long they take"
    return Listing(title, ("experiment", "preset", "arms", "about"), rows)


KINDS: dict[str, Callable[[], Listing]] = {
    "methods": _methods,
    "representations": lambda: Listing(
        "Representations: how the encoder f is learned",
        ("representation", "about"),
        _files("representations"),
    ),
    "learners": lambda: Listing("Learners: RL algorithms", ("learner", "about"), _files("learners")),
    "envs": _environments,
    "games": _games,
    "tasks": _tasks,
    "presets": _presets,
    "agents": _agents,
    "experiments": _experiments,
}
