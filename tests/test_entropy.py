"""Entropy against analytic values, rewards against brute force, exactness, memory and the running mean."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers import brute_force, points

from voidrl.entropy import RunningMean, knn_distances, particle_entropy, particle_reward, random_distances
from voidrl.errors import ConfigError, NeighborError

# --- k nearest neighbors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m", "d"), [(1, 5, 1), (7, 40, 3), (64, 64, 15), (33, 70, 512)])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_neighbors_equal_brute_force(n, m, d, exclude_self):
    pool = points(m, d)
    found = knn_distances(pool[:n], pool, 4, exclude_self=exclude_self)
    assert found.dtype == torch.float32
    assert found.shape == (n, 4)
    torch.testing.assert_close(
        found.double(), brute_force(pool[:n], pool, 4, exclude_self), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("d", [5, 64])
def test_exact_far_from_the_origin(d):
    centers = torch.nn.functional.normalize(points(8, d), dim=1) * 1e3  # far apart, so no centring helps
    z = (centers[:, None] + 1e-4 * points(8, 6, d, seed=1)).flatten(0, 1)  # 6 points within 1e-4 of each
    found = knn_distances(z, z, 5, exclude_self=True)
    expected = brute_force(z, z, 5, exclude_self=True)
    assert expected.max() < 1e-2
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    by_matmul = torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist")
    assert by_matmul.diagonal().max() > 1e-2, "the trap this test guards against"


def test_a_query_that_is_nan_has_no_distances_and_is_nobodys_neighbor():
    z = points(6, 2)
    z[3, 1] = math.nan
    found = knn_distances(z, z, 4, exclude_self=True)
    assert found[3].isnan().all()
    others = torch.arange(6) != 3
    torch.testing.assert_close(found[others], knn_distances(z[others], z[others], 4, exclude_self=True))


# --- random neighbors --------------------------------------------------------------------------------------


def test_random_neighbors_are_never_self_and_never_twice():
    z = torch.arange(6.0)[:, None] ** 2  # all differences of two points name the pair
    for _ in range(50):
        found = random_distances(z, z, 5, exclude_self=True)  # all 5 others, so every one exactly once
        torch.testing.assert_close(found.double(), brute_force(z, z, 5, exclude_self=True))
    assert (random_distances(z, z, 2, exclude_self=True) > 0).all()
    assert (random_distances(z[:3], z, 6) == 0).sum() == 3  # without exclude_self the point is one of all 6


# --- entropy ------------------------------------------------------------------------------------------------


CORRELATED = torch.tensor([[2.0, 0.9, 0.3], [0.9, 1.0, -0.2], [0.3, -0.2, 0.5]])


@pytest.mark.parametrize(
    ("covariance", "tolerance"),
    [(torch.eye(1), 0.05), (CORRELATED, 0.05), (torch.eye(5), 0.1)],
    ids=["1d", "3d-correlated", "5d"],
)
def test_entropy_of_gaussians(covariance, tolerance):
    z = points(6000, len(covariance)) @ torch.linalg.cholesky(covariance).T
    d = len(covariance)
    expected = 0.5 * (d * math.log(2 * math.pi * math.e) + torch.logdet(covariance.double()).item())
    assert particle_entropy(z).item() == pytest.approx(expected, abs=tolerance)


def test_entropy_by_hand():
    # k = 1 on a line: radii 1, 1, 2; v = 2r; log n − ψ(1) + mean log v, and −ψ(1) is Euler's constant
    expected = math.log(3) + np.euler_gamma + math.log(2 * 2 * 4) / 3
    found = particle_entropy(torch.tensor([[0.0], [1.0], [3.0]]), k=1)
    assert found.dtype == torch.float64
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, abs=1e-7)


def test_copies_lower_the_entropy_but_keep_it_finite():
    z = points(50, 2)
    z[:4] = z[0]  # each of the four has k = 3 copies; the float32 spacing stands in for their radius
    radii = brute_force(z, z, 3, exclude_self=True)[:, -1]
    radii[:4] = 2**-23 * z[0].double().norm()
    psi = 1 + 1 / 2 - np.euler_gamma
    expected = math.log(50) - psi + (math.pi * radii**2).log().mean().item()
    assert particle_entropy(z, k=3).item() == pytest.approx(expected, abs=1e-6)
    assert particle_entropy(torch.zeros(9, 2)).isfinite()
    assert particle_entropy(torch.ones(9, 2)) < -20
    z[7] = math.nan
    assert particle_entropy(z).isnan()


# --- reward -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_reward_equals_brute_force_for_every_option(c):
    z, others, k = points(24, 6), points(40, 6, seed=1), 5
    for particles, include_self, average in itertools.product((None, others), (False, True), (False, True)):
        pool = z if particles is None else particles
        distances = brute_force(z, pool, k - include_self, exclude_self=particles is None)
        if include_self:
            distances = torch.cat([torch.zeros(24, 1), distances], dim=1)
        expected = (c + (distances.mean(dim=1) if average else distances[:, -1])).log()
        options = {"k": k, "c": c, "include_self": include_self, "average": average}
        found = particle_reward(z, particles=particles, **options)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [knn_distances, random_distances])
def test_errors_name_the_value_what_there_is_and_the_remedy(search):
    z = points(8, 3)
    for error, sentence, queries, particles, k, exclude_self in (
        (NeighborError, r"k = 0 neighbors .* 8 particles.* expected 1 to 8", z, z, 0, False),
        (NeighborError, r"k = 9 neighbors .* 8 particles.* larger batch or pool", z, z, 9, False),
        (NeighborError, r"k = 8 neighbors .* 7 other particles.* expected 1 to 7", z, z, 8, True),
        (ConfigError, r"queries \(8, 3\) and particles \(8, 2\)", z, z[:, :2], 1, False),
        (ConfigError, r"queries \(3,\) and particles \(8, 3\)", z[0], z, 1, False),
        (ConfigError, r"starts with the queries.*\(8, 3\) and particles \(4, 3\)", z, z[:4], 1, True),
    ):
        with pytest.raises(error, match=sentence):
            search(queries, particles, k, exclude_self=exclude_self)


# --- running mean -------------------------------------------------------------------------------------------


def test_running_mean_equals_numpy():
    batches = [np.random.default_rng(i).gamma(2.0, size=n) for i, n in enumerate((1, 100, 7, 64))]
    running = RunningMean()
    for batch in batches:
        running.update(torch.from_numpy(batch).float())
    running.update(torch.empty(0))
    expected = np.concatenate(batches).mean()
    assert running.mean.dtype == torch.float32
    assert running.mean.item() == pytest.approx(expected, rel=1e-6)
    assert running.count.item() == 172
    torch.testing.assert_close(running(torch.tensor([expected, 0.0])).float(), torch.tensor([1.0, 0.0]))


def test_exponential_mean_is_bias_corrected():
    running, ema = RunningMean(momentum=0.9), 0.0
    for step, x in enumerate([5.0, 1.0, 2.0, 8.0], start=1):
        running.update(torch.full((3,), x))
        ema = 0.9 * ema + 0.1 * x  # Adam's form: divide by 1 − βᵗ
        assert running.mean.item() == pytest.approx(ema / (1 - 0.9**step), rel=1e-6)


def test_running_mean_before_and_without_signal():
    running, x = RunningMean(), torch.tensor([1.0, 2.0])
    assert torch.equal(running(x), x)
    running.update(torch.zeros(5))
    assert torch.equal(running(torch.zeros(2)), torch.zeros(2))
    assert running(x.bfloat16()).dtype == torch.bfloat16
