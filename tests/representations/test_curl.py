"""CURL: the momentum encoder follows without gradients, and views of one state find each other."""

import pytest
import torch
from helpers import (
    CONTINUOUS,
    PIXELS,
    PIXELS_CONTINUOUS,
    fill_replay,
    make_agent,
    parameters_of,
    shake,
    snapshot,
)

from voidrl.errors import ConfigError


def test_each_transition_has_the_mean_loss_of_the_batch():
    """Hand-computed, for the features themselves and for a projection."""
    view = torch.rand(4, *PIXELS.obs_shape)
    for width, scale in ((4, 0.1), (0, 1.0)):
        options = {"representation__projection_dim": width}
        f = make_agent(PIXELS, representation="curl", phase="train", **options).representation
        with torch.no_grad():
            query, key = f.projection(f.encoder(view)), f.target_projection(f.target_encoder(view.flip(1)))
            logits = scale * query @ f.bilinear @ key.T
            expected = (logits.logsumexp(1) - logits.diagonal()).mean()
        losses, _ = f.contrast(view, view.flip(1))
        torch.testing.assert_close(losses, expected.expand(4))
        assert f.bilinear.shape == (width or f.dim,) * 2


def test_keys_of_the_learners_own_target_encoder():
    """As on DMControl: one target encoder, which moves with a τ of its own and has one name."""
    agent = make_agent(
        PIXELS_CONTINUOUS,
        representation="curl",
        learner="sac",
        phase="train",
        representation__target="learner",
        representation__projection_dim=0,
        learner__target_tau=0.01,
        learner__target_encoder_tau=0.05,
    )
    f, learner = agent.representation, agent.learner
    names = [name for name in agent.tensors() if "target_encoder" in name]
    assert names
    assert all(name.startswith("learner.target_encoder.") for name in names)
    view = torch.rand(4, *PIXELS.obs_shape)
    before = f.contrast(view, view, learner)[0]
    shake(learner.target_encoder)
    assert not torch.equal(f.contrast(view, view, learner)[0], before)
    old = {
        part: snapshot(parameters_of(getattr(learner, part))) for part in ("target_encoder", "target_critic")
    }
    agent.update(fill_replay(PIXELS_CONTINUOUS))
    for part, tau in (("encoder", 0.05), ("critic", 0.01)):
        for name, online in getattr(learner, part).named_parameters():
            moving = getattr(learner, f"target_{part}").get_parameter(name)
            expected = (1 - tau) * old[f"target_{part}"][name] + tau * online
            torch.testing.assert_close(moving, expected, atol=1e-6, rtol=0)
            assert moving.grad is None


def test_a_learner_without_a_target_encoder_has_none_to_share():
    with pytest.raises(
        ConfigError, match=r"'learner' cannot be used with learner 'ddpg', which has no target"
    ):
        make_agent(PIXELS_CONTINUOUS, representation="curl", learner="ddpg", representation__target="learner")
    with pytest.raises(ConfigError, match="'curl' cannot be used on vector"):
        make_agent(CONTINUOUS, representation="curl", learner="ddpg")
