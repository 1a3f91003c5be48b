"""Evaluation: whole episodes in environments of their own, with seeds of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from voidrl.agent import Agent
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
        row = {"eval/return": self.mean_return, "eval/return_std": float(np.std(self.returns)),
               "eval/length": float(np.mean(self.lengths)), "eval/episodes": len(self.returns)}  # fmt: skip
        return row if self.success_rate is None else {**row, "eval/success": self.success_rate}


def run_seed(seed: int, *path: int) -> int:
    """A seed that depends on all its arguments, far from those of neighbouring arguments."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1)[0] >> 2)


@torch.no_grad()
def evaluate_agent(agent: Agent, envs: Envs, episodes: int, seed: int, *, deterministic: bool = True) -> Evaluation:
    """Play `episodes` whole episodes. Draws its own random numbers and leaves the run's untouched.

    Each environment plays a share fixed in advance: taking whichever episodes end first would favour short ones.
    """
    share = [episodes // envs.num_envs + (i < episodes % envs.num_envs) for i in range(envs.num_envs)]
    returns: list[list[float]] = [[] for _ in share]
    lengths: list[list[int]] = [[] for _ in share]
    successes: list[list[bool]] = [[] for _ in share]
    score, length = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
    succeeded, tells = np.zeros(envs.num_envs, bool), False
    with torch.random.fork_rng([agent.device] if agent.device.type == "cuda" else []):
        torch.manual_seed(seed)
        frames, _ = envs.reset(seed)
        # The smallest replay there is stacks frames exactly as training does.
        history = Replay(envs.spec, envs.num_envs, 1, agent.method.skill_dim, agent.device, agent.device)
        history.reset(frames)
        skill = agent.new_skills(envs.num_envs)
        ended = np.zeros(envs.num_envs, bool)
        while any(len(done) < quota for done, quota in zip(returns, share, strict=True)):
            if agent.learns:
                action = agent.learner.act(history.latest(), skill, deterministic=deterministic).cpu().numpy()
            else:
                action = agent.random_actions(envs.num_envs).cpu().numpy()
            result = envs.step(action)
            history.add(action, result.reward, result.terminated, result.truncated, result.frames, skill)
            if ended.any():  # the step in which an environment resets
                skill = torch.where(torch.from_numpy(ended).to(skill.device)[:, None], agent.new_skills(len(ended)), skill)
            score, length = score + np.where(ended, 0, result.reward), length + ~ended
            if "success" in result.info:
                tells = True
                succeeded |= np.asarray(result.info["success"], bool) & ~ended
            ended = result.terminated | result.truncated
            for i in np.flatnonzero(ended):
                if len(returns[i]) < share[i]:
                    returns[i].append(float(score[i]))
                    lengths[i].append(int(length[i]))
                    successes[i].append(bool(succeeded[i]))
                score[i], length[i], succeeded[i] = 0, 0, False
    return Evaluation(sum(returns, []), sum(lengths, []), sum(successes, []) if tells else None)
