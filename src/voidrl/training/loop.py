"""The one training loop, for pre-training, fine-tuning and training from scratch.

Checkpoints make resuming exact for any environment: at each one all episodes are cut and the environments are
reset with a seed made from the run's seed and the step, in uninterrupted runs as in resumed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

from voidrl.system.terminal.output import durable_output
from voidrl.system.terminal.signals import StopSignals
from voidrl.system.units import crossed
from voidrl.training import failures
from voidrl.training.acting import Actors
from voidrl.training.hooks import Hook
from voidrl.training.run import Run
from voidrl.training.trainer import Trainer


class Loop:
    """Steps the environments and updates the agent; hooks do everything else."""

    def __init__(self, run: Run, actors: Actors, trainer: Trainer, hooks: Sequence[Hook]) -> None:
        self.training, self.actors, self.trainer, self.hooks = run, actors, trainer, hooks
        self.state = run.state

    def run(self) -> None:
        """Train until `config.steps`, a signal or a callback's stop; ends with a checkpoint."""
        run = self.training
        # Whoever starts the ranks passes signals on, so that each may come twice.
        alone = run.group.size == 1
        with durable_output(run.folder.log), StopSignals(ends_at_once=alone) as run.stop:
            with ExitStack() as run.resources, failures.explained(run):
                self._train()
                for hook in self.hooks:
                    hook.end(run)
            failures.say_how_it_ended(run)

    def _train(self) -> None:
        run, state = self.training, self.state
        for hook in self.hooks:
            hook.start(run)
        if (
            run.is_new and run.agent.effective.adapts
        ):  # the pre-trained agent is part of the run from the start
            self._checkpoint()
        if run.config.steps == 0:  # an untrained agent, as a control
            self._checkpoint()
            return
        self.actors.begin()
        while True:
            before = state.steps
            stops = self._step()
            stops = self._after_step(before) or stops
            last = state.steps >= run.config.steps or stops
            saves = last or crossed(before, state.steps, run.config.log.checkpoint_every_steps)
            if saves:
                self.trainer.update()  # no update is due in what is saved
            reported = [hook.report(run, before) for hook in self.hooks]
            if any(reported) and not saves and run.totals.any(run.stops):
                saves = True
                self.trainer.update()
            for hook in self.hooks:
                hook.after_report(run, before)
            if saves:
                self._checkpoint()
                # A stop that came while it was written needs no other.
                if last or run.totals.any(run.stops):
                    return
                self.actors.begin()

    def _step(self) -> bool:
        """Step all environments and run the updates that are due; returns whether any rank is to stop."""
        engine = self.training.engine
        self.trainer.before_acting()
        pending = self.actors.choose()
        # Environments and updates run at the same time. On CUDA updates are launched after the actions;
        # elsewhere they take this thread, so the environments are started first. Those on the device are
        # launched too, and their rewards arrive while the updates run.
        if pending.can_be_sent:
            self.actors.send(pending)
            self.trainer.update()
        else:
            self.trainer.update()
            self.actors.send(pending)
        with engine.idle if self.state.updates else nullcontext():
            return self.actors.receive(pending)

    def _after_step(self, before: int) -> bool:
        """Call hooks after a step; returns whether the run is to stop, as far as this is known by now."""
        run = self.training
        may_stop = [hook.after_step(run, before) for hook in self.hooks]
        if any(may_stop):
            return run.totals.any(run.stops)
        return run.totals.is_alone and run.stops

    def _checkpoint(self) -> None:
        for hook in self.hooks:
            hook.before_checkpoint(self.training)
        for hook in self.hooks:
            hook.at_checkpoint(self.training)
