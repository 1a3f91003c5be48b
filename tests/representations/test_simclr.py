"""Contrast: NT-Xent against a double loop, and a handful of states that must be told apart."""

import math

import pytest
import torch
import torch.nn.functional as F

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
