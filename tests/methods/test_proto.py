"""Proto-RL: balanced prototypes, a queue of what they draw, and the distance to it."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DISCRETE, brute_force, fill_replay, make_agent, points

from voidrl.agent.rewards import batch_latents
from voidrl.methods.proto import sinkhorn

SMALL = {"method__num_prototypes": 8, "method__projection_dim": 6, "method__hidden_dim": 16}


def sphere(*shape, seed=0):
    return F.normalize(points(*shape, seed=seed), dim=-1)


def small_agent(spec=DISCRETE, **changes):
    """An agent with a short queue."""
    agent = make_agent(spec, method="proto", **{**SMALL, **changes})
    agent.method.queue = agent.method.queue[:24].clone()
    return agent


def stand_at(method, u):
    """Make f(s) = s the embedding itself."""
    with torch.no_grad():
        method.projector[0].weight.copy_(torch.eye(*method.projector[0].weight.shape))
    return method.score(u)[1]


# Sinkhorn


def test_sinkhorn_divides_rows_and_columns_in_turn():
    scores = points(5, 3)
    expected = scores.double().exp()
    for _ in range(2):
        expected = expected / expected.sum(0)
        expected = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(sinkhorn(scores, 2).double(), expected)
    assert sinkhorn(1e3 * scores, 3).isfinite().all()  # masses that vanish in float32


# The reward


def test_a_state_that_equals_three_entries_of_the_queue_earns_nothing():
    method = small_agent(method__projection_dim=4).method
    u, queue = sphere(10, 4), sphere(24, 4, seed=1)
    u[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # normalized without rounding
    queue[[2, 11, 23]] = u[0]
    queue[[3, 12]] = u[1]
    method.queue.copy_(queue)
    reward = stand_at(method, u)
    assert reward[0] == 0
    assert reward[1] > 0.01
    torch.testing.assert_close(reward.double(), brute_force(u, queue, 3)[:, -1])


def test_each_update_adds_one_state_per_prototype_and_the_oldest_leave(monkeypatch):
    agent, replay = small_agent(learner__n_step=3), fill_replay()
    score, scored = agent.method.score, []
    monkeypatch.setattr(agent.method, "score", lambda z: scored.append(score(z)) or scored[-1])
    for update in range(5):
        before = agent.method.queue.clone()
        agent.update(replay)
        new = (agent.method.queue != before).any(1).nonzero().flatten().tolist()
        start = 8 * update % 24
        assert new == list(range(start, start + 8))
        entered = agent.method.queue[new]
        torch.testing.assert_close(entered.norm(dim=1), torch.ones(8))
        first = scored[3 * update][0]  # of the three successors that are scored
        assert (entered[:, None] == first).all(-1).any(1).all()
    assert agent.method.head.item() == 5 * 8 % 24


# Learning


def test_the_loss_is_the_cross_entropy_of_the_targets_balanced_assignment_of_the_next_state():
    agent, replay = small_agent(), fill_replay()
    method, batch = agent.method, replay.batch(replay.sample(16), 1, 1.0)
    with torch.no_grad():
        method.target_projector[0].weight.mul_(-1)  # so that it differs from the trained one
        (loss,) = method.losses(batch, batch_latents(agent, batch, None))
        online = F.normalize(method.predictor(method.projector(batch.obs)), dim=1)
        target = F.normalize(method.target_projector(batch.next_obs), dim=1)
        q = sinkhorn(target @ method.prototypes.T / 0.1, 3)
        log_p = (online @ method.prototypes.T / 0.1).log_softmax(1)
    torch.testing.assert_close(loss.value, -(q * log_p).sum(1).mean())


@pytest.mark.parametrize(("center", "least", "most"), [(True, 0.2, 2.0), (False, 0.0, 0.01)])
def test_centering_tells_states_apart_that_are_nearly_alike(center, least, most):
    agent, replay = small_agent(method__center=center, method__learning_rate=1e-5), fill_replay()
    replay.frames.mul_(0.01).add_(5)
    for _ in range(20):
        metrics = agent.update(replay)
    assert least < metrics["reward_mean"].item() < most
