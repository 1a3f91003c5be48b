"""VIC: options that end in different rooms earn log K at their end, and nothing before."""

import math

import numpy as np
import pytest
import torch
from helpers import CPU, make_agent, watch_losses

from voidrl.agent.rewards import encoded_options
from voidrl.replay import Draw, Replay

K, STEPS = 4, 5
OPTIONS = {
    "name": "vic",
    "num_skills": K,
    "skill_every_steps": STEPS,
    "learning_rate": 1e-2,
    "hidden_dim": 32,
}


def rooms_replay(rooms, steps=60):
    """Option i passes through all rooms at random and ends in room i, or all of them end in one."""
    eye, rng = np.eye(K, dtype=np.float32), np.random.default_rng(0)
    replay, no = Replay(make_agent().spec, K, 400, K, CPU, CPU), np.zeros(K, bool)
    replay.reset(eye[[0] * K])
    skill = np.arange(K)
    for t in range(steps):
        last = (t + 1) % STEPS == 0
        at = (skill if rooms == K else np.zeros(K, int)) if last else rng.integers(K, size=K)
        given = torch.from_numpy(eye[skill])
        replay.add(np.zeros(K, np.int64), np.zeros(K), no, no, eye[at], given, no, ~no & last)
        skill = rng.permutation(K) if last else skill
    return replay


@pytest.mark.parametrize("rooms", [1, K])
def test_k_rooms_earn_log_k_at_the_end_and_one_room_nothing(rooms):
    agent, replay, found = make_agent(method=OPTIONS, learner__batch_size=64), rooms_replay(rooms), []
    watch_losses(agent, lambda batch, reward: found.append((batch.ended, reward)))
    for _ in range(100):
        metrics = agent.update(replay)
    ended, reward = (torch.cat(each) for each in zip(*found[-10:], strict=True))
    assert 0.1 < ended.mean() < 0.3
    assert (reward[ended == 0] == 0).all()  # otherwise it would be DIAYN
    assert reward.max() <= math.log(K) + 1e-5
    expected = math.log(K) if rooms == K else 0
    assert reward[ended == 1].mean().item() == pytest.approx(expected, abs=0.1)
    assert metrics["vic_information"].item() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("returns", ["summed", "single"])
def test_n_step_returns_have_the_reward_of_the_end_that_they_reach(returns):
    options = {"learner__n_step": 3, "learner__discount": 0.5, "learner__intrinsic_n_step": returns}
    agent, replay, found = make_agent(method=OPTIONS, **options), rooms_replay(K), []
    watch_losses(agent, lambda batch, reward: found.append(reward))
    slots = torch.arange(STEPS) * K + 2  # the first option of the third environment
    replay.draw = lambda count: Draw(slots, torch.ones(len(slots)))
    agent.update(replay)
    both = replay.frames[[2, STEPS * K + 2]].flatten()[None]
    with torch.no_grad():
        log_q = agent.method.classifier(both).log_softmax(1)[0, 2].item()
    worth = [0, 0, 0.25, 0.5, 1] if returns == "summed" else [0, 0, 1, 1, 1]
    torch.testing.assert_close(found[0], (log_q + math.log(K)) * torch.tensor(worth), atol=1e-5, rtol=1e-5)


def test_every_option_counts_the_same_however_long_it_is():
    method = make_agent(method=OPTIONS).method
    replay = rooms_replay(K, steps=2 * STEPS)
    segment = replay.segment(torch.arange(8), 1, 1.0)
    agent = make_agent(method=OPTIONS)
    option = encoded_options(agent, replay, segment)(STEPS)
    skill = torch.cat([torch.eye(K), torch.eye(K).roll(1, 0)])  # so that the two halves have different losses
    loss, _ = method.classify(option, skill)
    longer = option._replace(steps=torch.tensor([1, 1, 1, 1, 3, 3, 3, 3]))
    alone = option._replace(mask=torch.tensor([1.0] * 4 + [0.0] * 4))
    rest = option._replace(mask=torch.tensor([0.0] * 4 + [1.0] * 4))
    each = [method.classify(part, skill)[0] for part in (alone, rest)]
    assert abs(each[0] - each[1]) > 0.01
    torch.testing.assert_close(loss, (each[0] + each[1]) / 2)
    torch.testing.assert_close(method.classify(longer, skill)[0], 0.75 * each[0] + 0.25 * each[1])
    nothing = option._replace(mask=torch.zeros(8))
    assert method.classify(nothing, skill)[0] == 0  # before the first option is over
