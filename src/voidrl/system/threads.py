"""The number of CPU threads that torch uses while voidrl computes.

By default torch takes all cores. Small networks gain nothing from that, and where other processes use
those cores each operation waits for its slowest thread: training becomes tens of times slower. The number is
therefore chosen by the size of an update, and the caller's is restored afterwards.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from voidrl.system.machine import ROOT, cores, whole_cores

GFLOP_PER_THREAD = 2.0  # in one update; with less, threads wait for each other longer than they compute
LOOK_SECONDS = 0.2  # over which the load of other processes is measured
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
        device: Device of the networks; on a GPU nothing changes.
        gflop: Billions of operations that are computed at a time, such as in an update.
        fixed: `Config.cpu_threads`: this number, or 0 to choose one.
        before: The number with which a run that is resumed was trained so far.
        say: Takes the sentence about the choice.
    """
    if device.type != "cpu":
        yield
        return
    mine = torch.get_num_threads()
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
    usable = whole_cores()
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
    """One thread for each `GFLOP_PER_THREAD`, as far as cores are free."""
    useful = max(1, int(gflop / GFLOP_PER_THREAD))
    allowed = min(mine, whole_cores())
    number, why = min(useful, allowed), "as the networks are small"
    if allowed == 1:
        return 1, ""  # no choice
    if number > 1:
        free = free_cores()
        why = "by the size of the networks" if useful < allowed else "all that there are"
        if free < number:
            number, why = max(1, free), "as other processes use the rest"
    return number, f"{counted(number)} of {allowed}, {why}; cpu_threads or {VARIABLE} sets another number"


def counted(number: int) -> str:
    """`1 CPU thread`, `2 CPU threads`."""
    return f"{number} CPU thread{'s' * (number != 1)}"


def free_cores(root: Path = ROOT, seconds: float = LOOK_SECONDS) -> int:
    """The cores that no other process uses now; all of them where the system does not say."""
    began, own, busy = time.perf_counter(), time.process_time(), _busy_seconds(root)
    if busy is None:
        return whole_cores()
    time.sleep(seconds)
    passed = time.perf_counter() - began
    others = (_busy_seconds(root) or busy) - busy - (time.process_time() - own)
    free = cores().total - others / passed
    return min(whole_cores(), max(0, math.floor(free + 0.5)))


def _busy_seconds(root: Path) -> float | None:
    """Seconds that all cores together have worked since the system started; None where it is not Linux."""
    try:
        first = (root / "proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    numbers = [int(word) for word in re.findall(r"\d+", first.removeprefix("cpu "))]
    if len(numbers) < 4:
        return None
    idle = sum(numbers[3:5])  # idle, and waiting for a disk
    return (sum(numbers[:8]) - idle) / os.sysconf("SC_CLK_TCK")
