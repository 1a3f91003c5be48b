"""Saves a run: checkpoints, from which it is resumed, and snapshots of the agent."""

from __future__ import annotations

import sys

from voidrl.training import failures
from voidrl.training.hooks import Hook
from voidrl.training.run import Run
from voidrl.training.saved_run import save_run


class Snapshots(Hook):
    """Saves the agent at `log.snapshot_steps`.

    Before the checkpoint of the same step: a run that is resumed there would not pass this step again.
    """

    def report(self, run: Run, before: int) -> bool:
        """Save the agent as it is, without running the updates that are due."""
        steps = run.state.steps
        if run.is_main and any(before < due <= steps for due in run.config.log.snapshot_steps):
            failures.require_finite_weights(run)
            path = run.agent.save_checkpoint(run.folder.snapshots_path, keep_last=sys.maxsize)
            run.folder.log(f"snapshot {path.name}")
        return False


class Checkpoints(Hook):
    """Saves everything that a resumed run needs, after all other hooks."""

    def at_checkpoint(self, run: Run) -> None:
        """Write the checkpoint, and say so to callbacks and status."""
        state, counter = run.state, run.envs.counter
        if counter is not None and run.is_main:  # the others have handed theirs over
            state.states = counter.state()
        state.callbacks = run.callbacks.state(state.steps)
        path = save_run(run.folder, run.engine, state)
        state.states = {}
        run.folder.log(f"checkpoint {path.name}")
        run.folder.status.saved(state.steps)
        run.checkpoint = path
        run.call("on_checkpoint")
