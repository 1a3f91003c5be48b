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
from voidrl.training.collecting import Collector
from voidrl.training.hooks import Hook
from voidrl.training.run import Run
from voidrl.training.trainer import Trainer


class Loop:
    """Steps the environments and updates the agent; hooks do everything else."""

    def __init__(self, run: Run, collector: Collector, trainer: Trainer, hooks: Sequence[Hook]) -> None:
        self.run, self.collector, self.trainer, self.hooks = run, collector, trainer, hooks

    def train(self) -> None:
        """Train until `config.steps`, a signal or a callback's stop; ends with a checkpoint."""
        run = self.run
        # With several ranks the launcher forwards signals, so that one may arrive twice.
        with durable_output(run.folder.log), StopSignals(ends_at_once=run.group.size == 1) as run.stop:
            with ExitStack() as run.resources, failures.explained(run):
                self._steps()
                for hook in self.hooks:
                    hook.end(run)
            failures.say_how_it_ended(run)

    def _steps(self) -> None:
        run, state, config = self.run, self.run.state, self.run.config
        for hook in self.hooks:
            hook.start(run)
        if not config.steps or (run.is_new and run.agent.effective.adapts):
            self._checkpoint()  # of an untrained agent, as a control, or of the pre-trained one
        stops, is_saved = False, True
        while state.steps < config.steps and not stops:
            if is_saved:
                self.collector.begin()
            before = state.steps
            stops = self._step()
            may_stop = [hook.after_step(run, before) for hook in self.hooks]
            if any(may_stop) or run.group.size == 1:  # several ranks have just exchanged it
                stops = stops or run.any_stops()
            is_due = crossed(before, state.steps, config.log.checkpoint_every_steps)
            is_saved = is_due or stops or state.steps >= config.steps
            if is_saved:
                self.trainer.update()  # a checkpoint never owes updates
            may_stop = [hook.report(run, before) for hook in self.hooks]
            if any(may_stop) and not is_saved and run.any_stops():
                is_saved = True
                self.trainer.update()
            if is_saved:
                self._checkpoint()
                stops = stops or run.any_stops()  # one that came while it was written needs no other

    def _step(self) -> bool:
        """Step all environments and run the updates that are due; returns whether any rank is to stop."""
        run, trainer = self.run, self.trainer
        trainer.before_acting()
        pending = self.collector.choose()
        # Environments and updates run at the same time. On CUDA updates are launched after the actions;
        # elsewhere they take this thread, so the environments are started first. Those on the device are
        # launched too, and their rewards arrive while the updates run.
        if pending.can_be_sent:
            self.collector.send(pending)
            trainer.update()
        else:
            trainer.update()
            self.collector.send(pending)
        with run.engine.idle if run.state.updates else nullcontext():
            return self.collector.receive(pending)

    def _checkpoint(self) -> None:
        for hook in self.hooks:
            hook.before_checkpoint(self.run)
        for hook in self.hooks:
            hook.at_checkpoint(self.run)
