"""The one training loop, for pre-training, fine-tuning and training from scratch.

Checkpoints make resuming exact for any environment: at each one all episodes are cut and the environments are
reset with a seed made from the run's seed and the step, in uninterrupted runs as in resumed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext

from voidrl.agent import Agent
from voidrl.agent.adapter import Adapter
from voidrl.engine.engine import Engine
from voidrl.envs.vector import Envs
from voidrl.runs.folder import RunFolder
from voidrl.system.terminal.output import durable_output
from voidrl.system.terminal.signals import StopSignals
from voidrl.system.units import crossed
from voidrl.training import failures
from voidrl.training.acting import Actors
from voidrl.training.best import BestAgent, OpenEnvs
from voidrl.training.callbacks import CallbackList
from voidrl.training.checkpoints import Checkpoints, Snapshots
from voidrl.training.evaluating import Evaluating, Probing
from voidrl.training.hooks import Hook, UserCallbacks
from voidrl.training.logging import Logging, Output
from voidrl.training.on_policy import RolloutSchedule
from voidrl.training.run import Run
from voidrl.training.saved_run import LoopState
from voidrl.training.trainer import Trainer


class Loop:
    """Steps environments and updates the agent; hooks do everything else."""

    def __init__(
        self,
        engine: Engine,
        envs: Envs,
        eval_envs: OpenEnvs | None,
        folder: RunFolder,
        state: LoopState,
        probe: Callable[[], dict[str, float]] | None = None,
        callbacks: CallbackList | None = None,
        pretrained: Agent | None = None,
    ) -> None:
        """`probe` measures the agent, for `log.probe_every_steps`; a new run fine-tunes `pretrained`."""
        self.engine, self.replay, self.folder, self.state = engine, engine.replay, folder, state
        self.config = engine.agent.config
        self.training = run = Run(engine, envs, folder, state, callbacks or CallbackList())
        adapter = Adapter(engine.agent, engine.replay, state, engine.say)
        self.actors = Actors(run, adapter)
        schedule = RolloutSchedule if engine.agent.learner.rollout_steps else Schedule
        self.schedule: Schedule = schedule(run, adapter, self.actors)
        keeps_best = adapter.is_finetuning and run.is_main
        self.best = BestAgent(folder, self.config, eval_envs) if keeps_best else None
        self.saves_first = adapter.is_finetuning  # the pre-trained agent is part of the run from the start
        self.hooks: list[Hook] = [
            Output(),
            UserCallbacks(),
            Evaluating(eval_envs, self.best, pretrained),
            Probing(probe),
            Logging(run, self.schedule, self.best),
            Snapshots(),
            Checkpoints(),
        ]

    def run(self) -> None:
        """Train until `config.steps`, a signal or a callback's stop; ends with a checkpoint."""
        run = self.training
        # Whoever starts the ranks passes signals on, so that each may come twice.
        alone = run.group.size == 1
        with durable_output(self.folder.log), StopSignals(ends_at_once=alone) as run.stop:
            with ExitStack() as run.resources, failures.explained(run):
                self._start()
                self._train()
                for hook in self.hooks:
                    hook.end(run)
            path = run.checkpoint
            assert path is not None
            is_complete = self.state.steps >= self.config.steps
            if is_complete:
                self.folder.status.finish(self.state.steps)
            signal, callback = run.totals.first_text([run.stop.requested, run.callbacks.stopped_by])
            if signal:
                raise failures.interrupted(run, signal, path, is_complete)
            if not is_complete:
                failures.say_who_stopped(run, callback, path)

    def _start(self) -> None:
        for hook in self.hooks:
            hook.start(self.training)
        if self.saves_first and self.state.metrics_bytes is None:
            self._checkpoint()

    def _train(self) -> None:
        run, state, hooks = self.training, self.state, self.hooks
        if self.config.steps == 0:  # an untrained agent, as a control
            self._checkpoint()
            return
        self.actors.begin()
        while True:
            before = state.steps
            stops = self._step()
            if run.totals.is_alone:
                stops = run.stops  # what came meanwhile as well
            may_stop = [hook.after_step(run, before) for hook in hooks]
            if any(may_stop):
                stops = run.totals.any(run.stops)
            last = state.steps >= self.config.steps or stops
            saves = last or crossed(before, state.steps, self.config.log.checkpoint_every_steps)
            if saves:
                self.schedule.update()  # no update is due in what is saved
            reported = [hook.report(run, before) for hook in hooks]
            if any(reported) and not saves and run.totals.any(run.stops):
                saves = True
                self.schedule.update()
            for hook in hooks:
                hook.after_report(run, before)
            if saves:
                self._checkpoint()
                # A stop that came while it was written needs no other.
                if last or run.totals.any(run.stops):
                    return
                self.actors.begin()

    def _step(self) -> bool:
        """Step all environments and run the updates that are due; returns whether any rank is to stop."""
        self.schedule.before_acting()
        pending = self.actors.choose()
        # Environments and updates run at the same time. On CUDA updates are launched after the actions;
        # elsewhere they take this thread, so the environments are started first. Those on the device are
        # launched too, and their rewards arrive while the updates run.
        if pending.can_be_sent:
            self.actors.send(pending)
            self.schedule.update()
        else:
            self.schedule.update()
            self.actors.send(pending)
        with self.engine.idle if self.state.updates else nullcontext():
            return self.actors.receive(pending)

    def _checkpoint(self) -> None:
        for hook in self.hooks:
            hook.before_checkpoint(self.training)
        for hook in self.hooks:
            hook.at_checkpoint(self.training)
