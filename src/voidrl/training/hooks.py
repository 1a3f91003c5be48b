"""Everything that happens around training: the interface, the user's callbacks, snapshots and checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from voidrl.training import failures
from voidrl.training.run import Run
from voidrl.training.saved_run import save_run
from voidrl.training.trainer import Trainer


class Hook:
    """Base class: override the events that you need. Hooks are called in their order, on every rank."""

    def start(self, run: Run) -> None:
        """Before the first step, also of a resumed run; open files in `run.resources`."""

    def after_step(self, run: Run) -> None:
        """After each step of the environments."""

    def before_checkpoint(self, run: Run) -> None:
        """Complete what a checkpoint holds."""

    def end(self, run: Run) -> None:
        """After the last checkpoint of a run that is complete or was stopped, but not of one that failed."""


class UserCallbacks(Hook):
    """Calls the user's callbacks at the start, after steps and at the end."""

    def start(self, run: Run) -> None:
        """Call `on_start`."""
        run.call("on_start")

    def after_step(self, run: Run) -> None:
        """Call `on_step`, but not where all environments were reset."""
        if run.callbacks.has_step_hooks and run.passed(1):
            run.call("on_step")

    def end(self, run: Run) -> None:
        """Call `on_end`."""
        run.call("on_end")


class Snapshots(Hook):
    """Saves the agent at `log.snapshot_steps`.

    Before the checkpoint of the same step: a run that is resumed there would not pass this step again.
    """

    def after_step(self, run: Run) -> None:
        """Save the agent as it is, without running the updates that are due."""
        steps = run.state.steps
        if run.is_main and any(run.steps_before < due <= steps for due in run.config.log.snapshot_steps):
            failures.require_finite_weights(run)
            path = run.agent.save_checkpoint(run.folder.snapshots_path, keep_last=sys.maxsize)
            run.folder.log(f"snapshot {path.name}")


class Checkpoints(Hook):
    """Saves everything that a resumed run needs, after the other hooks have completed it.

    A checkpoint comes every `log.checkpoint_every_steps`, at the end and at a stop.
    """

    def __init__(self, trainer: Trainer, others: Sequence[Hook]) -> None:
        self.trainer, self.others = trainer, others

    def start(self, run: Run) -> None:
        """Save an untrained agent, as a control, or the one that a new run fine-tunes."""
        if not run.config.steps or (run.is_new and run.agent.effective.adapts):
            self.save(run)

    def after_step(self, run: Run) -> None:
        """Save, if a checkpoint is due or a callback has stopped the run."""
        log = run.config.log
        # Ranks exchange it only where the callbacks of the first one may have been called.
        reports = log.log_every_steps, log.eval_every_steps, log.probe_every_steps
        if run.group.size == 1 or any(map(run.passed, reports)):
            run.agree_to_stop()
        if run.is_saved:
            self.trainer.update()  # those that are due when a callback has just stopped the run
            self.save(run)
            run.agree_to_stop()  # a stop that came meanwhile needs no other checkpoint

    def save(self, run: Run) -> None:
        """Write a checkpoint, and say so to callbacks and status."""
        for hook in self.others:
            hook.before_checkpoint(run)
        state, counter = run.state, run.envs.counter
        if counter is not None and run.is_main:  # the others have handed theirs over
            state.states = counter.state()
        state.callbacks = run.callbacks.state(state.steps)
        path = save_run(run.folder, run.engine, state)
        state.states = {}
        run.is_cut = True
        run.folder.log(f"checkpoint {path.name}")
        run.folder.status.saved(state.steps)
        run.checkpoint = path
        run.call("on_checkpoint")
