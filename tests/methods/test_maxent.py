"""MaxEnt: visits become even, by a reward that is frozen for an epoch."""

import math

import pytest
import torch
from hand_batches import batch_of
from helpers import fill_replay, make_agent

from voidrl.types import EnvSpec

NO_SKILL = torch.zeros(0)


def visited_10_40_50(**options):
    """A method that has seen three states this often, in an epoch of 100 steps, and a fourth never."""
    small = {"method__epoch_steps": 100, "method__table_size": 2**12}
    method = make_agent(method="maxent", **small, **options).method
    states = fill_replay().batch(torch.tensor([3, 20, 40, 60]), 1, 1.0).next_obs
    method.observe(states[[0] * 10 + [1] * 40 + [2] * 50], NO_SKILL, None, None)
    return method, states


def test_the_reward_is_the_inverse_of_the_share_of_visits():
    method, states = visited_10_40_50(method__epsilon=0.1)
    expected = 0.1 / torch.tensor([0.2, 0.5, 0.6, 0.1])
    torch.testing.assert_close(method.reward(batch_of(obs=states), None), expected)
    method, _ = visited_10_40_50()
    epsilon = 3**-0.5  # three codes have been visited
    expected = torch.tensor([epsilon / (p + epsilon) for p in (0.1, 0.4, 0.5, 0)])
    torch.testing.assert_close(method.reward(batch_of(obs=states), None), expected)


def test_shares_are_those_at_the_beginning_of_the_epoch():
    method, states = visited_10_40_50()
    before = method.reward(batch_of(obs=states), None)
    for steps in (100, 150):
        method.set_progress(steps, 10**6)
        method.observe(states[[3] * 49], NO_SKILL, None, None)
        assert torch.equal(method.reward(batch_of(obs=states), None), before)
    method.set_progress(199, 10**6)
    method.observe(states[[3] * 2], NO_SKILL, None, None)  # steps 200 and 201: the second epoch is over
    after = method.reward(batch_of(obs=states), None)
    assert method.frozen.total == 200
    assert after[3] < before[3]
    torch.testing.assert_close(after, torch.tensor([0.5 / (p + 0.5) for p in (0.05, 0.2, 0.25, 0.5)]))


def test_on_a_ring_visits_become_even():
    """A ring of 16 states: back to state 0, or one step on. Random actions rarely leave the first four.

    In every epoch value iteration finds the best policy for the frozen reward.
    """
    n, epoch = 16, 128
    spec = EnvSpec((n,), False, 1, num_actions=2, raw_shape=(n,))
    options = {"method__epoch_steps": epoch, "method__table_size": 2**12}
    method = make_agent(spec, method="maxent", **options).method
    states, generator = torch.eye(n), torch.Generator().manual_seed(0)
    after = torch.stack([torch.zeros(n, dtype=torch.int64), (torch.arange(n) + 1) % n], 1)  # (n, 2)
    policy, at, entropy = None, 0, []
    for number in range(30):
        path = []
        for _ in range(epoch):
            action = torch.randint(2, (), generator=generator) if policy is None else policy[at]
            path.append(at := int(after[at, action]))
        method.set_progress(number * epoch, 10**6)
        method.observe(states[path], NO_SKILL, None, None)
        earned, value = method.reward(batch_of(obs=states), None), torch.zeros(n)
        for _ in range(50):
            q = (earned + 0.9 * value)[after]
            value = q.max(1).values
        policy = q.argmax(1)
        entropy.append(method.table.entropy.item())
    assert method.table.distinct == n
    assert entropy[0] < 0.6 * math.log(n)
    assert entropy[-1] == pytest.approx(math.log(n), rel=0.02)
    assert entropy[-1] > entropy[5] > entropy[0]
