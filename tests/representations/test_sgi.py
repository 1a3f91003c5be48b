"""SGI: three losses of sequences, goals of the same episode, progress towards them."""

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, CPU, DISCRETE, fill_replay, make_agent

from voidrl.config import AugmentConfig
from voidrl.errors import ConfigError
from voidrl.nets.augment import Augment
from voidrl.replay import Replay
from voidrl.representations import sgi as sgi_module
from voidrl.representations import spr as spr_module
from voidrl.representations.base import Views
from voidrl.representations.sgi import SGIConfig
from voidrl.types import Layout


def sgi(spec=DISCRETE, **changes):
    return make_agent(spec, representation={"name": "sgi", **changes})


def views_of(replay, slots):
    segment = replay.segment(torch.as_tensor(slots), 1, 1.0)
    return Views(replay, segment, Augment(AugmentConfig(shift_pixels=0)), Layout())


def ring_replay(envs=8, steps=96, places=8):
    """Walks on a ring: the actions lead back, nowhere and on; seen as sines and cosines of the place."""
    rng = np.random.default_rng(0)
    replay = Replay(DISCRETE, envs, envs * steps + 50, 0, CPU, CPU)
    place, no = rng.integers(places, size=envs), np.zeros(envs, bool)

    def seen():
        angle = 2 * np.pi * place / places
        return np.stack([f(k * angle) for k in (1, 2) for f in (np.sin, np.cos)], 1).astype(np.float32)

    replay.reset(seen())
    for t in range(steps):
        action = rng.integers(3, size=envs)
        place = (place + action - 1) % places
        replay.add(action, np.zeros(envs), no, no | (t % 40 == 39), seen(), torch.zeros(envs, 0))
    return replay


def constants(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setattr(sgi_module, name.upper(), value)


def test_each_loss_falls(monkeypatch):
    constants(monkeypatch, prediction_steps=1, goal_steps=4, goal_noise=0.1, goal_discount=0.5)
    constants(monkeypatch, hidden_dim=32, momentum=0.9)
    monkeypatch.setattr(spr_module, "HIDDEN_DIM", 32)
    monkeypatch.setattr(sgi_module.GoalSPR, "projection_dim", 64)
    options = {"learning_rate": 1e-2, "encoder": {"feature_dim": 16, "hidden_dim": 32}}
    agent, replay = sgi(**options), ring_replay(places=4)
    f, seen = agent.representation.train(), []
    for _ in range(90):
        loss, metrics = f.loss(views_of(replay, replay.sample(32)))
        agent.optimizers.minimize(["representation"], loss.mean())
        f.after_update()
        seen.append(metrics)
    for name, share in {"spr_loss": 0.6, "inverse_loss": 0.6, "goal_loss": 0.7}.items():
        first, last = (torch.stack([m[name] for m in part]).mean() for part in (seen[:10], seen[-10:]))
        assert last < share * first, name
    assert seen[0]["inverse_loss"].item() == pytest.approx(np.log(3), abs=0.15)  # a guess, ends left out


def test_progress_by_hand(monkeypatch):
    """Latents at 90° from the goal are at d² = 2, at 45° at 2 − √2."""
    constants(monkeypatch, goal_discount=0.9)
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
