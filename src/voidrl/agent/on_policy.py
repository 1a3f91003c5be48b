"""Updates of an agent whose learner is on-policy: its policy on a full rollout, and between rollouts f.

`Agent.update` samples the replay for everything. Here the policy learns from the rollout that has just ended,
each step of it once, and only a representation with a loss of its own samples the replay. Both happen between
rollouts: if f changed during a rollout, the policy that acted would be lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from voidrl.agent.agent import Agent, MetricOwner
from voidrl.agent.optimizers import JointLoss, Optimizers
from voidrl.learners.base import OnPolicyLearner, Surrogate
from voidrl.replay import Replay
from voidrl.types import Loss, Metrics

CHUNK = 1024  # states that are encoded at once


def representation_step(agent: Agent, replay: Replay, index: int) -> Metrics:
    """One update of the representation from a sample; it can be captured in a CUDA graph."""
    if not agent.trains_representation:
        return {}
    size = agent.config.representation.batch_size or agent.config.learner.batch_size
    with agent.precision():
        segment = replay.segment(replay.sample(size), 1, 1.0)
        metrics = agent.train_representation(replay, segment, JointLoss())
        agent.representation.after_update()
    return metrics


def rollout_step(agent: Agent, replay: Replay, steps: int) -> Metrics:
    """Improve the policy on the newest `steps` transitions, which it has chosen itself.

    The host reads after each gradient step whether the policy may take another.
    """
    learner, metrics = agent.learner, Metrics()
    assert isinstance(learner, OnPolicyLearner)
    with agent.precision():
        stored = replay.rollout(steps, agent.config.learner.discount)
        convert, layout = agent.augment.plain, learner.encoder.layout  # once for all gradient steps
        obs = next_obs = convert(replay.frames_of(stored.slots), layout)
        if not agent.uses_method:  # only values read the next observations
            after = (stored.slots + replay.num_envs) % len(replay.starts)
            next_obs = convert(replay.frames_of(after), layout)
        rollout = stored._replace(batch=stored.batch._replace(obs=obs, next_obs=next_obs))
        owner: MetricOwner = "reward" if agent.uses_method else "task"
        if owner == "reward":
            z = torch.cat([agent.encode(part) for part in stored.batch.next_obs.split(CHUNK)])
            hoods = agent.method.neighborhoods(z)  # type: ignore[operator]
            reward, surrogate = hoods.log_volume.float(), learner.surrogate(rollout, hoods)
        else:
            reward = rollout.batch.reward * agent.config.reward_scale
            surrogate = learner.surrogate(rollout, reward)
        logged = {"reward_std": reward.std(correction=0), "reward_mean": reward.mean()}
        metrics |= agent.owned(owner, logged)
        found, taken = ascend(
            agent.optimizers, surrogate, max_updates=learner.policy_updates, backtracks=learner.backtracks
        )
        counted = {"policy_updates": torch.full_like(found.value, taken)}
        metrics |= agent.owned("learner", found.metrics | counted, Loss("policy", found.value, {}))
        if owner == "task":
            for loss in learner.value_losses(rollout, reward):
                agent.optimizers.minimize(["value"], loss.value)
            metrics |= agent.owned("learner", loss.metrics, loss)
        with torch.no_grad():  # spectral norm iterates here, not while the policy is compared with itself
            learner.train()
            learner.features(rollout.batch.obs[:1])
            learner.eval()
    return {name: value.float() for name, value in metrics.items()}


def ascend(
    optimizers: Optimizers, surrogate: Callable[[], Surrogate], *, max_updates: int, backtracks: int
) -> tuple[Surrogate, int]:
    """Maximize by steps of the optimizer `policy` as long as the divergence stays within its limit.

    The first step that leaves the limit is undone, and was the last. If that is the first of all, the
    learning rate is halved, up to `backtracks` times, until a step stays within. Returns the surrogate of the
    policy that is kept, and the number of steps that led to it.
    """
    adam = optimizers["policy"]
    weights, rates = optimizers.parameters("policy"), [group["lr"] for group in adam.param_groups]
    kept, now = _copied(adam, weights), surrogate()
    taken, halved = 0, 0
    while taken < max_updates:
        for group, rate in zip(adam.param_groups, rates, strict=True):
            group["lr"] = rate * 0.5**halved
        optimizers.minimize(["policy"], -now.value)
        then = surrogate()
        if then.divergence <= then.limit:  # host read; NaN is not
            kept, now, taken = _copied(adam, weights), then, taken + 1
            continue
        with torch.no_grad():
            torch._foreach_copy_([*weights], kept[0])
        adam.load_state_dict(copy.deepcopy(kept[1]))  # which shares its tensors otherwise
        if taken or halved == backtracks:
            break
        halved += 1
        now = surrogate()  # whose graph has been used
    for group, rate in zip(adam.param_groups, rates, strict=True):
        group["lr"] = rate
    return now, taken


def _copied(adam: torch.optim.Adam, weights: list[nn.Parameter]) -> tuple[list[Tensor], dict[str, Any]]:
    """The weights of an optimizer, and its moments and counters."""
    return [p.detach().clone() for p in weights], copy.deepcopy(adam.state_dict())
