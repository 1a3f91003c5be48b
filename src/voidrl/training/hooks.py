"""Everything that happens around training: rows of metrics, callbacks, snapshots, checkpoints."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from voidrl.system.terminal.progress import Progress
from voidrl.training import failures
from voidrl.training.health import HealthMonitor
from voidrl.training.metrics import MetricsWriter
from voidrl.training.run import Experience, Run
from voidrl.training.saved_run import require_same_agent, save_run
from voidrl.training.trainer import Trainer
from voidrl.types import CHECK

RECENT_EPISODES = 20  # whose mean return the progress line shows, or one of each environment


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


class Logging(Hook):
    """Writes a row every `log.log_every_steps` and warns of training that is finite but useless.

    On the first rank it also opens the files for rows and the progress line.
    """

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self.trainer = trainer
        self.health = HealthMonitor(run.config, constant_reward=run.agent.method.constant_reward)
        self._are_compared = run.group.size == 1  # the agents of all ranks, once in this process
        self.recent: deque[float] = deque(maxlen=max(RECENT_EPISODES, run.config.env.num_envs))  # returns

    def start(self, run: Run) -> None:
        """Open the files and the progress line; a resumed run drops the rows after its checkpoint."""
        config, state = run.config, run.state
        if run.is_main:
            title = f"{config.phase} {config.env.id}"
            progress = Progress(
                config.steps,
                state.steps,
                initial_updates=state.updates,
                warmup_steps=self.trainer.warmup_steps,
                title=title,
            )
            run.progress = run.resources.enter_context(progress)
            writer = MetricsWriter(
                run.folder.path,
                tensorboard=config.log.tensorboard,
                wandb_project=config.log.wandb_project,
                resume_bytes=state.metrics_bytes,
                step=state.steps,
                say=run.engine.say,
            )
            run.writer = run.resources.enter_context(writer)
        self.clock = time.monotonic(), state.steps, state.updates
        run.folder.status.track(lambda: state.steps, str(run.agent.device), self.trainer.warmup_steps)
        if run.envs.counter is not None and state.states:
            run.envs.counter.load(state.states)
            state.states = {}  # the counter has them

    def after_step(self, run: Run) -> None:
        """Write a row if one is due, and move the progress line."""
        if run.passed(run.config.log.log_every_steps):
            self.log(run)
        if run.is_main:
            run.progress.update(run.state.steps, updates=run.state.updates)

    def before_checkpoint(self, run: Run) -> None:
        """Write the last row that the checkpoint covers."""
        self.log(run)
        failures.require_finite_weights(run)
        if run.is_main:
            run.state.metrics_bytes = run.writer.offset

    def end(self, run: Run) -> None:
        """Say so if a complete run has seen no reward of its task."""
        replay, is_complete = run.replay, run.state.steps >= run.config.steps
        if not is_complete or run.agent.effective.pretrains or run.group.size > 1:
            return
        if (count := len(replay)) and not replay.reward[replay.newest(count)].any():
            run.closing_lines.append(
                f"the task gave no reward in the last {count} steps: check the environment's reward, train "
                f"longer, or add a bonus"
            )

    def log(self, run: Run) -> None:
        """Write one row, if anything happened since the last; the only place where the host reads metrics."""
        state, counter = run.state, run.envs.counter
        if state.steps == self.clock[1]:
            return
        run.unlogged.trained = run.engine.metrics.flush()
        if culprit := failures.first_culprit(run):
            raise failures.not_finite(run, culprit)
        if state.updates and not self._are_compared:  # before much is lost; later at each checkpoint
            require_same_agent(run.agent)
            self._are_compared = True
        run.unlogged.visits = state.visits
        if counter is not None and not run.is_main:  # the first rank counts those of all
            run.unlogged.states = [counter.state()]
            counter.clear()
        metrics, run.unlogged = run.unlogged.of_all_ranks(), Experience()
        self.recent.extend(score for score, _ in metrics.finished)
        then, self.clock = self.clock, (time.monotonic(), state.steps, state.updates)
        run.logged_updates = state.updates
        if not run.is_main:
            return
        row = self._row(run, metrics, then)
        run.write_row(row)
        run.keep_score(row)
        run.folder.status.beat(state.steps)
        for warning in self.health.check(state.steps, row):
            run.engine.say(warning)
        self._show(run, row)

    def _row(self, run: Run, metrics: Experience, then: tuple[float, int, int]) -> dict[str, Any]:
        state, counter = run.state, run.envs.counter
        row: dict[str, Any] = {f"train/{k}": v for k, v in metrics.trained.items() if not k.startswith(CHECK)}
        row |= {"updates": state.updates, "episodes": state.episodes}
        row["frames"] = state.steps * run.envs.frames_per_step
        row["reward/extrinsic"] = float(np.mean(metrics.rewards))
        if metrics.finished:
            row["episode/return"] = float(np.mean([r for r, _ in metrics.finished]))
            row["episode/length"] = float(np.mean([n for _, n in metrics.finished]))
        if metrics.visits.any():
            row["coverage/cells"] = int((metrics.visits > 0).sum())
        if counter is not None:
            for states in metrics.states:
                counter.merge(states)
            row |= {f"coverage/{name}": count for name, count in counter.counts().items()}
        seconds, steps, updates = (now - before for now, before in zip(self.clock, then, strict=True))
        seconds = max(seconds, 1e-9)
        row["time/steps_per_second"] = steps / seconds
        row["time/updates_per_second"] = updates / seconds
        row["time/learner_waits"] = run.engine.idle.flush() / seconds
        return row | self.trainer.metrics(seconds)

    def _show(self, run: Run, row: dict[str, Any]) -> None:
        pretrains, learner = run.agent.effective.pretrains, run.config.learner
        n = learner.longest_n_step if learner.intrinsic_n_step == "summed" else 1
        # Discounted, and shorter at the end of an episode: divided by n it would not be the mean of a step.
        name = f"intrinsic in {n} steps" if n > 1 else "intrinsic"
        shown = {
            name: row.get(f"train/reward_{'mean' if pretrains else 'intrinsic'}"),
            "return": float(np.mean(self.recent)) if self.recent and not pretrains else None,
            "extrinsic": row["reward/extrinsic"],
            "cells": row.get("coverage/cells"),
            "positions": row.get("coverage/positions"),
            "bins": row.get("coverage/bins"),
        }
        run.progress.update(run.state.steps, {k: v for k, v in shown.items() if v is not None})


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
        if not run.config.steps or (run.state.metrics_bytes is None and run.agent.effective.adapts):
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
