"""Prioritized sampling: what is drawn, how often, with which weight, and what is never drawn."""

import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent, watch_losses
from tiny_replays import Oracle

from voidrl.config import ReplayConfig
from voidrl.errors import ConfigError
from voidrl.learners.dqn import DQN
from voidrl.replay import priorities as module
from voidrl.replay.priorities import UNIT, Priorities

CPU = torch.device("cpu")
ROOTS = ReplayConfig(priority_exponent=0.5)


def long_tailed(slots, spread=2.0, seed=0, empty=0.0):
    """Priorities that span orders of magnitude, some slots of which are empty."""
    random = torch.Generator().manual_seed(seed)
    made = Priorities(slots, 1.0, (1.0, 1.0), CPU)
    filled = torch.nonzero(torch.rand(slots, generator=random) >= empty).squeeze(1)
    made.update(filled, torch.randn(len(filled), generator=random).mul(spread).exp())
    return made


def of_errors(errors, exponent=1.0, beta=1.0):
    made = Priorities(len(errors), exponent, (beta, beta), CPU)
    made.update(torch.arange(len(errors)), torch.tensor(errors))
    return made


def at(monkeypatch, priorities, targets):
    """The slots drawn where the random numbers fall on these parts of the total."""
    targets = torch.as_tensor(targets, dtype=torch.float64)
    priorities._strata[len(targets)] = torch.zeros(len(targets), dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *size, **options: targets * len(targets))
        return priorities.draw(len(targets))[0]


# What is drawn


def test_draws_have_the_distribution_of_the_priorities(monkeypatch):
    draws = 500_000
    monkeypatch.setattr(module, "BLOCK", 64)
    torch.manual_seed(3)
    priorities = long_tailed(3000, empty=0.2)
    p = priorities.values[:3000] / priorities.values.sum()
    assert p.max() / p[p > 0].min() > 1e4
    batch = 200  # fewer strata than slots: as good as independent
    slots = torch.cat([priorities.draw(batch)[0] for _ in range(draws // batch)])
    counts = slots.bincount(minlength=3000).double()
    assert (counts[p == 0] == 0).all()
    # The rarest together, so that no cell expects less than five draws.
    often = p * draws >= 5
    expected = torch.cat([p[often], p[~often].sum()[None]]) * draws
    observed = torch.cat([counts[often], counts[~often].sum()[None]])
    chi2 = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert freedom > 400
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5
    assert chi2 > freedom / 2, "the draws are random"


def test_a_slot_without_priority_is_not_drawn_on_any_boundary(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    priorities = long_tailed(300, empty=0.7)
    priorities.values[:20] = priorities.values[130:160] = priorities.values[270:] = 0  # whole blocks too
    total, ends = priorities.values.sum(), priorities.values.cumsum(0)
    filled = priorities.values.nonzero().squeeze(1)
    targets = torch.cat([torch.zeros(1), ends / total, torch.ones(1), 1 - 2.0 ** -torch.arange(30, 54)])
    for shift in (-1e-15, 0.0, 1e-15):
        drawn = at(monkeypatch, priorities, (targets + shift).clamp(0, 1))
        assert torch.isin(drawn, filled).all()
    assert at(monkeypatch, priorities, [0.0]) == filled[0]
    assert at(monkeypatch, priorities, [1.0]) == filled[-1]


def test_the_exponent_is_alpha_and_errors_are_bounded():
    assert of_errors([16.0, 4.0, 0.25], exponent=0.5).values[:3].mul(UNIT).tolist() == [4, 2, 0.5]
    broken = of_errors([float("nan"), float("inf"), -1e-7, 0.0, 1.0])
    assert broken.values[[0, 2, 3, 4]].mul(UNIT).tolist() == [UNIT, UNIT, UNIT, 1]
    assert broken.values[1] == broken.highest == 2.0**43  # of 1024 slots: their sum is exact
    slots, weight = broken.draw(50)
    assert slots.max() < 5
    assert torch.isfinite(weight).all()


def test_of_duplicates_the_largest_error_counts_and_old_errors_do_not():
    priorities = of_errors([8.0, 8.0, 8.0])
    priorities.update(torch.tensor([1, 0, 1, 1, 0]), torch.tensor([2.0, 0.5, 3.0, 1.0, 0.25]))
    assert priorities.values[:3].mul(UNIT).tolist() == [0.5, 3, 8]
    assert priorities.highest * UNIT == 8


# Weights


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_equal_priorities_have_weights_of_exactly_one(beta):
    slots, weight = of_errors([0.3] * 2000, 0.7, beta).draw(64)
    assert weight.tolist() == [1.0] * 64
    assert weight.dtype == torch.float32
    assert len(slots.unique()) > 50  # one in each of the strata, which share their boundaries


def test_weights_are_relative_to_the_rarest_of_the_batch():
    priorities = Priorities(2, 0.5, (0.5, 1.0), CPU)
    priorities.update(torch.arange(2), torch.tensor([16.0, 1.0]))  # P = 0.8, 0.2
    for progress, beta in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0), (1.01, 1.0)):
        priorities.set_progress(progress)
        slots, weight = priorities.draw(5)
        assert slots.tolist() == [0, 0, 0, 0, 1]
        assert weight.tolist() == pytest.approx([(1 / 4) ** beta] * 4 + [1])


# In a replay


@pytest.mark.parametrize(("num_envs", "capacity", "stack"), [(1, 9, 1), (3, 40, 4)])
def test_what_can_be_sampled_has_a_priority_and_nothing_else_has(num_envs, capacity, stack):
    """Through several rounds of the ring, with episodes that end in steps, in resets and nowhere."""
    oracle = Oracle(num_envs, capacity, stack, config=ROOTS)
    replay = oracle.replay
    for time in range(6 * replay.rows):
        oracle.step() if time % 17 else oracle.reset()
        starts = set(replay.newest(len(replay)).tolist())
        assert set(replay.priorities.values.nonzero().squeeze(1).tolist()) == starts
        if starts:
            slots, weight = replay.draw(8)
            assert starts >= set(slots.tolist())
            assert oracle.valid() >= set(replay.action[slots].tolist())
            oracle.check(slots, 3, 0.9)
            replay.priorities.update(slots, weight * torch.rand(8))


def test_new_transitions_have_the_highest_priority_so_far():
    oracle = Oracle(2, 50, 1, end=0.0, config=ROOTS)
    oracle.reset()
    oracle.step()
    p = oracle.replay.priorities
    oracle.replay.draw(4)
    assert p.values[:4].mul(UNIT).tolist() == [1, 1, 0, 0]
    p.update(torch.tensor([0, 1]), torch.tensor([9.0, 0.25]))
    oracle.step()
    oracle.replay.draw(4)
    assert p.values[:6].mul(UNIT).tolist() == [3, 0.5, 3, 3, 0, 0]
    p.update(torch.tensor([0, 2, 3]), torch.tensor([0.25, 0.25, 0.25]))
    oracle.step()
    slots = torch.cat([oracle.replay.draw(8)[0] for _ in range(50)])
    assert p.values[:6].mul(UNIT).tolist() == [0.5, 0.5, 0.5, 0.5, 3, 3]
    assert (slots >= 4).double().mean() == pytest.approx(6 / 8)


# In a run


class NoErrors(DQN):
    has_priorities = False


def test_a_learner_without_errors_is_refused():
    with pytest.raises(ConfigError, match=r"priority_exponent = 0\.5 cannot be used with learner .*use 0"):
        make_agent(learner=NoErrors, replay__priority_exponent=0.5)


@pytest.mark.parametrize("learner", ["dqn", "sac", "ddpg"])
def test_an_update_weighs_its_batch_and_stores_its_errors(learner):
    spec = DISCRETE if learner == "dqn" else CONTINUOUS
    agent = make_agent(spec, learner=learner, replay__priority_exponent=0.5)
    replay, weights, share = fill_replay(spec, config=ROOTS), [], torch.rand(16)
    batch = replay.batch(replay.sample(16), 1, 0.9)

    def loss(weight):
        torch.manual_seed(0)
        return next(agent.learner.losses(batch._replace(weight=weight), batch.reward, 0))

    whole, one, other = (loss(weight) for weight in (torch.ones(16), share, 1 - share))
    torch.testing.assert_close(one.value + other.value, whole.value)
    assert torch.equal(one.priority, whole.priority)
    watch_losses(agent, lambda batch, reward: weights.append(batch.weight))
    for index in range(3):
        before = replay.priorities.values.clamp(max=replay.priorities.highest)
        agent.update(replay, index)
        touched = (before != replay.priorities.values).sum()
        assert 0 < touched <= agent.config.learner.batch_size
    assert weights[0].tolist() == [1.0] * 16  # all are new
    assert weights[-1].min() < weights[-1].max() == 1
