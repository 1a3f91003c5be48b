"""SAC: log-probabilities against torch.distributions, bounds, temperature, and a point to be steered."""

import pytest
import torch
from helpers import CONTINUOUS, fill_replay, make_agent
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
