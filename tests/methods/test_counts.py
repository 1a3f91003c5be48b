"""CBB and MaxEnt: exact counts of hash codes, recounted ones of latents, and shares of visits by epoch."""

import math

import pytest
import torch
from hand_batches import batch_of
from helpers import DISCRETE, PIXELS, Chain, fill_replay, make_agent, points, run_loop, shake, spec_of

from voidrl.agent.rewards import batch_latents, encoded_pool
from voidrl.methods._visits import SimHash, VisitTable, hash_input, hash_width

NO_SKILL = torch.zeros(0)


# Hash codes


@pytest.mark.parametrize("degrees", [5, 60, 90, 150])
def test_two_vectors_at_an_angle_share_a_bit_with_probability_1_minus_angle_over_pi(degrees):
    torch.manual_seed(0)
    u, v = torch.linalg.qr(points(30, 2)).Q.T
    angle = math.radians(degrees)
    bits = SimHash(30, 20_000).bits(torch.stack([7 * u, math.cos(angle) * u + math.sin(angle) * v]))
    shared = (bits[0] == bits[1]).double().mean().item()
    assert shared == pytest.approx(1 - angle / math.pi, abs=0.015)


def test_a_state_has_the_same_code_in_every_batch_and_precision():
    torch.manual_seed(0)
    images = torch.randint(256, (65, *PIXELS.obs_shape), dtype=torch.uint8)
    hashed = SimHash(hash_width(PIXELS, 21), 256)
    together = hashed(hash_input(images, PIXELS, 21))
    one_by_one = torch.cat([hashed(hash_input(image[None], PIXELS, 21)) for image in images])
    with torch.autocast("cpu", torch.bfloat16):
        rounded = hashed(hash_input(images, PIXELS, 21))
    assert torch.equal(together, one_by_one)
    assert torch.equal(together, rounded)


def test_a_table_knows_how_many_codes_it_has_seen_and_how_evenly():
    table = VisitTable(50)
    buckets = torch.randint(20, (300,), generator=torch.Generator().manual_seed(0))
    for part in buckets.split([1, 9, 90, 200]):
        table.add(part)
    counts = buckets.bincount(minlength=50)
    assert torch.equal(table.counts, counts)
    assert (table.total, table.distinct) == (300, (counts > 0).sum())
    p = counts[counts > 0] / 300
    assert table.entropy.item() == pytest.approx(-(p * p.log()).sum().item(), rel=1e-5)


# The reward


@pytest.mark.parametrize("spec", [DISCRETE, PIXELS], ids=["vector", "pixels"])
def test_visits_1_4_and_100_earn_one_and_its_half_and_tenth_after_any_number_of_updates(spec):
    agent = make_agent(spec, method="cbb", method__table_size=2**16)
    replay = fill_replay(spec)
    batch = replay.batch(torch.tensor([3, 20, 40]), 1, 1.0)
    expected = torch.tensor([1, 0.5, 0.1])
    for number in (0, 3):
        for _ in range(number):
            agent.update(replay)  # updates count nothing
        if number == 0:
            for row, visits in enumerate((1, 4, 100)):
                for _ in range(visits // 4):  # several environments at once
                    agent.method.observe(batch.next_obs[[row] * 4], NO_SKILL, None, None)
                agent.method.observe(batch.next_obs[[row] * (visits % 4)], NO_SKILL, None, None)
        torch.testing.assert_close(agent.method.reward(batch, None), expected)
    assert agent.method.table.total == 105


def test_every_step_is_counted_once_and_resets_are_not(tmp_path):
    options = {"steps": 90, "warmup_steps": 60, "learner__n_step": 3, "method__table_size": 2**12}
    agent = make_agent(spec_of(Chain), method="cbb", **options)
    loop = run_loop(tmp_path / "run", Chain, agent, num_envs=3)
    table, replay = agent.method.table, loop.replay
    assert table.total == loop.state.steps
    reached = replay.batch(replay.starts[: len(replay)], 1, 1.0).next_obs
    states, visits = torch.unique(reached, dim=0, return_counts=True)
    assert torch.equal(table(agent.method.bucket(states)), visits)
    assert table.distinct == len(states)
    assert loop.state.episodes > 3  # so that there were resets


# Latents


def test_codes_of_latents_are_recounted_as_f_moves():
    """One in ten of 400 states is B. Whatever f is, B's visits are estimated at 100 of 1000."""
    options = {"representation": "fixed", "method__source": "latent", "method__bits": 24}
    agent = make_agent(method="cbb", **options, method__pool=64, method__recounted=2048)
    replay, method = fill_replay(steps=200), agent.method
    for position in range(len(replay.frames)):
        replay.frames[position] = 1 - 2 * float(position % 10 == 0)  # of opposite directions
    batch = replay.batch(replay.sample(200), 1, 1.0)
    rare = batch.next_obs[:, 0] < 0
    assert 5 < rare.sum() < 50
    method.observe(torch.zeros(1000, 4), NO_SKILL, None, None)
    codes = []
    for _ in range(2):
        for _ in range(32):
            agent.update(replay)
        latents = batch_latents(agent, batch, encoded_pool(agent, replay))
        visits = method.number(batch, latents)
        assert visits[rare].mean().item() == pytest.approx(100, rel=0.25)
        assert visits[~rare].mean().item() == pytest.approx(900, rel=0.05)
        torch.testing.assert_close(method.reward(batch, latents), visits.rsqrt().float())
        codes.append(method.hash(latents.z_next))
        shake(agent.representation)
    assert not torch.equal(*codes)
    stale = method.number(
        batch, batch_latents(agent, batch, encoded_pool(agent, replay))
    )  # not yet recounted
    assert stale.max() == 1  # no code is in the sample any more


def test_what_is_counted_follows_the_representation_which_is_trained_only_if_it_is_read():
    for name, source, expected in (
        ("learner", "auto", "image"),
        ("simclr", "auto", "latent"),
        ("simclr", "image", "image"),
        ("fixed", "auto", "image"),
        ("learner", "latent", "latent"),
    ):
        small = {"method__source": source, "method__table_size": 2**12}
        agent = make_agent(PIXELS, method="cbb", representation=name, **small)
        assert agent.method.source == expected
        assert agent.trains_representation == (name == "simclr" and expected == "latent")
    assert make_agent(PIXELS, method="cbb").config.representation.name == "learner"


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
