"""METRA: adjacent states lie at most 1 apart, others as far as that allows; LSD and CSD bound φ otherwise."""

import numpy as np
import pytest
import torch
from hand_batches import batch_of, minimize
from helpers import make_agent, seen_as

from voidrl.methods import metra

N = 6
QUICK = {"method": "metra", "method__hidden_dim": 32, "method__learning_rate": 1e-3}


@pytest.fixture(autouse=True)
def quick_multiplier(monkeypatch):
    """A multiplier that begins near the rewards of these tests, and follows them."""
    monkeypatch.setattr(metra, "INITIAL_MULTIPLIER", 1.0)
    monkeypatch.setattr(metra, "MULTIPLIER_LEARNING_RATE", 3e-3)


def train(agent, batch, updates):
    """Updates of the method alone, by the agent's optimizers; returns the last metrics."""
    method = agent.method.train()
    for _ in range(updates):
        metrics = minimize(agent, method.losses(batch(), None))
    method.eval()
    return {name: value.item() for name, value in metrics.items()}


def chain_walks():
    """Every step of a chain of N states: right under the skill 1, left under −1."""
    left, right = torch.eye(N)[:-1], torch.eye(N)[1:]
    skill = torch.ones(N - 1, 1)
    return batch_of(torch.cat([skill, -skill]), torch.cat([left, right]), torch.cat([right, left]))


def test_a_chain_is_stretched_until_its_ends_are_all_steps_apart():
    agent, walks = make_agent(seen_as((N,)), method__skill_dim=1, **QUICK), chain_walks()
    metrics = train(agent, lambda: walks, 350)
    phi = agent.method.phi(torch.eye(N)).detach()[:, 0]
    assert phi.diff().abs().max() < 1.05
    assert (phi[-1] - phi[0]).abs().item() == pytest.approx(N - 1, abs=0.3)
    assert metrics["metra_step_length"] == pytest.approx(1, abs=0.05)
    assert metrics["metra_alignment"] == pytest.approx(1, abs=1e-3)
    reward = agent.method.reward(walks, None)
    assert reward.min() > 0.9  # right pays under 1 and left under −1 …
    torch.testing.assert_close(agent.method.reward(walks._replace(skill=-walks.skill), None), -reward)
    path = reward[: N - 1].sum()  # … and along a path the rewards add up to its length in φ
    torch.testing.assert_close(path, phi[-1] - phi[0])
    toward = agent.method.skill_toward(torch.eye(N)[[2, 2]], torch.eye(N)[[0, 5]])
    assert toward.tolist() == [[-1.0], [1.0]]


@pytest.mark.parametrize(("step", "grows"), [(3.0, True), (0.0, False)])
def test_the_multiplier_grows_while_the_constraint_is_violated_and_shrinks_by_the_slack_otherwise(
    step, grows
):
    agent = make_agent(method__skill_dim=1, **QUICK)
    before = agent.method.metrics()["metra_multiplier"].item()
    agent.method.displacement = lambda obs, next_obs: torch.full((len(obs), 1), step, requires_grad=True)
    batch = batch_of(torch.ones(4, 1), torch.zeros(4, 4), torch.zeros(4, 4))
    loss, multiplier = agent.method.losses(batch, None)
    assert loss.metrics["metra_constraint"].item() == pytest.approx(1 - step**2 if grows else 1e-3)
    agent.optimizers.minimize([multiplier.optimizer], multiplier.value)
    assert (agent.method.metrics()["metra_multiplier"].item() > before) == grows


def test_lsd_moves_no_pair_of_states_farther_apart_than_they_are():
    options = {**QUICK, "method__learning_rate": 5e-3}
    agent = make_agent(seen_as((2,)), method__distance="euclidean", **options)
    assert set(agent.optimizers) == {"critic", "method"}  # no multiplier

    def walks():
        obs, skill = 3 * torch.randn(64, 2), torch.randn(64, 2)
        return batch_of(skill, obs, obs + skill)

    metrics = train(agent, walks, 150)
    assert "metra_constraint" not in metrics
    with torch.no_grad():
        a, b = 5 * torch.randn(2, 1000, 2)
        stretch = agent.method.displacement(a, b).norm(dim=1) / (b - a).norm(dim=1)
    assert 0.8 < stretch.max() < 1.01  # it began at 0.16


def test_csd_shortens_distances_along_a_noisy_dimension():
    agent = make_agent(seen_as((2,)), method__distance="controllability", **QUICK)
    drift = torch.tensor([0.5, -0.5])
    noise = torch.tensor([0.25, 1.0])  # the deviations of s' − s
    origin = torch.zeros(3, 2)

    def walks():
        obs = torch.randn(64, 2)
        return batch_of(torch.randn(64, 2), obs, obs + drift + noise * torch.randn(64, 2))

    metrics = train(agent, walks, 250)
    bound, _ = agent.method.squared_bound(origin, drift + torch.eye(3)[:, :2])
    quiet, noisy, expected = bound.sqrt().tolist()
    assert quiet == pytest.approx(2, rel=0.25)  # 1 / 0.25 and 1 / 1 over their geometric mean
    assert noisy == pytest.approx(0.5, rel=0.25)
    assert expected < 0.25  # what happens anyway
    assert not bound.requires_grad  # p is not trained to loosen the bound
    entropy = np.log(2 * np.pi * np.e) + np.log(0.25 * 1.0)  # of the noise: no loss can be lower
    assert metrics["metra_density_loss"] == pytest.approx(entropy, abs=0.5)
    assert metrics["metra_constraint"] < metra.SLACK + 1e-6
