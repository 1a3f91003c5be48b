"""SGI: three losses of sequences, goals of the same episode, progress towards them."""

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent

from voidrl.errors import ConfigError
from voidrl.representations import sgi as sgi_module
from voidrl.representations.sgi import SGIConfig


def sgi(spec=DISCRETE, **changes):
    return make_agent(spec, representation={"name": "sgi", **changes})


def test_progress_by_hand(monkeypatch):
    """Latents at 90° from the goal are at d² = 2, at 45° at 2 − √2."""
    monkeypatch.setattr(sgi_module, "GOAL_DISCOUNT", 0.9)
    f = sgi().representation
    goal = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    before = torch.tensor([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0]])
    after = torch.tensor([[1.0, 1.0], [5.0, 0.0], [0.0, 1.0]])
    near, near_next = f.nearness(before, goal), f.nearness(after, goal)
    far, half = np.exp(-10), np.exp(-5 * (2 - 2**0.5))
    assert near.tolist() == pytest.approx([far, half, 1], rel=1e-4)
    assert near_next.tolist() == pytest.approx([half, 1, far], rel=1e-4)

    f.spr.latent = f.spr.project = lambda x, target=False: x
    values = torch.tensor([[0.0, 1.0, 9.0], [4.0, 3.0, 2.0], [9.0, 9.0, 9.0]])
    f.head.forward = lambda x, goal: torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])  # prefers 1, 2, 0
    f.target_head.forward = lambda x, goal: values
    targets = f._goal_targets(near, near_next, after, after, goal, torch.tensor([1.0, 0.0, 1.0]))
    expected = [10 * (half - far) + 0.9 * 1, 10 * (1 - half), 10 * (far - 1) + 0.9 * 9]
    assert targets.tolist() == pytest.approx(expected, rel=1e-4)
    ended = f._goal_targets(near, near_next, after, after, goal, torch.zeros(3))  # nothing follows
    assert ended.tolist() == pytest.approx([10 * (half - far), 10 * (1 - half), 10 * (far - 1)], rel=1e-4)
    # Whatever follows, progress leads to the goal at best and away from it at worst.
    for value, bounds in ((100, [1 - far, 1 - half, 0]), (-100, [-far, -half, -1])):
        f.target_head.forward = lambda x, goal, value=value: values + value
        targets = f._goal_targets(near, near_next, after, after, goal, torch.ones(3))
        assert targets.tolist() == pytest.approx([10 * bound for bound in bounds], rel=1e-4)


def test_goals_need_discrete_actions_and_some_loss_must_be_on():
    with pytest.raises(ConfigError, match=r"losses = .*goal.* cannot be used with vector 4.*use losses = "):
        sgi(CONTINUOUS)
    metrics = sgi(CONTINUOUS, losses=["spr", "inverse"]).update(fill_replay(CONTINUOUS))
    assert "goal_loss" not in metrics
    with pytest.raises(ConfigError, match="expected at least one of spr, inverse, goal"):
        SGIConfig(losses=())
