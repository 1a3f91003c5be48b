"""Links lead to files and headings, and the commands of docs/paper.md can be given."""

import re
import shlex
from urllib.parse import unquote

import pytest
from doc_pages import DOCS, PAGES, ROOT, anchors, inline_code, links

from voidrl.cli import main as cli
from voidrl.experiments.format import read_experiment

ALL = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "results").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]


def problem(page, target):
    """What is wrong with a link, or None."""
    if target.startswith(("https://", "http://", "mailto:")):
        return None
    path, _, anchor = unquote(target).partition("#")
    if path.startswith("/"):
        return "an absolute path: it leads elsewhere in every clone"
    found = (page.parent / path).resolve() if path else page
    if not found.is_file():
        return "no such file" if not found.exists() else "a folder: name a file in it"
    if not found.is_relative_to(ROOT):
        return "outside the repository"
    if anchor and (found.suffix != ".md" or anchor not in anchors(found)):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    problems = {f"line {line}: {target}": problem(page, target) for line, target in links(page)}
    assert not {link: what for link, what in problems.items() if what}


STARTS = re.compile(r"voidrl (pretrain|train|experiment) (?!ENV)")
COMMANDS = sorted({text for _, text in inline_code(DOCS / "paper.md") if STARTS.match(text)})
COMPARED = [shlex.split(text)[2:] for text in COMMANDS if text.startswith("voidrl experiment")]
TRAINED = [text for text in COMMANDS if not text.startswith("voidrl experiment")]


@pytest.mark.parametrize("words", COMPARED, ids=" ".join)
def test_experiments_have_the_methods_that_are_named(words):
    """That each of them can be planned and built is tested with the experiments."""
    methods = words[words.index("--methods") + 1 :] if "--methods" in words else []
    assert {*methods} <= {*read_experiment(words[0]).arms}


@pytest.mark.parametrize("command", TRAINED)
def test_runs_can_be_configured(command, capsys):
    if " dmc/" in command:
        pytest.importorskip("dm_control")
    assert cli.main(["config", *shlex.split(command)[1:]]) == 0, capsys.readouterr().err


def test_most_systems_have_a_command():
    assert len(COMPARED) >= 15
    assert len(TRAINED) >= 20
