"""BeCL: perfect separation earns its analytic value, states without a positive are left out, skills part."""

import math

import pytest
import torch
from hand_batches import batch_of, latents_of, rooms_replay
from helpers import Place, fill_replay, line_replay, make_agent, watch_losses
from torch import nn

from voidrl.methods import becl as module
from voidrl.types import Loss

K = 4


def becl(**changes):
    """A small BeCL whose embedding is the state itself."""
    method = make_agent(method="becl", method__hidden_dim=8, **changes).method
    method.embedding = nn.Identity()
    return method


def reward_of(method, z, skill):
    return method.contrast(z, skill)[0].exp()


def test_perfect_separation_earns_its_analytic_value_and_a_collapse_that_of_chance():
    method, skill = becl(), torch.eye(16).repeat(64, 1)  # B = 1024
    # Corners of a simplex have cosines of −1/15. 63 others are at 1 and 960 there; T is 1/2.
    corners = skill - 1 / 16
    perfect = math.exp(2) / (63 * math.exp(2) + 960 * math.exp(-2 / 15))
    assert perfect == pytest.approx(0.00566, abs=1e-5)
    torch.testing.assert_close(reward_of(method, corners, skill), torch.full((1024,), perfect))
    torch.testing.assert_close(
        reward_of(method, torch.ones_like(corners), skill), torch.full((1024,), 1 / 1023)
    )
    loss = next(method.losses(batch_of(skill), latents_of(None, corners)))
    assert loss.value.item() == pytest.approx(-math.log(perfect), rel=1e-5)
    assert loss.metrics["becl_accuracy"] == 1


def test_scaled_by_the_batch_chance_is_one():
    skill, same = torch.eye(16).repeat(2, 1), torch.ones(32, 16)
    reward = becl(method__scale_by_batch=True).reward(batch_of(skill), latents_of(None, same))
    torch.testing.assert_close(reward, torch.ones(32))


def test_positives_are_drawn_evenly_and_rows_without_one_are_masked(monkeypatch):
    monkeypatch.setattr(module, "TEMPERATURE", 1.0)
    method = becl(method__num_skills=3)
    z = torch.tensor([[1.0, 0], [2, 0], [0, 3], [-1, 0]], requires_grad=True)  # cosines of 1, 0 and −1
    skill = torch.eye(3)[[0, 0, 0, 1]]
    total = math.e + 1 + 1 / math.e
    drawn = torch.stack([reward_of(method, z, skill) for _ in range(400)])
    torch.testing.assert_close(drawn[:, 3], torch.full((400,), 1 / 3))  # nothing to be paired with: chance
    near, far = (drawn[:, 0] - math.e / total).abs() < 1e-6, (drawn[:, 0] - 1 / total).abs() < 1e-6
    assert (near | far).all()
    assert 140 < near.sum() < 260
    torch.manual_seed(1)
    log_ratio, paired, _ = method.contrast(z, skill)
    assert paired.tolist() == [True, True, True, False]
    torch.manual_seed(1)
    loss = next(method.losses(batch_of(skill), latents_of(None, z))).value
    torch.testing.assert_close(loss, -log_ratio[:3].mean())
    loss.backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("rooms", [1, K])
def test_k_rooms_are_separated_and_one_room_is_chance(rooms):
    """A replay in which skill i stays in room i, or all skills in one, and updates of the agent."""
    options = {"num_skills": K, "learning_rate": 1e-2, "hidden_dim": 32}
    agent = make_agent(method={"name": "becl", **options}, learner__batch_size=64)
    replay, seen = rooms_replay(agent, rooms), []
    watch_losses(agent, lambda batch, reward: seen.append((batch.skill, reward)))
    for _ in range(60 if rooms == K else 6):
        metrics = agent.update(replay)
    for skill, reward in seen[-5:]:
        if rooms == 1:
            torch.testing.assert_close(reward, torch.full((64,), 1 / 63))
            continue
        count = (skill @ skill.T).sum(1)  # of the same skill
        near, far = (count - 1) * math.exp(2), (64 - count) * math.exp(-2 / (K - 1))
        torch.testing.assert_close(reward, math.exp(2) / (near + far), rtol=0.05, atol=0)
    if rooms == K:
        assert metrics["becl_accuracy"] == 1


class Twice(Place):
    """Learns from two batches in each update."""

    loss_batches = 2

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.weight, self.seen, self.rewarded = nn.Parameter(torch.ones(())), [], []

    def losses(self, batch, latents):
        self.seen.append(batch)
        yield Loss("method", self.weight * latents.z_next.mean(), {})

    def reward(self, batch, latents):
        self.rewarded.append(batch)
        return super().reward(batch, latents)


@pytest.mark.parametrize(("intrinsic_n_step", "ahead"), [("summed", 1), ("single", 3)])
def test_several_batches_are_fresh_and_the_last_is_the_one_rewarded(intrinsic_n_step, ahead):
    learner = {"n_step": 3, "batch_size": 16, "intrinsic_n_step": intrinsic_n_step}
    replay = line_replay(range(100))
    agent = make_agent(replay.spec, method=Twice, learner=learner)
    steps = []
    minimize = agent.optimizers.minimize
    agent.optimizers.minimize = lambda names, loss: (steps.append(names), minimize(names, loss))
    agent.update(replay)
    first, last = agent.method.seen
    assert (first.next_obs - first.obs == ahead).float().mean() > 0.7  # the newest are cut short
    assert not torch.equal(first.obs, last.obs)
    assert torch.equal(last.next_obs, agent.method.rewarded[0].next_obs)
    assert steps[:2] == [["method"], ["method"]]


def test_the_skill_for_a_task_is_random():
    skill = torch.eye(16).repeat(2, 1)
    task = fill_replay(skill_dim=16).batch(torch.arange(32), 1, 1.0)
    task = task._replace(skill=skill, reward=skill[:, 5])
    method = becl()
    assert method.trial_skills() is None
    assert method.skill_choice == "drawn at random, as in the paper"
    drawn = torch.stack([method.select_skill(task, None) for _ in range(50)])
    assert (drawn.sum(1) == 1).all()
    assert len(set(drawn.argmax(1).tolist())) > 8
