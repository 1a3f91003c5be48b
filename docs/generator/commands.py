"""docs/commands.md: every command with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from generator.formatting import NOTE, plain, table, wrapped
from voidrl.cli import main as cli
from voidrl.cli.options import Parser, usage_of

GUIDES = {  # the page with more about a command
    "pretrain": "quickstart.md", "finetune": "quickstart.md", "resume": "resume.md", "report": "inspect.md",
    "experiment": "experiments.md", "evaluate": "inspect.md", "export": "sharing.md", "doctor": "install.md",
    "demo": "expectations.md", "bench": "performance.md",
}  # fmt: skip


MANY = 2  # commands with an option that is described once

EXIT_CODES = [
    ["0", "success"],
    ["1", "a run of an experiment failed, or `voidrl doctor` found a failure"],
    ["2", "invalid input or a failed run, explained in one sentence"],
    [
        "75",
        "stopped by a signal after a checkpoint ([more](resume.md)), or the [Ray](machines.md#ray) cluster "
        "of an experiment was lost",
    ],
    [
        "129, 130, 143",
        "stopped without a checkpoint by SIGHUP, Ctrl-C or SIGTERM, or by a second one",
    ],
    ["141", "the reader of the output has closed the pipe"],
]


class _Parsed(BaseException):
    """Raised with the parser that a command has built."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def commands() -> str:
    """Return the page: every command with its options, from the argument parsers."""
    rows = ([f"[{name}](#voidrl-{name})", about(function)] for name, function in cli.COMMANDS.items())
    parsers = {name: _parser_of(function) for name, function in cli.COMMANDS.items()}
    counts = Counter(row for parser in parsers.values() for row in _rows(parser))
    common = [row for row, count in counts.items() if count >= MANY]
    parts = [
        NOTE,
        "# Commands\n",
        wrapped(
            "Look up a command and its options. `voidrl COMMAND --help` shows the same in a terminal. Write "
            "large numbers as `100k`, `2.5M`, `1e6` or `1_000_000`."
        ),
        table(["command", "what it does"], rows) + "\n",
        table(["exit code", "meaning"], EXIT_CODES) + "\n",
        "## Common options\n",
        table(["argument", "meaning"], common) + "\n",
        wrapped(
            "In `pretrain`, `finetune` and `train` every [config field](config.md) is an option too: "
            "`--learner.n-step 3`, and `--log.tensorboard` or `--log.tensorboard false` for one that is true "
            "or false. `--help` shows the most common, `--help-all` all of them."
        ),
    ]
    for name, function in cli.COMMANDS.items():
        guide = GUIDES.get(name, "")
        more = f" More: [{Path(guide).stem}]({guide})." if guide else ""
        parts += [f"## voidrl {name}\n", wrapped(plain(function.__doc__ or "") + more)]
        parts += _command(parsers[name], common)
    return "\n".join(parts)


def about(function: Callable[..., Any]) -> str:
    """Return the first sentence of a command's docstring, without its example."""
    return plain((function.__doc__ or "").split(": `")[0].rstrip("."))


def _parser_of(function: Callable[..., Any]) -> argparse.ArgumentParser:
    def parse(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Parsed(parser)

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse),
        mock.patch.object(Parser, "print_help", parse),
    ):
        try:
            function(["--help"])
        except _Parsed as parsed:
            return parsed.parser
    raise AssertionError(f"{function.__name__} parses no options")


def _command(parser: argparse.ArgumentParser, common: Collection[tuple[str, str]]) -> Iterator[str]:
    positionals = [usage_of(action) for action in _shown(parser) if not action.option_strings]
    yield f"```text\n{' '.join([parser.prog, *positionals])} [OPTION …]\n```\n"
    rows = _rows(parser)
    if own := [row for row in rows if row not in common]:
        yield table(["argument", "meaning"], own) + "\n"
    if also := ", ".join(f"`{name.strip('`').split()[0]}`" for name, text in rows if (name, text) in common):
        yield f"[Common](#common-options): {also}.\n"


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def _rows(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    return [(f"`{usage_of(action)}`", plain(_help(parser, action))) for action in _shown(parser)]


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    return parser._get_formatter()._expand_help(action) if "%" in text else text
