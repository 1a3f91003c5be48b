"""APT's reward inside the agent: of f(s'), on the declared scale, summed over n steps; and RE3's."""

import numpy as np
import pytest
import torch
from hand_batches import latents_of
from helpers import brute_force, fill_replay, make_agent, points, watch_losses

from voidrl.agent.rewards import batch_latents, encoded_pool
from voidrl.entropy import particle_reward
from voidrl.presets.presets import preset_values


def rewards_and_raw(agent, replay, raw, updates=3):
    """The rewards of each update, and `raw(z, z_next)` at the same moment."""
    given, expected = [], []

    def look(batch, reward):
        with torch.no_grad():
            z, z_next = agent.representation.encode(batch.obs), agent.representation.encode(batch.next_obs)
        given.append(reward.clone())
        expected.append(raw(z, z_next))

    watch_losses(agent, look)
    for i in range(updates):
        agent.update(replay, i % agent.learner.period)
    return given, expected


@pytest.mark.parametrize("representation", ["simclr", "learner"])
def test_the_reward_is_that_of_f_of_the_next_state_over_its_running_mean(representation):
    agent, replay = make_agent(method__k=3, representation=representation), fill_replay()
    given, raw = rewards_and_raw(agent, replay, lambda z, z_next: particle_reward(z_next, k=3))
    for i, reward in enumerate(given):
        torch.testing.assert_close(reward, raw[i] / torch.cat(raw[: i + 1]).mean())


def nearest(z, k):
    """(B, k): distances to the k nearest, of which the particle itself is the first, in NumPy."""
    z = z.double().numpy()
    return np.sort(np.sqrt(((z[:, None] - z[None]) ** 2).sum(-1)), 1)[:, :k]


def urlb_reward(batches, k=12, clip=1e-4):
    """The rewards of URLB's code for the last of several minibatches."""
    seen = [nearest(z, k) for z in batches]
    return np.log(1 + np.maximum(seen[-1] / np.mean(seen) - clip, 0).mean(1))


@pytest.mark.parametrize("preset", ["urlb-states", "urlb-pixels"])
def test_the_reward_of_the_urlb_presets_is_that_of_urlbs_code(preset):
    method = make_agent(method=preset_values(preset)["method"]).method
    torch.manual_seed(0)
    batches = [scale * torch.randn(40, 6) for scale in (1.0, 3.0, 0.5)]
    for i, z in enumerate(batches):
        reward = method.reward(None, latents_of(z)).double().numpy()  # of s, and not of s'
        exact = urlb_reward(batches[: i + 1], clip=0.0)
        np.testing.assert_allclose(reward, exact, rtol=1e-5)
        # The 1e-4 that is subtracted from each distance there is left out here.
        np.testing.assert_allclose(reward, urlb_reward(batches[: i + 1]), atol=1e-4)


def authors_reward(batches, k, clip=0.0):
    """The rewards of the authors' Atari code for the last of several minibatches."""
    seen = [nearest(z, k)[:, -1] for z in batches]  # the k-th alone
    return np.log(1 + np.maximum(seen[-1] / np.var(seen) - clip, 0))


def test_distances_divided_by_their_running_variance():
    options = {"normalize": "distance_variance", "k": 4, "average": False, "include_self": True}
    method = make_agent(method={"name": "apt", **options}).method
    torch.manual_seed(0)
    batches = [scale * torch.randn(40, 6) for scale in (1.0, 3.0, 0.5)]
    for i, z in enumerate(batches):
        reward = method.reward(None, latents_of(None, z)).double().numpy()
        np.testing.assert_allclose(reward, authors_reward(batches[: i + 1], 4), rtol=1e-5)
        # The 5e-4 that is subtracted from each distance there is left out here.
        np.testing.assert_allclose(reward, authors_reward(batches[: i + 1], 4, 5e-4), atol=5e-4)
    mean, variance = (method.metrics()[f"particle_{name}"].item() for name in ("mean", "variance"))
    assert mean > 0 < variance
    assert "particle_variance" not in make_agent().method.metrics()


def test_the_pool_is_drawn_from_the_replay():
    agent, replay = make_agent(method__pool=40, representation="identity"), fill_replay()
    batch = replay.batch(replay.sample(3), 1, 1.0)
    stored = replay.observations(replay.starts[: len(replay)])
    drawn = batch_latents(agent, batch, encoded_pool(agent, replay)).pool(40)
    assert drawn.shape == (40, 4)
    assert all((stored == row).all(1).any() for row in drawn)


@pytest.mark.parametrize("k", [3, 1])
def test_the_reward_equals_brute_force_on_the_pool(k):
    z, particles, asked = points(8, 4), points(50, 4, seed=1), []
    method = make_agent(method="re3", method__k=k, method__pool=50).method
    reward = method.reward(None, latents_of(None, z, lambda n: asked.append(n) or particles))
    distance = brute_force(z, particles, k)[:, -1]
    expected = (distance / distance.std(correction=0)).log1p()
    torch.testing.assert_close(reward.double(), expected, rtol=1e-5, atol=1e-6)
    assert asked == [50]
