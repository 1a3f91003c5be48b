"""The one training loop, for pre-training, fine-tuning and training from scratch.

Resuming is exact for any environment: a checkpoint cuts all episodes, and the next step resets the
environments with a seed made from the run's seed and the step. Uninterrupted runs do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

from voidrl.system.terminal.output import durable_output
from voidrl.system.terminal.signals import StopSignals
from voidrl.training import failures
from voidrl.training.collecting import Collector
from voidrl.training.hooks import Hook
from voidrl.training.run import Run
from voidrl.training.trainer import Trainer


class Loop:
    """Steps the environments, updates the agent and stores what happened; hooks do everything else."""

    def __init__(self, run: Run, collector: Collector, trainer: Trainer, hooks: Sequence[Hook]) -> None:
        self.run, self.collector, self.trainer, self.hooks = run, collector, trainer, hooks

    def train(self) -> None:
        """Train until `config.steps`, a signal or a callback's stop."""
        run = self.run
        # With several ranks the launcher forwards signals, so that one may arrive twice.
        with durable_output(run.folder.log), StopSignals(ends_at_once=run.group.size == 1) as run.stop:
            with ExitStack() as run.resources, failures.explained(run):
                for hook in self.hooks:
                    hook.start(run)
                while not run.is_over:
                    self.step()
                    for hook in self.hooks:
                        hook.after_step(run)
                for hook in self.hooks:
                    hook.end(run)
            failures.say_how_it_ended(run)

    def step(self) -> None:
        """Step all environments, run the updates that are due, and store what the environments return."""
        run, collector, trainer = self.run, self.collector, self.trainer
        if run.is_cut:
            collector.begin()
        actions, skill = collector.choose()
        # Environments and updates run at the same time. On CUDA updates are launched after the actions;
        # elsewhere they take this thread, so the environments are started first.
        if actions.on_host:
            collector.send(actions)
            trainer.update()
        else:
            trainer.update()
            collector.send(actions)
        with run.engine.idle if run.state.updates else nullcontext():
            collector.record(actions, skill, run.envs.recv())
        if trainer.acts_with_newest or run.is_saved:  # a checkpoint owes no updates
            trainer.update()
