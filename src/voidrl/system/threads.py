"""The number of CPU threads that torch uses while voidrl computes.

By default torch takes all cores. Small networks gain nothing from that, and where other processes use
those cores each operation waits for its slowest thread: training becomes tens of times slower. The number is
therefore chosen by the size of an update, within this process's share of the cores, and the caller's is
restored afterwards. On a GPU, where torch's threads only prepare batches, it is that share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from voidrl.system.machine import usable_cores, whole_cores

GFLOP_PER_THREAD = 2.0  # in one update; with less, threads wait for each other longer than they compute
VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def cpu_threads(
    device: torch.device,
    gflop: float,
    *,
    fixed: int = 0,
    before: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Compute with a suitable number of threads inside, and with the caller's afterwards.

    Args:
        device: Device of the networks.
        gflop: Billions of operations that are computed at a time, such as in an update.
        fixed: `Config.cpu_threads`: this number, or 0 to choose one.
        before: The number with which a run that is resumed was trained so far.
        say: Takes the sentence about the choice.
    """
    mine = torch.get_num_threads()
    if device.type != "cpu":
        with using(mine if os.environ.get(VARIABLE) else min(mine, whole_cores())):
            yield
        return
    number, sentence = pick_threads(mine, gflop, fixed=fixed, before=before)
    if sentence:
        say(sentence)
    with using(number):
        yield


@contextmanager
def using(number: int) -> Iterator[None]:
    """Compute with this number of threads inside."""
    mine = torch.get_num_threads()
    if number == mine:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(mine)


def pick_threads(mine: int, gflop: float, *, fixed: int = 0, before: int | None = None) -> tuple[int, str]:
    """The number of threads, and a sentence about it where there was a choice.

    `cpu_threads` decides, then the number of a run that is resumed, then the caller's
    `OMP_NUM_THREADS`. The number never exceeds torch's default.
    """
    usable = usable_cores()
    if fixed:
        number = min(fixed, usable)
        why = "" if number == fixed else f"as cpu_threads = {fixed} is more than the cores that it may use"
    elif os.environ.get(VARIABLE):
        number, why = mine, f"as {VARIABLE} says"
    elif before is not None:
        number, why = min(max(1, before), usable), "as there are no more cores that it may use"
    else:
        return _choose(mine, gflop)
    sentence = ", ".join(filter(None, [counted(number), why]))
    if before is not None and number != before:
        return number, f"{sentence}; until now the run had {before}, and results may differ in rounding"
    return number, sentence if fixed and number != fixed else ""


def _choose(mine: int, gflop: float) -> tuple[int, str]:
    """One thread for each `GFLOP_PER_THREAD`, within this process's share of the cores."""
    useful = max(1, int(gflop / GFLOP_PER_THREAD))
    allowed = min(mine, whole_cores())
    number, why = min(useful, allowed), "as the networks are small"
    if allowed == 1:
        return 1, ""  # no choice
    if number > 1:
        why = "by the size of the networks" if useful < allowed else "all that there are"
    return number, f"{counted(number)} of {allowed}, {why}; cpu_threads or {VARIABLE} sets another number"


def counted(number: int) -> str:
    """`1 CPU thread`, `2 CPU threads`."""
    return f"{number} CPU thread{'s' * (number != 1)}"
