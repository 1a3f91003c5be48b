"""The catalogue as data: a fault has a group, a name, the command a user types, and what should happen."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fault_lab import Done

CODES = {"survived": 0, "stopped": 75, "refused": 2}
"""Each acceptable outcome, as docs/reliability.md defines it, and its exit code."""


@dataclass
class Seen:
    """What was observed."""

    done: Done
    """The command itself."""
    resumed: Done | None = None
    """The command that continued it, if that was tried."""
    exact: bool | None = None
    """Whether the result equals that of a run without a fault bit for bit, where that is promised."""
    problem: str = ""
    """What the fault's own checks found."""
    killed: bool = False
    """The command was meant to die by SIGKILL."""


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

    def shortcoming(self, seen):
        """How what was seen differs from what is promised; empty if it does not."""
        for done in filter(None, (seen.done, seen.resumed)):
            if done.code is None:
                return "no end within the limit"
            if "Traceback (most recent call last)" in done.text:
                return f"a traceback: {done.last_line}"
        if seen.problem:
            return seen.problem
        if leftovers := seen.done.leftovers or (seen.resumed and seen.resumed.leftovers):
            return f"left behind: {', '.join(leftovers)[:150]}"
        if seen.resumed and seen.resumed.code != 0:
            return f"resuming ended with exit code {seen.resumed.code}: {seen.resumed.last_line}"
        if seen.exact is False:
            return "the resumed run differs from one without the fault"
        code = CODES[self.expect]
        if self.ended_by:
            code = 128 + getattr(signal, self.ended_by)
        if seen.killed:
            code = -signal.SIGKILL
        text = seen.done.text if code == 0 else seen.done.text.rpartition("\nvoidrl: ")[2]  # the sentence
        if seen.done.code != code:
            return f"exit code {seen.done.code} in place of {code}: {seen.done.last_line}"
        if code == 2 and not seen.done.last_line.startswith("voidrl:"):
            return f"refused without a sentence: {seen.done.last_line}"
        if self.says and not re.search(self.says, text, re.DOTALL):
            return f"another sentence: {seen.done.last_line}"
        return ""


FAULTS: list[Fault] = []


def fault(group, name, command, expect, **options):
    """Add a function to the catalogue: it receives a bench and the command, and returns what it saw."""

    def add(inject):
        FAULTS.append(Fault(group, name, command, expect, inject, **options))
        return inject

    return add


def refused(group, name, command, says, prepare=lambda bench: None, **options):
    """Add a command to the catalogue that is refused, once `prepare(bench)` has run."""

    @fault(group, name, command, "refused", says=says, **options)
    def inject(bench, command):
        prepare(bench)
        return Seen(bench.voidrl(command))


# Needs


@cache
def root():
    """Why a small disk cannot be mounted; empty if it can."""
    if os.geteuid() or not shutil.which("mount"):
        return "mounting a small disk needs root"
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode:
            return "this machine does not allow mounting a small disk"
        subprocess.run(["umount", folder], check=True)
    return ""


def package(name):
    """A need of a Python package."""
    return lambda: "" if importlib.util.find_spec(name) else f"{name} is not installed"
