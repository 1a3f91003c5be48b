"""One display of progress for several runs of this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from voidrl.terminal.progress import Progress


class JointProgress:
    """One display for several runs of this process: sums of steps and updates, means of everything else.

    Args:
        runs: How many there will be.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._members: list[_Member] = []
        self._display: Progress | None = None

    def join(self, total_steps: int, initial_step: int, *, initial_updates: int, title: str) -> _Member:
        """The progress of one more run."""
        if self._display is None:
            title = f"{title}, {self._runs} runs"
            first = Progress(total_steps, initial_step, title=title, initial_updates=initial_updates)
            self._display = first.__enter__()
        else:
            self._display.add_run(total_steps, initial_step, initial_updates)
        self._members.append(_Member(self, initial_step, initial_updates))
        return self._members[-1]

    def show(self) -> None:
        """Show the progress of all."""
        assert self._display is not None
        names = dict.fromkeys(name for member in self._members for name in member.fields)
        known = {name: [m.fields[name] for m in self._members if name in m.fields] for name in names}
        self._display.update(
            sum(member.steps for member in self._members),
            {name: sum(values) / len(values) for name, values in known.items()},
            updates=sum(member.updates for member in self._members),
        )

    def close(self) -> None:
        """End the display."""
        if self._display is not None:
            self._display.__exit__()


class _Member:
    """The progress of one of several runs."""

    def __init__(self, joint: JointProgress, steps: int, updates: int) -> None:
        self._joint = joint
        self.steps, self.updates = steps, updates
        self.fields: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass  # it keeps counting for the others

    def update(
        self, step: int, fields: Mapping[str, float] | None = None, *, updates: int | None = None
    ) -> None:
        """As `Progress.update`."""
        self.steps = step
        self.fields.update(fields or {})
        self.updates = self.updates if updates is None else updates
        self._joint.show()


_joint: ContextVar[JointProgress | None] = ContextVar("joint", default=None)


@contextmanager
def joint_progress(runs: int) -> Iterator[None]:
    """Inside, `show_progress` has one display for all runs."""
    joint = JointProgress(runs)
    token = _joint.set(joint)
    try:
        yield
    finally:
        _joint.reset(token)
        joint.close()


def show_progress(
    total_steps: int, initial_step: int, *, initial_updates: int, title: str
) -> Progress | _Member:
    """The progress of a run: its own, or its part of that of several."""
    joint = _joint.get()
    if joint is not None:
        return joint.join(total_steps, initial_step, initial_updates=initial_updates, title=title)
    return Progress(total_steps, initial_step, initial_updates=initial_updates, title=title)
