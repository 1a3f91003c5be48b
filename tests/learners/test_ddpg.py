"""DDPG: noise, its clip and schedule, the target by hand, and a point that must be steered."""

import pytest
import torch
from helpers import CONTINUOUS, Point, config, fill_replay, make_agent

import voidrl
from voidrl.learners.ddpg import DDPGConfig


def ddpg(**changes):
    return make_agent(CONTINUOUS, learner="ddpg", phase="train", **changes)


def test_three_step_returns_by_default_and_no_target_encoder():
    assert DDPGConfig().n_step == 3
    children = dict(ddpg().learner.named_children())
    assert set(children) == {"encoder", "critic", "actor", "target_critic"}


def test_the_noise_is_scheduled():
    options = {"learner__stddev_start": 0.5, "learner__stddev_end": 0.1, "learner__stddev_decay_steps": 100}
    learner = ddpg(**options).learner
    with torch.no_grad():
        learner.actor[-1].weight.zero_()  # the policy is 0 everywhere
    obs, skill = torch.randn(20_000, 4), torch.zeros(20_000, 0)
    for steps, stddev in ((0, 0.5), (50, 0.3), (100, 0.1), (float("inf"), 0.1)):
        learner.set_progress(steps)
        assert learner.stddev.item() == pytest.approx(stddev)
        noisy = learner.act(obs, skill, deterministic=False)
        inside = noisy[noisy.abs() < 1]
        if stddev <= 0.3:
            assert inside.std().item() == pytest.approx(stddev, abs=0.01)
        assert learner.act(obs, skill, deterministic=True).abs().max() == 0


def test_noise_inside_the_losses_is_clipped_and_lets_gradients_through():
    learner = ddpg(learner__noise_clip=0.2).learner
    action = torch.tensor([0.0, 0.95]).repeat(1000, 1).requires_grad_()
    noisy = learner.noisy(action)
    assert (noisy - action).abs().max() <= 0.2 + 1e-6
    assert (noisy[:, 0].abs() > 0.19).float().mean() > 0.5  # stddev 1: most of it was clipped
    assert noisy.max() <= 1
    noisy.sum().backward()
    assert torch.equal(action.grad, torch.ones_like(action))


def test_the_target_by_hand():
    agent = ddpg(learner__noise_clip=0.1)
    replay = fill_replay(CONTINUOUS)
    learner, batch = agent.learner, replay.batch(replay.sample(16), 3, 0.9)
    with torch.no_grad():
        for weight in learner.target_critic.parameters():
            weight += 0.1 * torch.randn_like(weight)
        torch.manual_seed(5)
        features = learner.encoder(batch.next_obs)  # the online encoder: there is no other
        policy = learner.actor(features).tanh()
        action = (policy + torch.randn(16, 2).clamp(-0.1, 0.1)).clamp(-1, 1)
        target = batch.reward + batch.discount * learner.target_critic(features, batch.skill, action).amin(0)
    torch.manual_seed(5)
    loss = next(learner.losses(batch, batch.reward, 0))
    torch.testing.assert_close(loss.metrics["q_target"], target.mean())


def test_the_actor_may_be_updated_less_often():
    agent, replay = (
        ddpg(learner__actor_every_updates=3, learner__target_every_updates=2),
        fill_replay(CONTINUOUS),
    )
    assert agent.learner.period == 6
    assert ["actor_loss" in agent.step(replay, i) for i in range(6)] == [True, False, False] * 2


def test_a_point_is_steered_to_its_goal(tmp_path):
    options = {"name": "ddpg", "n_step": 1, "discount": 0.9, "learning_rate": 1e-3, "stddev_decay_steps": 800}
    changes = config(learner={**options, "encoder": {"hidden_dim": 32}}, updates_per_step=0.75)
    agent = voidrl.train(Point, steps=1000, seed=1, out=tmp_path / "run", config=changes)
    idle = voidrl.pretrain(Point, "random", steps=10, out=tmp_path / "random", config=config())
    trained, by_chance = (voidrl.evaluate(a, Point, episodes=10).mean_return for a in (agent, idle))
    assert trained > 16 > 11 > by_chance  # of 20
