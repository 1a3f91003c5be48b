"""Evaluation: whole episodes in environments of their own, with seeds of their own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.device import seeded
from voidrl.envs import Envs
from voidrl.replay import Replay

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

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.returns))

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes."""
        return None if self.successes is None else float(np.mean(self.successes))

    def metrics(self) -> dict[str, float]:
        """One row for the log."""
        row = {
            "eval/return": self.mean_return,
            "eval/return_std": float(np.std(self.returns)),
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": len(self.returns),
        }
        return row if self.success_rate is None else {**row, "eval/success": self.success_rate}


def run_seed(seed: int, *path: int) -> int:
    """A seed that depends on all its arguments, far from those of neighbouring arguments."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1)[0] >> 2)


@torch.no_grad()
def evaluate_agent(
    agent: Agent, envs: Envs, episodes: int, seed: int, *, deterministic: bool = True, epsilon: float = 0.0
) -> Evaluation:
    """Play `episodes` whole episodes. Draws its own random numbers and leaves the run's untouched.

    Each environment plays a share fixed in advance: whichever episodes end first would be the short ones.
    `epsilon` is the share of uniformly random actions.
    """
    n = envs.num_envs
    share = [episodes // n + (i < episodes % n) for i in range(n)]
    played: list[list[tuple[float, int, bool]]] = [[] for _ in share]  # return, length, success
    score, length = np.zeros(n), np.zeros(n, np.int64)
    succeeded, ended, tells = np.zeros(n, bool), np.zeros(n, bool), False
    with seeded(seed, agent.device):
        frames, _ = envs.reset(seed)
        # The smallest replay there is stacks frames exactly as training does.
        history = Replay(envs.spec, n, 1, agent.method.skill_dim, agent.device, agent.device)
        history.reset(frames)
        skill = agent.new_skills(n)
        while any(len(done) < quota for done, quota in zip(played, share, strict=True)):
            chosen = agent.choose(history.latest(), skill, deterministic=deterministic)
            if epsilon:
                anything = agent.random_actions(n)
                random = torch.rand(n, device=agent.device) < epsilon
                chosen = torch.where(random.reshape(n, *[1] * (chosen.ndim - 1)), anything, chosen)
            action = chosen.cpu().numpy()
            result = envs.step(action)
            history.add(action, result.reward, result.terminated, result.truncated, result.frames, skill)
            real = ~ended  # where an episode had ended, this step was its reset
            if ended.any():
                fresh = torch.from_numpy(ended).to(skill.device)[:, None]
                skill = torch.where(fresh, agent.new_skills(n), skill)
            score, length = score + np.where(real, result.reward, 0), length + real
            if "success" in result.info:
                tells = True
                succeeded |= np.asarray(result.info["success"], bool) & real
            ended = (result.terminated | result.truncated) & real
            for i in np.flatnonzero(ended):
                if len(played[i]) < share[i]:
                    played[i].append((float(score[i]), int(length[i]), bool(succeeded[i])))
                score[i], length[i], succeeded[i] = 0, 0, False
    returns, lengths, successes = zip(*chain(*played), strict=True)
    return Evaluation([*returns], [*lengths], [*successes] if tells else None)
