"""Contrast: NT-Xent against a double loop, and a handful of states that must be told apart."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import make_agent

from voidrl.nets import top1_accuracy
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


def test_nt_xent_of_two_perfect_pairs_by_hand():
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    loss, accuracy = nt_xent(h, 0.5)
    assert loss.item() == pytest.approx(math.log(math.exp(2) + 2) - 2)  # one positive at 1/τ, two others at 0
    assert accuracy == 1


def test_a_tie_counts_as_its_share():
    scores = torch.tensor(
        [[3.0, 1.0, 3.0, 0.0], [1.0, 2.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0], [0.0, 9.0, 0.0, 0.0]]
    )
    right = scores[:, 0]  # tied with another: 1/2; beaten: 0; one of four: 1/4; beaten: 0
    assert top1_accuracy(scores, right).item() == pytest.approx((1 / 2 + 0 + 1 / 4 + 0) / 4)
    assert top1_accuracy(scores, scores[:, 1]).item() == pytest.approx((0 + 1 + 1 / 4 + 1) / 4)
    assert top1_accuracy(scores * math.nan, right * math.nan) == 0


class NoisyViews:
    """Views whose augmentation adds noise; each read is a fresh one."""

    def __init__(self, states, spread):
        self.states, self.spread = states, spread

    def obs(self, times=1):
        views = self.states.repeat(times, 1)
        return views + self.spread * torch.randn_like(views)


def alignment_and_uniformity(representation, views):
    """Wang & Isola 2020, on the unit vectors that the loss compares; both lower is better."""
    with torch.no_grad():
        a, b = (
            F.normalize(representation.projection(representation.encode(views.obs())), dim=-1) for _ in "ab"
        )
    alignment = (a - b).square().sum(-1).mean()
    uniformity = torch.cdist(a, a).square().mul(-2).exp().mean().log()
    return alignment.item(), uniformity.item()


def test_contrast_tells_states_apart():
    options = {"representation__learning_rate": 3e-3, "representation__encoder__hidden_dim": 32}
    agent = make_agent(representation="simclr", **options)
    f = agent.representation
    torch.manual_seed(0)
    views = NoisyViews(torch.randn(8, 4), spread=0.3)
    before, metrics = alignment_and_uniformity(f, views), []
    for _ in range(200):
        loss, seen = f.loss(views)
        agent.optimizers.minimize(["representation"], loss)
        metrics.append(seen)
    after = alignment_and_uniformity(f, views)
    assert after[0] < 0.6 * before[0]
    assert after[1] < before[1] - 0.3

    def mean(key, part):
        return torch.stack([m[key] for m in metrics[part]]).mean()

    first, last = slice(0, 10), slice(-10, None)
    assert mean("contrast_accuracy", last) > mean("contrast_accuracy", first) + 0.03
    assert mean("contrast_loss", last) < mean("contrast_loss", first) - 0.3
    z = f.encode(views.obs())
    assert z.std(0).mean() > 0.1  # f itself has not collapsed
