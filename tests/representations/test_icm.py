"""Dynamics: both errors by hand, a system whose noise must be ignored, and the right states and actions."""

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, line_replay, make_agent, shake

from voidrl.types import EnvSpec


def icm(spec=CONTINUOUS, n_step=1, **changes):
    options = {f"representation__{key}": value for key, value in changes.items()}
    options = {"representation": "icm", "representation__hidden_dim": 8, **options}
    return make_agent(spec, learner__n_step=n_step, **options)


class GivenViews:
    """Transitions as they are, without augmentation."""

    def __init__(self, obs, action, next_obs):
        self._obs, self.action, self._next_obs = obs, action, next_obs

    def transitions(self):
        return torch.cat([self._obs, self._next_obs])


def through(network, x):
    """A network of two layers in NumPy."""
    (w1, b1), (w2, b2) = ((layer.weight.double(), layer.bias.double()) for layer in (network[0], network[2]))
    hidden = np.maximum(x @ w1.numpy().T + b1.numpy(), 0)
    return hidden @ w2.numpy().T + b2.numpy()


@pytest.mark.parametrize(
    ("spec", "weight"), [(CONTINUOUS, 1), (DISCRETE, 0.25)], ids=["continuous", "discrete"]
)
@torch.no_grad()
def test_both_errors_by_hand(spec, weight):
    f = shake(icm(spec, forward_weight=weight).representation, 0.3)
    obs, next_obs = torch.randn(2, 5, 4)
    action = torch.randint(3, (5,)) if spec.discrete else torch.rand(5, 2) * 2 - 1
    loss, metrics = f.loss(GivenViews(obs, action, next_obs))

    z, z_next = (f.encoder(x).double().numpy() for x in (obs, next_obs))
    vectors = np.eye(3)[action] if spec.discrete else action.double().numpy()
    missed = z_next - through(f.forward_net, np.concatenate([z, vectors], 1))
    forward = np.sqrt((missed**2).sum(1)).mean()
    told = through(f.inverse_net, np.concatenate([z, z_next], 1))
    if spec.discrete:
        odds = np.exp(told) / np.exp(told).sum(1, keepdims=True)
        inverse = -np.log(odds[np.arange(5), action.numpy()]).mean()
    else:
        inverse = np.sqrt(((vectors - np.tanh(told)) ** 2).sum(1)).mean()
    assert metrics["icm_forward"].item() == pytest.approx(forward, rel=1e-5)
    assert metrics["icm_inverse"].item() == pytest.approx(inverse, rel=1e-5)
    assert loss.item() == pytest.approx(weight * forward + inverse, rel=1e-5)
    assert metrics["z_std"].item() == pytest.approx(
        np.concatenate([z, z_next]).std(0, ddof=1).mean(), rel=1e-5
    )


@pytest.mark.parametrize(("steps", "batch_size"), [(1, 64), (3, 0)])
def test_of_the_learners_own_transitions_the_next_state_lies_n_steps_ahead(steps, batch_size):
    spec = EnvSpec((1,), False, 1, 0, (-1.0,), (1.0,), raw_shape=(1,), action_shape=(1,))
    # Frames 0 … 11 are an episode that terminates, 12 … 20 one that goes on.
    actions = [np.full((1, 1), t / 100, np.float32) for t in range(20)]
    replay = line_replay(range(21), terminated_at=(10,), spec=spec, actions=actions)
    agent = icm(spec, batch_size=batch_size, n_step=3)
    seen, loss = [], agent.representation.loss

    def watched(views):
        seen.append((views.obs(), views.action, views.next_obs(), views.batch.action))
        return loss(views)

    agent.representation.loss = watched
    for index in range(20):
        agent.update(replay, index % agent.learner.period)
    obs, action, next_obs, stored = (torch.cat(parts).squeeze(1) for parts in zip(*seen, strict=True))
    ends = torch.where(obs <= 10, 11.0, 20.0)
    assert set(obs.tolist()) == {t for t in range(20) if t != 11}
    assert torch.equal(next_obs, torch.minimum(obs + steps, ends))
    torch.testing.assert_close(action, obs / 100)
    assert torch.equal(action, stored)
