"""DQN: targets by hand, ε, and a chain that must be learned."""

import numpy as np
import pytest
import torch
from hand_batches import batch_of
from helpers import CPU, Chain, config, seen_as
from torch import nn

import voidrl
from voidrl.config import EncoderConfig
from voidrl.learners.dqn import DQN, DQNConfig
from voidrl.nets import Encoder
from voidrl.types import EnvSpec

SPEC = EnvSpec((2,), False, 1, num_actions=3, raw_shape=(2,))
ONLINE = torch.tensor([[1.0, 2.0, 3.0], [9.0, 5.0, 4.0]])  # Q of state 0 and 1
TARGET = torch.tensor([[10.0, 20.0, 30.0], [40.0, 60.0, 50.0]])
SEEN = torch.eye(2)  # the two states, one-hot


class Table(nn.Module):
    """Q as a table of states and actions."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(values.clone())

    def forward(self, features, skill):
        return features @ self.values


def table_dqn(**options):
    torch.manual_seed(0)
    encoder = Encoder(seen_as((2,)), EncoderConfig(stack="mlp", feature_dim=0))
    learner = DQN(SPEC, DQNConfig(**options), encoder, Table(ONLINE), 0)
    learner.target_critic.values.copy_(TARGET)
    return learner


def loss_by_hand(double):
    # s = 0, a = 1, s' = 1 and s = 1, a = 2, s' = 0, with γ^m = 0.5.
    batch = batch_of(obs=SEEN, next_obs=SEEN.flip(0), action=[1, 2], discount=0.5)
    loss = next(table_dqn(double=double).losses(batch, torch.tensor([100.0, 200.0]), 0))
    return loss.metrics["q_target"].item(), loss.value.item()


def test_double_and_plain_targets_by_hand():
    # Double: the online network picks action 0 in state 1 (9) and 2 in state 0 (3); the target values them.
    y = (100 + 0.5 * 40, 200 + 0.5 * 30)
    huber = ((y[0] - 2 - 0.5) + (y[1] - 4 - 0.5)) / 2  # |q − y| − ½
    assert loss_by_hand(double=True) == pytest.approx((sum(y) / 2, huber))
    # Plain: the target network picks its own best, action 1 in state 1 (60) and 2 in state 0 (30).
    y = (100 + 0.5 * 60, 200 + 0.5 * 30)
    huber = ((y[0] - 2 - 0.5) + (y[1] - 4 - 0.5)) / 2
    assert loss_by_hand(double=False) == pytest.approx((sum(y) / 2, huber))


def share_of_other_actions(learner, deterministic):
    obs = SEEN[:1].expand(20_000, -1)
    actions = learner.act(obs, torch.zeros(20_000, 0), deterministic=deterministic)
    return (actions != 2).float().mean().item()  # action 2 is the best in state 0


def test_epsilon_is_the_share_of_random_actions_and_moves():
    learner = table_dqn(epsilon_start=0.9, epsilon_end=0.1, epsilon_decay_steps=100)
    for steps, epsilon in ((0, 0.9), (50, 0.5), (100, 0.1), (10**9, 0.1), (float("inf"), 0.1)):
        learner.set_progress(steps)
        assert learner.epsilon.item() == pytest.approx(epsilon)
        assert share_of_other_actions(learner, deterministic=False) == pytest.approx(
            epsilon * 2 / 3, abs=0.015
        )
        assert share_of_other_actions(learner, deterministic=True) == 0


def test_the_schedule_moves_in_a_run(tmp_path):
    changes = config(learner__epsilon_decay_steps=60, learner__epsilon_end=0.25, warmup_steps=10)
    agent = voidrl.train(Chain, steps=30, out=tmp_path / "a", config=changes)
    assert agent.learner.epsilon.item() == pytest.approx(1 - 0.75 * 19 / 60)  # from the end of the warm-up
    kept = {"finetune.warmup_steps": 5, "finetune.noise": "end"}
    again = voidrl.finetune(agent, Chain, steps=30, out=tmp_path / "b", config=kept)
    assert again.learner.epsilon.item() == 0.25
    restart = {"finetune.warmup_steps": 5, "finetune.noise": "restart", "finetune.adapt": False}
    again = voidrl.finetune(agent, Chain, steps=8, out=tmp_path / "c", config=restart)
    assert again.learner.epsilon.item() == pytest.approx(1 - 0.75 * 2 / 60)


def test_a_chain_is_learned(tmp_path):
    changes = config(learner__epsilon_decay_steps=500, learner__learning_rate=1e-3, learner__n_step=3)
    agent = voidrl.train(Chain, steps=600, seed=1, out=tmp_path / "run", config=changes)
    found = voidrl.evaluate(agent, Chain, episodes=10)
    assert found.mean_return == 1
    assert found.lengths == [5] * 10  # the shortest way
    idle = voidrl.pretrain(Chain, "random", steps=10, out=tmp_path / "random", config=config())
    assert voidrl.evaluate(idle, Chain, episodes=50).mean_return < 0.5
    assert agent.device == CPU
    assert np.array_equal(agent.act(np.eye(6, dtype=np.float32)[:5]), np.ones(5))
