"""docs/commands.md: every command with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from generator.formatting import NOTE, plain, table, wrapped
from voidrl.cli import main as cli
from voidrl.cli import training

GUIDES = {  # the page with more about a command
    "pretrain": "quickstart.md", "finetune": "quickstart.md", "resume": "resume.md", "report": "report.md",
    "experiment": "experiments.md", "video": "video.md", "push": "sharing.md", "doctor": "doctor.md",
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
    captured: list[tuple[Any, ...]] = []
    said = io.StringIO()

    def parse(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Parsed(parser)

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse),
        mock.patch.object(training, "print_help", lambda *args: captured.append(args)),
        mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(said),
    ):
        try:
            function(["--help"])
        except _Parsed as parsed:
            yield from _parser(parsed.parser)
            return
    if captured:  # a command whose options are config fields
        _, usage, _, own, _ = captured[0]
        yield f"```text\n{usage} [OPTION …]\n```\n"
        rows = ([f"`{option}`", plain(text)] for option, text in own.items())
        yield table(["option", "meaning"], rows) + "\n"
        yield (
            "Every [config field](config.md) is an option too: `--learner.n-step 3`, and `--log.tensorboard` "
            "or\n`--no-log.tensorboard` for one that is true or false. `--help` shows the most common, "
            "`--help-all` all of them.\n"
        )
    else:
        yield f"```text\n{said.getvalue().rstrip()}\n```\n"


def _parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = [action for action in parser._actions if action.dest != "help"]
    kinds = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    words = [parser.prog, *(_usage(action) for action in actions)]
    lines = textwrap.wrap(" ".join(words), 88, subsequent_indent=" " * (len(parser.prog) + 1))
    yield "```text\n" + "\n".join(lines) + "\n```\n"
    rows = [[f"`{_names(a)}`", plain(_help(parser, a))] for a in actions if a not in kinds]
    if rows:
        yield table(["argument", "meaning"], rows) + "\n"
    if parser.epilog:
        yield f"```text\n{parser.epilog}\n```\n"
    for action in kinds:
        for choice in action.choices.values():
            yield f"### {choice.prog}\n"
            yield f"{plain(choice.description or '')}\n"
            yield from _parser(choice)


def _metavar(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    choices = None if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
    name = action.metavar or choices or (action.dest.upper() if action.option_strings else action.dest)
    one = name if isinstance(name, str) else " ".join(name)
    return {"+": f"{one} …", "*": f"[{one} …]", "?": f"[{one}]"}.get(str(action.nargs), one)


def _names(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    return f"{names} {_metavar(action)}".strip()


def _usage(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    text = f"{action.option_strings[-1]} {_metavar(action)}".strip()
    return text if action.required else f"[{text}]"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    return parser._get_formatter()._expand_help(action) if "%" in text else text
