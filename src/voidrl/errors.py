"""Errors for users. Each message is one sentence with the value, what was expected, and the remedy."""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PYTHON = "{}.{}".format(*sys.version_info)  # 3.11
LONGEST_VALUE = 200  # characters of a value in a message
_from_command: ContextVar[bool] = ContextVar("from_command", default=False)


@contextmanager
def for_command() -> Iterator[None]:
    """Word remedies for somebody who typed a command."""
    token = _from_command.set(True)
    try:
        yield
    finally:
        _from_command.reset(token)


def by_caller(python: str, command: str) -> str:
    """A remedy in the language of the caller: Python, or the command line."""
    return command if _from_command.get() else python


def shown(value: object) -> str:
    """The `repr` of a value, which may be a user's object, on one line and shortened if it is too long."""
    try:
        text = repr(value)
    except Exception as error:  # whatever an object's own code raises
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def printable(text: object) -> str:
    """Text on one line, with spaces for control characters, which could change what a terminal shows."""
    text = str(text)
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def printable_lines(text: object) -> str:
    """Text without control characters other than line breaks."""
    return "\n".join(map(printable, str(text).split("\n")))


class VoidrlError(Exception):
    """Base of every error raised for a user; the command line prints it without a traceback."""


class VoidrlWarning(Warning):
    """A problem that does not stop the run."""


class ConfigError(VoidrlError, ValueError):
    """An invalid value in a config, a command line or a call."""


class UnknownNameError(ConfigError):
    """An unknown name; the message suggests similar ones."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], remedy: str = "", near: Sequence[str] = ()
    ) -> None:
        names = sorted(known)
        near = near or similar_names(name, names)
        some = names[:20]
        more = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
        hint = f"known: {', '.join(some)}{more}."
        if near:
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?"
        super().__init__(f"unknown {kind} {shown(name)}; {hint}{' ' + remedy if remedy else ''}")


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that may have been meant, none of which is much further away than the first."""
    spelled = {each.lower(): each for each in sorted(known)}
    word = name.lower()[:LONGEST_VALUE]  # comparing takes time in proportion to the length
    found = difflib.get_close_matches(word, spelled, n=3, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, each, word).ratio() for each in found]
    close = zip(found, ratios, strict=True)
    return [spelled[each] for each, ratio in close if ratio >= ratios[0] - 0.2]


class NeighborError(ConfigError):
    """More neighbors than particles."""


class CaptureError(ConfigError):
    """An update that cannot be captured in a CUDA graph, because it contains a host read."""


class SpaceError(VoidrlError, TypeError):
    """An unsupported observation or action space, or two that do not match."""


class RunFolderError(VoidrlError):
    """A folder that is not a run, or that already holds one."""


class CheckpointError(VoidrlError):
    """A checkpoint that is missing, damaged or from another agent."""


class UnreadableError(CheckpointError, RunFolderError):
    """A file that the system refuses to open, which says nothing about its content."""


class DataError(VoidrlError):
    """A dataset that is missing, damaged or from another environment."""


class HubError(VoidrlError):
    """The Hugging Face Hub does not have a file, refuses access, or cannot be reached."""


class NonFiniteError(VoidrlError, ArithmeticError):
    """NaN or infinity in a loss, a weight or an action."""


class EnvironmentFailedError(VoidrlError, RuntimeError):
    """An environment raised, returned what it must not, died or hangs; the message names the step."""


class PieceFailedError(VoidrlError, RuntimeError):
    """A custom method, representation, learner or encoder raised an error; the message names the line."""


class CallbackFailedError(VoidrlError, RuntimeError):
    """A callback raised an error or returned what it must not; the message names class, hook and step."""


class ReplayMemoryError(VoidrlError, MemoryError):
    """The replay does not fit into memory."""


class MissingExtraError(VoidrlError, ImportError):
    """An optional package is not installed; the message names the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which {': '.join(why_missing(package, extra))}")


def packages_of(extra: str = "", python: str | None = None) -> list[Requirement]:
    """The packages that voidrl needs, or the packages of an extra, on this or another version of Python."""
    from packaging.requirements import Requirement

    found = []
    for each in map(Requirement, metadata.requires("voidrl") or []):
        where = {"extra": extra, "python_version": python or PYTHON}
        if each.marker.evaluate(where) if each.marker else not extra:
            each.marker = None
            found.append(each)
    return found


def why_missing(package: str, extra: str) -> tuple[str, str]:
    """What is wrong with a package of an extra that cannot be imported, and the remedy.

    The remedy is the command that installs the extra, also where voidrl itself is on no index; or another
    Python, if the package does not exist for this one.
    """
    classifiers = metadata.metadata("voidrl").get_all("Classifier", [])
    versions = [each.rpartition(" ")[2] for each in classifiers if ":: Python :: 3." in each]
    others = [each for each in versions if package in {found.name for found in packages_of(extra, each)}]
    if others and package not in {found.name for found in packages_of(extra)}:
        return f"cannot be installed on Python {PYTHON}", f"use Python {' or '.join(others)}"
    packages = (f"'{each}'" for each in packages_of(extra))
    return "is not installed", f"pip install {' '.join(packages)}"


class OutputError(VoidrlError):
    """The output of a command could not be written."""


class PipeClosedError(OutputError):
    """The reader of a command's output, such as `head`, has closed the pipe."""


class RankLostError(VoidrlError):
    """Another process that trains the same agent has ended."""


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped the run after a checkpoint; not an Exception, so that nothing swallows it."""


class StoppedBySignal(KeyboardInterrupt):
    """A signal stopped what was being done outside of training."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number
