"""Effects of Ctrl-C (SIGINT), SIGTERM and SIGHUP on a command, a run or a script.

| phase | the first signal | exit status |
|---|---|---|
| importing, building, loading | raises `StoppedBySignal` | 128 + its number; 75 while resuming a run |
| training, evaluating within it, saving | finishes the step and writes a checkpoint | 75 |
| at the last step | the run is `done`; nothing after it starts | 75 |
| the runs of an experiment | each of them writes a checkpoint | 75 |
| evaluation or report of an experiment | raises; repeat the command to do the rest | 75 |
| any other command | raises | 128 + its number |

A second one ends the process at once with status 128 + its number. Its workers and the runs of an experiment
are killed, and the state of the run reads as `interrupted`. While C code blocks the main thread, only SIGKILL
helps. A Python or IPython session is not ended: there the second one raises KeyboardInterrupt.

One event often sends a signal twice: `timeout` signals its child and then the process group, and when a
terminal is closed both the kernel and the shell send SIGHUP. Signals within a tenth of a second therefore
count as one, and SIGHUP is never the second. It stays ignored where it was ignored, as under `nohup`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import active_children
from types import FrameType
from typing import Any, Self
from weakref import WeakKeyDictionary

from voidrl.errors import StoppedBySignal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.1

_entered: list[StopSignals] = []  # from the outermost to the innermost
_children: WeakKeyDictionary[subprocess.Popen, bool] = WeakKeyDictionary()


class StopSignals:
    """Asks for a stop when the first signal arrives, and ends the process when the second one does.

    It may be nested: the innermost decides what the first signal does, the outermost whether a second one
    ends the process. Outside the main thread, where Python has no signals, it does nothing.

    Args:
        raises: Raise `StoppedBySignal` at once, rather than only setting `requested`.
        ends_at_once: Whether a second signal ends the process. A process whose parent passes signals on
            may receive each of them twice, and leaves that to its parent.
    """

    def __init__(self, *, raises: bool = False, ends_at_once: bool = True) -> None:
        self.requested = ""
        """The name of the signal that asked for a stop."""
        self._raises = raises
        self._ends_at_once = ends_at_once
        self._first_seconds: float | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        if _entered:
            self.requested = _entered[-1].requested  # one that user code has swallowed
        _entered.append(self)
        for number in STOP_SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before is signal.SIG_IGN:
                continue
            self._previous[number] = before
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self not in _entered:  # outside the main thread, or in a fork
            return
        self._restore_handlers()
        del _entered[_entered.index(self) :]  # with one that a signal kept from being left
        if self.requested and kind is None:  # it came too late to be seen, or was swallowed
            raise StoppedBySignal(signal.Signals[self.requested])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        repeated = bool(self.requested)
        for each in _entered:
            each.requested = each.requested or signal.Signals(number).name
        outermost, now = _entered[0], time.monotonic()
        first = outermost._first_seconds
        if number != signal.SIGHUP:
            outermost._first_seconds = now if first is None else first
            if first is not None and now - first >= SAME_SIGNAL_SECONDS and outermost._ends_at_once:
                if is_interactive():
                    raise KeyboardInterrupt
                end_at_once(number)
        if not repeated and self._raises:
            raise StoppedBySignal(number)

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: one that C code set


def is_interactive() -> bool:
    """Whether this is a Python or IPython session, a notebook's kernel included."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or shell is not None


def end_with_process(child: subprocess.Popen, *, group: bool = False) -> None:
    """Have a child process killed by `end_at_once`; with `group`, all processes of its group."""
    _children[child] = group


def end_at_once(number: int) -> None:
    """End this process and its workers without any cleanup."""
    try:
        for process in active_children():
            process.kill()
        for child, group in [*_children.items()]:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL) if group else child.kill()
        name = signal.Signals(number).name
        with suppress(OSError):  # past all buffers and locks, unless that would block or fail
            show_cursor = b"\x1b[?25h\n" if os.isatty(2) else b""  # a progress bar may have hidden it
            text = f"voidrl: stopped at once by a second signal ({name}); older checkpoints are untouched\n"
            if select.select([], [2], [], 0)[1]:
                os.write(2, show_cursor + text.encode())
    finally:
        os._exit(128 + number)


def _forget_in_fork() -> None:
    """A forked worker has the handlers that were there before."""
    for each in reversed(_entered):
        each._restore_handlers()
    _entered.clear()
    _children.clear()


os.register_at_fork(after_in_child=_forget_in_fork)
