"""Disagreement: models that have seen enough agree, on noise too."""

import pytest
import torch
from hand_batches import minimize
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent, points

from voidrl.agent.rewards import batch_latents

SMALL = {"method__hidden_dim": 32, "method__learning_rate": 3e-3, "learner__batch_size": 64}


def small_agent(spec=DISCRETE, **changes):
    return make_agent(spec, method="disagreement", **{**SMALL, **changes})


def train(agent, batches):
    for batch in batches:
        metrics = minimize(agent, agent.method.losses(batch, batch_latents(agent, batch, None)))
    return metrics["disagreement_loss"].item()


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_models_are_five_independent_networks(spec):
    agent, replay = small_agent(spec), fill_replay(spec)
    batch = replay.batch(replay.sample(9), 1, 1.0)
    action = torch.eye(3)[batch.action] if spec.discrete else batch.action
    x = torch.cat([batch.obs, action], 1)
    first, _, last = agent.method.models
    with torch.no_grad():
        predicted = agent.method.predict(batch.obs, batch.action)
        for m in range(5):
            hidden = (x @ first.weight[m] + first.bias[m]).relu()
            torch.testing.assert_close(predicted[m], hidden @ last.weight[m] + last.bias[m])
        reward = agent.method.reward(batch, batch_latents(agent, batch, None))
    variance = predicted.var(0, correction=1).mean(1)
    torch.testing.assert_close(reward, variance / variance.std(correction=0))  # of s and the action
    assert predicted.shape == (5, 9, 4)
    assert (predicted[0] - predicted[1]).abs().max() > 0.1


def test_noise_that_no_model_can_predict_is_not_rewarded():
    """s' is noise: the error, which ICM would reward, stays; the disagreement vanishes."""
    agent, generator = small_agent(), torch.Generator().manual_seed(0)
    template = fill_replay().batch(torch.zeros(256, dtype=torch.int64), 1, 1.0)

    def noise():
        draw = lambda: torch.randn(256, 4, generator=generator)  # noqa: E731
        return template._replace(obs=draw(), next_obs=draw())

    batch = noise()
    with torch.no_grad():
        before = agent.method.variance(batch.obs, batch.action).mean()
    train(agent, [batch])
    error = train(agent, (noise() for _ in range(400)))
    with torch.no_grad():
        after = agent.method.variance(batch.obs, batch.action).mean()
    assert error > 0.9  # of a variance of 1
    assert after < 0.03
    assert after < 0.05 * before


def test_the_loss_is_the_squared_error():
    z, action, z_next = points(6, 4), torch.zeros(6, dtype=torch.int64), points(6, 4, seed=1)
    method = small_agent().method
    weight = torch.ones(5, 6)
    weight[2] = 0
    each = (method.predict(z, action) - z_next).square().mean(-1)
    loss, metrics = method.model_loss(z, action, z_next, weight)
    torch.testing.assert_close(loss, each[[0, 1, 3, 4]].mean(1).sum())
    torch.testing.assert_close(metrics["disagreement_loss"], each.mean())
    torch.testing.assert_close(metrics["disagreement_variance"], method.variance(z, action).mean())
    loss.backward()
    gradient = method.models[0].weight.grad
    assert gradient[2].abs().max() == 0
    assert gradient[0].abs().max() > 0
