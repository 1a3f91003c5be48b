"""RE3: the distance to the k-th nearest state of the replay, in a space that never moves."""

import pytest
import torch
from hand_batches import latents_of
from helpers import (
    brute_force,
    make_agent,
    points,
)


@pytest.mark.parametrize("k", [3, 1])
def test_the_reward_equals_brute_force_on_the_pool(k):
    z, particles, asked = points(8, 4), points(50, 4, seed=1), []
    method = make_agent(method="re3", method__k=k, method__pool=50).method
    reward = method.reward(None, latents_of(None, z, lambda n: asked.append(n) or particles))
    distance = brute_force(z, particles, k)[:, -1]
    expected = (distance / distance.std(correction=0)).log1p()
    torch.testing.assert_close(reward.double(), expected, rtol=1e-5, atol=1e-6)
    assert asked == [50]


def test_rewards_do_not_depend_on_the_unit_of_distances():
    """Divided by the standard deviation, and not by the variance, of all distances so far."""
    z = [points(30, 4, seed=seed) * scale for seed, scale in enumerate((1.0, 3.0, 0.5))]
    one, other = (make_agent(method="re3", method__pool=0).method for _ in range(2))
    distances = []
    for batch in z:
        distances.append(brute_force(batch, batch, 3, exclude_self=True)[:, -1])
        expected = (1 + distances[-1] / torch.cat(distances).std(correction=0)).log()
        reward = one.reward(None, latents_of(None, batch))
        torch.testing.assert_close(reward.double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            other.reward(None, latents_of(None, 1000 * batch)), reward, rtol=1e-4, atol=1e-5
        )
    assert one.metrics()["re3_distance_mean"].item() == pytest.approx(torch.cat(distances).mean().item())
    assert one.metrics()["re3_distance_std"].item() == pytest.approx(
        torch.cat(distances).std(correction=0).item(), rel=1e-5
    )
