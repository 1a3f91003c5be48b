"""The contract of all methods that the registry finds: a new file is tested the day it appears."""

from typing import get_args, get_type_hints

import pytest
import torch
from helpers import (
    CONTINUOUS,
    DISCRETE,
    PIXELS,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    small_method,
    snapshot,
    update,
)

from voidrl.agent.rewards import batch_latents, encoded_options, encoded_pool
from voidrl.config import MethodConfig, SkillConfig, registry, to_json
from voidrl.engine.host_reads import HostReads
from voidrl.methods.base import About, Method
from voidrl.presets.presets import recipe
from voidrl.training.build import build_config

METHODS = registry.names("method")
SPECS = {"discrete": (DISCRETE, 1), "continuous": (CONTINUOUS, 3), "pixels": (PIXELS, 3)}
"""Environments, each with an n-step; test_mixed has images with continuous actions."""


@pytest.mark.parametrize("name", METHODS)
def test_is_found_by_its_file_name_and_has_a_config(name):
    cls = registry.find("method", name)
    assert issubclass(cls, Method)
    assert registry.name_of("method", cls) == name
    assert issubclass(cls.Config, MethodConfig)
    assert cls.__doc__
    assert build_config(DISCRETE, [{"method": name}]).method == cls.Config(name=name)


@pytest.mark.parametrize("name", METHODS)
def test_describes_itself_and_has_a_recipe_for_urlb(name):
    cls = registry.find("method", name)
    assert cls.about is not None
    for field, kinds in get_type_hints(About).items():
        if get_args(kinds) and field != "year":
            assert getattr(cls.about, field) in get_args(kinds)
    baseline = cls.about.family == "baseline"
    assert baseline or (cls.about.year and "arXiv:" in cls.about.paper)
    assert (cls.about.skills != "none") == issubclass(cls.Config, SkillConfig)
    assert baseline or recipe(name, "urlb-states")


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("name", METHODS)
def test_rewards_are_finite_and_updates_log_scalars_and_can_be_captured(name, kind):
    spec, n_step = SPECS[kind]
    agent = make_agent(spec, method=small_method(name), learner__n_step=n_step)
    replay = fill_replay(spec, skill_dim=agent.method.skill_dim, note_dim=agent.note_dim)
    segment = replay.segment(replay.sample(16), 1, 1.0)
    batch = replay.n_step_batch(segment)
    latents = batch_latents(
        agent, batch, encoded_pool(agent, replay), encoded_options(agent, replay, segment)
    )
    with torch.no_grad():
        reward = agent.method.reward(batch, latents)
    dim = agent.method.reward_dim
    assert reward.shape == ((16, dim) if dim else (16,))
    assert dim in (0, agent.method.skill_dim)
    assert reward.dtype == torch.float32
    assert reward.isfinite().all()
    assert agent.method.scalar_reward(reward, batch.skill).shape == (16,)

    skills = agent.method.sample_skill(torch.arange(5))
    assert skills.shape == (5, agent.method.skill_dim)
    assert skills.dtype == torch.float32

    before = snapshot(agent.tensors())
    with HostReads() as reads:
        for index in range(2):
            metrics = update(agent, replay, index)
    assert reads.first is None or agent.learner.rollout_steps  # which says how many steps it takes
    assert all(m.ndim == 0 and m.isfinite() and not m.requires_grad for m in metrics.values())
    names = moved(before, agent.tensors())
    if not agent.learns:
        assert not names
        return
    assert any(name.startswith("learner.") for name in names)
    trainable = {n for n, p in agent.method.named_parameters() if p.requires_grad}
    assert trainable <= {name.removeprefix("method.") for name in names}  # what can be trained, is


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_update_and_state_round_trip(name):
    def run():
        agent = make_agent(method=small_method(name), seed=3)
        replay = fill_replay(skill_dim=agent.method.skill_dim, note_dim=agent.note_dim)
        for _ in range(3):
            update(agent, replay)
        return agent

    first, second = run(), run()
    assert not moved(first.tensors(), second.tensors())
    fresh = make_agent(method=small_method(name), seed=4)
    fresh.load_tensors(first.tensors())
    assert not moved(first.tensors(), fresh.tensors())
    assert to_json(first.config)["method"]["name"] == name


@pytest.mark.parametrize("name", ["cic", "diayn", "vic"])
def test_from_pixels_its_loss_can_train_the_learners_encoder(name):
    method = small_method(name, skill_every_steps=20)
    agent = make_agent(PIXELS, method=method, encoder_trainers=("method",), learner__learning_rate=1e-12)
    assert agent.config.representation.name == "learner"
    before = snapshot(parameters_of(agent.learner.encoder))
    agent.update(fill_replay(PIXELS, skill_dim=agent.method.skill_dim))
    assert moved(before, parameters_of(agent.learner.encoder)) == set(before)  # the learner's rate moves none
