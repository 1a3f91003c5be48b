"""RE3: the distance to the k-th nearest state of the replay, in a space that never moves."""

import pytest
import torch
from helpers import (
    CONTINUOUS,
    DISCRETE,
    PIXELS,
    PIXELS_CONTINUOUS,
    brute_force,
    fill_replay,
    make_agent,
    moved,
    points,
    snapshot,
    watch_losses,
)

from voidrl.errors import ConfigError
from voidrl.methods.base import Latents


def reward_of(method, z, pool=None):
    return method.reward(None, Latents(lambda: None, lambda: z, pool))


@pytest.mark.parametrize(("k", "average"), [(3, False), (1, False), (4, True)])
def test_the_reward_equals_brute_force_on_the_pool(k, average):
    options = {"method__k": k, "method__average": average, "method__pool": 50, "method__normalize": "none"}
    z, particles, asked = points(8, 4), points(50, 4, seed=1), []
    reward = reward_of(make_agent(method="re3", **options).method, z, lambda n: asked.append(n) or particles)
    nearest = brute_force(z, particles, k)
    expected = (1 + (nearest.mean(1) if average else nearest[:, -1])).log()
    torch.testing.assert_close(reward.double(), expected, rtol=1e-5, atol=1e-6)
    assert asked == [50]


def test_without_a_pool_a_state_is_not_its_own_neighbor():
    method = make_agent(method="re3", method__pool=0, method__normalize="none").method
    z = points(20, 4)
    expected = brute_force(z, z, 3, exclude_self=True)[:, -1].log1p()
    torch.testing.assert_close(reward_of(method, z).double(), expected, rtol=1e-5, atol=1e-6)


def test_rewards_do_not_depend_on_the_unit_of_distances():
    """Divided by the standard deviation, and not by the variance, of all distances so far."""
    z = [points(30, 4, seed=seed) * scale for seed, scale in enumerate((1.0, 3.0, 0.5))]
    one, other = (make_agent(method="re3", method__pool=0).method for _ in range(2))
    distances = []
    for batch in z:
        distances.append(brute_force(batch, batch, 3, exclude_self=True)[:, -1])
        expected = (1 + distances[-1] / torch.cat(distances).std(correction=0)).log()
        reward = reward_of(one, batch)
        torch.testing.assert_close(reward.double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(reward_of(other, 1000 * batch), reward, rtol=1e-4, atol=1e-5)
    assert one.metrics()["re3_distance_mean"].item() == pytest.approx(torch.cat(distances).mean().item())
    assert one.metrics()["re3_distance_std"].item() == pytest.approx(
        torch.cat(distances).std(correction=0).item(), rel=1e-5
    )


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, PIXELS, PIXELS_CONTINUOUS])
def test_updates_leave_f_as_it_was(spec):
    agent, replay = make_agent(spec, method="re3", method__pool=32), fill_replay(spec)
    assert agent.config.representation.name == "fixed"
    obs = replay.observations(replay.starts[:4])
    before, z = snapshot(agent.representation.state_dict()), agent.representation.encode(obs)
    trained = snapshot(dict(agent.learner.named_parameters()))
    for i in range(4):
        agent.update(replay, i % agent.learner.period)
    assert moved(trained, dict(agent.learner.named_parameters()))
    assert not moved(before, agent.representation.state_dict())
    assert torch.equal(agent.representation.encode(obs), z)
    assert "method" not in agent.optimizers
    assert "representation" not in agent.optimizers


def test_a_random_network_keeps_far_vectors_far():
    """What distances in f's space have to do with states: neighbors stay neighbors."""
    agent = make_agent(method="re3", representation__encoder__feature_dim=50)
    near = points(40, 4)
    far = 6 + points(40, 4, seed=1)
    z = agent.representation.encode(torch.cat([near, far])).detach()
    nearest = torch.cdist(z, z).fill_diagonal_(torch.inf).argmin(1)
    assert (nearest[:40] < 40).all()
    assert (nearest[40:] >= 40).all()


def test_a_rare_state_earns_more_than_a_common_one():
    agent, replay = make_agent(method="re3", method__pool=64, learner__batch_size=64), fill_replay()
    replay.frames.mul_(0.05)
    replay.frames[::10] *= 20  # one state in ten lies apart from the others
    earned = {True: [], False: []}

    def look(batch, reward):
        rare = batch.next_obs.norm(dim=1) > 0.5
        for kind in earned:
            earned[kind].append(reward[rare == kind])

    watch_losses(agent, look)
    for _ in range(10):
        agent.update(replay)
    assert torch.cat(earned[True]).mean() > 2 * torch.cat(earned[False]).mean()


def test_more_neighbors_than_states_are_refused():
    with pytest.raises(ConfigError, match=r"method\.k = 9 cannot be used with method\.pool = 8: .* such as"):
        make_agent(method="re3", method__k=9, method__pool=8)
    with pytest.raises(ConfigError, match=r"method\.k = 16 cannot be used with learner\.batch_size = 16"):
        make_agent(method="re3", method__k=16, method__pool=0)
