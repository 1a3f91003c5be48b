"""Every command in the tables of docs/paper.md is one that a user can give; blocks are executed elsewhere."""

import re
import shlex

import pytest
from doc_pages import DOCS, inline_code

from voidrl.cli import main as cli
from voidrl.experiments.format import read_experiment

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
    assert cli.main(["config", *shlex.split(command)[1:]]) == 0, capsys.readouterr().err


def test_most_systems_have_a_command():
    assert len(COMPARED) >= 15
    assert len(TRAINED) >= 20
