"""`voidrl list`: whole lines for scripts, tables for people, and no torch."""

import json
import sys
import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from pseudo_terminals import PseudoTerminal, widest

from voidrl.cli import listing
from voidrl.cli import main as cli
from voidrl.config import registry
from voidrl.envs.suites.atari import GAMES
from voidrl.envs.suites.dmcontrol import TASKS
from voidrl.methods.base import About
from voidrl.presets.presets import PRESETS

NAMES = {
    "methods": registry.names("method"),
    "representations": registry.names("representation"),
    "learners": registry.names("learner"),
    "games": [f"atari/{game}" for game in GAMES],
    "tasks": [f"dmc/{domain}_{task}" for domain, tasks in TASKS.items() for task in tasks],
    "presets": list(PRESETS),
}
FAMILIES = list(get_args(get_type_hints(About)["family"]))


def said(capsys, *words):
    assert cli.main(["list", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", NAMES)
def test_in_a_pipe_every_item_is_one_line_with_its_name_first(capsys, kind):
    header, *lines = said(capsys, kind).splitlines()
    found = [line.split()[0] for line in lines]
    assert (sorted(found) if kind == "methods" else found) == NAMES[kind]  # methods stand by family
    assert header.split()[0] == kind.removesuffix("s")


def test_what_is_said_of_them(capsys):
    lines = said(capsys, "games").splitlines()
    assert ["atari/ms_pacman", "307.3", "6951.6", "yes"] in [line.split() for line in lines]
    lines = said(capsys, "tasks").splitlines()
    assert ["dmc/walker_run", "dmc/walker", "suite,", "URLB"] in [line.split() for line in lines]
    assert ["dmc/quadruped_escape", "suite,", "needs", "OpenGL"] in [line.split() for line in lines]
    assert "hopper_jump_sparse" in next(
        line for line in lines if "paper's sparse" in line and "hopper" in line
    )
    line = next(line for line in said(capsys, "methods").splitlines() if line.startswith("rnd"))
    assert line.split()[1:3] == ["knowledge", "2018"]
    for part in ("predicts a fixed random one", "arXiv:1810.12894", "docs/methods/rnd.md"):
        assert part in line
    line = next(line for line in said(capsys, "presets").splitlines() if line.startswith("atari-paper"))
    assert line.split()[1:5] == ["atari/…", "250M", "7.1", "GB"]


def test_methods_are_listed_as_their_classes_describe_themselves(capsys):
    """What is read from the source without importing it is what the classes say."""
    assert (tuple(listing.ABOUT), set(listing.FAMILIES)) == (About._fields, {*FAMILIES, None})
    assert About._field_defaults.items() <= listing.ABOUT.items()
    rows = json.loads(said(capsys, "methods", "--json"))
    for row in rows:
        about = registry.find("method", row["name"]).about
        if about is not None:
            assert {name: row[name] for name in listing.ABOUT} == about._asdict()
        assert row["reward"]
        assert row["page"] == f"docs/methods/{row['name']}.md"
    families = [row["family"] for row in rows if row["family"]]
    assert families == sorted(families, key=FAMILIES.index)
    years = [row["year"] for row in rows if row["family"] == "data"]
    assert years == sorted(years)


SOURCES = {
    "positional.py": 'class A(B):\n    about = About("data", 2020, "one " "two", "B", "both", "discrete")',
    "by_name.py": 'class A(Method):\n    about = About(paper="", year=None, family="competence", reward="r")',
    "undescribed.py": '"""What it\nrewards."""\nclass A(Method): ...',
    "computed.py": '"""Found out."""\nclass A(Method):\n    about = About("data", YEAR, "r", "p")',
    "silent.py": "",
    "foreign.py": 'class A(Method):\n    about = About("mine", 2020, "r", "p")',
}


@pytest.mark.parametrize("file", SOURCES)
def test_a_method_of_ones_own_is_listed_with_or_without_a_description(file, tmp_path, monkeypatch, capsys):
    (tmp_path / file).write_text(SOURCES[file])
    monkeypatch.setattr(listing, "_paths", lambda package: [tmp_path / file])
    (row,) = json.loads(said(capsys, "methods", "--json"))
    expected = {
        "positional": ("data", 2020, "one two", "B", "both", "discrete"),
        "by_name": ("competence", None, "r", "", "none", "both"),
        "undescribed": (None, None, "What it", None, None, None),
        "computed": (None, None, "Found out.", None, None, None),
        "silent": (None, None, "", None, None, None),
        "foreign": ("mine", 2020, "r", "p", "none", "both"),
    }[row["name"]]
    assert tuple(row[name] for name in listing.ABOUT) == expected
    assert row["page"] is None
    monkeypatch.setattr(listing, "is_terminal", lambda stream: True)
    assert row["name"] in said(capsys, "methods")


def listed_on(monkeypatch, columns, *words):
    """What `voidrl list` shows on a terminal: its text, and the lines."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "CI"):
        monkeypatch.delenv(name, raising=False)
    with PseudoTerminal(columns) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        assert cli.main(["list", *words]) == 0
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        return terminal.text(), terminal.lines()


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_methods_stand_under_their_family(columns, monkeypatch):
    _, lines = listed_on(monkeypatch, columns, "methods")
    assert widest(lines) <= columns
    starts = [line.split("-")[0].split(":")[0].split(" ")[0] for line in lines]
    order = ["Knowledge", "rnd", "Data", "apt", "re3", "Baselines", "positive", "random"]
    assert [name for name in starts if name in order] == order
    whole = "".join(" ".join(line.split()) + " " for line in lines)
    assert "arXiv:1810.12894" in whole
    rnd = next(line for line in lines[starts.index("rnd") :] if "2018" in line)
    assert "any" in rnd


def test_experiments_are_those_of_their_files(capsys):
    expected = []
    for file in sorted(Path(listing.__file__).parents[1].glob("experiments/*.toml")):
        values = tomllib.loads(file.read_text())
        row = {"name": file.stem, "preset": values.get("preset"), "arms": len(values["methods"])}
        expected.append({**row, "about": values["title"]})
    assert json.loads(said(capsys, "experiments", "--json")) == expected


def test_json_has_numbers_as_they_are(capsys):
    presets = {row["name"]: row for row in json.loads(said(capsys, "presets", "--json"))}
    assert (presets["atari-paper"]["steps"], presets["urlb-pixels"]["steps"]) == (250_000_000, 1_000_000)
    assert presets["atari-paper"]["replay"] == pytest.approx(7.1e9, rel=0.01)
    assert all(row["about"] for row in presets.values())
    alien = json.loads(said(capsys, "games", "--json"))[0]
    assert alien == {"name": "atari/alien", "random": 227.8, "human": 7127.7, "of_the_26": "yes"}
    overview = json.loads(said(capsys, "--json"))
    assert list(overview) == list(listing.KINDS)
    assert overview["games"] == NAMES["games"]


@pytest.mark.parametrize("kind", [None, *listing.KINDS])
def test_on_a_terminal_nothing_is_wider(kind, monkeypatch):
    for columns in (40, 80) if kind == "methods" else (60,):
        text, lines = listed_on(monkeypatch, columns, *([kind] if kind else []))
        assert widest(lines) <= columns
        assert "\x1b[" in text
        for name in NAMES.get(kind, ()):
            assert name in "".join(line.strip() for line in lines)


def test_overview_counts_and_names_all_kinds(capsys):
    lines = said(capsys).splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(listing.KINDS)
    games = next(line for line in lines if line.startswith("games"))
    assert games.split()[1] == "57"
    assert "atari/zaxxon" in games
