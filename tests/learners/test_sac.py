"""SAC: log-probabilities against torch.distributions, bounds, temperature, and a point to be steered."""

import math

import pytest
import torch
from helpers import CONTINUOUS, fill_replay, make_agent, moved, snapshot
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from voidrl.learners import sac as sac_module


def sac(**changes):
    return make_agent(CONTINUOUS, learner="sac", phase="train", **changes)


def test_log_probabilities_are_those_of_a_tanh_gaussian():
    learner = sac(learner__log_std_min=-1.0).learner
    features, skill = torch.randn(200, 8), torch.zeros(200, 0)
    mean, std = learner.policy(features, skill)
    torch.manual_seed(3)
    action, log_prob = learner.sample(features, skill)
    torch.manual_seed(3)
    before = mean + std * torch.randn_like(mean)
    torch.testing.assert_close(action, before.tanh())
    squashed = TransformedDistribution(Normal(mean.double(), std.double()), TanhTransform())
    expected = squashed.log_prob(before.double().tanh()).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-3)


def test_log_probabilities_do_not_overflow():
    learner = sac().learner
    with torch.no_grad():
        learner.actor[-1].bias[:2] = 50.0  # a mean at which tanh is 1 in float32
    assert learner.sample(torch.randn(10, 8), torch.zeros(10, 0))[1].isfinite().all()


def test_standard_deviations_keep_within_their_bounds():
    learner = sac(learner__log_std_min=-3.0).learner
    for bias, bound in ((-100.0, -3.0), (100.0, 2.0), (0.0, -0.5)):
        with torch.no_grad():
            learner.actor[-1].weight.zero_()
            learner.actor[-1].bias[2:] = bias
        std = learner.policy(torch.randn(5, 8), torch.zeros(5, 0))[1]
        torch.testing.assert_close(std, torch.full((5, 2), math.exp(bound)))


@pytest.mark.parametrize(("log_std", "direction"), [(-0.3, -1), (-6.0, 1)])
def test_the_temperature_moves_towards_the_target_entropy(log_std, direction, monkeypatch):
    # Entropy above −2 (two action dimensions): α falls, the policy may narrow. Below: it rises.
    monkeypatch.setattr(sac_module, "LOG_STD_MAX", log_std + 0.01)
    agent, replay = sac(learner__log_std_min=log_std - 0.01), fill_replay(CONTINUOUS)
    entropy = agent.update(replay)["policy_entropy"]
    assert (entropy > -2) == (direction < 0)
    for _ in range(20):
        agent.update(replay)
    assert (agent.learner.log_alpha.exp() - 0.1) * direction > 0


def test_a_fixed_temperature_stays_and_the_agent_can_be_fine_tuned_with_a_learned_one():
    replay = fill_replay(CONTINUOUS)
    agent = sac(learner__learn_temperature=False, learner__initial_temperature=0.3)
    assert "temperature" not in agent.optimizers
    for _ in range(3):
        metrics = agent.update(replay)
    assert metrics["temperature"].item() == pytest.approx(0.3)
    assert agent.learner.log_alpha.exp().item() == pytest.approx(0.3)
    learned = make_agent(CONTINUOUS, learner="sac", phase="finetune")
    learned.load_pretrained(agent.tensors())
    learned.update(replay)
    assert 0 < abs(learned.learner.log_alpha.exp().item() - 0.3) < 0.01


def test_actor_and_temperature_move_every_second_update():
    agent, replay = sac(), fill_replay(CONTINUOUS)
    assert agent.learner.period == 2
    for update in range(4):
        before = snapshot(agent.tensors())
        metrics = agent.update(replay, update % 2)
        names = moved(before, agent.tensors())
        due = update % 2 == 0
        assert ("learner.actor.0.weight" in names) == due
        assert ("learner.log_alpha" in names) == due
        assert ("actor_loss" in metrics) == due
        assert "learner.critic.layers.0.weight" in names


def test_the_soft_target_by_hand():
    agent, replay = sac(), fill_replay(CONTINUOUS)
    learner, batch = agent.learner, replay.batch(replay.sample(16), 1, 0.9)
    with torch.no_grad():
        for weight in learner.target_critic.parameters():
            weight += 0.1 * torch.randn_like(weight)
        torch.manual_seed(5)
        action, log_prob = learner.sample(learner.encoder(batch.next_obs), batch.skill)
        q1, q2 = learner.target_critic(learner.target_encoder(batch.next_obs), batch.skill, action)
        target = batch.reward + batch.discount * (torch.minimum(q1, q2) - 0.1 * log_prob)
        q = learner.critic(learner.encoder(batch.obs), batch.skill, batch.action)
    torch.manual_seed(5)
    loss = next(learner.losses(batch, batch.reward, 0))
    torch.testing.assert_close(loss.metrics["q_target"], target.mean())
    torch.testing.assert_close(loss.value, ((q[0] - target) ** 2).mean() + ((q[1] - target) ** 2).mean())
