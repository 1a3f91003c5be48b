"""The one training loop, for pre-training, fine-tuning and training from scratch.

Checkpoints make resuming exact for any environment: at each one all episodes are cut and the environments are
reset with a seed made from the run's seed and the step, in runs that go straight on as in resumed ones.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl import checkpoint
from voidrl.agent import Agent
from voidrl.config import to_json
from voidrl.envs import Envs
from voidrl.errors import EnvironmentFailedError, NonFiniteError, RunInterrupted
from voidrl.evaluation import EVALUATION_STREAM, evaluate_agent, run_seed
from voidrl.metrics import Accumulator, MetricsWriter
from voidrl.progress import Progress
from voidrl.replay import Replay, check_finite
from voidrl.runfolder import RunFolder


@dataclass
class LoopState:
    """Where a run stands; together with agent, replay and random numbers, all that a resumed run needs."""

    steps: int = 0
    """Environment steps taken; resets by autoreset do not count."""
    updates: int = 0
    episodes: int = 0
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each `info["cell"]` was entered, where the environment tells."""
    metrics_bytes: int | None = None
    """Length of metrics.jsonl at the last checkpoint; None for a new run."""


class Loop:
    """Steps environments, updates the agent, writes down what happens."""

    def __init__(self, agent: Agent, envs: Envs, eval_envs: Envs | None, replay: Replay, folder: RunFolder,
                 state: LoopState) -> None:  # fmt: skip
        self.agent, self.envs, self.eval_envs, self.replay, self.folder = agent, envs, eval_envs, replay, folder
        self.state, self.config = state, agent.config
        self.initial_agent_steps = agent.steps - state.steps
        finetuning = self.config.phase == "finetune"
        self.warmup_steps = self.config.finetune.warmup_steps if finetuning else self.config.warmup_steps
        self.random_warmup = not finetuning or self.config.finetune.warmup_actions == "random"
        self.noise_at_end = finetuning and self.config.finetune.noise == "end"
        self.recent = Accumulator()
        self.rewards: list[float] = []  # mean reward of each vector step since the last row
        self.finished: list[tuple[float, int]] = []  # return and length of episodes since the last row

    def run(self) -> None:
        """Until `config.steps`, or until a signal; the last thing written is a checkpoint."""
        state, config = self.state, self.config
        title = f"{config.phase} {config.env.id}"
        with (
            Progress(config.steps, state.steps, initial_updates=state.updates, title=title) as self.progress,
            MetricsWriter(self.folder.path, tensorboard=config.log.tensorboard, wandb_project=config.log.wandb_project,
                          resume_bytes=state.metrics_bytes, step=state.steps) as self.writer,
            StopSignals() as stop,
        ):  # fmt: skip
            self.clock = (time.monotonic(), state.steps, state.updates)
            self._begin_episodes()
            while state.steps < config.steps and not stop.requested:
                before = state.steps
                self._step_environments()
                self._update_agent()
                if crossed(before, state.steps, config.log.eval_every_steps):
                    self._evaluate()
                if crossed(before, state.steps, config.log.log_every_steps):
                    self._log()
                if crossed(before, state.steps, config.log.checkpoint_every_steps) and state.steps < config.steps:
                    self._checkpoint()
                    self._begin_episodes()
                self.progress.update(state.steps, updates=state.updates)
            path = self._checkpoint()
            if stop.requested and state.steps < config.steps:
                self.folder.log(f"stopped by {stop.requested} at step {state.steps}")
                raise RunInterrupted(f"stopped by {stop.requested} at step {state.steps} of {config.steps}; checkpoint "
                                     f"{path.name} written, go on with `voidrl resume {self.folder.path}`")  # fmt: skip

    def _begin_episodes(self) -> None:
        frames, info = self.envs.reset(run_seed(self.config.seed, 0, self.state.steps))
        check_finite(frames, "the first observation", self.state.steps)
        self.replay.reset(frames)
        n = self.envs.num_envs
        self.skill = self.agent.new_skills(n)  # (N, skill_dim)
        self.ended = np.zeros(n, bool)
        self.score, self.length = np.zeros(n), np.zeros(n, np.int64)
        self._count_visits(info)

    def _step_environments(self) -> None:
        state, agent = self.state, self.agent
        warming_up = state.steps < self.warmup_steps
        if warming_up and self.random_warmup:
            action = agent.random_actions(self.envs.num_envs)
        else:
            agent.learner.set_progress(float("inf") if self.noise_at_end else state.steps)
            action = agent.explore(self.replay.latest(), self.skill)
        action = action.cpu().numpy()  # the host waits here: environments need the action
        try:
            result = self.envs.step(action)
        except EnvironmentFailedError as error:
            raise EnvironmentFailedError(f"{error}, at step {state.steps} of the run; {self._kept()}") from error
        check_finite(result.frames, "the observation", state.steps)
        check_finite(result.reward, "the reward", state.steps)
        real = ~self.ended  # where an episode had ended, this step was its reset
        state.steps += self.replay.add(action, result.reward, result.terminated, result.truncated, result.frames, self.skill)
        agent.steps = self.initial_agent_steps + state.steps
        self._count_visits(result.info)

        self.rewards += result.reward[real].tolist()
        self.score, self.length = self.score + np.where(real, result.reward, 0), self.length + real
        if not real.all():
            fresh = torch.from_numpy(~real).to(agent.device)[:, None]
            self.skill = torch.where(fresh, agent.new_skills(len(real)), self.skill)
        self.ended = (result.terminated | result.truncated) & real
        for i in np.flatnonzero(self.ended):
            self.finished.append((float(self.score[i]), int(self.length[i])))
            self.score[i], self.length[i] = 0.0, 0
        state.episodes += int(self.ended.sum())

    def _update_agent(self) -> None:
        """As many updates as are due by now: exactly `updates_per_step` for each step after the warm-up."""
        state, agent = self.state, self.agent
        if state.steps < self.warmup_steps or not agent.learns:
            return
        if not agent.pretraining and not agent.task_skill_chosen:
            agent.choose_task_skill(self.replay)
            self.skill = agent.new_skills(self.envs.num_envs)
        due = int((state.steps - self.warmup_steps) * self.config.updates_per_step)
        while state.updates < due:
            self.recent.add(agent.step(self.replay, state.updates % agent.period))
            state.updates += 1

    def _count_visits(self, info: dict[str, Any]) -> None:
        if "cell" in info:
            cells = np.asarray(info["cell"])
            counts = np.bincount(cells, minlength=len(self.state.visits))
            counts[: len(self.state.visits)] += self.state.visits
            self.state.visits = counts

    def _evaluate(self) -> None:
        assert self.eval_envs is not None
        seed = run_seed(self.config.seed, EVALUATION_STREAM, self.state.steps)
        result = evaluate_agent(self.agent, self.eval_envs, self.config.log.eval_episodes, seed)
        self.writer.write(self.state.steps, {"phase": self.config.phase, **result.metrics()})
        shown = {"success": result.success_rate} if result.success_rate is not None else {"return": result.mean_return}
        self.progress.update(self.state.steps, shown)

    def _log(self) -> None:
        """One row, if anything happened since the last; the only place where the host reads metrics."""
        state = self.state
        if not self.rewards:
            return
        trained = self.recent.flush()
        for name, value in trained.items():
            if not np.isfinite(value):
                raise NonFiniteError(f"{name} is {value} at step {state.steps}, update {state.updates}: training has "
                                     f"diverged; {self._kept()}, try a lower learning rate")  # fmt: skip
        row: dict[str, Any] = {f"train/{k}": v for k, v in trained.items()}
        row |= {"phase": self.config.phase, "updates": state.updates, "episodes": state.episodes,
                "reward/extrinsic": float(np.mean(self.rewards))}  # fmt: skip
        if self.finished:
            row["episode/return"] = float(np.mean([r for r, _ in self.finished]))
            row["episode/length"] = float(np.mean([n for _, n in self.finished]))
        if state.visits.any():
            row["coverage/cells"] = int((state.visits > 0).sum())
        now, (then, steps, updates) = time.monotonic(), self.clock
        row["time/steps_per_second"] = (state.steps - steps) / max(now - then, 1e-9)
        row["time/updates_per_second"] = (state.updates - updates) / max(now - then, 1e-9)
        self.clock = (now, state.steps, state.updates)
        self.writer.write(state.steps, row)
        shown = {"intrinsic": row.get("train/reward_mean") if self.agent.pretraining else None,
                 "extrinsic": row["reward/extrinsic"], "cells": row.get("coverage/cells")}  # fmt: skip
        self.progress.update(state.steps, {k: v for k, v in shown.items() if v is not None})
        self.rewards, self.finished = [], []

    def _checkpoint(self) -> Any:
        self._log()
        bad = [name for name, value in self.agent.tensors().items() if not torch.isfinite(value).all()]
        if bad:
            raise NonFiniteError(f"weight {bad[0]} is not finite at step {self.state.steps}: training has diverged; "
                                 f"{self._kept()}, try a lower learning rate")  # fmt: skip
        self.state.metrics_bytes = self.writer.offset
        path = save_run(self.folder, self.agent, self.replay, self.state)
        self.folder.log(f"checkpoint {path.name}")
        return path

    def _kept(self) -> str:
        steps = checkpoint.list_steps(self.folder.checkpoints_path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint was written yet"


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every


class StopSignals:
    """The first Ctrl-C or SIGTERM asks the loop to stop at its next step; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = ""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


# Checkpoints of a whole run


def save_run(folder: RunFolder, agent: Agent, replay: Replay, state: LoopState) -> Any:
    """Everything that a resumed run needs, as safetensors and JSON."""
    files = {
        "agent.safetensors": checkpoint.Group(agent.tensors()),
        "optimisers.safetensors": checkpoint.Group(agent.optimiser_tensors()),
        "loop.safetensors": checkpoint.Group({"visits": torch.from_numpy(state.visits), **random_state(agent.device)}),
        "replay.safetensors": checkpoint.Group(replay.state()),
    }
    for name, tag, tensors in replay.chunks():
        files[f"replay_{name}.safetensors"] = checkpoint.Group(tensors, tag)
    meta = {"agent_steps": agent.steps, "steps": state.steps, "updates": state.updates, "episodes": state.episodes,
            "metrics_bytes": state.metrics_bytes, "spec": agent.spec.to_json(), "config": to_json(agent.config)}  # fmt: skip
    return checkpoint.save(folder.checkpoints_path, state.steps, files, meta, keep_last=agent.config.log.keep_last)


def load_run(saved: checkpoint.Checkpoint, agent: Agent, replay: Replay) -> LoopState:
    """The inverse of `save_run`; the random numbers go on from where they were."""
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.load_optimiser_tensors(saved.tensors("optimisers.safetensors"))
    agent.steps = saved.meta["agent_steps"]
    loop = saved.tensors("loop.safetensors")

    def chunks() -> Iterator[tuple[str, dict[str, Tensor]]]:
        for name in saved.files:
            if name.startswith("replay_"):
                yield name.removeprefix("replay_").removesuffix(".safetensors"), saved.tensors(name)

    replay.load(saved.tensors("replay.safetensors"), chunks())
    restore_random_state(loop, agent.device)
    meta = saved.meta
    return LoopState(meta["steps"], meta["updates"], meta["episodes"], loop["visits"].numpy(), meta["metrics_bytes"])


def random_state(device: torch.device) -> dict[str, Tensor]:
    """torch's generators; nothing else in a run draws random numbers between two resets."""
    state = {"rng_cpu": torch.get_rng_state()}
    return {**state, "rng_cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """The inverse of `random_state`; a run moved to another kind of device goes on with fresh ones there."""
    torch.set_rng_state(state["rng_cpu"])
    if device.type == "cuda" and "rng_cuda" in state:
        torch.cuda.set_rng_state(state["rng_cuda"], device)
