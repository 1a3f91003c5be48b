"""MaxEnt: visits become even, by a reward that is frozen for an epoch."""

import math

import pytest
import torch
from helpers import DISCRETE, fill_replay, make_agent
from tiny_runs import Walk, assert_same_run, tiny
from voidrl.agent.rewards import batch_latents, encoded_pool

import voidrl
from voidrl.errors import ConfigError
from voidrl.types import Batch, EnvSpec

NO_SKILL = torch.zeros(0)


def reached(states):
    """A batch of transitions into these states, of which nothing else is read."""
    nothing = torch.zeros(len(states))
    skill = note = nothing[:, None]
    return Batch(states, nothing, nothing, nothing, states, skill, nothing, nothing, note)


def visited_10_40_50(**options):
    """A method that has seen three states this often, in an epoch of 100 steps, and a fourth never."""
    small = {"method__epoch_steps": 100, "method__table_size": 2**12, "method__normalize": False}
    method = make_agent(method="maxent", **small, **options).method
    states = fill_replay().batch(torch.tensor([3, 20, 40, 60]), 1, 1.0).next_obs
    method.observe(states[[0] * 10 + [1] * 40 + [2] * 50], NO_SKILL, None)
    return method, states


def test_the_reward_is_the_inverse_of_the_share_of_visits():
    method, states = visited_10_40_50(method__epsilon=0.1)
    expected = torch.tensor([1 / 0.2, 1 / 0.5, 1 / 0.6, 1 / 0.1])
    torch.testing.assert_close(method.reward(reached(states), None), expected)
    method, _ = visited_10_40_50()
    epsilon = 3**-0.5  # three codes have been visited
    expected = torch.tensor([1 / (p + epsilon) for p in (0.1, 0.4, 0.5, 0)])
    torch.testing.assert_close(method.reward(reached(states), None), expected)
    method, _ = visited_10_40_50(method__reward="log")
    expected = -torch.tensor([11 / 101, 41 / 101, 51 / 101, 1 / 101]).log()
    torch.testing.assert_close(method.reward(reached(states), None), expected)


@pytest.mark.parametrize("reward", ["inverse", "log"])
def test_normalized_a_new_state_earns_one_and_the_others_less_in_proportion(reward):
    method, states = visited_10_40_50(method__reward=reward)
    plain = method.reward(reached(states), None)
    normalized = make_agent(method="maxent", method__reward=reward, method__table_size=2**12).method
    normalized.load_state_dict(method.state_dict())
    torch.testing.assert_close(normalized.reward(reached(states), None), plain / plain[3])


def test_shares_are_those_at_the_beginning_of_the_epoch():
    method, states = visited_10_40_50()
    before = method.reward(reached(states), None)
    for steps in (100, 150):
        method.set_progress(steps, 10**6)
        method.observe(states[[3] * 49], NO_SKILL, None)
        assert torch.equal(method.reward(reached(states), None), before)
    method.set_progress(199, 10**6)
    method.observe(states[[3] * 2], NO_SKILL, None)  # steps 200 and 201: the second epoch is over
    after = method.reward(reached(states), None)
    assert method.frozen.total == 200
    assert after[3] < before[3]
    torch.testing.assert_close(after, torch.tensor([1 / (p + 0.5) for p in (0.05, 0.2, 0.25, 0.5)]))


def test_a_run_that_resumes_where_an_epoch_begins_is_the_straight_run(tmp_path):
    config = tiny(env__num_envs=2, method__table_size=2**10, method__epoch_steps=10)
    voidrl.pretrain(Walk, "maxent", steps=40, out=tmp_path / "straight", config=config)
    voidrl.pretrain(Walk, "maxent", steps=20, out=tmp_path / "resumed", config=config)
    agent = voidrl.resume(tmp_path / "resumed", steps=40, env=Walk)
    assert (agent.method.table.total, agent.method.frozen.total) == (40, 40)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)


@pytest.mark.parametrize("reward", ["inverse", "log"])
def test_on_a_ring_the_entropy_of_the_visits_becomes_that_of_a_uniform_distribution(reward):
    """A ring of 16 states: one step on, or back to state 0. Random actions rarely leave the first four.

    In every epoch the best policy for the frozen reward is found by value iteration.
    """
    n, epoch = 16, 128
    spec = EnvSpec((n,), False, 1, num_actions=2, raw_shape=(n,))
    options = {"method__reward": reward, "method__epoch_steps": epoch, "method__table_size": 2**12}
    method = make_agent(spec, method="maxent", **options).method
    states, generator = torch.eye(n), torch.Generator().manual_seed(0)
    after = torch.stack([(torch.arange(n) + 1) % n, torch.zeros(n, dtype=torch.int64)], 1)  # (n, 2)
    policy, at, entropy = None, 0, []
    for number in range(30):
        path = []
        for _ in range(epoch):
            action = torch.randint(2, (), generator=generator) if policy is None else policy[at]
            path.append(at := int(after[at, action]))
        method.set_progress(number * epoch, 10**6)
        method.observe(states[path], NO_SKILL, None)
        earned, value = method.reward(reached(states), None), torch.zeros(n)
        for _ in range(50):
            q = (earned + 0.9 * value)[after]
            value = q.max(1).values
        policy = q.argmax(1)
        entropy.append(method.table.entropy.item())
    assert method.table.distinct == n
    assert entropy[0] < 0.6 * math.log(n)
    assert entropy[-1] == pytest.approx(math.log(n), rel=0.02)
    assert entropy[-1] > entropy[5] > entropy[0]


def test_of_latents_a_sample_is_counted_and_the_rarest_earns_most():
    options = {"representation": "fixed", "method__source": "latent", "method__pool": 64}
    agent = make_agent(method="maxent", **options, method__recounted=512, method__normalize=False)
    replay = fill_replay(steps=100)
    for position in range(len(replay.frames)):
        replay.frames[position] = 1 - 2 * float(position % 10 == 0)
    for _ in range(8):
        agent.update(replay)
    batch = replay.batch(replay.sample(100), 1, 1.0)
    reward = agent.method.reward(batch, batch_latents(agent, batch, encoded_pool(agent, replay)))
    rare = batch.next_obs[:, 0] < 0
    epsilon = 2**-0.5
    assert reward[rare].mean().item() == pytest.approx(1 / (0.1 + epsilon), rel=0.1)
    assert reward[~rare].mean().item() == pytest.approx(1 / (0.9 + epsilon), rel=0.05)


def test_before_the_first_epoch_is_over_all_states_earn_the_same():
    agent = make_agent(DISCRETE, method="maxent")
    batch = fill_replay().batch(torch.tensor([3, 20, 40]), 1, 1.0)
    agent.method.observe(batch.next_obs, NO_SKILL, None)
    assert agent.method.reward(batch, None).tolist() == [1, 1, 1]


def test_bad_values_are_one_sentence():
    with pytest.raises(
        ConfigError, match=r"epsilon = 2.* cannot be used: expected a number in \(0, 1\), or 0"
    ):
        make_agent(method="maxent", method__epsilon=2.0)
    with pytest.raises(ConfigError, match="source"):
        make_agent(method="maxent", method__source="density")
