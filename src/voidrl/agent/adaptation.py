"""Adaptation: moves a pre-trained agent to a task's scale, once, when the warm-up of fine-tuning is over.

Pre-training leaves values, and SAC's temperature, on the scale of intrinsic rewards. To a critic that expects
20 more of those, a reward of 1 that ends the episode is a loss, and the policy unlearns what it could do. The
task's returns in the warm-up, in which the pre-trained policy acts, show the scale of its rewards:

1. Rewards are multiplied so that these returns differ by 1. Whatever a task pays,
   learning rates and initializations then suit it.
2. SAC's temperature restarts in proportion to that range, which keeps the entropy bonus small.
3. Values that correlate with the returns (their *alignment*) become a Q + b, by least squares. An a above 0
   changes neither the greedy policy nor the direction of the actor's gradient. Otherwise the critic is new
   and starts at the mean return. The pre-trained policy is kept: as the actor, which waits while the new
   critic learns to judge it, or as the explorer of a learner without an actor.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from voidrl import dist
from voidrl.agent.agent import Agent
from voidrl.agent.exploration import Explorer
from voidrl.agent.renewal import renew_heads
from voidrl.agent.rewards import warmup_stride
from voidrl.replay import TERMINATED, TRUNCATED, Replay

Kept = Literal["values", "actor", "policy", "all"]
RETURN_RANGE = 1.0  # of scaled rewards
MIN_ALIGNMENT = 0.5
"""Correlation of values and returns from which values are kept: they explain a quarter of the variance. With
less, a new critic learned faster (docs/adapting.md)."""
SUPPORT_SHARE = 0.25
"""Share of a support, such as C51's, up to which returns reach: a better policy needs the rest."""
MAX_SIZE = 100.0
"""Largest return relative to the range of returns: where all are alike, their range is no measure."""
NEW_VALUE_SCALE = 0.1
"""Factor for the outputs of a new critic: its random values must not be mistaken for learned ones."""
MAX_STEPS = 100_000  # of the warm-up, the newest, whose returns are computed
SAME = 1e-6  # relative difference below which numbers are equal


class Fit(NamedTuple):
    """The affine map from pre-trained values to returns."""

    alignment: float = 0.0  # their correlation; 0 where either is constant
    scale: float = 1.0
    shift: float = 0.0
    largest: float = 0.0  # the largest absolute value


class Seen(NamedTuple):
    """The returns of the warm-up."""

    span: float  # their range
    mean: float
    size: float  # the largest of them, without its sign
    fit: Fit


class Outcome(NamedTuple):
    """The result of adaptation."""

    kept: Kept
    """`values`, mapped; the `actor`, with a new critic; the `policy`, as explorer; or `all`, unchanged."""
    alignment: float | None
    """None where the config names the heads, so that nothing was to be decided."""
    return_range: float
    """Range of the returns so far, in units of the task; 0 where they are equal and nothing was adapted."""
    explorer: Explorer | None = None
    """The pre-trained policy, where new heads replace it."""

    def metrics(self) -> dict[str, float]:
        """One row for the log."""
        row = {"adaptation/return_range": self.return_range}
        return row if self.alignment is None else {**row, "adaptation/alignment": self.alignment}

    def sentence(self) -> str:
        """For the user."""
        if not self.return_range:
            return "not adapted: all returns are equal, so there is nothing to adapt to"
        seen = f"returns differ by up to {self.return_range:.3g}"
        if self.alignment is None:
            return f"adapted: {seen}; heads are those that finetune.heads names"
        done = {
            "all": "kept: they have led to the first reward",
            "values": "kept, on the task's scale",
            "actor": "replaced by a new critic; the policy is kept",
            "policy": "replaced by new heads; the pre-trained policy explores for them",
        }[self.kept]
        return f"adapted: {seen}; pre-trained values (alignment {self.alignment:.2f}) are {done}"


def rewards_differ(replay: Replay, newest: int) -> bool:
    """Whether returns of the newest steps can differ: rewards do, or one other than 0 has ended an episode.

    Reads the device. All ranks get the same answer: what one has seen is enough.
    """
    slots = replay.newest(newest)
    says_nothing = torch.ones((), device=slots.device)
    if len(slots):
        low, high = torch.aminmax(replay.reward[slots])
        ends = (replay.ending[slots] == TERMINATED).any()
        are_equal = high - low <= SAME * torch.maximum(low.abs(), high.abs())
        says_nothing = (are_equal & ((high == 0) | ~ends)).float()
    return not bool(dist.min_(says_nothing))  # host synchronization


def discounted_returns(replay: Replay, discount: float, factor: float) -> tuple[Tensor, np.ndarray]:
    """Slots of the newest steps, oldest first, and their discounted returns, of rewards times `factor`.

    Where an episode was cut, the rest of it is worth V, the mean of all returns: each is M + c V with the
    rewards M up to the cut and the factor c of what follows, so V = Σ M / Σ (1 − c).
    """
    slots = replay.newest(MAX_STEPS).flip(0)  # (P,)
    at = slots.cpu().numpy()  # host synchronization, once in a run
    rows, column = at // replay.num_envs, at % replay.num_envs
    row = (rows - rows[0]) % replay.rows
    shape = (int(row[-1]) + 1, replay.num_envs)
    reward, ending, real = np.zeros(shape), np.zeros(shape, np.uint8), np.zeros(shape, bool)
    reward[row, column] = factor * replay.reward[slots].double().cpu().numpy()
    ending[row, column] = replay.ending[slots].cpu().numpy()
    real[row, column] = True
    total, rest = np.zeros(shape), np.ones(shape)  # M and c
    after, left = np.zeros(shape[1]), np.ones(shape[1])  # of the step that follows
    for t in reversed(range(shape[0])):
        is_cut, is_over = ending[t] == TRUNCATED, ending[t] == TERMINATED
        after = np.where(is_cut | is_over, 0.0, after)
        left = np.where(is_over, 0.0, np.where(is_cut, 1.0, left))
        after = total[t] = np.where(real[t], reward[t] + discount * after, 0.0)
        left = rest[t] = np.where(real[t], discount * left, 1.0)
    m, c = total[row, column], rest[row, column]
    weight = float((1 - c).sum())
    return slots, m + c * (float(m.sum()) / weight if weight > 0 else 0.0)


@torch.no_grad()
def fit(agent: Agent, replay: Replay, slots: Tensor, returns: np.ndarray) -> Fit:
    """Least squares from the critic's values to the returns, through 0 for a critic without an offset."""
    every = warmup_stride(len(slots), agent.spec)
    batch = replay.batch(slots[::every], 1, 1.0)
    with agent.precision():
        found = agent.learner.q(batch.obs, batch.skill, batch.action)
    if found is None:
        return Fit()
    q, y = found.double().cpu().numpy(), returns[::every]
    largest = float(np.abs(q).max())
    if any(x.std() <= SAME * np.abs(x).max() for x in (q, y)) or not np.isfinite(q).all():
        return Fit(largest=largest)
    alignment = float(np.corrcoef(q, y)[0, 1])
    if not getattr(agent.learner.critic, "has_offset", True):
        return Fit(alignment, float((q * y).sum() / (q * q).sum()), 0.0, largest)
    scale = alignment * float(y.std() / q.std())
    return Fit(alignment, scale, float(y.mean() - scale * q.mean()), largest)


@torch.no_grad()
def adapt(agent: Agent, replay: Replay, *, has_learned: bool = False) -> Outcome:
    """Put rewards, exploration and values on the task's scale, and decide what is kept of the heads.

    `has_learned`: values have learned from rewards that were all equal, or from a bonus. They have led to the
    first reward that differs, so they are kept, and rewards take their scale.
    """
    heads, learner = agent.config.finetune.heads, agent.learner
    decides = heads == "auto"
    slots, returns = discounted_returns(replay, learner.config.discount, agent.config.reward_scale)
    found = fit(agent, replay, slots, returns) if decides else Fit()
    mine = Seen(float(np.ptp(returns)), float(returns.mean()), float(np.abs(returns).max()), found)
    seen = max(dist.all_gather_object(mine), key=lambda each: each.span)  # each rank has a part of the replay
    if seen.span <= SAME * seen.size:
        return Outcome("all", None, 0.0)
    if agent.effective.adaptation == "full":
        if heads != "pretrained":  # whose values are on the scale of pre-training
            _scale_rewards(agent, replay, seen, has_learned=has_learned)
        learner.restart_exploration(seen.span * float(agent.task_scale))
    if not decides:
        return Outcome("actor" if heads == "actor" else "all", None, seen.span)
    alignment, scale, shift, _ = seen.fit
    if has_learned:
        return Outcome("all", alignment, seen.span)
    factor = float(agent.task_scale)
    if alignment >= MIN_ALIGNMENT and scale > 0 and _rescale(agent, scale * factor, shift * factor):
        return Outcome("values", alignment, seen.span)
    explorer, has_actor = None, hasattr(learner, "actor")
    if not has_actor:
        explorer = Explorer.copy_of(agent, agent.device)
        explorer.begin(replay.num_envs)
    renew_heads(agent, "actor" if has_actor else "random")
    _rescale(agent, NEW_VALUE_SCALE, seen.mean * factor)
    _observe_rewards(agent, replay)  # new heads have new limits
    return Outcome("actor" if has_actor else "policy", alignment, seen.span, explorer)


def _scale_rewards(agent: Agent, replay: Replay, seen: Seen, *, has_learned: bool) -> None:
    """Multiply the task's rewards, so that returns differ by 1 or have the size of learned values."""
    decides, config = agent.config.finetune.heads == "auto", agent.config.learner
    wanted = max(RETURN_RANGE, seen.fit.largest) if decides and has_learned else RETURN_RANGE
    factor = wanted / max(seen.span, seen.size / MAX_SIZE)
    if width := getattr(config, "v_max", 0.0) - getattr(config, "v_min", 0.0):
        factor = SUPPORT_SHARE * width / seen.size
    # Heads that the config names and that have learned keep their values, in proportion.
    if decides or not has_learned or _rescale(agent, factor, 0.0):
        agent.task_scale.fill_(factor)
        _observe_rewards(agent, replay)


def _observe_rewards(agent: Agent, replay: Replay) -> None:
    """Set the limits of values by the rewards seen so far, on their new scale."""
    config, bounds = agent.config.learner, agent.learner.bounds
    bounds.forget()
    reward = replay.reward[replay.newest(len(replay))].to(agent.device)
    steps = (1 - config.discount**config.n_step) / (1 - config.discount)  # of an n-step reward
    bounds.observe(reward * agent.config.reward_scale * agent.task_scale * steps)


def _rescale(agent: Agent, scale: float, shift: float) -> bool:
    """Replace values by their affine map; False where that is impossible."""
    return agent.learner.rescale_values(*torch.tensor([scale, shift], device=agent.device).split(1))
