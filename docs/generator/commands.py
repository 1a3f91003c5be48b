"""docs/commands.md: every command with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from generator.formatting import NOTE, plain, table, wrapped
from voidrl.cli import main as cli
from voidrl.cli.options import Parser, common_fields, usage_of

GUIDES = {  # the page with more about a command
    "pretrain": "quickstart.md", "finetune": "adapting.md", "resume": "resume.md", "report": "inspect.md",
    "experiment": "experiments.md", "evaluate": "inspect.md", "export": "sharing.md", "doctor": "install.md",
    "status": "inspect.md", "probe": "inspect.md", "config": "configuring.md",
    "demo": "demo.md", "bench": "performance.md",
}  # fmt: skip


EXIT_CODES = [
    ["0", "success"],
    ["1", "a run of an experiment failed, or `voidrl doctor` found a failure"],
    ["2", "invalid input or a failed run, explained in one sentence"],
    [
        "75",
        "stopped by a signal after a checkpoint ([more](resume.md)), or the [Ray](ray.md) cluster of an "
        "experiment was lost",
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
    parts = [
        NOTE,
        "# Commands\n",
        wrapped(
            "Look up a command and its options. `voidrl COMMAND --help` shows the same in a terminal. Write "
            "large numbers as `100k`, `2.5M`, `1e6` or `1_000_000`."
        ),
        table(["command", "what it does"], rows) + "\n",
        table(["exit code", "meaning"], EXIT_CODES) + "\n",
    ]
    for name, function in cli.COMMANDS.items():
        guide = GUIDES.get(name, "")
        more = f" More: [{Path(guide).stem}]({guide})." if guide else ""
        parts += [f"## voidrl {name}\n", wrapped(plain(function.__doc__ or "") + more), *_command(function)]
    return "\n".join(parts)


def about(function: Callable[..., Any]) -> str:
    """Return the first sentence of a command's docstring, without its example."""
    return plain((function.__doc__ or "").split(": `")[0].rstrip("."))


def _command(function: Callable[..., Any]) -> Iterator[str]:
    def parse(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Parsed(parser)

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse),
        mock.patch.object(Parser, "print_help", parse),
    ):
        try:
            function(["--help"])
        except _Parsed as parsed:
            yield from _parser(parsed.parser)


def _parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    positionals = [usage_of(action) for action in shown if not action.option_strings]
    yield f"```text\n{' '.join([parser.prog, *positionals])} [OPTION …]\n```\n"
    rows = [[f"`{usage_of(a)}`", plain(_help(parser, a))] for a in shown]
    yield table(["argument", "meaning"], rows) + "\n"
    if parser.epilog:
        yield f"{wrapped(plain(parser.epilog))}\n"
    if common_fields() in parser.more(False):
        yield (
            "Every [config field](config.md) is an option too: `--learner.n-step 3`, and `--log.tensorboard` "
            "or\n`--log.tensorboard false` for one that is true or false. `--help` shows the most common, "
            "`--help-all` all of them.\n"
        )


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    return parser._get_formatter()._expand_help(action) if "%" in text else text
