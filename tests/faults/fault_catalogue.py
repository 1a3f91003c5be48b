"""The catalogue as data: a fault has a group, a name, the command a user types, and what should happen."""

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from fault_lab import Done

GOOD = {
    "survived": "completed; after a kill, `voidrl resume` or the same command completed it",
    "stopped": "wrote a checkpoint, said so, exited with 75; resuming completed it. Where there was nothing "
    "to save yet, and after a second signal: 128 + the number of the signal",
    "refused": "one sentence that names the cause, exit code 2; what was saved before is kept",
}
BAD = {
    "silent": "something was lost or ignored without a word",
    "lost": "work was lost, or the run could not be resumed",
    "misleading": "the sentence names another cause",
    "leaked": "processes or shared memory were left behind",
    "traceback": "a traceback in the terminal",
    "hang": "did not end",
}


@dataclass
class Seen:
    """What was observed."""

    done: Done
    """The command itself."""
    resumed: Done | None = None
    """The command that continued it, if that was tried."""
    exact: bool | None = None
    """Whether the result equals that of a run without a fault bit for bit, where that is promised."""
    problem: tuple[str, str] | None = None
    """A bad outcome and why, found by the fault's own checks."""
    killed: bool = False
    """The command was meant to die by SIGKILL."""
    note: str = ""


@dataclass(frozen=True)
class Fault:
    """One way in which things go wrong."""

    group: str
    name: str
    command: str
    """What a user would type; `$TINY` stands for options of a run that takes a second."""
    expect: str
    inject: Callable
    says: str = ""
    """A regular expression that the message has to match, with `.` for newlines as well."""
    ended_by: str = ""
    """The signal that ends the command with 128 + its number: nothing to save yet, or a second signal."""
    quick: bool = False
    """Part of `make test`."""
    needs: Callable[[], str] = lambda: ""
    """Why it cannot be injected on this machine; empty if it can."""


@dataclass
class Result:
    """The outcome of one fault, as it is written to a table."""

    group: str
    name: str
    command: str
    expect: str
    outcome: str
    detail: str
    seconds: float


FAULTS: list[Fault] = []


def fault(group, name, command, expect, **options):
    """Add a function to the catalogue: it receives a bench and the command, and returns what it saw."""

    def add(inject):
        FAULTS.append(Fault(group, name, command, expect, inject, **options))
        return inject

    return add


def run_fault(fault, lab):
    """Inject one fault, and say what came of it."""
    began = time.monotonic()
    if reason := fault.needs():
        outcome, detail = "skipped", reason
    else:
        with lab.bench() as bench:
            outcome, detail = classify(fault, fault.inject(bench, fault.command))
    fields = (fault.group, fault.name, fault.command, fault.expect)
    return Result(*fields, outcome, detail, round(time.monotonic() - began, 1))


def classify(fault, seen):
    """The outcome, and the evidence in a few words."""
    commands = [done for done in (seen.done, seen.resumed) if done is not None]
    for done in commands:
        if done.code is None:
            return "hang", "no end within the limit"
        if "Traceback (most recent call last)" in done.text:
            return "traceback", last_line(done)
    if seen.problem:
        return seen.problem
    for done in commands:
        if done.leftovers:
            return "leaked", ", ".join(done.leftovers)[:150]
    if seen.resumed and seen.resumed.code != 0:
        return "lost", f"resuming ended with exit code {seen.resumed.code}: {last_line(seen.resumed)}"
    if seen.exact is False:
        return "lost", "the resumed run differs from one without the fault"
    return judge(fault, seen)


def judge(fault, seen):
    """The outcome by exit code and message, once nothing worse was found."""
    code, said = seen.done.code, last_line(seen.done)
    text = seen.done.text if code == 0 else seen.done.text.rpartition("\nvoidrl: ")[2]  # the sentence
    said_it = not fault.says or re.search(fault.says, text, re.DOTALL)
    exact = ", bit for bit" if seen.exact else ""
    if seen.killed and code != -signal.SIGKILL:
        return "silent", f"exit code {code}, although it was to be killed: {said}"
    if seen.killed:
        return "survived", seen.note or f"resumed{exact}"
    if fault.ended_by and code == 128 + getattr(signal, fault.ended_by):
        return "stopped", f"exit code {code}: {said}"
    match code:
        case 0 if not said_it:
            return "silent", f"exit code 0: {said}"
        case 0:
            return "survived", seen.note or (said if fault.says else f"completed{exact}")
        case 75 if fault.ended_by:
            return "misleading", f"exit code 75, although nothing was saved: {said}"
        case 75 if not said_it:
            return "misleading", f"exit code 75: {said}"
        case 75:
            return "stopped", f"exit code 75{f', resumed{exact}' if seen.resumed else ''}: {said}"
        case 129 | 130 | 143:
            return "lost", f"exit code {code}, without a checkpoint of where it was: {said}"
        case 2 if not said.startswith("voidrl:"):
            return "silent", f"exit code 2: {said or 'no word'}"
        case 2 if not said_it:
            return "misleading", said
        case 2:
            return "refused", said
        case _ if code < 0:
            return "lost", f"ended by signal {-code}: {said or 'no word'}"
    return "silent", f"exit code {code}: {said or 'no word'}"


def last_line(done):
    lines = [line.strip() for line in done.text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
