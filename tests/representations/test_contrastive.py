"""SimCLR, CURL, ATC: losses against loops and by hand, and views that find each other."""

import math

import pytest
import torch
import torch.nn.functional as F
from hand_batches import views_of
from helpers import (
    DISCRETE,
    PIXELS,
    PIXELS_CONTINUOUS,
    fill_replay,
    line_replay,
    make_agent,
    parameters_of,
    shake,
    snapshot,
)

from voidrl.errors import ConfigError
from voidrl.nets import top1_hits
from voidrl.representations.simclr import nt_xent


def nt_xent_by_loops(h, temperature):
    n, losses, right = len(h), [], 0
    for i in range(n):
        j = (i + n // 2) % n
        positive = (h[i] @ h[j]).item() / temperature
        others = [k for k in range(n) if k != i]
        denominator = sum(math.exp((h[i] @ h[k]).item() / temperature) for k in others)
        losses.append(math.log(denominator) - positive)
        right += all((h[i] @ h[k]).item() / temperature <= positive for k in range(n) if k not in (i, j))
    return sum(losses) / n, right / n


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_nt_xent_equals_a_double_loop(temperature):
    torch.manual_seed(0)
    h = F.normalize(torch.randn(12, 3), dim=-1)
    h[6:] = F.normalize(h[:6] + 0.3 * torch.randn(6, 3), dim=-1)
    loss, accuracy = nt_xent(h, temperature)
    expected = nt_xent_by_loops(h, temperature)
    assert (loss.item(), accuracy.item()) == pytest.approx(expected, rel=1e-5)
    assert 0 < accuracy < 1


def test_a_tie_counts_as_its_share():
    scores = torch.tensor(
        [[3.0, 1.0, 3.0, 0.0], [1.0, 2.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0], [0.0, 9.0, 0.0, 0.0]]
    )
    right = scores[:, 0]  # tied with another: 1/2; beaten: 0; one of four: 1/4; beaten: 0
    assert top1_hits(scores, right).mean().item() == pytest.approx((1 / 2 + 0 + 1 / 4 + 0) / 4)
    assert top1_hits(scores, scores[:, 1]).mean().item() == pytest.approx((0 + 1 + 1 / 4 + 1) / 4)
    assert top1_hits(scores * math.nan, right * math.nan).mean() == 0


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


SMALL = {"representation__encoder__feature_dim": 8}


def test_later_is_the_state_some_steps_ahead_within_the_episode():
    replay = line_replay([float(t) for t in range(12)], terminated_at=(4,))  # a reset from 5 to 6
    pairs = views_of(replay, [0, 1, 2, 3, 6, 7, 9, 10]).later(3)
    assert pairs.obs.flatten().tolist() == [0, 1, 2, 3, 6, 7, 9, 10]
    assert pairs.later.flatten().tolist() == [3, 4, 5, 5, 9, 10, 11, 11]  # the last state where it ends
    assert pairs.mask.tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


def test_a_pair_across_an_end_is_left_out_and_stays_a_candidate():
    """Hand-computed: its own loss is 0, the mean is over the others, whose candidates include its state."""
    torch.manual_seed(0)
    f = make_agent(DISCRETE, representation="atc", **SMALL).representation
    obs, later, mask = torch.randn(4, 4), torch.randn(4, 4), torch.tensor([1.0, 1.0, 0.0, 1.0])
    losses, metrics = f.contrast(obs, later, mask)
    with torch.no_grad():
        code = f.encode(obs)
        logits = (code + f.anchor(code)) @ f.bilinear @ f.target_encoder(later).T
        expected = (logits.logsumexp(1) - logits.diagonal())[mask.bool()]
        correct = (logits.argmax(1) == torch.arange(4))[mask.bool()].float().mean()
    assert losses[2] == 0
    torch.testing.assert_close(losses.mean(), expected.mean())
    assert metrics["atc_accuracy"].item() == pytest.approx(correct.item())
    assert metrics["atc_valid"].item() == 0.75
    assert f.contrast(obs, later, torch.zeros(4))[0].sum() == 0  # no valid pair, and nothing is divided by 0
