"""Measures of rewards against values by hand, and planted rewards."""

import numpy as np
import pytest

from voidrl.probing.reward import (
    cells,
    dependence,
    eta_squared,
    explained_share,
    noise_ratio,
    ranks,
    rarity_columns,
    spearman,
    survival_share,
)

N = 6000


@pytest.fixture
def walks():
    """Two random walks on 20 places that know nothing of each other: the player's and the enemy's."""
    rng = np.random.default_rng(0)
    steps = rng.choice([-1, 0, 1], (N, 2), p=[0.35, 0.35, 0.3])
    place = np.zeros((N, 2))
    for t in range(1, N):
        place[t] = (place[t - 1] + steps[t]).clip(0, 19)
    return place


def test_ranks_and_spearman_with_ties_by_hand():
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]
    # ranks (1, 2.5, 2.5, 4) and (1, 3, 2, 4): covariance 4.5, norms √4.5 and √5
    assert spearman(np.array([1, 2, 2, 3]), np.array([10, 30, 20, 40])) == pytest.approx(
        4.5 / (4.5 * 5) ** 0.5
    )
    assert spearman(np.arange(5), -(np.arange(5) ** 3)) == pytest.approx(-1)
    assert np.isnan(spearman(np.ones(4), np.arange(4)))


def test_rarity_by_hand():
    found = cells(np.array([0.0] * 24 + [1.0] * 8)[:, None])
    assert (found.count, found.additive) == (2, False)
    assert found.rarity()[[0, -1]] == pytest.approx([-np.log(0.75), -np.log(0.25)])


def test_many_variables_have_cells_of_their_own():
    rng = np.random.default_rng(0)
    found = cells(rng.normal(size=(400, 6)))
    assert found.additive
    own = np.mean([cells(column).rarity() for column in rng.normal(size=(1, 400, 1))])
    assert found.rarity().mean() == pytest.approx(own, rel=0.2)


def test_positions_come_first_among_what_is_controllable():
    names = ["player_x", "player_y", "ammo", "enemy_x"]
    assert rarity_columns(names, [True, True, True, False]) == [0, 1]
    assert rarity_columns(names, [False, False, True, False]) == [2]
    physics = ["rootz", "hinge", "rootz_velocity", "energy", "index"]  # no positions but the first
    assert rarity_columns(physics, [True] * 5) == [0]
    assert rarity_columns(physics[1:], [True] * 4) == [0, 1, 2, 3]


def test_a_reward_for_rare_places_of_the_player(walks):
    mine = cells(walks[:, :1])
    found = dependence(mine.rarity(), mine)
    assert found.correlation == pytest.approx(1)
    assert found.mean_correlation == pytest.approx(1)
    assert found.share == pytest.approx(1)
    assert found.effect > 1


def test_a_reward_for_places_of_the_enemy(walks):
    mine, other = cells(walks[:, :1]), cells(walks[:, 1:])
    found = dependence(other.rarity(), mine)
    # Both walks are slow, so that η² is far above that of independent samples, which is (cells − 1) / N.
    assert eta_squared(other.rarity(), mine) > 4 * (mine.count - 1) / N
    assert found.share == pytest.approx(0, abs=0.05)
    assert abs(found.correlation) < 0.15


def test_noise_hides_a_dependence_from_correlations_but_not_from_means(walks):
    mine = cells(walks[:, :1])
    noisy = mine.rarity() + 5 * np.random.default_rng(0).normal(size=N)
    found = dependence(noisy, mine)
    assert found.correlation < 0.5 < 0.8 < found.mean_correlation
    share = mine.rarity().var() / (mine.rarity().var() + 25)
    assert found.share == pytest.approx(share, abs=0.03)


def test_additive_cells_explain_sums_of_what_each_variable_pays():
    rng = np.random.default_rng(0)
    state = rng.integers(0, 6, (N, 5)).astype(float)
    where = cells(state)
    assert where.additive
    assert eta_squared((state**2).sum(1), where) == pytest.approx(1)
    assert explained_share(rng.normal(size=N), where) == pytest.approx(0, abs=0.01)


def test_slow_rewards_that_know_nothing_explain_nothing(walks):
    """States that follow each other share a cell and a stretch of any slow reward, so η² is above 0."""
    where, uncorrected, corrected = cells(walks), [], []
    for seed in range(1, 6):
        noise = np.random.default_rng(seed).normal(size=N + 50).cumsum()
        slow = noise[50:] - noise[:-50]
        uncorrected.append(eta_squared(slow, where))
        corrected.append(explained_share(slow, where))
    assert np.mean(uncorrected) > 0.08
    assert abs(np.mean(corrected)) < 0.04


def test_a_constant_reward_says_to_survive():
    episode = np.repeat([0, 1, 2], [5, 9, 30])
    ends = np.diff(episode, append=-1) != 0
    assert survival_share(np.full(44, 2.0), ends, episode, 0.9) == pytest.approx(1)
    rng = np.random.default_rng(0)
    centered = survival_share(rng.normal(size=44), ends, episode, 0.9)
    assert centered < 0.5


def test_survival_by_hand():
    """Returns 1 + γ · 3, 3 and 2 of rewards (1, 3 | 2), steps left 1.5, 1 and 1 at γ = ½."""
    found = survival_share(
        np.array([1.0, 3.0, 2.0]), np.array([False, True, True]), np.array([0, 0, 1]), discount=0.5
    )
    assert found == pytest.approx(np.corrcoef([2.5, 3, 2], [1.5, 1, 1])[0, 1] ** 2)


def test_where_nothing_ends_survival_plays_no_part():
    assert np.isnan(survival_share(np.arange(100.0), np.zeros(100, bool), np.zeros(100), 0.9))


def test_noise_between_batches():
    states = np.random.default_rng(0).normal(size=2000)
    assert noise_ratio(np.stack([states] * 3)) == 0
    noise = np.random.default_rng(1).normal(size=(4, 2000))
    assert noise_ratio(states + 0.5 * noise) == pytest.approx(0.5, rel=0.1)
    assert noise_ratio(noise) > 3
