"""VISR: features along skills, successor features of every component, and a task's skill by regression."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from hand_batches import batch_of, latents_of
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent, points, shake

import voidrl


def visr(spec=DISCRETE, **changes):
    return make_agent(spec, method={"name": "visr", "hidden_dim": 32}, **changes)


@torch.no_grad()
def test_the_reward_is_the_feature_on_the_sphere_and_the_loss_its_distance_from_the_skill():
    method = shake(visr().method, 0.2)
    states, skill = points(16, 4), F.normalize(points(16, 5, seed=1), dim=1)
    phi = F.normalize(method.features(states), dim=1)
    batch = batch_of(skill)
    reward = method.reward(batch, latents_of(None, states))
    torch.testing.assert_close(reward, phi)
    along = (phi * skill).sum(1)
    torch.testing.assert_close(method.scalar_reward(reward, skill), along)
    (loss,) = method.losses(batch, latents_of(None, states))
    torch.testing.assert_close(loss.value, 1 - along.mean())
    torch.testing.assert_close(loss.metrics["visr_concentration"], phi.mean(0).norm())


def test_continuous_actions_get_the_scalar_and_no_policy_improvement():
    agent = visr(CONTINUOUS)
    assert agent.method.reward_dim == 0
    replay = fill_replay(CONTINUOUS, skill_dim=5)
    batch = replay.batch(replay.sample(16), 1, 1.0)
    with torch.no_grad():
        reward = agent.method.reward(batch, latents_of(None, batch.next_obs))
        phi = F.normalize(agent.method.features(batch.next_obs), dim=1)
    torch.testing.assert_close(reward, (phi * batch.skill).sum(1))
    assert not hasattr(agent.learner.critic, "acting_values")


def test_the_critic_improves_over_ten_other_policies():
    agent = visr()
    shake(agent.learner.critic)
    skill = agent.method.sample_skill(torch.zeros(100, dtype=torch.int64))
    torch.testing.assert_close(skill.norm(dim=1), torch.ones(100))
    features = agent.learner.features(points(100, 4))
    with torch.no_grad():
        own = agent.learner.critic(features, skill)
        improved = agent.learner.critic.acting_values(features, skill)
    assert agent.learner.critic.gpi_directions.shape == (10, 5)
    assert (improved >= own - 1e-5).all()
    assert (improved > own).any()


class Room(gym.Env):
    """A 5 × 5 room, entered in the middle; four actions move to a neighboring cell. Episodes of 12 steps."""

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = np.zeros(2, np.float32), 0
        return self.at.copy(), {}

    def step(self, action):
        move = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)[action]
        self.at = np.clip(self.at + move / 2, -1, 1)
        self.time += 1
        return self.at.copy(), 0.0, False, self.time >= 12, {}


@pytest.mark.slow
def test_skills_lead_where_they_point(tmp_path):
    """Opposite skills end in opposite parts of a room, and each is where φ points along it."""
    learner = {"name": "dqn", "hidden_dim": 64, "batch_size": 64, "learning_rate": 3e-3, "discount": 0.8}
    config = {
        "method": {"name": "visr", "skill_dim": 2, "hidden_dim": 32, "learning_rate": 5e-3},
        "learner": {**learner, "target_tau": 0.1, "epsilon_decay_steps": 400},
        "env.num_envs": 16,
        "updates_per_step": 0.2,
        "warmup_steps": 200,
        "log.tensorboard": False,
        "device": "cpu",
    }
    agent = voidrl.pretrain(Room, steps=2000, out=tmp_path / "run", config=config)
    angle = np.arange(8) * np.pi / 4
    skills = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    ends, env = [], Room()
    for skill in skills:
        obs, _ = env.reset(seed=0)
        for _ in range(12):
            obs = env.step(int(agent.act(obs, skill=skill)))[0]
        ends.append(obs)
    with torch.no_grad():
        _, phi = agent.method.phi(torch.from_numpy(np.array(ends)))
    along = (phi * torch.from_numpy(skills)).sum(1)
    assert along.mean() > 0.75, along  # 0 is chance
    opposite = [np.abs(a - b).max() for a, b in zip(ends[:4], ends[4:], strict=True)]
    assert np.mean(opposite) > 1, ends
    assert len({tuple(end) for end in ends}) >= 4
