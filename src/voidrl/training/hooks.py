"""The interface of everything that happens around training: logging, evaluation, checkpoints, callbacks."""

from __future__ import annotations

from voidrl import dist
from voidrl.training.run import Run


class Hook:
    """Base class: override the events that you need. Hooks are called in their order, on every rank."""

    def start(self, run: Run) -> None:
        """Before the first step, also of a resumed run; open files in `run.resources`."""

    def after_step(self, run: Run, before: int) -> bool:
        """Called after a step, with the steps `before` it; returns whether the run may stop."""
        return False

    def report(self, run: Run, before: int) -> bool:
        """Report where that is due; returns whether that may stop the run. A checkpoint comes afterwards."""
        return False

    def before_checkpoint(self, run: Run) -> None:
        """Complete what a checkpoint holds."""

    def at_checkpoint(self, run: Run) -> None:
        """Save, after all hooks are prepared for it."""

    def end(self, run: Run) -> None:
        """After the last checkpoint of a run that is complete or was stopped, but not of one that failed."""


class UserCallbacks(Hook):
    """Calls the user's callbacks at the start, after steps and at the end."""

    def start(self, run: Run) -> None:
        """Call `on_start`."""
        run.call("on_start")
        self._after_steps = dist.total(run.callbacks.has_step_hooks)[0] > 0  # on any rank

    def after_step(self, run: Run, before: int) -> bool:
        """Call `on_step`, but not where all environments were reset."""
        if not self._after_steps or run.state.steps == before:
            return False
        run.call("on_step")
        return True

    def end(self, run: Run) -> None:
        """Call `on_end`."""
        run.call("on_end")
