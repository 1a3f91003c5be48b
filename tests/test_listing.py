"""`voidrl list`: whole lines for scripts, tables for people, and no torch."""

import sys
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
    line = next(line for line in said(capsys, "methods").splitlines() if line.startswith("rnd"))
    assert line.split()[1:3] == ["knowledge", "2018"]
    assert "predicts a fixed random one" in line
    assert "arXiv:1810.12894" in line
    line = next(line for line in said(capsys, "presets").splitlines() if line.startswith("atari-paper"))
    assert line.split()[1:3] == ["atari/…", "250M"]
    assert "Table 4: what each part of APT is worth" in said(capsys, "experiments")


def test_methods_are_listed_as_their_classes_describe_themselves():
    """What is read from the source without importing it is what the classes say."""
    assert {*listing.FAMILIES} == {*get_args(get_type_hints(About)["family"]), ""}
    rows = listing.KINDS["methods"]().rows
    for name, family, year, skills, line, paper in rows:
        about = registry.find("method", name).about
        if about is not None:
            assert About(family, year, paper, skills) == about
        assert line
    families = [row[1] for row in rows if row[1]]
    assert families == sorted(families, key=listing.FAMILIES.index)


def test_overview_counts_and_names_all_kinds(capsys):
    lines = said(capsys).splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(listing.KINDS)
    games = next(line for line in lines if line.startswith("games"))
    assert games.split()[1] == "57"
    assert "atari/zaxxon" in games


@pytest.mark.parametrize("kind", [None, *listing.KINDS])
def test_on_a_terminal_nothing_is_wider(kind, monkeypatch, plain_terminal):
    with PseudoTerminal(60) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        assert cli.main(["list", *([kind] if kind else [])]) == 0
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    lines = terminal.lines()
    assert widest(lines) <= 60
    for name in NAMES.get(kind, ()):
        assert name in "".join(line.strip() for line in lines)
