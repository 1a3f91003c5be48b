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
from voidrl.system.units import plural

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
    if device.type == "cpu":
        number, sentence = pick_threads(mine, gflop, fixed=fixed, before=before)
        if sentence:
            say(sentence)
    else:
        number = mine if os.environ.get(VARIABLE) else min(mine, whole_cores())
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

    `cpu_threads` decides, then the caller's `OMP_NUM_THREADS`, then the number of a run that is resumed, then
    the size of an update: one thread for each `GFLOP_PER_THREAD`, within this process's share of the cores.
    """
    usable, sentence = usable_cores(), ""
    if fixed:
        number = min(fixed, usable)
        if number < fixed:
            sentence = f"cpu_threads = {fixed} is more than the cores that it may use"
    elif os.environ.get(VARIABLE):
        number = mine
    elif before is not None:
        number = min(max(1, before), usable)
    else:
        allowed = min(mine, whole_cores())
        number = min(max(1, int(gflop / GFLOP_PER_THREAD)), allowed)
        if allowed > 1:
            sentence = f"by the size of the networks; cpu_threads or {VARIABLE} sets another number"
            return number, f"{plural(number, 'CPU thread')} of {allowed}, {sentence}"
    if before not in (None, number):
        sentence = f"until now the run had {before}, and results may differ in rounding"
    return number, sentence and f"{plural(number, 'CPU thread')}: {sentence}"
