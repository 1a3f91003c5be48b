"""Linear probes against values and planted features."""

import numpy as np
import pytest

from voidrl.probing.linear import f1, logistic_f1, r2, reward_f1, ridge_r2, split_rows

N = 1500
EPISODE = np.arange(N) // 50


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_features_that_know_nothing_score_nothing(rng):
    """With 150 features for 400 steps, a penalty chosen on fitted steps would be far too small."""
    x, y = rng.normal(size=(400, 150)), rng.normal(size=(400, 3))
    found = ridge_r2(x, y, split_rows(np.arange(400) // 20))
    assert (np.abs(found) < 0.1).all()


def test_r2_by_hand():
    truth = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    predicted = np.array([[1.0, 5.0], [2.0, 4.0], [4.0, 5.0]])
    found = r2(truth, predicted)
    assert found[0] == pytest.approx(1 - 1 / 2)
    assert np.isnan(found[1])  # constant


def test_no_episode_is_in_two_parts_of_a_split():
    split = split_rows(EPISODE, seed=3)
    parts = [set(EPISODE[rows]) for rows in (split.fit, split.validation, split.test)]
    assert split.by == "episodes"
    assert sum(map(len, parts)) == len(set.union(*parts)) == 30
    assert len(split.test) == pytest.approx(0.3 * N, abs=50)


def test_few_episodes_are_cut_into_blocks_of_consecutive_steps():
    split = split_rows(np.zeros(320, int))
    assert split.by == "blocks"
    assert len(split.fit) + len(split.validation) + len(split.test) == 320
    assert all(len(block) == 10 for block in np.split(split.test, len(split.test) // 10))
    assert (np.diff(split.test) != 1).sum() < len(split.test) // 10


def test_features_that_contain_a_variable_have_r2_of_1_and_others_of_0(rng):
    state = rng.normal(size=(N, 3))
    z = np.stack([state[:, 0] + 3 * state[:, 1], state[:, 1], rng.normal(size=N)], 1)
    found = ridge_r2(z, np.c_[state, np.ones(N)], split_rows(EPISODE))
    assert found[:2] == pytest.approx([1, 1], abs=0.01)
    assert found[2] == pytest.approx(0, abs=0.05)
    assert np.isnan(found[3])


def test_f1_by_hand():
    truth, predicted = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert f1(truth, predicted, 1) == pytest.approx(2 / 3)  # precision 2/3, recall 2/3
    assert f1(truth, predicted, 0) == pytest.approx(1 / 2)
    assert f1(truth, predicted, 2) == 0


def test_macro_f1_of_planted_classes(rng):
    kind, split = rng.integers(0, 3, 500), split_rows(EPISODE[:500])
    z = np.eye(3)[kind] + 0.05 * rng.normal(size=(500, 3))
    seen = logistic_f1(z, kind, split)
    blind = logistic_f1(rng.normal(size=(500, 3)), kind, split)
    assert seen.mean > 0.98
    assert blind.mean < 0.48
    assert blind.chance == pytest.approx(1 / 2, abs=0.02)  # of predicting one of three alike classes


def test_rare_rewards_are_found_where_the_features_have_them(rng):
    """2 % of steps are rewarded and 3 % punished; z of s' shows it, z of s does not."""
    sign = rng.choice([-1, 0, 1], N, p=[0.03, 0.95, 0.02])
    z, shows = rng.normal(size=(2, N, 4))
    shows[:, 0] += 8 * sign
    split = split_rows(EPISODE)
    seen = reward_f1(z, shows, 10.0 * sign, split)
    assert seen.mean > 0.9
    blind = reward_f1(z, z, sign, split)
    assert blind.mean < 0.2
    assert reward_f1(z, z, np.zeros(N), split) is None
