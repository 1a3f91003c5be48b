"""CIC and MOSS: skills are recognized, diverse states rewarded, and control mode negates the reward."""

import numpy as np
import pytest
import torch
from hand_batches import batch_of, latents_of
from helpers import CONTINUOUS, Point, brute_force, make_agent, points, run_loop, spec_of

from voidrl.methods import cic

SMALL = {"method": "cic", "method__hidden_dim": 32, "method__skill_dim": 3, "method__rep_dim": 8}


def test_the_loss_is_that_of_finding_the_transition_of_each_skill():
    method = make_agent(**SMALL).method
    z, z_next, skill = points(12, 4), points(12, 4, seed=1), torch.rand(12, 3)
    with torch.no_grad():
        key = method.transition_key(torch.cat([method.phi(z), method.phi(z_next)], 1))
        cosine = torch.cosine_similarity(method.skill_query(skill)[:, None], key[None], dim=2)  # (12, 12)
        expected = -(cosine / 0.5).softmax(1).diagonal().log().mean()
        torch.testing.assert_close(method.contrast(z, z_next, skill)[0], expected)


def test_the_reward_by_hand():
    method = make_agent(**SMALL, method__k=5).method
    z = points(20, 4)
    with torch.no_grad():
        h = method.phi(z)
        reward = method.reward(None, latents_of(z, z))
    distances = brute_force(h, h, 5)  # the state itself is the first of the 5
    scale = distances.std(correction=0)
    torch.testing.assert_close(reward.double(), (1 + distances.mean(1) / scale).log(), rtol=1e-4, atol=0)
    assert method.metrics()["cic_distance"].item() == pytest.approx(distances.mean().item(), rel=1e-4)


def test_fine_tuning_keeps_the_constant_skill_that_earns_most(tmp_path, monkeypatch):
    monkeypatch.setattr(cic, "TRIALS", 3)
    options = {**SMALL, "method__skill_every_steps": 5}
    agent = make_agent(spec_of(Point), phase="finetune", steps=105, finetune__warmup_steps=100, **options)
    # (1, 1, 1) moves towards the goal, at 0.5, and (0, 0, 0) away from it.
    agent.learner.act = lambda obs, skill, deterministic: 2 * skill[:, :2] - 1
    run_loop(tmp_path / "run", Point, agent)
    assert torch.equal(agent.task_skill, torch.ones(3))


SMALL_MOSS = {**SMALL, "method": "moss"}


class Long(Point):
    """Episodes of 30 steps."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.time >= 30, info


def test_the_sign_of_the_reward_follows_the_sign_of_the_skill():
    method = make_agent(CONTINUOUS, **SMALL_MOSS).method
    cic = make_agent(CONTINUOUS, **SMALL).method
    cic.load_state_dict(method.state_dict())
    skill = torch.rand(16, 3)
    skill[::3] *= -1
    latents = latents_of(points(16, 4), points(16, 4, seed=1))
    with torch.no_grad():
        reward, surprise = (m.reward(batch_of(skill), latents) for m in (method, cic))
        (loss,) = method.losses(batch_of(skill), latents)
    assert (surprise > 0).all()
    assert torch.equal(reward.sign(), skill.sign()[:, 0])
    assert torch.equal(reward.abs(), surprise)  # CIC's, and the neighbors are those of both modes
    assert loss.metrics["moss_control"].item() == 6 / 16


def test_a_third_of_all_skills_is_in_control_mode():
    skills = make_agent(**SMALL_MOSS).method.sample_skill(torch.arange(6000))
    control = (skills < 0).all(1)
    assert torch.equal(control, ~(skills > 0).all(1))  # no skill has both signs
    assert control.float().mean().item() == pytest.approx(1 / 3, abs=0.02)
    assert skills[control].mean().item() == pytest.approx(-0.5, abs=0.02)
    assert skills.abs().max() <= 1


def test_with_explore_steps_the_last_third_of_an_episode_is_control(tmp_path):
    options = {**SMALL_MOSS, "method__skill_every_steps": 5, "method__explore_steps": 20}
    agent = make_agent(spec_of(Long), steps=90, warmup_steps=80, **options)
    replay = run_loop(tmp_path / "run", Long, agent).replay
    skills = replay.skill[sorted(replay.starts[: len(replay)].tolist())]
    assert len(skills) == 90
    age = np.arange(90) % 30
    assert (skills[age < 20] > 0).all()
    assert (skills[age >= 20] < 0).all()
    assert len({tuple(skill) for skill in skills.tolist()}) == 18
