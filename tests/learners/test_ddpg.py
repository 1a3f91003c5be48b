"""DDPG: noise, its clip and schedule, the target by hand, and a point that must be steered."""

import pytest
import torch
import torch.nn.functional as F
from helpers import CONTINUOUS, fill_replay, make_agent


def ddpg(**changes):
    return make_agent(CONTINUOUS, learner="ddpg", phase="train", **changes)


def test_the_noise_is_scheduled():
    options = {"learner__stddev_start": 0.5, "learner__stddev_end": 0.1, "learner__stddev_decay_steps": 100}
    learner = ddpg(**options).learner
    with torch.no_grad():
        learner.actor[-1].weight.zero_()  # the policy is 0 everywhere
    obs, skill = torch.randn(20_000, 4), torch.zeros(20_000, 0)
    for steps, stddev in ((0, 0.5), (50, 0.3), (100, 0.1), (float("inf"), 0.1)):
        learner.set_progress(steps)
        assert learner.stddev.item() == pytest.approx(stddev)
        noisy = learner.act(obs, skill, deterministic=False)
        inside = noisy[noisy.abs() < 1]
        if stddev <= 0.3:
            assert inside.std().item() == pytest.approx(stddev, abs=0.01)
        assert learner.act(obs, skill, deterministic=True).abs().max() == 0


def test_noise_inside_the_losses_is_clipped_and_lets_gradients_through():
    learner = ddpg().learner
    action = torch.tensor([0.0, 0.95]).repeat(1000, 1).requires_grad_()
    noisy = learner.noisy(action)
    assert (noisy - action).abs().max() <= 0.3 + 1e-6
    assert (noisy[:, 0].abs() > 0.29).float().mean() > 0.5  # stddev 1: most of it was clipped
    assert noisy.max() <= 1
    noisy.sum().backward()
    assert torch.equal(action.grad, torch.ones_like(action))


def test_the_target_by_hand():
    agent = ddpg()
    replay = fill_replay(CONTINUOUS)
    learner, batch = agent.learner, replay.batch(replay.sample(16), 3, 0.9)
    with torch.no_grad():
        for weight in learner.target_critic.parameters():
            weight += 0.1 * torch.randn_like(weight)
        torch.manual_seed(5)
        features = learner.encoder(batch.next_obs)  # the online encoder: there is no other
        policy = learner.actor(features).tanh()
        action = (policy + torch.randn(16, 2).clamp(-0.3, 0.3)).clamp(-1, 1)
        target = batch.reward + batch.discount * learner.target_critic(features, batch.skill, action).amin(0)
    torch.manual_seed(5)
    loss = next(learner.losses(batch, batch.reward, 0))
    torch.testing.assert_close(loss.metrics["q_target"], target.mean())


# Trunks

THROUGH = {"stack": "mlp", "feature_dim": 0, "hidden_dim": 0}  # an encoder that passes vectors through


def trunked(spec=CONTINUOUS, **changes):
    encoder = {"feature_dim": 0} if spec.pixels else THROUGH
    options = {"learner": {"name": "ddpg", "trunk_dim": 12, "hidden_layers": 1, "encoder": encoder}}
    return make_agent(spec, **{"phase": "train", **options, **changes})


def shapes(module):
    return [tuple(weight.shape) for weight in module.parameters() if weight.ndim > 1 and weight.shape[-2] > 1]


def test_vectors_and_actions_go_through_the_critics_trunk_and_vectors_through_the_actors():
    learner = trunked().learner
    assert not list(learner.encoder.parameters())
    assert shapes(learner.critic.trunk) == [(12, 4 + 2)]
    assert shapes(learner.critic.heads) == [(2, 12, 16), (2, 16, 1)]
    assert shapes(learner.actor) == [(12, 4), (16, 12), (2, 16)]
    obs, skill, action = torch.randn(5, 4), torch.zeros(5, 0), torch.rand(5, 2)
    x = torch.cat([obs, action], 1)
    h = F.layer_norm(learner.critic.trunk[0](x), (12,)).tanh()
    expected = learner.critic.heads.layers(h.expand(2, 5, 12)).squeeze(-1)
    torch.testing.assert_close(learner.critic(obs, skill, action), expected)
    assert learner.actor[:3](obs).abs().max() < 1
    torch.testing.assert_close(learner.policy(obs, skill), learner.actor[3:](learner.actor[:3](obs)).tanh())
