"""Output that survives a broken stream: a run outlives its terminal, but some commands only print.

The reader of a pipe ends, the disk behind a redirection is full, a terminal is closed: a run drops what it
cannot print and notes that in its log. A command whose result is what it prints fails.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO, cast

from voidrl.errors import OutputError, PipeClosedError, printable_lines

_skips_destructors = False

Failure = OSError | ValueError  # the latter of a closed stream


def say(text: str) -> None:
    """Print a message to stderr, or nowhere if that is broken. Not wrapped: commands in it can be copied."""
    if sys.stderr is not None:  # closed before Python started
        print(printable_lines(text), file=cast(TextIO, _Guard(sys.stderr, lambda error: None)), flush=True)


@contextmanager
def durable_output(note: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Drop unwritable output to stdout and stderr, and note that once.

    Forked workers inherit this, and drop theirs without a note.
    """
    owner, is_noted = os.getpid(), False

    def drop(error: Failure) -> None:
        nonlocal is_noted
        if not is_noted and os.getpid() == owner:
            is_noted = True
            with suppress(OSError):  # of a log on the full disk
                note(f"output was lost ({_reason(error)}); the run continues")

    with _guarded("stdout", drop), _guarded("stderr", drop):
        yield


@contextmanager
def command_output() -> Iterator[None]:
    """Raise `OutputError` where stdout cannot be written; messages on stderr are dropped."""
    with _guarded("stdout", _fail), _guarded("stderr", lambda error: None):
        yield


def _fail(error: Failure) -> None:
    if isinstance(error, BrokenPipeError):
        raise PipeClosedError("the reader of the output has closed the pipe") from None
    raise OutputError(
        f"the output of this command is incomplete, since it could not be written ({_reason(error)}): "
        f"redirect it to another place"
    ) from None


def _reason(error: Failure) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class _Guard:
    """A stream whose failures are handled; otherwise it delegates to the stream."""

    def __init__(self, stream: Any, on_failure: Callable[[Failure], None]) -> None:
        self._stream: Any = stream._stream if isinstance(stream, _Guard) else stream
        self._on_failure = on_failure

    def write(self, text: str) -> int:
        self._attempt("write", text)
        return len(text)

    def flush(self) -> None:
        self._attempt("flush")

    def isatty(self) -> bool:
        return not getattr(self._stream, "closed", False) and self._stream.isatty()

    def _attempt(self, method: str, *args: Any) -> None:
        try:
            getattr(self._stream, method, lambda: None)(*args)  # a user's own object may have no flush
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) and not getattr(self._stream, "closed", False):
                raise  # an error in the text, such as a character without an encoding
            discard_pending(self._stream)
            self._on_failure(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _guarded(name: str, on_failure: Callable[[Failure], None]) -> Iterator[None]:
    """Guard `sys.stdout` or `sys.stderr`; within another guard, this one decides."""
    with ExitStack() as stack:
        before = getattr(sys, name)
        if before is None:  # closed before Python started
            before = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123
        guard = _Guard(before, on_failure)
        setattr(sys, name, guard)
        try:
            yield
        finally:
            with suppress(OutputError):  # a command has flushed its output, or has another error to report
                guard.flush()
            if getattr(sys, name) is guard:
                setattr(sys, name, before)


def discard_pending(stream: TextIO) -> None:
    """Drop a stream's buffer after a failed write.

    Otherwise the next write, and Python when it exits, would try it again: the exit status would be 120.
    """
    with suppress(OSError, ValueError):  # closed, or not a file
        descriptor = stream.fileno()
        null, own = os.open(os.devnull, os.O_WRONLY), os.dup(descriptor)
        os.dup2(null, descriptor)
        stream.flush()
        os.dup2(own, descriptor)
        os.close(null)
        os.close(own)


def open_missing_streams() -> None:
    """Fill standard descriptors that the caller closed (`2>&-`): the next file to be opened would get them.

    They cannot be written to, so that output to them fails as it does on a closed stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def skip_destructors() -> None:
    """Have the command's process end without the destructors of a library that cannot close itself."""
    global _skips_destructors
    _skips_destructors = True


def end_process(code: int) -> None:
    """End the command's process with this exit status, if that may not be left to Python.

    Python would wait for threads that an environment has left, perhaps without end.
    """
    if is_kept := any(not each.daemon for each in {*threading.enumerate()} - {threading.main_thread()}):
        atexit._run_exitfuncs()
    if is_kept or _skips_destructors:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
