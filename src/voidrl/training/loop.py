"""The one training loop, for pre-training, fine-tuning and training from scratch.

Checkpoints make resuming exact for any environment: at each one all episodes are cut and the environments are
reset with a seed made from the run's seed and the step, in uninterrupted runs as in resumed ones.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl import ranks
from voidrl.agent import Agent, diagnosis
from voidrl.agent.adapter import Adapter
from voidrl.agent.detours import Detours
from voidrl.agent.reset import reset
from voidrl.config import Config
from voidrl.engine.engine import Engine
from voidrl.envs.ids import is_importable
from voidrl.envs.vector import Envs, StepResult
from voidrl.errors import (
    CallbackFailedError,
    ConfigError,
    EnvironmentFailedError,
    NonFiniteError,
    PieceFailedError,
    RankLostError,
    RunInterrupted,
)
from voidrl.methods.base import Method
from voidrl.ranks.totals import RankMetrics, RankTotals
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import score_name
from voidrl.system.device import HostCopy
from voidrl.system.terminal.output import durable_output, say
from voidrl.system.terminal.progress import Progress
from voidrl.system.terminal.signals import StopSignals
from voidrl.system.units import crossed
from voidrl.training.best import BestAgent, OpenEnvs
from voidrl.training.callbacks import CallbackList, RunView
from voidrl.training.evaluation import EVALUATION_STREAM, evaluate_agent, run_seed
from voidrl.training.metrics import MetricsWriter
from voidrl.training.metrics.health import HealthMonitor
from voidrl.training.metrics.projection import Projection
from voidrl.training.saved_run import LoopState, save_run
from voidrl.types import CHECK

SHOWN_VALUES = 10  # of a skill, in the sentence that names it
RECENT_EPISODES = 20  # whose mean return the progress line shows, or one of each environment
MAX_CELLS = 1_000_000  # `info["cell"]` beyond these is no index into a small map


class Loop:
    """Steps environments, updates the agent, logs metrics, writes checkpoints."""

    score: np.ndarray  # (N,) return of the episode so far
    length: np.ndarray  # (N,) its steps
    skill: Tensor  # (N, skill_dim) by which the next actions are chosen
    skill_age: np.ndarray  # (N,) steps taken with the present skill
    ended: np.ndarray  # (N,) whether the last step ended the episode, so that the next one resets it

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
        """`pretrained` is the agent that a new run fine-tunes."""
        self.totals = RankTotals()
        self.group = ranks.current()  # kept: it is another one within `ranks.alone`, also for other threads
        self.is_main = self.group.is_main  # the rank that logs, saves and evaluates
        self.first_column = self.group.part(engine.agent.config.env.num_envs).start
        self.engine, self.agent, self.replay = engine, engine.agent, engine.replay
        self.envs, self.eval_envs, self.folder, self.state = envs, eval_envs, folder, state
        self.probe = probe  # measures the agent, for `log.probe_every_steps`
        self.callbacks = callbacks or CallbackList()
        self.view = RunView(self.agent, folder.path, state)
        agent, self.config = self.agent, self.agent.config
        self.initial_agent_steps = agent.steps - state.steps
        finetuning = self.config.phase == "finetune"
        self.adapter = Adapter(agent, self.replay, state, engine.say)
        self.warmup_steps = self.adapter.warmup_steps
        self.detours = Detours(agent, envs.num_envs)
        self.on_policy = agent.learner.rollout_steps > 0
        random_actions = not finetuning or self.config.finetune.warmup_actions == "random"
        self.random_warmup = random_actions and not self.on_policy
        ratio = (finetuning and self.config.finetune.updates_per_step) or self.config.updates_per_step
        self.updates_per_step = Fraction(str(ratio))  # 100 · 0.29 is 29, not 28.99…
        method = agent.method
        self.observes = agent.uses_method and type(method).observe is not Method.observe
        self.begins = agent.uses_method and type(method).begin is not Method.begin
        self.env_numbers = torch.arange(envs.num_envs, device=agent.device)
        self.health = HealthMonitor(self.config, constant_reward=method.constant_reward)
        self.pretrained = pretrained
        self.best = BestAgent(folder, self.config, eval_envs) if finetuning and self.is_main else None
        self.unlogged = RankMetrics()  # since the last row
        self.recent: deque[float] = deque(maxlen=max(RECENT_EPISODES, self.config.env.num_envs))  # returns
        on_cpu = agent.device.type == "cpu"
        self.projection = Projection(self.config, learns=agent.learns, on_cpu=on_cpu)
        self.first_update = state.updates

    def run(self) -> None:
        """Train until `config.steps`, a signal or a callback's stop; ends with a checkpoint."""
        # Whoever starts the ranks passes signals on, so that each may come twice.
        alone = self.group.size == 1
        with durable_output(self.folder.log), StopSignals(ends_at_once=alone) as stop:
            path = self._train_and_show(stop)
            is_complete = self.state.steps >= self.config.steps
            if is_complete:
                self.folder.status.finish(self.state.steps)
            signal, callback = self.totals.first_text([stop.requested, self.callbacks.stopped_by])
            if signal:
                raise self._interrupted(signal, path, is_complete)
            if not is_complete:
                self._say_who_stopped(callback, path)

    def _train_and_show(self, stop: StopSignals) -> Path:
        config, state = self.config, self.state
        title = f"{config.phase} {config.env.id}"
        with ExitStack() as stack:
            if self.is_main:
                shown = Progress(config.steps, state.steps, initial_updates=state.updates, title=title)
                self.progress = stack.enter_context(shown)
                self.writer = MetricsWriter(
                    self.folder.path,
                    tensorboard=config.log.tensorboard,
                    wandb_project=config.log.wandb_project,
                    resume_bytes=state.metrics_bytes,
                    step=state.steps,
                    say=self.engine.say,
                )
                stack.enter_context(self.writer)
            ranks.on_loss(self._end_with_lost)
            stack.callback(ranks.on_loss, None)
            try:
                self._call("on_start")
                path = self._train(stop)
                self._call("on_end")
                return path
            except RankLostError as error:
                raise self._lost(error) from error
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

    def _lost(self, error: RankLostError) -> RankLostError:
        again = f"resume with `{resume_command(self.folder, self.config, self.group)}`"
        kept = self._kept()  # which the lost rank may have said
        return RankLostError(f"{error}; {again}" if kept in str(error) else f"{error}; {kept}, {again}")

    def _end_with_lost(self, error: RankLostError) -> None:
        """Write down why the process ends at once, from a thread."""
        lost = self._lost(error)
        self.folder.status.fail(lost, self.state.steps)
        if self.is_main:
            self.engine.say(f"voidrl: {lost}")
        elif not error.is_reported and not self.folder.is_failed_for_first(lost, self.state.steps):
            say(f"voidrl: {lost}")

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
            f"`{resume_command(self.folder, self.config, self.group)}`"
        )

    def _say_who_stopped(self, name: str, path: Path) -> None:
        steps = self.state.steps
        self.folder.status.stop(steps, callback=name)
        self.engine.say(
            f"stopped by callback {name} at step {steps} of {self.config.steps}; checkpoint {path.name} "
            f"written, resume with `{resume_command(self.folder, self.config, self.group)}`"
        )

    def _train(self, stop: StopSignals) -> Path:
        log, state = self.config.log, self.state
        if self.best is not None and self.pretrained is not None:
            self.best.start(self.pretrained, self.agent.device, self.writer)
        self.clock = (time.monotonic(), state.steps, state.updates)
        warmup_steps = 0 if self.on_policy or not self.agent.learns else self.warmup_steps
        self.folder.status.track(lambda: state.steps, str(self.agent.device), warmup_steps)
        self.clock_rollouts = state.rollouts
        if self.envs.counter is not None and state.states:
            self.envs.counter.load(state.states)
            state.states = {}  # the counter has them
        if self.config.phase == "finetune" and state.metrics_bytes is None:
            self._checkpoint()  # the pre-trained agent is part of the run from the start
        if self.config.steps == 0:  # an untrained agent, as a control
            return self._checkpoint()
        has_step_hooks = self.totals.any(self.callbacks.has_step_hooks)
        self._begin_episodes()
        while True:
            before = state.steps
            stops = self._step(stop)
            if self.totals.is_alone:
                stops = self._stops(stop)  # what came meanwhile as well
            if has_step_hooks and state.steps > before:  # not where all were reset
                self._call("on_step")
                stops = self.totals.any(self._stops(stop))
            last = state.steps >= self.config.steps or stops
            at_checkpoint = last or crossed(before, state.steps, log.checkpoint_every_steps)
            if at_checkpoint:
                self._update_agent()  # no update is due in what is saved
            if self._report(before) and not at_checkpoint and self.totals.any(self._stops(stop)):
                at_checkpoint = True
                self._update_agent()
            if self.is_main and self._snapshots_by(state.steps) > self._snapshots_by(before):
                self._snapshot()  # before the checkpoint: a run resumed there would not pass this step again
            if at_checkpoint:
                path = self._checkpoint()
                # A stop that came while it was written needs no other.
                if last or self.totals.any(self._stops(stop)):
                    return path
                self._begin_episodes()

    def _step(self, stop: StopSignals) -> bool:
        """Step all environments and run the updates that are due; returns whether any rank is to stop."""
        envs, skill = self.envs, self.skill
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
        with self.engine.idle if self.state.updates else nullcontext():
            result = envs.recv()
            if not envs.actions_are_finite:
                raise self._bad_action()
            taken = chosen if isinstance(chosen, Tensor) else chosen.numpy()
            return self._record(taken, skill, result, self._stops(stop))

    def _call(self, event: str) -> None:
        """Call the hooks of an event, which only the first rank has."""
        with ranks.alone():
            self.callbacks.call(event, self.view)

    def _stops(self, stop: StopSignals) -> bool:
        """Whether this process is to stop; the others are asked too."""
        return bool(stop.requested or self.callbacks.stopped_by)

    def _report(self, before: int) -> bool:
        """Evaluate, probe and log where that is due since `before`; returns whether anything was."""
        log, steps = self.config.log, self.state.steps
        evaluates = crossed(before, steps, log.eval_every_steps)
        probes = crossed(before, steps, log.probe_every_steps)
        logs = crossed(before, steps, log.log_every_steps)
        if evaluates and self.is_main:
            with ranks.alone():
                self._evaluate()
        if probes and self.probe is not None:
            with ranks.alone():
                self._write_row({"phase": self.config.phase, **self.probe()})
        if logs:
            self._log()
        if self.is_main:
            self.progress.update(steps, updates=self.state.updates)
            self._project()
        return evaluates or probes or logs

    def _project(self) -> None:
        updates = self.state.updates - self.first_update
        if text := self.projection.look(self.state.steps, updates, self.engine.idle.total_seconds):
            self.engine.say(text)

    def _begin_episodes(self) -> None:
        n, device = self.envs.num_envs, self.agent.device
        frames, info = self.envs.reset(run_seed(self.config.seed, 0, self.state.steps) + self.first_column)
        self.replay.reset(frames)
        self.score, self.length, self.skill_age = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.skill, self.ended = torch.zeros(n, self.agent.method.skill_dim, device=device), np.zeros(n, bool)
        self._change_skills(torch.ones(n, dtype=torch.bool, device=device))
        self._count_visits(info)
        self.detours.begin()
        if self.engine.explorer is not None:
            self.engine.explorer.begin(n)
        if self.begins:
            self.agent.method.begin(self.replay.latest(), self.env_numbers)

    def _change_skills(self, needed: Tensor) -> None:
        """New skills where `needed`, (N,)."""
        steps = torch.from_numpy(self.length).to(self.agent.device)  # host synchronization
        self.skill = self.agent.next_skills(self.skill, needed, steps)
        # Those of custom methods are checked, which costs a host synchronization per change.
        if ":" in self.config.method.name and self.skill.numel() and not torch.isfinite(self.skill).all():
            raise self._not_finite(diagnosis.diagnose_skill(self.agent, "sample_skill"))

    def _choose_actions(self) -> HostCopy | Tensor:
        """Actions on their way to the host, or on the device if the environments are there too."""
        agent = self.agent
        agent.set_progress(self.state.steps)
        if self.adapter.in_warmup and self.random_warmup:
            actions = agent.random_actions(self.replay.latest())
        else:
            agent.learner.set_progress(self.adapter.noise_steps)
            actions = self.engine.choose(self.skill, explore=self._explores())
            if probability := self.adapter.detour_probability:
                obs, steps = self.replay.latest(), self.adapter.detour_steps
                actions = self.detours.replace(actions, obs, probability, steps)
        return actions.clone() if self.envs.takes_tensors else HostCopy(actions)

    def _explores(self) -> bool:
        """Whether the pre-trained policy may act now; it is released once it never will again."""
        explorer = self.engine.explorer
        if explorer is None:
            return False
        explores = self.adapter.explores(explorer)
        if not explores and not self.adapter.in_warmup:
            self.engine.explorer = None
        return explores

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
        return self._not_finite(self._first_culprit() or diagnosis.diagnose_policy(self.agent))

    def _record(self, action: np.ndarray | Tensor, skill: Tensor, result: StepResult, stops: bool) -> bool:
        """Store one step of all environments; returns whether any rank is to stop."""
        state, agent = self.state, self.agent
        real = ~self.ended  # where an episode had ended, this step was its reset
        self.skill_age = np.where(real, self.skill_age + 1, 0)
        # With the first update the task's skill is chosen, if there is to be one.
        tries = agent.follows_skills or not state.updates
        period = agent.skill_every_steps if tries else 0
        # An episode that ends has its next skill drawn with its reset: of two, the first would never act.
        changes = real & ~result.ended & (self.skill_age >= period) if period else np.zeros_like(real)
        added = self.replay.add(
            action,
            result.reward,
            result.terminated,
            result.truncated,
            result.frames,
            skill,
            result.ended,
            changes,
        )
        ended = result.ended & real
        steps, episodes, stops = self.totals.add(added, int(ended.sum()), stops)
        state.steps += steps
        state.episodes += episodes
        agent.steps = self.initial_agent_steps + state.steps
        self._count_visits(result.info)
        if self.observes or self.begins:
            self._observe(real, skill)

        self.unlogged.rewards += result.reward[real].tolist()
        self.score, self.length = self.score + np.where(real, result.score, 0), self.length + real
        if not real.all() or changes.any():
            self.skill_age[changes] = 0
            needed = torch.from_numpy(~real | changes).to(agent.device)  # host synchronization
            self._change_skills(needed)
        self.ended = ended
        for i in np.flatnonzero(ended):
            self.unlogged.finished.append((float(self.score[i]), int(self.length[i])))
            self.adapter.finished(float(self.score[i]))
            self.score[i], self.length[i] = 0.0, 0
        return stops

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
        if not agent.learns or self.adapter.in_warmup or state.learning_from is None:
            return
        due = int((state.steps - state.learning_from) * self.updates_per_step)
        if state.updates == 0 < due and not agent.follows_skills:
            self._warn_of_untried_skills()
            agent.choose_task_skill(self.replay)
            self._say_chosen_skill()
            if not torch.isfinite(agent.task_skill).all():  # host synchronization, once in a run
                raise self._not_finite(diagnosis.diagnose_skill(agent, "select_skill"))
            self._change_skills(torch.ones(self.envs.num_envs, dtype=torch.bool, device=agent.device))
        if self.adapter.may_adapt and due:  # after the skill for the task is chosen
            self._adapt()
        elif self.adapter.may_rescale:
            self.adapter.rescale()
        every = self.config.reset.every_updates
        self.replay.set_progress(state.steps / self.config.steps)
        while state.updates < due:
            count = due - state.updates
            if every:
                count = min(count, every - state.updates % every)
            count = self.adapter.until_actor_learns(count)
            self.engine.update(state.updates, count)
            state.updates += count
            self.adapter.release_actor()
            early = state.steps <= self.config.steps - self.config.reset.last_steps
            if every and state.updates % every == 0 and early:
                reset(agent)
                self.adapter.restart_exploration()

    def _adapt(self) -> None:
        """Adapt the agent to the task, and say how."""
        outcome = self.adapter.adapt()
        if outcome.explorer is not None:
            self.engine.explorer = outcome.explorer
            self.agent.generation += 1  # a captured step may hold another explorer
        self.engine.say(outcome.sentence())
        if self.is_main:
            self.writer.write(self.state.steps, {"phase": self.config.phase, **outcome.metrics()})

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
            with self.eval_envs() as envs:
                result = evaluate_agent(
                    self.agent,
                    envs,
                    log.eval_episodes,
                    seed,
                    epsilon=log.eval_epsilon,
                    max_episode_steps=None if self.best is None else self.best.max_episode_steps,
                )
        except NonFiniteError as error:
            self.engine.metrics.flush()  # the losses tell more than an action
            if culprit := self._first_culprit():
                raise self._not_finite(culprit) from error
            raise
        self.writer.write(self.state.steps, {"phase": self.config.phase, **result.metrics()})
        if self.best is not None:
            self._require_finite_weights()
            self.best.see(self.agent, self.state.steps, result)
        self._keep_score(result.metrics())
        self.view._evaluation = result
        self._call("on_evaluation")
        rate = result.success_rate
        shown = {"evaluated": result.mean_return} if rate is None else {"success": rate}
        self.progress.update(self.state.steps, shown)

    def _log(self) -> None:
        """One row, if anything happened since the last; the only place where the host reads metrics."""
        state = self.state
        if state.steps == self.clock[1]:
            return
        self.unlogged.trained = self.engine.metrics.flush()
        if culprit := self._first_culprit():
            raise self._not_finite(culprit)
        self.unlogged.visits = state.visits
        counter = self.envs.counter
        if counter is not None and not self.is_main:  # the first rank counts those of all
            self.unlogged.states = [counter.state()]
            counter.clear()
        metrics, self.unlogged = self.totals.merge(self.unlogged), RankMetrics()
        self.recent.extend(score for score, _ in metrics.finished)
        if not self.is_main:
            self.clock = (time.monotonic(), state.steps, state.updates)
            return
        row: dict[str, Any] = {f"train/{k}": v for k, v in metrics.trained.items() if not k.startswith(CHECK)}
        row |= {"phase": self.config.phase, "updates": state.updates, "episodes": state.episodes}
        row["frames"] = state.steps * self.envs.frames_per_step
        row["reward/extrinsic"] = float(np.mean(metrics.rewards))
        if metrics.finished:
            row["episode/return"] = float(np.mean([r for r, _ in metrics.finished]))
            row["episode/length"] = float(np.mean([n for _, n in metrics.finished]))
        if metrics.visits.any():
            row["coverage/cells"] = int((metrics.visits > 0).sum())
        if counter is not None:
            for states in metrics.states:
                counter.merge(states)
            counted = {**counter.counts(), **counter.recent()}
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
        self._keep_score(row)
        self.folder.status.beat(state.steps)
        lost = [] if self.best is None else self.best.check(state.steps, row)
        for warning in [*self.health.check(state.steps, row), *lost]:
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

    def _keep_score(self, row: Mapping[str, Any]) -> None:
        if name := score_name(row, self.config.phase):
            self.folder.status.score(name, row[name], self.state.steps)

    def _write_row(self, row: dict[str, Any]) -> None:
        self.writer.write(self.state.steps, row)
        self.view._row = MappingProxyType(row)
        self._call("on_row")

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
            near = 0 < abs(steps - agent.steps) < self.config.env.num_envs
            if near and self._snapshots_by(steps - self.initial_agent_steps) == number:
                checkpoint.discard(root, steps)

    def _require_finite_weights(self) -> None:
        if culprit := diagnosis.diagnose_weight(self.agent):
            raise self._not_finite(culprit)

    def _checkpoint(self) -> Path:
        self._log()
        self._require_finite_weights()
        if self.is_main:
            self.state.metrics_bytes = self.writer.offset
        if self.best is not None and self.state.steps >= self.config.steps:
            # After the offset: a run that is extended drops this row, as if it had been longer all along.
            self.best.finish(self.agent, self.state.steps, self.writer)
        if self.envs.counter is not None and self.is_main:  # the others have handed theirs over
            self.state.states = self.envs.counter.state()
        self.state.callbacks = self.callbacks.state(self.state.steps)
        keeps = self.config.log.keep_replay or self.state.steps < self.config.steps
        replay = self.replay if keeps else None
        path = save_run(self.folder, self.agent, replay, self.state, self.engine.explorer, self.engine.mode)
        self.state.states = {}
        self.folder.log(f"checkpoint {path.name}")
        self.folder.status.saved(self.state.steps)
        self.view._checkpoint = path
        self._call("on_checkpoint")
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
        return diagnosis.diagnose_metrics(self.agent, self.engine.metrics.non_finite, updates)

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


def resume_command(folder: RunFolder, config: Config, group: ranks.ProcessGroup) -> str:
    """What resumes a run on as many ranks: a command, or a call if its environment cannot be imported."""
    if is_importable(config.env.id):
        on_ranks = f" --ranks {group.size}" if group.size == group.local_size > 1 else ""
        return f"voidrl resume {shlex.quote(str(folder.path))}{on_ranks}"
    env = config.env.id.rpartition(":")[2]
    return f"voidrl.resume({str(folder.path)!r}, env={env})"
