"""The one training loop, for pre-training, fine-tuning and training from scratch.

Checkpoints make resuming exact for any environment: at each one all episodes are cut and the environments are
reset with a seed made from the run's seed and the step, in uninterrupted runs as in resumed ones.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl import checkpoint
from voidrl.agent import Agent, diagnosis
from voidrl.agent.explorer import Explorer
from voidrl.agent.reset import reset
from voidrl.callbacks import CallbackList, RunView
from voidrl.config import Config, to_json
from voidrl.device import HostCopy, random_state, restore_random_state
from voidrl.engine import Engine
from voidrl.envs.ids import is_importable
from voidrl.envs.vector import Envs, StepResult
from voidrl.errors import (
    CallbackFailedError,
    CheckpointError,
    ConfigError,
    EnvironmentFailedError,
    NonFiniteError,
    PieceFailedError,
    RunInterrupted,
)
from voidrl.evaluation import EVALUATION_STREAM, evaluate_agent, run_seed
from voidrl.methods.base import Method
from voidrl.metrics import CHECK, MetricsWriter
from voidrl.metrics.health import HealthMonitor
from voidrl.metrics.projection import Projection
from voidrl.replay import Replay
from voidrl.runs.folder import RunFolder
from voidrl.terminal.output import durable_output
from voidrl.terminal.progress import Progress
from voidrl.terminal.signals import StopSignals
from voidrl.units import crossed

EXPLORER, REPLAY = "explorer.safetensors", "replay.safetensors"
STATES = "states/"  # before the names of what `env.count_states` counted, in a checkpoint
SHOWN_VALUES = 10  # of a skill, in the sentence that names it
RECENT_EPISODES = 20  # whose mean return the progress line shows, or one of each environment
MAX_CELLS = 1_000_000  # `info["cell"]` beyond these is no index into a small map


@dataclass
class LoopState:
    """The progress of a run; with agent, replay and random numbers, all that a resumed run needs."""

    steps: int = 0
    """Environment steps taken; resets by autoreset do not count."""
    updates: int = 0
    """Updates, those on rollouts among them."""
    episodes: int = 0
    rollouts: int = 0
    """Rollouts that an on-policy learner has learned from."""
    rollout_start: int = 0
    """Steps before the rollout under way. One that a checkpoint interrupts continues with new episodes: its
    steps are in the replay, and the policy has not changed."""
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each `info["cell"]` was entered, if the environment reports it."""
    states: dict[str, np.ndarray] = field(default_factory=dict)
    """The states that `env.count_states` has counted, as of the last checkpoint."""
    metrics_bytes: int | None = None
    """Length of metrics.jsonl at the last checkpoint; None for a new run."""
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    """The states of callbacks, as of the last checkpoint."""


class Loop:
    """Steps environments, updates the agent, logs metrics, writes checkpoints."""

    def __init__(
        self,
        engine: Engine,
        envs: Envs,
        eval_envs: Envs | None,
        folder: RunFolder,
        state: LoopState,
        probe: Callable[[], dict[str, float]] | None = None,
        callbacks: CallbackList | None = None,
    ) -> None:
        self.engine, self.agent, self.replay = engine, engine.agent, engine.replay
        self.envs, self.eval_envs, self.folder, self.state = envs, eval_envs, folder, state
        self.probe = probe  # measures the agent, for `log.probe_every_steps`
        self.callbacks = callbacks or CallbackList()
        self.view = RunView(self.agent, folder.path, state)
        agent, self.config = self.agent, self.agent.config
        self.initial_agent_steps = agent.steps - state.steps
        finetuning = self.config.phase == "finetune"
        self.warmup_steps = self.config.finetune.warmup_steps if finetuning else self.config.warmup_steps
        self.on_policy = agent.learner.rollout_steps > 0
        random_actions = not finetuning or self.config.finetune.warmup_actions == "random"
        self.random_warmup = random_actions and not self.on_policy
        self.noise_at_end = finetuning and self.config.finetune.noise == "end"
        ratio = (finetuning and self.config.finetune.updates_per_step) or self.config.updates_per_step
        self.updates_per_step = Fraction(str(ratio))  # 100 · 0.29 is 29, not 28.99…
        method = agent.method
        self.observes = agent.uses_method and type(method).observe is not Method.observe
        self.begins = agent.uses_method and type(method).begin is not Method.begin
        self.env_numbers = torch.arange(envs.num_envs, device=agent.device)
        self.health = HealthMonitor(self.config, constant_reward=method.constant_reward)
        self.rewards: list[float] = []  # of every real step since the last row
        self.finished: list[tuple[float, int]] = []  # return and length of episodes since the last row
        self.recent: deque[float] = deque(maxlen=max(RECENT_EPISODES, envs.num_envs))  # their returns
        on_cpu = agent.device.type == "cpu"
        self.projection = Projection(self.config, learns=agent.learns, on_cpu=on_cpu)
        self.first_update = state.updates

    def run(self) -> None:
        """Train until `config.steps`, a signal or a callback's stop; ends with a checkpoint."""
        with durable_output(self.folder.log), StopSignals() as stop:
            path = self._train_and_show(stop)
            is_complete = self.state.steps >= self.config.steps
            if is_complete:
                self.folder.status.finish(self.state.steps)
            if stop.requested:
                raise self._interrupted(stop.requested, path, is_complete)
            if not is_complete:
                self._say_who_stopped(path)

    def _train_and_show(self, stop: StopSignals) -> Path:
        config, state = self.config, self.state
        title = f"{config.phase} {config.env.id}"
        with (
            Progress(config.steps, state.steps, initial_updates=state.updates, title=title) as self.progress,
            MetricsWriter(
                self.folder.path,
                tensorboard=config.log.tensorboard,
                wandb_project=config.log.wandb_project,
                resume_bytes=state.metrics_bytes,
                step=state.steps,
                say=self.engine.say,
            ) as self.writer,
        ):
            try:
                self.callbacks.call("on_start", self.view)
                path = self._train(stop)
                self.callbacks.call("on_end", self.view)
                return path
            except CallbackFailedError as error:
                self.folder.log_traceback(error)  # to fix it, one needs the line
                log = f"the traceback is in {self.folder.log_path}"
                raise CallbackFailedError(f"{error}; {self._kept()}, {log}") from error
            except EnvironmentFailedError as error:
                where = f"at step {state.steps} of the run; {self._kept()}"
                log = f"the traceback is in {self.folder.log_path}"
                raise EnvironmentFailedError(f"{error}, {where}, {log}") from error
            except Exception as error:
                failure = diagnosis.failed_piece(self.agent, error)
                if failure is None:
                    raise
                self.folder.log_traceback(error)  # to fix it, one needs the line
                raise PieceFailedError(
                    f"{failure} ({type(error).__name__}: {error}), at step {state.steps}, update "
                    f"{state.updates}; {self._kept()}, the traceback is in {self.folder.log_path}"
                ) from error

    def _interrupted(self, signal: str, path: Path, is_complete: bool) -> RunInterrupted:
        """Record the stop, unless the run is complete; returns the exception that ends the command."""
        steps, total = self.state.steps, self.config.steps
        self.folder.log(f"stopped by {signal} at step {steps}")
        if is_complete:
            return RunInterrupted(
                f"stopped by {signal} after the last of {total} steps; the run is complete, with checkpoint "
                f"{path.name}"
            )
        self.folder.status.stop(steps, signal=signal)
        return RunInterrupted(
            f"stopped by {signal} at step {steps} of {total}; checkpoint {path.name} written, resume with "
            f"`{resume_command(self.folder, self.config)}`"
        )

    def _say_who_stopped(self, path: Path) -> None:
        name, steps = self.callbacks.stopped_by, self.state.steps
        self.folder.status.stop(steps, callback=name)
        self.engine.say(
            f"stopped by callback {name} at step {steps} of {self.config.steps}; checkpoint {path.name} "
            f"written, resume with `{resume_command(self.folder, self.config)}`"
        )

    def _train(self, stop: StopSignals) -> Path:
        log, state = self.config.log, self.state
        self.clock = (time.monotonic(), state.steps, state.updates)
        self.clock_rollouts = state.rollouts
        if self.envs.counter is not None and state.states:
            self.envs.counter.load(state.states)
            state.states = {}  # the counter has them
        if self.config.phase == "finetune" and state.metrics_bytes is None:
            self._checkpoint()  # the pre-trained agent is part of the run from the start
        self._begin_episodes()
        while True:
            before, skill = state.steps, self.skill
            if self.on_policy:
                self._update_agent()  # before the new policy acts, and never while the old one does
            chosen = self._choose_actions()
            # Environments and updates run at the same time. On CUDA updates are launched after the actions;
            # elsewhere they take this thread, so the environments are started first. Those on the device are
            # launched too, and their rewards arrive while the updates run.
            if isinstance(chosen, Tensor) or chosen.on_host:
                self._send(chosen)
                self._update_agent()
            else:
                self._update_agent()
                self._send(chosen)
            with self.engine.idle if state.updates else nullcontext():
                result = self.envs.recv()
                if not self.envs.actions_are_finite:
                    raise self._bad_action()
                self._record(chosen if isinstance(chosen, Tensor) else chosen.numpy(), skill, result)
            if self.callbacks.has_step_hooks and state.steps > before:  # not where all were reset
                self.callbacks.call("on_step", self.view)
            last = state.steps >= self.config.steps or stop.requested or self.callbacks.stopped_by
            at_checkpoint = last or crossed(before, state.steps, log.checkpoint_every_steps)
            if at_checkpoint:
                self._update_agent()  # no update is due in what is saved
            if crossed(before, state.steps, log.eval_every_steps):
                self._evaluate()
            if self.probe is not None and crossed(before, state.steps, log.probe_every_steps):
                self._write_row({"phase": self.config.phase, **self.probe()})
            if crossed(before, state.steps, log.log_every_steps):
                self._log()
            self.progress.update(state.steps, updates=state.updates)
            self._project()
            if self.callbacks.stopped_by and not at_checkpoint:
                at_checkpoint = True
                self._update_agent()
            if self._snapshots_by(state.steps) > self._snapshots_by(before):
                self._snapshot()  # before the checkpoint: a run resumed there would not pass this step again
            if at_checkpoint:
                path = self._checkpoint()
                # A stop that came while it was written needs no other.
                if last or stop.requested or self.callbacks.stopped_by:
                    return path
                self._begin_episodes()

    def _project(self) -> None:
        updates = self.state.updates - self.first_update
        if text := self.projection.look(self.state.steps, updates, self.engine.idle.total_seconds):
            self.engine.say(text)

    def _begin_episodes(self) -> None:
        frames, info = self.envs.reset(run_seed(self.config.seed, 0, self.state.steps))
        self.replay.reset(frames)
        n = self.envs.num_envs
        device = self.agent.device
        self.score, self.length = np.zeros(n), np.zeros(n, np.int64)
        self.skill = torch.zeros(n, self.agent.method.skill_dim, device=device)
        self._change_skills(torch.ones(n, dtype=torch.bool, device=device))
        self.skill_age = np.zeros(n, np.int64)  # steps taken with the present skill
        self.ended = np.zeros(n, bool)
        if self.engine.explorer is not None:
            self.engine.explorer.begin(n)
        if self.begins:
            self.agent.method.begin(self.replay.latest(), self.env_numbers)
        self._count_visits(info)

    def _change_skills(self, needed: Tensor) -> None:
        """New skills where `needed`, (N,)."""
        steps = torch.from_numpy(self.length).to(self.agent.device)  # host synchronization
        self.skill = self.agent.next_skills(self.skill, needed, steps)
        # Those of custom methods are checked, which costs a host synchronization per change.
        if ":" in self.config.method.name and self.skill.numel() and not torch.isfinite(self.skill).all():
            raise self._not_finite(diagnosis.blame_skill(self.agent, "sample_skill"))

    def _choose_actions(self) -> HostCopy | Tensor:
        """Actions on their way to the host, or on the device if the environments are there too."""
        agent, steps = self.agent, self.state.steps
        agent.set_progress(steps)
        if steps < self.warmup_steps and self.random_warmup:
            actions = agent.random_actions(self.replay.latest())
        else:
            agent.learner.set_progress(float("inf") if self.noise_at_end else steps)
            actions = self.engine.choose(self.skill, explore=self._explores())
        return actions.clone() if self.envs.takes_tensors else HostCopy(actions)

    def _explores(self) -> bool:
        """Whether the pre-trained policy may act now; it is released once it never will again."""
        explorer, steps = self.engine.explorer, self.state.steps
        if explorer is None:
            return False
        if not Explorer.is_needed(self.config, steps):
            self.engine.explorer = None
            return False
        explorer.set_progress(self.config, steps)
        return steps >= self.warmup_steps or Explorer.warms_up(self.config, steps)

    def _send(self, chosen: HostCopy | Tensor) -> None:
        if isinstance(chosen, Tensor):
            self.envs.send(chosen)  # `actions_are_finite` is known with the results
            return
        action = chosen.numpy()
        if not np.isfinite(action).all():
            raise self._bad_action()
        self.envs.send(action)

    def _bad_action(self) -> NonFiniteError:
        self.engine.metrics.flush()  # a loss that broke before the action is the cause
        return self._not_finite(self._first_culprit() or diagnosis.blame_policy(self.agent))

    def _record(self, action: np.ndarray | Tensor, skill: Tensor, result: StepResult) -> None:
        state, agent = self.state, self.agent
        real = ~self.ended  # where an episode had ended, this step was its reset
        self.skill_age = np.where(real, self.skill_age + 1, 0)
        # With the first update the task's skill is chosen, if there is to be one.
        tries = agent.follows_skills or not state.updates
        period = agent.skill_every_steps if tries else 0
        # An episode that ends has its next skill drawn with its reset: of two, the first would never act.
        changes = real & ~result.ended & (self.skill_age >= period) if period else np.zeros_like(real)
        state.steps += self.replay.add(
            action,
            result.reward,
            result.terminated,
            result.truncated,
            result.frames,
            skill,
            result.ended,
            changes,
        )
        agent.steps = self.initial_agent_steps + state.steps
        self._count_visits(result.info)
        if self.observes or self.begins:
            self._observe(real, skill)

        self.rewards += result.reward[real].tolist()
        self.score, self.length = self.score + np.where(real, result.score, 0), self.length + real
        if not real.all() or changes.any():
            self.skill_age[changes] = 0
            needed = torch.from_numpy(~real | changes).to(agent.device)  # host synchronization
            self._change_skills(needed)
        self.ended = result.ended & real
        for i in np.flatnonzero(self.ended):
            self.finished.append((float(self.score[i]), int(self.length[i])))
            self.recent.append(float(self.score[i]))
            self.score[i], self.length[i] = 0.0, 0
        state.episodes += int(self.ended.sum())

    def _observe(self, real: np.ndarray, skill: Tensor) -> None:
        """Show the method the states that were just reached; those after a reset are no steps."""
        obs, env, method = self.replay.latest(), self.env_numbers, self.agent.method
        if not real.all():
            env = torch.from_numpy(np.flatnonzero(real)).to(obs.device)  # host synchronization
            if self.begins:
                fresh = torch.from_numpy(np.flatnonzero(~real)).to(obs.device)  # host synchronization
                method.begin(obs[fresh], fresh)
            obs, skill = obs[env], skill[env]
        note = method.observe(obs, skill, env) if self.observes else None
        if self.agent.note_dim:
            self._annotate(env, note)

    def _annotate(self, env: Tensor, note: Tensor | None) -> None:
        expected, name = (len(env), self.agent.note_dim), self.config.method.name
        if note is None or note.shape != expected:
            given = "nothing" if note is None else f"a tensor of shape {tuple(note.shape)}"
            raise ConfigError(
                f"method {name!r} noted {given} in `observe` and has note_dim = {expected[1]}: expected a "
                f"tensor of shape {expected}"
            )
        self.replay.annotate(env, note)

    def _update_agent(self) -> None:
        """Run the updates that are due: exactly `updates_per_step` for each step after the warm-up."""
        state, agent = self.state, self.agent
        if self.on_policy:
            self._update_on_rollout()
            return
        if state.steps < self.warmup_steps or not agent.learns:
            return
        due = int((state.steps - self.warmup_steps) * self.updates_per_step)
        if state.updates == 0 < due and not agent.follows_skills:
            self._warn_of_untried_skills()
            agent.choose_task_skill(self.replay)
            self._say_chosen_skill()
            if not torch.isfinite(agent.task_skill).all():  # host synchronization, once in a run
                raise self._not_finite(diagnosis.blame_skill(agent, "select_skill"))
            self._change_skills(torch.ones(self.envs.num_envs, dtype=torch.bool, device=agent.device))
        every = self.config.reset.every_updates
        self.replay.set_progress(state.steps / self.config.steps)
        while state.updates < due:
            count = due - state.updates
            if every:
                count = min(count, every - state.updates % every)
            self.engine.update(state.updates, count)
            state.updates += count
            early = state.steps <= self.config.steps - self.config.reset.last_steps
            if every and state.updates % every == 0 and early:
                reset(agent)

    def _update_on_rollout(self) -> None:
        """Once a rollout is full, update the policy with it, and then f as often as has become due."""
        state, agent = self.state, self.agent
        steps = state.steps - state.rollout_start
        if steps < agent.learner.rollout_steps * self.envs.num_envs:
            return
        self.engine.update_on_rollout(steps)
        state.rollout_start = state.steps
        state.rollouts += 1
        state.updates += 1
        if agent.trains_representation:
            done = state.updates - state.rollouts
            due = int((state.steps - self.warmup_steps) * self.updates_per_step)
            if due > done:
                self.engine.update(done, due - done)
                state.updates += due - done

    def _warn_of_untried_skills(self) -> None:
        trials = self.agent.method.trial_skills()
        if trials is None or self.config.phase != "finetune":
            return
        dealt = int(self.agent.trials_dealt)  # host synchronization, once in a run
        if dealt < len(trials):
            self.engine.say(
                f"only {dealt} of {len(trials)} skills were tried before one was chosen: raise "
                f"finetune.warmup_steps, or set method.skill_every_steps so that each takes less time"
            )

    def _say_chosen_skill(self) -> None:
        skill = self.agent.task_skill.tolist()  # host synchronization, once in a run
        if skill:
            self.engine.say(
                f"skill {_skill_name(skill)} is used for the task, {self.agent.method.skill_choice}"
            )

    def _count_visits(self, info: dict[str, Any]) -> None:
        cells, reported = np.asarray(info.get("cell", ())), np.asarray(info.get("_cell", True))
        if cells.shape == (self.envs.num_envs,) and cells.dtype.kind in "iu":
            cells = cells[reported & (cells >= 0) & (cells < MAX_CELLS)]
            counts = np.bincount(cells.astype(np.int64), minlength=len(self.state.visits))
            counts[: len(self.state.visits)] += self.state.visits
            self.state.visits = counts

    def _evaluate(self) -> None:
        assert self.eval_envs is not None
        seed = run_seed(self.config.seed, EVALUATION_STREAM, self.state.steps)
        log = self.config.log
        try:
            result = evaluate_agent(
                self.agent, self.eval_envs, log.eval_episodes, seed, epsilon=log.eval_epsilon
            )
        except NonFiniteError as error:
            self.engine.metrics.flush()  # the losses tell more than an action
            if culprit := self._first_culprit():
                raise self._not_finite(culprit) from error
            raise
        self.writer.write(self.state.steps, {"phase": self.config.phase, **result.metrics()})
        self.view._evaluation = result
        self.callbacks.call("on_evaluation", self.view)
        rate = result.success_rate
        shown = {"evaluated": result.mean_return} if rate is None else {"success": rate}
        self.progress.update(self.state.steps, shown)

    def _log(self) -> None:
        """One row, if anything happened since the last; the only place where the host reads metrics."""
        state = self.state
        if not self.rewards:
            return
        trained = self.engine.metrics.flush()
        if culprit := self._first_culprit():
            raise self._not_finite(culprit)
        row: dict[str, Any] = {f"train/{k}": v for k, v in trained.items() if not k.startswith(CHECK)}
        row |= {"phase": self.config.phase, "updates": state.updates, "episodes": state.episodes}
        row["frames"] = state.steps * self.envs.frames_per_step
        row["reward/extrinsic"] = float(np.mean(self.rewards))
        if self.finished:
            row["episode/return"] = float(np.mean([r for r, _ in self.finished]))
            row["episode/length"] = float(np.mean([n for _, n in self.finished]))
        if state.visits.any():
            row["coverage/cells"] = int((state.visits > 0).sum())
        if self.envs.counter is not None:
            counted = {**self.envs.counter.counts(), **self.envs.counter.recent()}
            row |= {f"coverage/{name}": count for name, count in counted.items()}
        now, (then, steps, updates) = time.monotonic(), self.clock
        row["time/steps_per_second"] = (state.steps - steps) / max(now - then, 1e-9)
        row["time/updates_per_second"] = (state.updates - updates) / max(now - then, 1e-9)
        row["time/learner_waits"] = self.engine.idle.flush() / max(now - then, 1e-9)
        if self.on_policy:
            row["rollouts"] = state.rollouts
            row["time/rollouts_per_second"] = (state.rollouts - self.clock_rollouts) / max(now - then, 1e-9)
            self.clock_rollouts = state.rollouts
        self.clock = (now, state.steps, state.updates)
        self._write_row(row)
        self.folder.status.beat(state.steps)
        for warning in self.health.check(state.steps, row):
            self.engine.say(warning)
        shown = {
            "intrinsic": row.get(f"train/reward_{'mean' if self.agent.pretraining else 'intrinsic'}"),
            "return": float(np.mean(self.recent)) if self.recent and not self.agent.pretraining else None,
            "extrinsic": row["reward/extrinsic"],
            "cells": row.get("coverage/cells"),
            "positions": row.get("coverage/positions"),
            "bins": row.get("coverage/bins"),
        }
        self.progress.update(state.steps, {k: v for k, v in shown.items() if v is not None})
        self.rewards, self.finished = [], []

    def _write_row(self, row: dict[str, Any]) -> None:
        self.writer.write(self.state.steps, row)
        self.view._row = MappingProxyType(row)
        self.callbacks.call("on_row", self.view)

    def _snapshots_by(self, steps: int) -> int:
        """The number of snapshots that are due within this many steps of the run."""
        return sum(due <= steps for due in self.config.log.snapshot_steps)

    def _snapshot(self) -> None:
        """Save the agent as it is, without running the updates that are due."""
        self._require_finite_weights()
        agent, root, number = self.agent, self.folder.snapshots_path, self._snapshots_by(self.state.steps)
        path = agent.save_checkpoint(root, keep_last=sys.maxsize)
        self.folder.log(f"snapshot {path.name}")
        # Before it was resumed, the run may have saved this snapshot already, less than a vector step away.
        for steps in checkpoint.list_steps(root):
            near = 0 < abs(steps - agent.steps) < self.envs.num_envs
            if near and self._snapshots_by(steps - self.initial_agent_steps) == number:
                checkpoint.discard(root, steps)

    def _require_finite_weights(self) -> None:
        if culprit := diagnosis.blame_weight(self.agent):
            raise self._not_finite(culprit)

    def _checkpoint(self) -> Path:
        self._log()
        self._require_finite_weights()
        self.state.metrics_bytes = self.writer.offset
        if self.envs.counter is not None:
            self.state.states = self.envs.counter.state()
        self.state.callbacks = self.callbacks.state(self.state.steps)
        explorer = self.engine.explorer if Explorer.is_needed(self.config, self.state.steps) else None
        keeps = self.config.log.keep_replay or self.state.steps < self.config.steps
        replay = self.replay if keeps else None
        path = save_run(self.folder, self.agent, replay, self.state, explorer)
        self.state.states = {}
        self.folder.log(f"checkpoint {path.name}")
        self.folder.status.saved(self.state.steps)
        self.view._checkpoint = path
        self.callbacks.call("on_checkpoint", self.view)
        return path

    def _not_finite(self, culprit: diagnosis.Culprit) -> NonFiniteError:
        update = self.state.updates if culprit.update is None else culprit.update + 1
        return NonFiniteError(
            f"{culprit.what} is not finite at update {update}, noticed at step {self.state.steps}: "
            f"{culprit.why}; {self._kept()}"
        )

    def _first_culprit(self) -> diagnosis.Culprit | None:
        """Who computed the first metric that is not finite, of those flushed last."""
        updates = range(self.clock[2], self.state.updates)
        return diagnosis.blame_metrics(self.agent, self.engine.metrics.non_finite, updates)

    def _kept(self) -> str:
        steps = checkpoint.list_steps(self.folder.checkpoints_path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint was written yet"


def _skill_name(skill: list[float]) -> str:
    """A skill in a sentence: the number of a one-hot vector, else its values."""
    if sorted(skill) == [0.0] * (len(skill) - 1) + [1.0]:
        return f"{skill.index(1.0) + 1} of {len(skill)}"
    if len(skill) > 1 and len(set(skill)) == 1:
        return f"({skill[0]:.3g}, …), {len(skill)} equal values,"
    shown = ", ".join(f"{w:.3g}" for w in skill[:SHOWN_VALUES])
    return f"({shown}{', …' * (len(skill) > SHOWN_VALUES)})"


def resume_command(folder: RunFolder, config: Config) -> str:
    """What resumes a run: a command, or a call where its environment cannot be imported."""
    if is_importable(config.env.id):
        return f"voidrl resume {shlex.quote(str(folder.path))}"
    env = config.env.id.rpartition(":")[2]
    return f"voidrl.resume({str(folder.path)!r}, env={env})"


# Checkpoints of a whole run


def save_run(
    folder: RunFolder,
    agent: Agent,
    replay: Replay | None,
    state: LoopState,
    explorer: Explorer | None = None,
) -> Path:
    """Everything that a resumed run needs, as safetensors and JSON; without a replay it cannot go on."""
    loop = {"visits": torch.from_numpy(state.visits), **random_state(agent.device)}
    loop |= {f"{STATES}{name}": torch.from_numpy(seen) for name, seen in state.states.items()}
    files = {
        "agent.safetensors": checkpoint.Group(agent.tensors()),
        "optimizers.safetensors": checkpoint.Group(agent.optimizers.tensors()),
        "loop.safetensors": checkpoint.Group(loop),
    }
    if replay is not None:
        files[REPLAY] = checkpoint.Group(replay.state())
        for name, tag, tensors in replay.chunks():
            files[f"replay_{name}.safetensors"] = checkpoint.Group(tensors, tag)
    meta = {
        "agent_steps": agent.steps,
        "steps": state.steps,
        "updates": state.updates,
        "episodes": state.episodes,
        "rollouts": state.rollouts,
        "rollout_start": state.rollout_start,
        "metrics_bytes": state.metrics_bytes,
        "spec": agent.spec.to_json(),
        "config": to_json(agent.config),
        "callbacks": state.callbacks,
    }
    if agent.device.type == "cpu":
        meta["cpu_threads"] = torch.get_num_threads()
    if explorer is not None:  # its weights never change: one file serves all checkpoints of a run
        files[EXPLORER] = checkpoint.Group(explorer.tensors(), tag="frozen")
        meta["explorer"] = explorer.meta()
    keep_last = agent.config.log.keep_last
    return checkpoint.save(folder.checkpoints_path, state.steps, files, meta, keep_last=keep_last)


def load_explorer(saved: checkpoint.Checkpoint, agent: Agent) -> Explorer | None:
    """The pre-trained policy of a run that still needs it.

    Draws random numbers: `load_run`, which restores them, is called afterwards.
    """
    if not Explorer.is_needed(agent.config, saved.count("steps")):
        return None
    meta = saved.meta.get("explorer")
    return Explorer.load(meta, saved.tensors(EXPLORER), agent.spec, agent.device)


def load_run(saved: checkpoint.Checkpoint, agent: Agent, replay: Replay) -> LoopState:
    """The inverse of `save_run`, random numbers included."""
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.load_optimizer_tensors(saved.tensors("optimizers.safetensors"))
    agent.steps = saved.count("agent_steps")
    loop = saved.tensors("loop.safetensors", "visits", "rng_cpu")

    if REPLAY in saved.files:
        load_replay(saved, replay)
    elif saved.count("steps") < agent.config.steps:
        raise CheckpointError(
            f"{saved.path} holds no replay, since the run was complete with log.keep_replay = False, and "
            f"cannot be extended to {agent.config.steps} steps: fine-tune its agent, or run it again with "
            f"log.keep_replay = True"
        )
    restore_random_state(loop, agent.device)
    names = ("steps", "updates", "episodes", "rollouts", "rollout_start", "metrics_bytes")
    counts = {name: saved.count(name) for name in names}
    states = {k.removeprefix(STATES): v.numpy() for k, v in loop.items() if k.startswith(STATES)}
    callbacks = saved.meta.get("callbacks", [])
    return LoopState(visits=loop["visits"].numpy(), states=states, callbacks=callbacks, **counts)


def load_replay(saved: checkpoint.Checkpoint, replay: Replay) -> None:
    """Fill a replay with that of a checkpoint, which must have one."""

    def chunks() -> Iterator[tuple[str, dict[str, Tensor]]]:
        for name in saved.files:
            if name.startswith("replay_"):
                yield name.removeprefix("replay_").removesuffix(".safetensors"), saved.tensors(name)

    positions = saved.tensors(REPLAY, *replay.state())
    if positions["starts"].shape != replay.starts.shape:
        raise CheckpointError(
            f"the replay in {saved.path} has {len(positions['starts'])} slots and the run's config makes "
            f"one of {len(replay.starts)}: set replay.capacity_steps and env.num_envs back to what they "
            f"were"
        )
    replay.load(positions, chunks())
