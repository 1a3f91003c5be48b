"""ATC: pairs within an episode only, a momentum encoder, and states that find their future."""

import pytest
import torch
from helpers import DISCRETE, PIXELS, fill_replay, line_replay, make_agent

from voidrl.config import AugmentConfig
from voidrl.nets.augment import Augment
from voidrl.representations.base import Views
from voidrl.types import Layout

SMALL = {"representation__encoder__feature_dim": 8}


def views_of(replay, slots):
    segment = replay.segment(torch.as_tensor(slots), 1, 1.0)
    return Views(replay, segment, Augment(AugmentConfig(shift_pixels=0)), Layout())


def test_later_is_the_state_some_steps_ahead_within_the_episode():
    replay = line_replay([float(t) for t in range(12)], terminated_at=(4,))  # a reset from 5 to 6
    pairs = views_of(replay, [0, 1, 2, 3, 6, 7, 9, 10]).later(3)
    assert pairs.obs.flatten().tolist() == [0, 1, 2, 3, 6, 7, 9, 10]
    assert pairs.later.flatten().tolist() == [3, 4, 5, 5, 9, 10, 11, 11]  # the last state where it ends
    assert pairs.mask.tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("steps", [1, 4])
def test_later_agrees_with_the_whole_sequence(steps):
    replay = fill_replay(PIXELS, end_every=5)
    views = views_of(replay, replay.sample(32))
    pairs, sequence = views.later(steps), views.sequence(steps)
    assert torch.equal(pairs.obs, sequence.obs[0])
    assert torch.equal(pairs.later, sequence.obs[-1])
    assert torch.equal(pairs.mask, sequence.mask.prod(0))
    assert 0 < pairs.mask.mean() < 1


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


def test_what_an_anchor_across_an_end_looks_like_does_not_matter():
    f = make_agent(DISCRETE, representation="atc", **SMALL).representation
    obs, later, mask = torch.randn(4, 4), torch.randn(4, 4), torch.tensor([1.0, 1.0, 0.0, 1.0])
    before = f.contrast(obs, later, mask)[0]
    obs[2] += 100
    assert torch.equal(f.contrast(obs, later, mask)[0], before)
