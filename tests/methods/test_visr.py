"""VISR and APS: features along skills, the entropy of the features, a task's skill by regression."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_batches import batch_of, latents_of
from helpers import CONTINUOUS, CPU, DISCRETE, fill_replay, make_agent, points, seen_as, shake
from torch import nn

from voidrl.replay import Replay


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


WIDE = seen_as((12,))


# With discrete actions a skill is (w, e): ten numbers on the sphere, and the weight of the entropy term.


def aps(spec=DISCRETE, **changes):
    return make_agent(spec, method={"name": "aps", "hidden_dim": 32}, **changes)


def cosine(a, b):
    return F.cosine_similarity(a, b, dim=0).item()


def random_walks(spec, skill_dim, reward, steps=64, num_envs=64):
    """A replay of 4096 independent states; `reward` of the states reached."""
    rng = np.random.default_rng(0)
    replay = Replay(spec, num_envs, (steps + 2) * num_envs, skill_dim, CPU, CPU)
    no, still = np.zeros(num_envs, bool), np.zeros(num_envs, np.int64)
    replay.reset(rng.normal(size=(num_envs, *spec.frame_shape)).astype(np.float32))
    for _ in range(steps):
        frames = rng.normal(size=(num_envs, *spec.frame_shape)).astype(np.float32)
        w = torch.from_numpy(rng.normal(size=(num_envs, skill_dim - 1)).astype(np.float32))
        skill = F.pad(F.normalize(w, dim=1), (0, 1), value=1.0)
        replay.add(still, reward(frames), no, no, frames, skill)
    return replay


def test_a_task_that_is_linear_in_the_features_is_found_from_4096_states():
    """Features are correlated, so that w ∝ Σ rφ̂ would be wrong; they are those of the saved agent, at s'."""
    before, agent = (aps(WIDE, phase=phase, seed=seed) for phase, seed in (("pretrain", 0), ("finetune", 1)))
    for each in (before, agent):
        each.method.features = nn.Linear(12, 10, bias=False)
    with torch.no_grad():
        before.method.features.weight.copy_(points(10, 12) + 1.5 * points(1, 12, seed=1))
    wanted = F.normalize(points(10, seed=2), dim=0)
    rng = np.random.default_rng(1)

    def reward(frames):
        with torch.no_grad():
            phi = F.normalize(before.method.features(torch.from_numpy(frames)), dim=1)
        return (phi @ wanted).numpy() + rng.normal(0, 0.1, len(frames))

    replay = random_walks(WIDE, 11, reward)
    agent.load_pretrained(before.tensors())
    agent.choose_task_skill(replay)
    assert cosine(agent.task_skill[:10], wanted) > 0.99
    assert agent.task_skill[10] == 0  # the entropy is no part of a task
    assert agent.task_skill.norm().item() == pytest.approx(1, abs=1e-5)
    assert "regressing" in agent.method.skill_choice
    batch = replay.batch(replay.newest(4096), 1, 1.0)
    with torch.no_grad():
        phi = F.normalize(before.method.features(batch.next_obs), dim=1)
    assert cosine(phi.T @ batch.reward, wanted) < 0.9  # a solution that ignores the correlations


def test_the_reward_is_the_feature_along_the_skill_plus_apt_on_the_features():
    options = {"k": 4, "include_self": True}
    agent = aps(**{f"method__{name}": value for name, value in options.items()})
    options["normalize"] = "distance_mean"
    apt = make_agent(method={"name": "apt", **options}).method
    shake(agent.method.features, 0.1)
    replay = fill_replay(skill_dim=11)
    for _ in range(3):  # the running mean is part of it
        batch = replay.batch(replay.sample(16), 1, 1.0)
        batch = batch._replace(skill=F.pad(F.normalize(batch.skill[:, :10], dim=1), (0, 1), value=1.0))
        latents = latents_of(None, batch.next_obs)
        with torch.no_grad():
            phi = agent.method.features(batch.next_obs)
            reward = agent.method.reward(batch, latents)
            torch.testing.assert_close(reward[:, :10], F.normalize(phi, dim=1))
            along = F.cosine_similarity(phi, batch.skill[:, :10])
            entropy = agent.method.scalar_reward(reward, batch.skill) - along
            torch.testing.assert_close(entropy, reward[:, 10], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(
                entropy, apt.knn_reward(phi, phi, own_first=True), atol=1e-6, rtol=1e-5
            )
    assert agent.method.metrics()["aps_distance_mean"] == apt.mean.mean


def test_continuous_actions_have_scalar_rewards_which_are_both_terms_added():
    """As in URLB's code."""
    agent = aps(CONTINUOUS, method__k=4)
    assert (agent.method.skill_dim, agent.method.reward_dim) == (10, 0)
    other = aps(method__k=4).method  # the same networks with discrete actions
    other.features.load_state_dict(agent.method.features.state_dict())
    replay = fill_replay(CONTINUOUS, skill_dim=10)
    batch = replay.batch(replay.sample(16), 1, 1.0)
    latents = latents_of(None, batch.next_obs)
    with torch.no_grad():
        scalar, vector = (method.reward(batch, latents) for method in (agent.method, other))
    both = F.pad(batch.skill, (0, 1), value=1.0)
    torch.testing.assert_close(scalar, other.scalar_reward(vector, both))
