"""CIC: the transition of each skill is recognized, and diverse states are rewarded whatever the skill."""

import math

import numpy as np
import pytest
import torch
from helpers import (
    CPU,
    PIXELS,
    Point,
    brute_force,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    points,
    run_loop,
    snapshot,
    spec_of,
)

from voidrl.errors import ConfigError
from voidrl.methods.base import Latents
from voidrl.replay import Replay
from voidrl.types import Batch

SMALL = {"method": "cic", "method__hidden_dim": 32, "method__skill_dim": 3, "method__rep_dim": 8}


def batch_of(skill):
    nothing = torch.zeros(len(skill))
    return Batch(nothing, nothing, nothing, nothing, nothing, skill, nothing, nothing, nothing)


def latents_of(z, z_next):
    return Latents(lambda: z, lambda: z_next, lambda n: z)


def test_gradients_are_finite_for_four_transitions_even_of_zeros():
    agent = make_agent(method__k=3, learner__batch_size=4, **SMALL)
    method = agent.method
    z = points(4, 4)
    z[:2] = 0.0  # the networks have no biases yet, so that the vectors to be compared are 0
    (loss,) = method.losses(batch_of(torch.rand(4, 3)), latents_of(z, z))
    loss.value.backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() < 1e3, name  # nor large: Adam would remember
    assert method.phi[0].weight.grad.abs().max() > 0


def test_the_loss_is_log_b_where_nothing_is_told_apart():
    method = make_agent(**SMALL).method
    for parameter in method.skill_query.parameters():
        parameter.data.zero_()
    loss, accuracy = method.contrast(points(12, 4), points(12, 4, seed=1), torch.rand(12, 3))
    assert loss.item() == pytest.approx(math.log(12))
    assert accuracy.item() == pytest.approx(1 / 12)


def test_the_loss_is_that_of_finding_the_transition_of_each_skill():
    method = make_agent(**SMALL).method
    z, z_next, skill = points(12, 4), points(12, 4, seed=1), torch.rand(12, 3)
    with torch.no_grad():
        key = method.transition_key(torch.cat([method.phi(z), method.phi(z_next)], 1))
        cosine = torch.cosine_similarity(method.skill_query(skill)[:, None], key[None], dim=2)  # (12, 12)
        expected = -(cosine / 0.5).softmax(1).diagonal().log().mean()
        torch.testing.assert_close(method.contrast(z, z_next, skill)[0], expected)


def test_the_reward_is_the_same_whatever_the_skills():
    method = make_agent(**SMALL).method
    skill, latents = torch.rand(16, 3), latents_of(points(16, 4), points(16, 4, seed=1))
    fresh = snapshot(dict(method.named_buffers()))

    def reward(skill):
        method.load_state_dict(fresh, strict=False)
        return method.reward(batch_of(skill), latents)

    with torch.no_grad():
        assert torch.equal(reward(skill), reward(skill[torch.randperm(16)]))


@pytest.mark.parametrize("normalize", ["std", "variance"])
@pytest.mark.parametrize("include_self", [True, False])
def test_the_reward_by_hand(normalize, include_self):
    changes = {"method__k": 5, "method__include_self": include_self, "method__normalize": normalize}
    method = make_agent(**SMALL, **changes).method
    z = points(20, 4)
    with torch.no_grad():
        h = method.phi(z)
        reward = method.reward(None, latents_of(z, z))
    distances = brute_force(h, h, 5) if include_self else brute_force(h, h, 5, exclude_self=True)
    scale = distances.std(correction=0) if normalize == "std" else distances.var(correction=0)
    torch.testing.assert_close(reward.double(), (1 + distances.mean(1) / scale).log(), rtol=1e-4, atol=0)
    assert method.metrics()["cic_distance"].item() == pytest.approx(distances.mean().item(), rel=1e-4)


def move_by_skill(agent, follow, steps=200):
    """A replay of transitions that move by their skill, or by something else."""
    rng = np.random.default_rng(0)
    replay = Replay(agent.spec, 8, 8 * steps + 50, 3, CPU, CPU)
    at = np.zeros((8, 4), np.float32)
    replay.reset(at)
    no = np.zeros(8, bool)
    for _ in range(steps):
        skill, other = rng.random((2, 8, 3)).astype(np.float32)
        at = 0.5 * at + np.pad(skill if follow else other, ((0, 0), (0, 1)))
        replay.add(np.zeros(8, np.int64), np.zeros(8), no, no, at, torch.from_numpy(skill))
    return replay


@pytest.mark.parametrize("follow", [True, False])
def test_skills_are_told_apart_if_transitions_follow_them(follow):
    options = {"method__learning_rate": 3e-3, "method__temperature": 0.1, "learner__batch_size": 32}
    agent = make_agent(**SMALL, **options)
    replay = move_by_skill(agent, follow)
    metrics = [agent.update(replay) for _ in range(80)]

    def mean(name, some):
        return np.mean([m[name].item() for m in some])

    assert mean("cic_accuracy", metrics[:3]) < 0.15  # 1/32 is chance
    accuracy, loss = (mean(name, metrics[-10:]) for name in ("cic_accuracy", "cic_loss"))
    assert accuracy > 0.5 if follow else accuracy < 0.15
    assert loss < 1.8 if follow else loss > 3.2  # log 32 = 3.47 is chance


def test_skills_are_uniform_and_the_trials_are_constant():
    method = make_agent(**SMALL).method
    skills = method.sample_skill(torch.zeros(4000, dtype=torch.int64))
    assert skills.min() >= 0
    assert skills.max() <= 1
    assert skills.mean().item() == pytest.approx(0.5, abs=0.02)
    assert skills.var().item() == pytest.approx(1 / 12, abs=0.005)
    trials = method.trial_skills()
    assert torch.equal(trials, trials[:, :1].expand(11, 3))
    torch.testing.assert_close(trials[:, 0], torch.arange(11) / 10)
    fixed = make_agent(method__trials=1, **SMALL).method
    assert torch.equal(fixed.trial_skills(), torch.full((1, 3), 0.5))


def test_fine_tuning_keeps_the_constant_skill_that_earns_most(tmp_path):
    options = {**SMALL, "method__trials": 3, "method__skill_every_steps": 5}
    agent = make_agent(spec_of(Point), phase="finetune", steps=105, finetune__warmup_steps=100, **options)
    # (1, 1, 1) moves towards the goal, at 0.5, and (0, 0, 0) away from it.
    agent.learner.act = lambda obs, skill, deterministic: 2 * skill[:, :2] - 1
    run_loop(tmp_path / "run", Point, agent)
    assert torch.equal(agent.task_skill, torch.ones(3))


def test_from_pixels_the_loss_can_train_the_encoder():
    agent = make_agent(PIXELS, encoder_trainers=("method",), learner__learning_rate=1e-12, **SMALL)
    assert agent.config.representation.name == "learner"
    before = snapshot(parameters_of(agent.learner.encoder))
    agent.update(fill_replay(PIXELS, skill_dim=3))
    assert moved(before, parameters_of(agent.learner.encoder)) == set(before)


def test_what_cannot_be_is_refused():
    with pytest.raises(
        ConfigError, match=r"method\.k = 17 cannot be used with learner\.batch_size = 16"
    ) as e:
        make_agent(method__k=17, method__include_self=False, **SMALL)
    assert "rnd" in str(e.value)
    with pytest.raises(ConfigError, match=r"k = 1\b.*2 or more with include_self"):
        make_agent(method__k=1, **SMALL)
    with pytest.raises(ConfigError, match="temperature"):
        make_agent(method__temperature=0.0, **SMALL)
