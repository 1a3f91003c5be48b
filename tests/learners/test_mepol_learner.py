"""The on-policy learner: its policy, its trust region, and rewards of a task."""

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, CPU, DISCRETE, Chain, fill_replay, make_agent, shake, snapshot
from tiny_runs import rows
from torch import distributions

import voidrl
from voidrl.agent.on_policy import ascend
from voidrl.agent.optimizers import Optimizers
from voidrl.learners import mepol
from voidrl.learners.base import Surrogate
from voidrl.learners.mepol import Policy
from voidrl.nets.observations import action_mask
from voidrl.replay import Replay
from voidrl.types import EnvSpec

MASKED = EnvSpec((7,), False, 1, num_actions=3, raw_shape=(7,), masked=True)


def agent_for(spec, **changes):
    learner = {"name": "mepol", "rollout_steps": 40, "hidden_dim": 16}
    return make_agent(spec, **({"phase": "train", "learner": learner} | changes))


# The policy


def test_probabilities_and_divergences_are_those_of_torch():
    logits, others = torch.randn(2, 5, 3)
    action = torch.tensor([0, 1, 2, 1, 0])
    one, other = (Policy(x.log_softmax(1), None) for x in (logits, others))
    theirs = [distributions.Categorical(logits=x) for x in (logits, others)]
    torch.testing.assert_close(one.log_prob(action), theirs[0].log_prob(action))
    torch.testing.assert_close(one.kl(other), distributions.kl_divergence(*theirs))

    mean, shifted, taken = torch.randn(3, 5, 2)
    one, other = Policy(mean, torch.tensor([-0.5, 0.3])), Policy(shifted, torch.tensor([0.1, 0.0]))
    theirs = [distributions.Normal(p.first, p.log_std.exp()) for p in (one, other)]
    torch.testing.assert_close(
        one.log_prob(taken.tanh()), theirs[0].log_prob(taken).sum(1), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(one.kl(other), distributions.kl_divergence(*theirs).sum(1))
    assert one.log_prob(torch.ones(5, 2)).isfinite().all()


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, MASKED], ids=["discrete", "continuous", "masked"])
def test_actions_are_of_the_policy_and_allowed(spec):
    agent = agent_for(spec)
    shake(agent.learner.actor, 0.3)
    obs = next(iter(fill_replay(spec, steps=4).batch(torch.tensor([0]), 1, 1.0)))
    obs = obs.repeat(4000, 1)
    nothing = torch.zeros(4000, 0)
    policy = agent.learner.policy(obs[:1], nothing[:1])
    taken, best = (agent.learner.act(obs, nothing, deterministic=d) for d in (False, True))
    if spec.discrete:
        share = taken.bincount(minlength=3) / 4000
        torch.testing.assert_close(share, policy.first[0].exp(), atol=0.04, rtol=0)
        assert (best == policy.first.argmax()).all()
    else:
        before = taken.atanh()
        torch.testing.assert_close(before.mean(0), policy.first[0], atol=0.05, rtol=0)
        torch.testing.assert_close(before.std(0).log(), torch.full((2,), -0.5), atol=0.05, rtol=0)
        torch.testing.assert_close(best[0], policy.first[0].tanh())
    allowed = action_mask(obs, spec)
    assert allowed is None or allowed.gather(1, taken[:, None]).all()


# The trust region


class Slope:
    """Climbs x; how far it may go is measured by x²."""

    def __init__(self, limit, rate=0.1):
        self.x = torch.nn.Parameter(torch.zeros(2))
        self.optimizers = Optimizers(CPU)
        self.optimizers.add("policy", {self.x: rate})
        self.limit, self.seen = limit, []

    def __call__(self):
        self.seen.append(self.x.detach().clone())
        return Surrogate(self.x.sum(), self.x.square().max().detach(), self.limit, {})

    def ascend(self, max_updates=30, backtracks=10):
        return ascend(self.optimizers, self, max_updates=max_updates, backtracks=backtracks)


def test_steps_end_before_the_limit_or_when_there_are_enough():
    slope = Slope(limit=0.36)  # x ≤ 0.6, with steps of 0.1
    found, taken = slope.ascend()
    assert taken == pytest.approx(6, abs=1)
    assert found.divergence <= 0.36 < slope.seen[-1].square().max()
    assert torch.equal(slope.x, slope.seen[-2])
    assert slope.ascend(max_updates=3)[1] == 0 or slope.x.square().max() <= 0.36
    assert Slope(limit=100).ascend(max_updates=4)[1] == 4


def test_a_step_that_leaves_the_limit_is_undone_bit_for_bit():
    slope = Slope(limit=0.36)
    slope.ascend(max_updates=2)
    weights, moments = slope.x.detach().clone(), snapshot(slope.optimizers.tensors())
    assert moments
    slope.limit = -1.0  # nothing is allowed
    assert slope.ascend(backtracks=3)[1] == 0
    assert torch.equal(slope.x, weights)
    assert all(torch.equal(value, moments[name]) for name, value in slope.optimizers.tensors().items())
    assert slope.optimizers["policy"].param_groups[0]["lr"] == 0.1
    # As if it had never been tried.
    straight = Slope(limit=0.36)
    straight.ascend(max_updates=2)
    for each in (slope, straight):
        each.limit = 100
        each.ascend(max_updates=2)
    assert torch.equal(slope.x, straight.x)


# Rewards


def test_advantages_are_summed_within_episodes_and_bootstrapped_unless_they_terminate(monkeypatch):
    """γ = 0.5, λ = 0.5; the value is a constant 4, the rewards 1 … 6, with resets after the 2nd and 4th.

    The first episode terminates, the second is truncated, and the third loses a life and continues.
    """
    spec = EnvSpec((1,), False, 1, num_actions=2, raw_shape=(1,))
    replay = Replay(spec, 1, 20, 0, CPU, CPU)
    frame = np.zeros((1, 1), np.float32)
    replay.reset(frame)
    # reward, terminated, truncated, ended; the step after an end is a reset
    steps = [(1, 0, 0, 0), (2, 1, 0, 1), (0, 0, 0, 0), (3, 0, 0, 0), (4, 0, 1, 1), (0, 0, 0, 0)]
    steps += [(5, 1, 0, 0), (6, 0, 0, 0)]
    for reward, *ends in steps:
        terminated, truncated, ended = (np.array([bool(end)]) for end in ends)
        reward = np.array([float(reward)])
        replay.add(np.zeros(1, int), reward, terminated, truncated, frame, torch.zeros(1, 0), ended)
    agent = make_agent(spec, phase="train", learner={"name": "mepol", "discount": 0.5})
    monkeypatch.setattr(mepol, "GAE_LAMBDA", 0.5)
    with torch.no_grad():
        agent.learner.critic[-1].weight.zero_()
        agent.learner.critic[-1].bias.fill_(4.0)
    rollout = replay.rollout(6, 0.5)
    gained, target = agent.learner.advantages(rollout, rollout.batch.reward)
    error = [1 + 2 - 4, 2 + 0 - 4, 3 + 2 - 4, 4 + 2 - 4, 5 + 0 - 4, 6 + 2 - 4]
    first, second = error[0] + 0.25 * error[1], error[2] + 0.25 * error[3]
    assert gained.tolist() == [first, error[1], second, error[3], error[4], error[5]]
    assert target.tolist() == (gained + 4).tolist()
    # The states of a game depend on all of its actions, those of lost lives too.
    assert rollout.path_sums(torch.ones(6)).tolist() == [1, 2, 1, 2, 1, 2]


TASK = {
    "env.num_envs": 8,
    "reward_scale": 1.0,
    "learner": {
        "name": "mepol",
        "rollout_steps": 20,
        "hidden_dim": 32,
        "learning_rate": 3e-3,
        "max_updates": 10,
    },
    "log": {"tensorboard": False, "log_every_steps": 320},
    "device": "cpu",
}


def test_a_task_is_learned_from_scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(mepol, "POLICY_KL_LIMIT", 0.05)
    voidrl.train(Chain, steps=2000, out=tmp_path / "run", config=TASK)
    returns = [row["episode/return"] for row in rows(tmp_path / "run") if "episode/return" in row]
    assert returns[-1] > 0.95 > returns[0] + 0.2
