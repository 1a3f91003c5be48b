"""The `voidrl` command; `--help` imports no torch."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from voidrl.cli.bench import bench
from voidrl.cli.doctor import doctor
from voidrl.cli.evaluating import evaluate, score
from voidrl.cli.experiment import demo, experiment
from voidrl.cli.listing import list_
from voidrl.cli.options import HELP
from voidrl.cli.report import report
from voidrl.cli.sharing import push
from voidrl.cli.training import config, finetune, pretrain, resume, train
from voidrl.cli.video import video
from voidrl.errors import RunInterrupted, UnknownNameError, VoidrlError
from voidrl.terminal.tables import described, wrap_text

INTERRUPTED = 75  # sysexits' EX_TEMPFAIL: stopped with a checkpoint, run `voidrl resume`
BAD_INPUT = 2

COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "train": train,
    "evaluate": evaluate,
    "resume": resume,
    "config": config,
    "experiment": experiment,
    "report": report,
    "video": video,
    "score": score,
    "push": push,
    "list": list_,
    "doctor": doctor,
    "demo": demo,
    "bench": bench,
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; bad input is answered by one sentence on stderr, without a traceback."""
    args = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "…" shows "?", not a traceback
    if "" not in sys.path:  # so that the installed command finds module:factory in the current folder
        sys.path.insert(0, "")
    try:
        if not args or args[0] in HELP:
            print(_overview())
            return 0
        if args[0] == "--version":
            from voidrl import __version__

            print(__version__)
            return 0
        if args[0] not in COMMANDS:
            raise UnknownNameError("command", args[0], COMMANDS, "See `voidrl --help`.")
        return COMMANDS[args[0]](args[1:]) or 0
    except VoidrlError as error:
        print(f"voidrl: {error}", file=sys.stderr)
        return BAD_INPUT
    except RunInterrupted as stop:
        print(f"voidrl: {stop}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    except KeyboardInterrupt:
        print("voidrl: stopped at once; older checkpoints are untouched", file=sys.stderr)
        return 130
    return 0


def _overview() -> str:
    about = "voidrl: pre-train agents without rewards, then adapt them to a task in a few steps."
    rows = described({name: (what.__doc__ or "").replace("`", "") for name, what in COMMANDS.items()})
    return f"""{wrap_text(about, indent=0)}

usage: voidrl COMMAND …

{rows}

`voidrl COMMAND --help` shows its options."""


if __name__ == "__main__":
    sys.exit(main())
