"""Vector rewards: sums, targets and values by component, and generalized policy improvement."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_batches import batch_of
from helpers import CPU, DISCRETE, fill_replay, make_agent, moved, points, shake, watch_losses
from torch import nn

from voidrl.errors import ConfigError
from voidrl.learners.dqn import DQNConfig
from voidrl.methods.base import Method
from voidrl.nets import SuccessorCritic, successor_critic
from voidrl.replay import Replay
from voidrl.types import EnvSpec

STATES = 4
RING = EnvSpec((STATES,), False, 1, num_actions=2, raw_shape=(STATES,))
TABLE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5], [0.3, -0.6]])  # φ of each state of the ring
PASSED_THROUGH = {"stack": "mlp", "hidden_dim": 0, "feature_dim": 0}
WEIGHTS = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])  # two skills


class Pair(Method):
    """The cumulants are the first two numbers of s'."""

    skill_dim = reward_dim = 2

    def sample_skill(self, episode_steps):
        return F.normalize(torch.randn(len(episode_steps), 2), dim=1)

    def reward(self, batch, latents):
        return batch.next_obs[:, :2]

    def make_critic(self, feature_dim, config):
        return successor_critic(self.spec, config, feature_dim, 2)


class Ring(Pair):
    """The cumulants of the state reached are its row of the table."""

    def reward(self, batch, latents):
        return batch.next_obs @ TABLE


class Table(SuccessorCritic):
    """ψ of every state, action and one of two skills, as free numbers."""

    def __init__(self):
        super().__init__()
        self.psi = nn.Parameter(torch.zeros(STATES, 2, 2, 2))

    def successor(self, features, skill):
        return self.psi[features.argmax(1), (skill[:, 0] < 0).long()]


class Tabular(Ring):
    def make_critic(self, feature_dim, config):
        return Table()


def test_values_of_a_critic_without_a_scale_are_not_rescaled():
    """So fine-tuning keeps its policy another way."""
    learner = make_agent(RING, method=Tabular, learner={"name": "dqn", "encoder": PASSED_THROUGH}).learner
    assert not learner.rescale_values(torch.full((1,), 2.0), torch.zeros(1))


def test_n_steps_are_added_and_scaled_by_component_and_logged_as_scalars():
    """Two numbers per state, 3 steps, γ = 1/2."""
    spec = EnvSpec((2,), False, 1, num_actions=2, raw_shape=(2,))
    learner = {"name": "dqn", "n_step": 3, "discount": 0.5, "batch_size": 64}
    agent = make_agent(spec, method=Pair, learner=learner, intrinsic_scale=10.0)
    replay = Replay(spec, 1, 20, 2, CPU, CPU)
    states = np.array([[t, 100 + t * t] for t in range(9)], np.float32)
    replay.reset(states[:1])
    no, skill = np.zeros(1, bool), torch.tensor([[0.6, -0.8]])
    for t in range(8):
        replay.add(np.zeros(1, np.int64), np.zeros(1), no, no, states[t + 1 : t + 2], skill)
    seen = []
    watch_losses(agent, lambda batch, reward: seen.append((batch, reward)))
    metrics = agent.update(replay)
    ((batch, reward),) = seen
    for row, given in zip(batch.obs, reward, strict=True):
        t = int(row[0])
        steps = range(t + 1, min(t + 4, 9))
        expected = sum(states[s] * 0.5**i for i, s in enumerate(steps))
        assert given.tolist() == pytest.approx((10 * expected).tolist(), rel=1e-5)
    scalar = reward @ skill[0] / 10
    assert metrics["reward_mean"].item() == pytest.approx(scalar.mean().item(), rel=1e-5)


def test_the_loss_adds_the_huber_losses_of_the_components():
    agent = make_agent(RING, method=Tabular, learner={"name": "dqn", "encoder": PASSED_THROUGH})
    learner = agent.learner
    with torch.no_grad():
        learner.target_critic.psi[1, 0] = torch.tensor([[5.0, 0.0], [1.0, -2.0]])  # s' = 1, both actions
        learner.critic.psi[1, 0] = torch.tensor([[0.0, 0.0], [1.0, 1.0]])  # which chooses action 1
        learner.critic.psi[0, 0, 0] = torch.tensor([0.5, 2.0])
    obs, next_obs = torch.eye(STATES)[:1], torch.eye(STATES)[1:2]
    batch = batch_of(WEIGHTS[:1], obs, next_obs, discount=0.5, weight=[3.0])
    loss, metrics, error = learner.critic.successor_loss(learner, batch, torch.tensor([[1.0, 2.0]]))
    # Target (1, 2) + ½ (1, −2) = (1.5, 1); errors (−1, 1), Huber ½ each; weight 3.
    assert loss.item() == pytest.approx(3.0)
    q, target = 0.8 * 0.5 + 0.6 * 2, 0.8 * 1.5 + 0.6 * 1
    assert metrics["q_mean"].item() == pytest.approx(q)
    assert metrics["q_target"].item() == pytest.approx(target)
    assert error.item() == pytest.approx(abs(q - target))
    learner.config = DQNConfig(double=False)  # chosen by the target, for which action 0 has 4
    target = learner.critic.successor_target(learner, batch, torch.tensor([[1.0, 2.0]]))
    assert target.tolist() == [[3.5, 2.0]]


def test_every_component_converges_to_its_discounted_sum():
    """A ring of four states, left and right, and a table: no errors of approximation."""
    discount, learner = 0.8, {"name": "dqn", "encoder": PASSED_THROUGH, "batch_size": 64, "n_step": 1}
    learner |= {"discount": discount, "learning_rate": 0.03, "target_tau": 0.3, "adam_eps": 1e-8}
    agent = make_agent(RING, method=Tabular, learner=learner)
    replay = Replay(RING, 8, 2000, 2, CPU, CPU)
    rng, at = np.random.default_rng(0), np.zeros(8, np.int64)
    eye, no = np.eye(STATES, dtype=np.float32), np.zeros(8, bool)
    replay.reset(eye[at])
    skill = WEIGHTS[torch.arange(8) % 2]
    for _ in range(60):
        action = rng.integers(2, size=8)
        at = (at + 2 * action - 1) % STATES
        replay.add(action, np.zeros(8), no, no, eye[at], skill)
    for _ in range(400):
        agent.update(replay)

    reached = torch.tensor([[(s - 1) % STATES, (s + 1) % STATES] for s in range(STATES)])
    for k, w in enumerate(WEIGHTS):
        psi = torch.zeros(STATES, 2, 2)  # by value iteration
        for _ in range(200):
            best = (psi @ w).argmax(1)
            after = psi[torch.arange(STATES), best]
            psi = TABLE[reached] + discount * after[reached]
        torch.testing.assert_close(agent.learner.critic.psi[:, k].detach(), psi, atol=0.02, rtol=0)


def test_actions_are_chosen_by_the_improved_values_until_scalar_rewards_train_the_critic():
    class Improved(Pair):
        def make_critic(self, feature_dim, config):
            return successor_critic(self.spec, config, feature_dim, 2, gpi_skills=10)

    agent = make_agent(method=Improved)
    shake(agent.learner.critic, 0.5)
    obs, skill = points(300, 4), F.normalize(points(300, 2, seed=1), dim=1)
    features = agent.learner.features(obs)

    def chosen(by):
        return agent.choose(obs, skill, deterministic=True).equal(by(features, skill).argmax(1))

    assert chosen(agent.learner.critic.acting_values)
    assert not chosen(agent.learner.critic)
    agent.update(fill_replay(skill_dim=2))
    features = agent.learner.features(obs)
    assert chosen(agent.learner.critic.acting_values)
    assert agent.learner.critic.gpi_valid

    tuned = make_agent(method=Improved, phase="finetune", seed=1)
    tuned.load_pretrained(agent.tensors())
    assert tuned.learner.critic.gpi_valid  # the warm-up acts as pre-training did
    assert not moved(agent.learner.critic.state_dict(), tuned.learner.critic.state_dict())
    tuned.update(fill_replay(skill_dim=2))
    assert not tuned.learner.critic.gpi_valid
    assert not tuned.learner.target_critic.gpi_valid
    agent, features = tuned, tuned.learner.features(obs)
    assert chosen(tuned.learner.critic)


def test_what_cannot_work_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"learner 'rainbow' cannot be used with .*vectors of 2 num.*dqn"):
        make_agent(DISCRETE, method=Pair, learner="rainbow")
    with pytest.raises(ConfigError, match=r"'standardize' cannot be used .*'scale' or 'none'"):
        make_agent(DISCRETE, method=Pair, intrinsic_normalization="standardize")
