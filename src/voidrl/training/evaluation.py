"""Evaluation: whole episodes in separate environments with separate seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.agent.cost import acting_threads
from voidrl.envs.suites.atari import human_normalized
from voidrl.envs.vector import Envs, StepResult
from voidrl.errors import CheckpointError, EnvironmentFailedError, NonFiniteError, RunFolderError, shown
from voidrl.replay import Replay
from voidrl.runs.checkpoint import list_steps, write_json_atomic
from voidrl.runs.evaluations import BY_USER, FILE_NAME, read_evaluation
from voidrl.runs.status import read_status
from voidrl.system.device import seeded
from voidrl.system.files import user_path

EVALUATION_STREAM = 1  # keeps evaluation seeds apart from the training seeds of the same run
OUTCOMES = np.array([0, 1, None])  # of info["success"]; None is no success


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Returns, lengths and successes of whole episodes."""

    returns: list[float]
    """Undiscounted return of each episode."""
    lengths: list[int]
    """Steps in each episode."""
    successes: list[bool] | None
    """Whether `info["success"]` was ever true in each episode; None if the environment does not report it."""
    counted_steps: int = 0
    """Steps whose states were counted."""
    counts: dict[str, float] = field(default_factory=dict)
    """Distinct states in these steps by measure, on DMControl also the `entropy` of the physics states; empty
    if states were not counted."""
    game: str | None = None
    """The Atari game, if a human score is known for it."""

    def __repr__(self) -> str:
        """One line: the numbers of single episodes are in the fields."""
        spread = f"{self.mean_return:.3f} ± {np.std(self.returns):.3f}"
        count = len(self.returns)
        parts = [
            f"return {spread} over {count} episode{'s' * (count != 1)}",
            f"length {np.mean(self.lengths):.1f}",
        ]
        if self.success_rate is not None:
            parts.append(f"success {self.success_rate:.0%}")
        if self.human_normalized is not None:
            parts.append(f"human-normalized {self.human_normalized:.1%}")
        parts += [
            f"{name} {counted:g} in {self.counted_steps} steps" for name, counted in self.counts.items()
        ]
        return f"Evaluation({', '.join(parts)})"

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.returns))

    @property
    def success_rate(self) -> float | None:
        """Fraction of successful episodes."""
        return None if self.successes is None else float(np.mean(self.successes))

    @property
    def human_normalized(self) -> float | None:
        """The human-normalized mean return: 0 for a random policy, 1 for the human tester; Atari only."""
        return None if self.game is None else human_normalized(self.game, self.mean_return)

    def metrics(self) -> dict[str, float]:
        """One row for the log."""
        row = {
            "eval/return": self.mean_return,
            "eval/return_std": float(np.std(self.returns)),
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": len(self.returns),
        }
        optional = {"eval/success": self.success_rate, "eval/human_normalized": self.human_normalized}
        return row | {name: value for name, value in optional.items() if value is not None}


def run_seed(seed: int, *path: int) -> int:
    """A seed derived from all arguments; similar arguments give unrelated seeds."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1)[0] >> 2)


@torch.no_grad()
def evaluate_agent(
    agent: Agent,
    envs: Envs,
    episodes: int,
    seed: int,
    *,
    steps: int | None = None,
    deterministic: bool = True,
    epsilon: float = 0.0,
    max_episode_steps: int | None = None,
    watch: Callable[[StepResult | None], None] | None = None,
) -> Evaluation:
    """Play whole episodes. Uses its own random numbers and leaves the run's untouched.

    Args:
        agent: The agent to evaluate.
        envs: Environments created for evaluation.
        episodes: Number of episodes, divided among the environments in advance: taking whichever end first
            would favor short ones.
        seed: Seed of the environments and of the agent's random numbers.
        steps: Play this many steps instead of a number of episodes. Each environment starts episodes until
            its part is used up, and finishes the last one; states are counted in exactly this many steps.
        deterministic: Without exploration noise. A learner may be sampled all the same (`plays_by_sampling`).
        epsilon: Probability of a uniformly random action.
        max_episode_steps: Cut episodes that are longer; an environment with one plays no others, so that
            tasks without an end are evaluated too.
        watch: Called with the result of each step, and with None at the first reset.
    """
    n, best = envs.num_envs, deterministic and not agent.learner.plays_by_sampling
    tally = _Tally(n, episodes if steps is None else steps, steps is not None, max_episode_steps)
    with seeded(seed, agent.device), acting_threads(agent, n):
        frames, _ = envs.reset(seed)
        if watch is not None:
            watch(None)
        # The smallest possible replay stacks frames exactly as in training.
        history = Replay(envs.spec, n, 1, agent.method.skill_dim, agent.device, agent.device)
        history.reset(frames)
        at_start = torch.zeros(n, dtype=torch.int64, device=agent.device)
        skill = agent.new_skills(at_start)
        while tally.playing.any():
            obs = history.latest()
            action = agent.choose(obs, skill, deterministic=best)
            if epsilon:
                random_actions = agent.random_actions(obs)
                explore = torch.rand(n, device=agent.device) < epsilon
                action = torch.where(explore.reshape(n, *[1] * (action.ndim - 1)), random_actions, action)
            taken = action.cpu().numpy()
            if not np.isfinite(taken).all():
                raise NonFiniteError(
                    f"the policy's action is not finite in an evaluation at step {agent.steps}: expected "
                    f"numbers in [-1, 1]; training has diverged, use an older checkpoint"
                )
            envs.send(taken)
            result = envs.recv(tally.counted)
            if watch is not None:
                watch(result)
            ends = result.terminated, result.truncated
            history.add(taken, result.reward, *ends, result.frames, skill, result.ended)
            if tally.ended.any():
                fresh = torch.from_numpy(tally.ended).to(skill.device)[:, None]
                skill = torch.where(fresh, agent.new_skills(at_start), skill)
            tally.add(result)
        counts: dict[str, float] = {} if envs.counter is None else {**envs.counter.counts()}
    returns, lengths, successes = zip(*chain(*tally.played), strict=True)
    known_successes = [*successes] if tally.reports_success else None
    return Evaluation([*returns], [*lengths], known_successes, tally.counted_steps, counts, envs.game)


class _Tally:
    """The episodes of N environments, each of which plays its part of a total of episodes or steps."""

    def __init__(self, n: int, total: int, in_steps: bool, longest: int | None) -> None:
        self.budget = np.array([total // n + (i < total % n) for i in range(n)])  # episodes or steps
        self.in_steps, self.longest = in_steps, longest
        self.used, self.taken = np.zeros(n, np.int64), np.zeros(n, np.int64)  # by whole episodes; steps
        self.played: list[list[tuple[float, int, bool]]] = [[] for _ in range(n)]  # return, length, success
        self.score, self.length = np.zeros(n), np.zeros(n, np.int64)  # of the episodes under way
        self.succeeded, self.reports_success = np.zeros(n, bool), False
        self.ended = np.zeros(n, bool)  # with the last step: the next one is the reset
        self.counted_steps = 0

    @property
    def playing(self) -> np.ndarray:
        """(N,) bool: whether there is a part left to play."""
        playing: np.ndarray = self.used < self.budget
        return playing

    @property
    def counted(self) -> np.ndarray:
        """(N,) bool: whether the next step counts."""
        counts: np.ndarray = self.playing & ~self.ended
        if self.in_steps:
            counts &= self.taken < self.budget
        return counts

    def add(self, result: StepResult) -> None:
        """Add a step of all environments."""
        real, playing = ~self.ended, self.playing
        self.counted_steps += int(self.counted.sum())
        self.taken += real
        self.score += np.where(real, result.score, 0)
        self.length += real
        if "success" in result.info:
            self.reports_success = True
            said = np.asarray(result.info["success"], object)
            if said.shape != real.shape or not np.isin(said[real], OUTCOMES).all():
                raise EnvironmentFailedError(
                    f"the environments returned info['success'] = {shown(said.tolist())}: expected True or "
                    f"False of each"
                )
            self.succeeded |= said.astype(bool) & real
        self.ended = result.ended & real
        cut = ~self.ended & (self.length >= (self.longest or np.inf))
        for i in np.flatnonzero(self.ended | cut):
            if playing[i]:
                played = float(self.score[i]), int(self.length[i]), bool(self.succeeded[i])
                self.played[i].append(played)
                self.used[i] += self.budget[i] if cut[i] else self.length[i] if self.in_steps else 1
            self.score[i], self.length[i], self.succeeded[i] = 0, 0, False


def evaluation_record(
    agent: Agent, source: str | Path, result: Evaluation, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an evaluation as JSON: the agent, the settings, and every episode."""
    config = agent.config
    saved = list_steps(user_path(source) / "checkpoints")
    return {
        "agent": {
            "env": config.env.id,
            "phase": config.phase,
            "method": config.method.name,
            "bonus": config.bonus.coefficient if config.effective.has_bonus else 0.0,
            "seed": config.seed,
            "steps": saved[-1] if saved else agent.steps,
            "steps_with_pretraining": agent.steps,
            "source": str(source),
        },
        "settings": dict(settings),
        "mean_return": result.mean_return,
        "std_return": float(np.std(result.returns)),
        "human_normalized": result.human_normalized,
        "episodes": len(result.returns),
        **dataclasses.asdict(result),
    }


def keep_evaluation(
    agent: Agent, source: str | Path, result: Evaluation, settings: Mapping[str, Any]
) -> Path | None:
    """Write `evaluation.json` into the folder of a complete run, for its report and its model card.

    Returns None, and writes nothing, for anything else than the run's last agent in its own environment, and
    where an experiment keeps its own evaluation.
    """
    run = user_path(source)
    path, status = run / FILE_NAME, read_status(run)
    if status is None or status.state != "done" or settings["env"] != agent.config.env.id:
        return None
    if path.is_file():
        with suppress(RunFolderError, CheckpointError):
            if read_evaluation(path).get("by") != BY_USER["by"]:
                return None
    write_json_atomic(path, {**evaluation_record(agent, source, result, settings), **BY_USER})
    return path
