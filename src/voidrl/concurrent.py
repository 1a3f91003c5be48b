"""Several runs at once in one process: N seeds of one config on one GPU, each as if it were alone."""

from __future__ import annotations

import shlex
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import copy_context
from signal import Signals
from typing import Any, Generic, TypeVar

import torch

from voidrl import ranks, turns
from voidrl.errors import (
    ConfigError,
    RunInterrupted,
    RunsFailedError,
    StoppedBySignal,
    VoidrlError,
    by_caller,
)
from voidrl.machine import shared_by
from voidrl.terminal.foreign import quiet_libraries
from voidrl.terminal.joint_progress import joint_progress
from voidrl.terminal.output import durable_output, say, spoken_by
from voidrl.terminal.signals import StopSignals, followed

T = TypeVar("T")


def together(calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Train several agents at once in this process, each as if it were trained alone.

    On a GPU their updates run side by side, and the environments of one step while others are updated.

    Args:
        calls: By name, functions without arguments that call `pretrain`, `train`, `finetune` or `resume`:
            `{f"seed {s}": partial(voidrl.pretrain, "dmc/walker", seed=s) for s in (1, 2)}`.

    Returns:
        What the functions return, by the same names. Where some of them fail the others are completed first;
        then `RunsFailedError` is raised, which has what was returned and what was raised.
    """
    with durable_output(), joint_progress(len(calls)), StopSignals() as stop:
        ends = run_together(calls, stop, announced=True)
        returned = {name: end.value for name, end in ends.items() if end.error is None}
        errors = {name: end.error for name, end in ends.items() if end.error is not None}
        for error in errors.values():
            if not isinstance(error, VoidrlError | KeyboardInterrupt):
                raise error  # a mistake in the code, with its traceback
        failed = {name: error for name, error in errors.items() if isinstance(error, VoidrlError)}
        if failed:
            raise RunsFailedError(failed, returned, len(calls))
        if errors:
            raise _interrupted(stop.requested, errors)
        return {name: end.result() for name, end in ends.items()}


def _interrupted(signal: str, errors: Mapping[str, BaseException]) -> RunInterrupted:
    """What is raised for all runs, each of which has said how it ended."""
    runs = [e.run for e in errors.values() if isinstance(e, RunInterrupted) and e.run is not None]
    unborn = [name for name, error in errors.items() if isinstance(error, StoppedBySignal)]
    parts = [f"stopped by {signal}"]
    if unborn:
        parts.append(f"not begun: {', '.join(unborn)}")
    if runs:
        command = f"`voidrl resume {shlex.join(map(str, runs))}`"
        parts.append(by_caller("resume each with voidrl.resume", f"resume with {command}"))
    return RunInterrupted("; ".join(parts))


class End(Generic[T]):
    """How a call ended: what it returned, or what it raised."""

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: BaseException | None = None

    def result(self) -> T:
        """What the call returned."""
        assert self.error is None
        return self.value  # type: ignore[return-value]


def run_together(
    calls: Mapping[str, Callable[[], T]], stop: StopSignals, *, announced: bool = False
) -> dict[str, End[T]]:
    """Make all calls at once, in threads that take turns; returns when all have ended.

    Args:
        calls: By name.
        stop: Entered by this thread; its signal stops all calls, those that have not begun too.
        announced: Messages begin with the name of the call, and say at once why one has ended.
    """
    if turns.is_shared():
        raise ConfigError("runs that share a process cannot start others together: start those separately")
    if ranks.expected_size() > 1:
        raise ConfigError(
            f"several runs cannot share a process under torchrun, where one run has {ranks.expected_size()} "
            f"processes: start them without it"
        )
    group, cpu_threads = turns.Turns(len(calls)), torch.get_num_threads()
    ends: dict[str, End[T]] = {name: End() for name in calls}

    def work(name: str) -> None:
        end = ends[name]
        with ExitStack() as stack:
            stack.enter_context(followed(stop))
            if announced:
                stack.enter_context(spoken_by(name))
            stack.enter_context(group.taken([*calls].index(name)))
            torch.set_num_threads(cpu_threads)  # a new thread has the number that another one set last
            try:
                if stop.requested:
                    raise StoppedBySignal(Signals[stop.requested])
                end.value = calls[name]()
            except BaseException as error:  # raised again in the thread of the caller
                end.error = error
                traceback.clear_frames(error.__traceback__)  # which hold the memory of the run
                if announced and isinstance(error, VoidrlError | RunInterrupted | StoppedBySignal):
                    say(str(error))

    with quiet_libraries(), shared_by(len(calls)):
        threads = [_start(work, name) for name in calls]
        for thread in threads:
            thread.join()
    group.restore()
    return ends


def _start(work: Callable[[str], Any], name: str) -> threading.Thread:
    # What depends on the caller, such as the wording of remedies, is in its context.
    run = copy_context().run
    thread = threading.Thread(target=run, args=(work, name), name=f"voidrl {name}", daemon=True)
    thread.start()
    return thread
