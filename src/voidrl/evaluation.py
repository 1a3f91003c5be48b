"""Evaluation: whole episodes in environments of their own, with seeds of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.device import seeded
from voidrl.envs.vector import Envs, StepResult
from voidrl.replay import Replay
from voidrl.suites.atari import human_normalized

EVALUATION_STREAM = 1  # keeps evaluation seeds apart from the training seeds of the same run


@dataclass(frozen=True)
class Evaluation:
    """What a policy did in whole episodes."""

    returns: list[float]
    """Sum of the environment's rewards, undiscounted."""
    lengths: list[int]
    """Steps of each episode."""
    successes: list[bool] | None
    """Whether `info["success"]` was ever true in the episode; None where the environment does not say."""
    counted_steps: int = 0
    """Steps of which the states were counted."""
    counts: dict[str, float] = field(default_factory=dict)
    """Distinct states seen in them, by what is taken for a state, on DMControl with the `entropy` of the
    physics states; empty where they are not counted."""
    game: str | None = None
    """The Atari game, if a human's score is known for it."""

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.returns))

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes."""
        return None if self.successes is None else float(np.mean(self.successes))

    @property
    def human_normalized(self) -> float | None:
        """Where the mean return lies between a random policy's, 0, and a human's, 1; Atari only."""
        return None if self.game is None else human_normalized(self.game, self.mean_return)

    def metrics(self) -> dict[str, float]:
        """One row for the log."""
        row = {
            "eval/return": self.mean_return,
            "eval/return_std": float(np.std(self.returns)),
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": len(self.returns),
        }
        told = {"eval/success": self.success_rate, "eval/human_normalized": self.human_normalized}
        return row | {name: value for name, value in told.items() if value is not None}


def run_seed(seed: int, *path: int) -> int:
    """A seed that depends on all its arguments, far from those of neighboring arguments."""
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
    watch: Callable[[StepResult | None], None] | None = None,
) -> Evaluation:
    """Play `episodes` whole episodes. Draws its own random numbers and leaves the run's untouched.

    Each environment plays a share fixed in advance: whichever episodes end first would be the short ones.
    With `steps`, it begins episodes as long as it has not used up its share of them, and ends what it began;
    states are counted in exactly that share. `epsilon` is the share of uniformly random actions. `watch` is
    called with what each step gave, and with None at the reset before the first.
    """
    n = envs.num_envs
    total = episodes if steps is None else steps
    share = np.array([total // n + (i < total % n) for i in range(n)])
    used, taken = np.zeros(n, np.int64), np.zeros(n, np.int64)  # of the share, by whole episodes; steps
    played: list[list[tuple[float, int, bool]]] = [[] for _ in share]  # return, length, success
    score, length = np.zeros(n), np.zeros(n, np.int64)
    succeeded, ended, tells, counted_steps = np.zeros(n, bool), np.zeros(n, bool), False, 0
    with seeded(seed, agent.device):
        frames, _ = envs.reset(seed)
        if watch is not None:
            watch(None)
        # The smallest replay there is stacks frames exactly as training does.
        history = Replay(envs.spec, n, 1, agent.method.skill_dim, agent.device, agent.device)
        history.reset(frames)
        skill = agent.new_skills(n)
        while (playing := used < share).any():
            chosen = agent.choose(history.latest(), skill, deterministic=deterministic)
            if epsilon:
                anything = agent.random_actions(n)
                random = torch.rand(n, device=agent.device) < epsilon
                chosen = torch.where(random.reshape(n, *[1] * (chosen.ndim - 1)), anything, chosen)
            action = chosen.cpu().numpy()
            real = ~ended  # where an episode had ended, this step is its reset
            counted = real & playing & (True if steps is None else taken < share)
            envs.send(action)
            result = envs.recv(counted)
            if watch is not None:
                watch(result)
            history.add(
                action, result.reward, result.terminated, result.truncated, result.frames, skill, result.ended
            )
            if ended.any():
                fresh = torch.from_numpy(ended).to(skill.device)[:, None]
                skill = torch.where(fresh, agent.new_skills(n), skill)
            taken, counted_steps = taken + real, counted_steps + int(counted.sum())
            score, length = score + np.where(real, result.score, 0), length + real
            if "success" in result.info:
                tells = True
                succeeded |= np.asarray(result.info["success"], bool) & real
            ended = result.ended & real
            for i in np.flatnonzero(ended):
                if playing[i]:
                    played[i].append((float(score[i]), int(length[i]), bool(succeeded[i])))
                    used[i] += 1 if steps is None else length[i]
                score[i], length[i], succeeded[i] = 0, 0, False
        counts = {} if envs.counter is None else dict(envs.counter.counts())
    returns, lengths, successes = zip(*chain(*played), strict=True)
    told = [*successes] if tells else None
    return Evaluation([*returns], [*lengths], told, counted_steps, counts, envs.game)
