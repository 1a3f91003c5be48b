"""VISR: features along skills, successor features of every component, and a task's skill by regression."""

import torch
import torch.nn.functional as F
from hand_batches import batch_of, latents_of
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent, points, shake


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
