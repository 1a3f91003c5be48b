"""The `voidrl` command; `--help` imports no torch."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable

from voidrl import __version__
from voidrl.cli.bench import bench
from voidrl.cli.doctor import doctor
from voidrl.cli.evaluating import evaluate, probe
from voidrl.cli.experiment import demo, experiment
from voidrl.cli.exporting import export
from voidrl.cli.listing import list_
from voidrl.cli.options import HELP, as_options
from voidrl.cli.status import report, status
from voidrl.cli.training import config, finetune, pretrain, resume, train
from voidrl.errors import (
    ConfigError,
    PipeClosedError,
    RunInterrupted,
    StoppedBySignal,
    UnknownNameError,
    VoidrlError,
    for_command,
    printable,
)
from voidrl.system.terminal.foreign import quiet_libraries
from voidrl.system.terminal.output import command_output, end_process, open_missing_streams, say
from voidrl.system.terminal.signals import StopSignals
from voidrl.system.terminal.tables import described, wrap_text

ABOUT = "voidrl: pre-train agents without rewards, then adapt them to a task in a few steps."
MORE = "`voidrl COMMAND --help` shows its options."
NO_MEMORY = re.compile("out of memory|can't allocate memory")  # of torch, on CUDA and on the CPU
LOWER = "lower sizes such as hidden_dim, batch_size or env.num_envs"
INTERRUPTED = 75  # sysexits' EX_TEMPFAIL: stopped with a checkpoint, run `voidrl resume`
BAD_INPUT = 2
ON_RANKS = ("pretrain", "finetune", "train", "resume")  # commands that run on several ranks
STOPPED = 128  # plus the number of the signal, as a shell reports a program that a signal ended
PIPE_CLOSED = STOPPED + signal.SIGPIPE  # as `cat` ends: under `pipefail`, half a result is no success

COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "train": train,
    "evaluate": evaluate,
    "probe": probe,
    "resume": resume,
    "config": config,
    "experiment": experiment,
    "status": status,
    "report": report,
    "export": export,
    "list": list_,
    "doctor": doctor,
    "demo": demo,
    "bench": bench,
}


def main(argv: list[str] | None = None) -> int:
    """Run one command, which is the whole process if no arguments are given; returns its exit status."""
    if argv is not None:
        return _answer(argv)
    try:
        code = _answer(sys.argv[1:])
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    end_process(code)
    return code


def _answer(args: list[str]) -> int:
    """Run one command; bad input is answered by one sentence on stderr, without a traceback."""
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "…" shows "?", not a traceback
    dry_run = args[:1] == ["experiment"] and "--dry-run" in args  # which runs no code of the user
    if "" not in sys.path and not dry_run:
        sys.path.insert(0, "")  # so that the installed command finds module:factory in the current folder
    is_first = os.environ.get("RANK", "0") == "0"  # a signal stops all ranks of a run
    with command_output(), quiet_libraries(), for_command():
        try:
            # The launcher of ranks passes signals on, so that each may come twice.
            with StopSignals(raises=True, ends_at_once="RANK" not in os.environ):
                return _run_command(args)
        except PipeClosedError:
            return PIPE_CLOSED
        except VoidrlError as error:
            say(f"voidrl: {as_options(str(error))}")
            return BAD_INPUT
        except (MemoryError, RuntimeError) as error:
            if not (isinstance(error, MemoryError) or NO_MEMORY.search(str(error))):
                raise
            say(f"voidrl: out of memory ({printable(error) or 'no details'}): {LOWER}")
            return BAD_INPUT
        except RunInterrupted as stop:
            if is_first:
                say(f"voidrl: {stop}")
            return INTERRUPTED
        except StoppedBySignal as stop:
            if is_first:
                say(f"voidrl: {stop} outside of training; what was saved before is untouched")
            return STOPPED + stop.number
        except KeyboardInterrupt:
            say("voidrl: stopped at once; older checkpoints are untouched")
            return STOPPED + signal.SIGINT


def _run_command(args: list[str]) -> int:
    """Run it, and make sure that all output has been written."""
    name, code = args[0] if args else HELP[0], 0
    size = os.environ.get("WORLD_SIZE", "1")
    try:
        if name in HELP:
            rows = {name: (what.__doc__ or "").replace("`", "") for name, what in COMMANDS.items()}
            print(wrap_text(ABOUT, indent=0), "usage: voidrl COMMAND …", described(rows), MORE, sep="\n\n")
        elif name == "--version":
            print(__version__)
        elif name not in COMMANDS:
            raise UnknownNameError("command", name, COMMANDS, "See `voidrl --help`.")
        elif size != "1" and name not in ON_RANKS:  # several processes would each repeat it
            raise ConfigError(
                f"`voidrl {name}` cannot be started by torchrun with WORLD_SIZE = {size}: start it alone; "
                f"{', '.join(ON_RANKS)} run on ranks"
            )
        else:
            code = COMMANDS[name](args[1:]) or 0
    finally:
        sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
