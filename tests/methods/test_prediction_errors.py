"""RND, ICM, Disagreement: the reward is large where predictions are bad, and only there."""

import pytest
import torch
from hand_batches import minimize
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent, moved, points, snapshot

from voidrl.agent.rewards import batch_latents
from voidrl.entropy import RunningMoments


def test_moments_are_those_of_everything_seen():
    moments = RunningMoments((3,))
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1]) + 7
    for part in x.split([1, 99, 400]):
        moments.update(part)
    moments.update(x[:0])
    torch.testing.assert_close(moments.mean, x.mean(0))
    torch.testing.assert_close(moments.std, x.std(0, correction=0))
    torch.testing.assert_close(moments.standardize(x).std(0, correction=0), torch.ones(3))


def test_the_error_on_visited_states_falls_below_a_fifth_of_that_on_unseen_ones():
    """By updates of the agent from a replay that holds the visited states alone."""
    options = {"method__hidden_dim": 64, "method__rep_dim": 64, "method__learning_rate": 1e-3}
    options |= {"learner__batch_size": 64}
    agent, replay = make_agent(method="rnd", **options), fill_replay()
    replay.frames.copy_(0.5 * replay.frames + 1)  # around (1, 1, 1, 1)
    visited = replay.batch(replay.newest(100), 1, 1.0).next_obs
    unseen = visited - 2
    agent.method.observe(torch.cat([visited, unseen]), torch.zeros(2 * len(visited), 0), None, None)
    before = agent.method.error(visited).mean() / agent.method.error(unseen).mean()
    target = snapshot(agent.method.target.state_dict())
    for _ in range(200):
        agent.update(replay)
    after = agent.method.error(visited).mean() / agent.method.error(unseen).mean()
    assert before > 0.5
    assert after < 0.2
    assert not moved(target, agent.method.target.state_dict())


def test_the_reward_is_the_error_on_the_next_observation_standardized_and_clipped():
    agent, replay = make_agent(method="rnd", method__hidden_dim=16, method__rep_dim=8), fill_replay()
    method, batch = agent.method, replay.batch(replay.sample(64), 1, 1.0)
    visited = 2 + 3 * points(500, 4)
    method.observe(visited, torch.zeros(500, 0), None, None)
    batch.next_obs[:8] *= 100
    x = (batch.next_obs - visited.mean(0)) / visited.std(0, correction=0)
    assert x.abs().max() > 10
    x = x.clamp(-5, 5)
    with torch.no_grad():
        error = (method.predictor(x) - method.target(x)).square().mean(1)
        (loss,) = method.losses(batch, None)
        torch.testing.assert_close(loss.value, error.mean())
        torch.testing.assert_close(method.reward(batch, None), error / error.std(correction=0))


def test_the_reward_is_the_representations_forward_error():
    for spec in (DISCRETE, CONTINUOUS):
        agent, replay = make_agent(spec, method="icm"), fill_replay(spec)
        assert agent.config.representation.name == "icm"
        batch = replay.batch(replay.sample(9), 1, 1.0)
        f = agent.representation
        with torch.no_grad():
            reward = agent.method.reward(batch, batch_latents(agent, batch, None))
            z, z_next = f.encode(batch.obs), f.encode(batch.next_obs)
            action = batch.action if not spec.discrete else torch.eye(3)[batch.action]
            predicted = f.forward_net(torch.cat([z, action], 1))
        torch.testing.assert_close(reward, torch.log(1 + (predicted - z_next).norm(dim=1)))
        assert not list(agent.method.parameters())
        assert set(agent.optimizers) >= {"representation", "critic"}


def small_agent(spec=DISCRETE):
    small = {"method__hidden_dim": 32, "method__learning_rate": 3e-3, "learner__batch_size": 64}
    return make_agent(spec, method="disagreement", **small)


def train_models(agent, batches):
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
    train_models(agent, [batch])
    error = train_models(agent, (noise() for _ in range(400)))
    with torch.no_grad():
        after = agent.method.variance(batch.obs, batch.action).mean()
    assert error > 0.9  # of a variance of 1
    assert after < 0.03
    assert after < 0.05 * before
