"""CURL: the momentum encoder follows without gradients, and views of one state find each other."""

import pytest
import torch
from helpers import PIXELS, fill_replay, make_agent, moved, parameters_of, snapshot


def test_the_momentum_encoder_follows_and_never_gets_a_gradient():
    agent = make_agent(PIXELS, representation="curl", representation__momentum=0.9, phase="train")
    f, replay = agent.representation, fill_replay(PIXELS)
    target, online = snapshot(parameters_of(f.target_encoder)), parameters_of(f.encoder)
    agent.step(replay)
    for name, value in f.target_encoder.named_parameters():
        assert value.grad is None
        assert not value.requires_grad
        torch.testing.assert_close(value, 0.9 * target[name] + 0.1 * online[name], atol=1e-6, rtol=0)
    assert moved(target, parameters_of(f.target_encoder)) == set(target)
    optimized = {p for name in agent.optimizers for p in agent.optimizers.parameters(name)}
    assert not optimized & set(f.target_encoder.parameters())


def test_the_contrast_is_learned_next_to_the_task():
    options = {"representation__momentum": 0.9, "representation__learning_rate": 1e-3}
    agent = make_agent(
        PIXELS,
        representation="curl",
        phase="train",
        learner__learning_rate=1e-3,
        learner__encoder__width=0.5,
        augment__shift_pixels=0,  # of noise, a shifted view has nothing in common with another
        **options,
    )
    replay = fill_replay(PIXELS)
    torch.manual_seed(0)
    first = agent.step(replay)
    for i in range(60):
        last = agent.step(replay, i % agent.learner.period)
    assert last["curl_loss"] < 0.5 * first["curl_loss"]
    assert last["curl_accuracy"] > 0.7  # chance: 1 / 16


def test_where_all_features_are_equal_the_accuracy_is_that_of_chance():
    f = make_agent(PIXELS, representation="curl", phase="train").representation
    for parameter in f.encoder.parameters():
        parameter.data.zero_()
    view = torch.randint(0, 256, (16, *PIXELS.obs_shape), dtype=torch.uint8)
    assert f.contrast(view, view)[1]["curl_accuracy"].item() == pytest.approx(1 / 16)
