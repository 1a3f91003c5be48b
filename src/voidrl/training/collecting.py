"""The acting side of a run: chooses actions, steps the environments and stores what they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl.agent import diagnosis
from voidrl.envs.spaces.check import NUMBERS
from voidrl.envs.vector import StepResult, column
from voidrl.errors import ConfigError
from voidrl.kernels.copies import HostCopy
from voidrl.methods.base import Method
from voidrl.training import failures
from voidrl.training.adapting import Adapter
from voidrl.training.evaluation import run_seed
from voidrl.training.run import Run

MAX_CELLS = 1_000_000  # `info["cell"]` beyond these is no index into a small map


class Collector:
    """Skills, exploration and episode statistics of all environments of a rank."""

    score: np.ndarray  # (N,) return of the episode so far
    length: np.ndarray  # (N,) its steps
    skill: Tensor  # (N, skill_dim) by which the next actions are chosen
    skill_age: np.ndarray  # (N,) steps taken with the present skill
    ended: np.ndarray  # (N,) whether the last step ended the episode, so that the next one resets it

    def __init__(self, run: Run, adapter: Adapter) -> None:
        self.run, self.adapter = run, adapter
        self.agent, self.envs, self.replay = run.agent, run.envs, run.replay
        self.first_column = run.group.part(run.config.env.num_envs).start
        watching = type(run.agent.method) if run.agent.uses_method else Method
        self.observes = watching.observe is not Method.observe
        self.begins = watching.begin is not Method.begin
        self.env_numbers = torch.arange(run.envs.num_envs, device=run.agent.device)

    def begin(self) -> None:
        """Reset all environments, with a seed made from the run's seed and the step."""
        n, device = self.envs.num_envs, self.agent.device
        self.run.is_cut = False
        seed = run_seed(self.run.config.seed, 0, self.run.state.steps) + self.first_column
        frames, info = self.envs.reset(seed)
        self.replay.reset(frames)
        self.score, self.length, self.skill_age = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.skill, self.ended = torch.zeros(n, self.agent.method.skill_dim, device=device), np.zeros(n, bool)
        self.change_all_skills()
        self._count_visits(info)
        self.adapter.begin()
        if self.begins:
            self.agent.method.begin(self.replay.latest(), self.env_numbers, self.agent.representation)

    # Skills

    def change_all_skills(self) -> None:
        """Draw a new skill for every environment."""
        self._change_skills(torch.ones(self.envs.num_envs, dtype=torch.bool, device=self.agent.device))

    def _change_skills(self, needed: Tensor) -> None:
        """New skills where `needed`, (N,)."""
        steps = torch.from_numpy(self.length).to(self.agent.device)  # host synchronization
        self.skill = self.agent.next_skills(self.skill, needed, steps)
        # Those of custom methods are checked, which costs a host synchronization per change.
        is_custom = ":" in self.run.config.method.name
        if is_custom and self.skill.numel() and not torch.isfinite(self.skill).all():
            culprit = diagnosis.diagnose(self.agent, "method", "a skill", "sample_skill")
            raise failures.not_finite(self.run, culprit)

    # Actions

    def choose(self) -> tuple[HostCopy, Tensor]:
        """Actions for all environments, on their way to the host, and the skills that chose them."""
        self.agent.set_progress(self.run.state.steps)
        return HostCopy(self.adapter.choose(self.skill)), self.skill

    def send(self, actions: HostCopy) -> None:
        """Start the step of the environments."""
        if not np.isfinite(actions.numpy()).all():
            raise failures.bad_action(self.run)
        self.envs.send(actions.numpy())

    # What came back

    def record(self, actions: HostCopy, skill: Tensor, result: StepResult) -> None:
        """Store and count one step of all environments."""
        run, state, agent = self.run, self.run.state, self.agent
        real = ~self.ended  # where an episode had ended, this step was its reset
        self.skill_age = np.where(real, self.skill_age + 1, 0)
        # With the first update the task's skill is chosen, if there is to be one.
        tries = agent.effective.samples_skills or not state.updates
        period = agent.skill_every_steps if tries else 0
        # Where an episode ends, the reset draws the next skill: one drawn now would never act.
        changes = real & ~result.ended & (self.skill_age >= period) if period else np.zeros_like(real)
        ends = result.terminated, result.truncated
        stored = actions.numpy(), result.reward, *ends, result.frames, skill, result.ended, changes
        added = self.replay.add(*stored)
        ended = result.ended & real
        run.count(added, int(ended.sum()))
        self._count_visits(result.info)
        if self.observes or self.begins:
            self._observe(real, skill)

        run.unlogged.rewards += result.reward[real].tolist()
        self.score, self.length = self.score + np.where(real, result.score, 0), self.length + real
        if not real.all() or changes.any():
            self.skill_age[changes] = 0
            needed = torch.from_numpy(~real | changes).to(agent.device)  # host synchronization
            self._change_skills(needed)
        self.ended = ended
        for i in np.flatnonzero(ended):
            run.unlogged.finished.append((float(self.score[i]), int(self.length[i])))
            self.score[i], self.length[i] = 0.0, 0

    def _observe(self, real: np.ndarray, skill: Tensor) -> None:
        """Show the method the states that were just reached; those after a reset are no steps."""
        obs, env, method = self.replay.latest(), self.env_numbers, self.agent.method
        representation = self.agent.representation
        if not real.all():
            env = torch.from_numpy(np.flatnonzero(real)).to(obs.device)  # host synchronization
            if self.begins:
                fresh = torch.from_numpy(np.flatnonzero(~real)).to(obs.device)  # host synchronization
                method.begin(obs[fresh], fresh, representation)
            obs, skill = obs[env], skill[env]
        note = method.observe(obs, skill, env, representation) if self.observes else None
        if not self.agent.note_dim:
            return
        expected = (len(env), self.agent.note_dim)
        if note is None or note.shape != expected:
            raise ConfigError(
                f"method {self.run.config.method.name!r} noted "
                f"{'nothing' if note is None else f'a tensor of shape {tuple(note.shape)}'} in `observe` and "
                f"has note_dim = {self.agent.note_dim}: expected a tensor of shape {expected}"
            )
        self.replay.annotate(env, note)

    def _count_visits(self, info: dict[str, Any]) -> None:
        """Count cells, or else positions. What is not a number in all environments is not counted."""
        state = self.run.state
        if "cell" in info and (cells := self._reported(info, "cell", "iu")) is not None:
            cells = cells[(cells >= 0) & (cells < MAX_CELLS)]  # without NaN
            counts = np.bincount(cells.astype(np.int64), minlength=len(state.visits))
            counts[: len(state.visits)] += state.visits
            state.visits = counts
        elif isinstance(told := info.get("variables"), Mapping):
            x, y = (self._reported(told, name) for name in "xy")
            if x is not None and y is not None:
                state.positions.add(np.stack([x, y], 1))

    def _reported(self, info: Mapping[str, Any], name: str, kinds: str = NUMBERS) -> np.ndarray | None:
        """What all environments report, (N,) float64, NaN for those that do not; None if it is no number."""
        found = column(info.get(name), self.envs.num_envs, kinds)
        if found is not None and (mask := info.get(f"_{name}")) is not None:
            reported = column(mask, self.envs.num_envs)
            return None if reported is None else np.where(reported, found, np.nan)
        return found
