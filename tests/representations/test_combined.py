"""Several losses on one encoder: their sum, who shares what, and inverse dynamics only."""

import pytest
import torch
from hand_batches import views_of
from helpers import DISCRETE, PIXELS, fill_replay, make_agent, moved, parameters_of, shake, snapshot

from voidrl.errors import ConfigError
from voidrl.representations.combined import CombinedConfig


def combined(spec=DISCRETE, losses=("simclr", "spr", "inverse"), weights=(), **changes):
    options = {"name": "combined", "losses": losses, "loss_weights": weights}
    outside = {key: changes.pop(key) for key in [*changes] if "__" in key or key == "share_encoder"}
    return make_agent(spec, representation={**options, **changes}, **outside)


def gradient_of(loss, encoder):
    weights = list(encoder.parameters())
    gradients = torch.autograd.grad(loss.mean(), weights, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(weights, gradients, strict=True)]


def test_the_gradient_is_the_weighted_sum_of_the_parts():
    weights = {"simclr": 0.5, "atc": 3.0, "spr": 2.0, "icm": 0.25, "inverse": 1.5}
    f = shake(combined(losses=tuple(weights), weights=tuple(weights.values())).representation, 0.1)
    replay = fill_replay(DISCRETE)
    views = views_of(replay, replay.sample(16))
    total, metrics = f.loss(views)
    assert total.shape == (16,)  # of each transition, as spr has it
    found = gradient_of(total, f.encoder)
    expected = [torch.zeros_like(p) for p in found]
    for name, weight in weights.items():
        parts = gradient_of(f.parts[name].loss(views)[0], f.encoder)
        assert max(g.abs().max() for g in parts) > 0
        expected = [e + weight * g for e, g in zip(expected, parts, strict=True)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert {"contrast_loss", "atc_loss", "spr_loss", "icm_forward", "icm_inverse", "z_std"} <= metrics.keys()


@pytest.mark.parametrize("share", ["nothing", "stack", "all"])
def test_all_losses_train_one_encoder_whatever_the_learner_shares(share):
    """Convolutions of the learner's, a trunk for the reward, and contrast, prediction and control on both."""
    options = {"share_encoder": share, "learner__encoder__activation": "relu"}
    encoder = {"activation": "relu", "feature_dim": 50, "width": 0.1}
    agent = combined(PIXELS, encoder=encoder, learner__encoder__feature_dim=0, **options)
    f, replay = agent.representation, fill_replay(PIXELS)
    assert f.dim == 50
    assert (f.encoder.stack is agent.learner.encoder.stack) == (share != "nothing")
    assert (f.encoder is agent.learner.encoder) == (share == "all")
    views = views_of(replay, replay.sample(8))
    for name in f.parts:
        assert all(g.abs().max() > 0 for g in gradient_of(f.parts[name].loss(views)[0], f.encoder)), name
    optimized = agent.optimizers.all_parameters()
    assert len(optimized) == len({id(p) for p in optimized})
    before = snapshot(parameters_of(f))
    agent.update(replay)
    assert moved(before, parameters_of(f)) == set(before)  # target encoders follow
    pieces = {"representation": agent.config.representation, "learner": agent.config.learner}
    other = make_agent(PIXELS, seed=1, share_encoder=share, **pieces)
    other.load_tensors(agent.tensors())
    obs = torch.rand(3, *PIXELS.obs_shape)
    assert torch.equal(other.representation.encode(obs), f.encode(obs))
    assert not moved(agent.tensors(), other.tensors())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"losses": ()}, r"losses = \(\) cannot be used: expected some of simclr, atc"),
        ({"losses": ("spr", "spr")}, "expected some of .*, each once"),
        ({"loss_weights": (1.0,)}, r"loss_weights = \(1.0,\) cannot be used: expected one weight for each"),
        (
            {"loss_weights": (1.0, -1.0, 0.0)},
            "loss_weights = -1.0 cannot be used: expected numbers from 0 on",
        ),
        ({"loss_weights": (0.0, 0.0, 0.0)}, "expected at least one above 0"),
    ],
)
def test_bad_values_are_sentences(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        CombinedConfig(**values)
