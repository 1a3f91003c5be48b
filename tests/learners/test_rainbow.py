"""Rainbow: the projection against hand-computed and slow ones, targets, noise, and a known distribution."""

import math

import pytest
import torch
from hand_batches import batch_of
from helpers import fill_replay, make_agent, seen_as
from torch import nn

from voidrl.config import EncoderConfig
from voidrl.errors import ConfigError
from voidrl.learners.rainbow import Rainbow, RainbowConfig, project_distribution
from voidrl.nets import Encoder
from voidrl.types import EnvSpec

SPEC = EnvSpec((2,), False, 1, num_actions=2, raw_shape=(2,))
SEEN = torch.eye(2)  # the two states, one-hot
NO_SKILL = torch.zeros(2, 0)


def make_batch(action=(0, 1), discount=0.5, next_obs=None, obs=SEEN, weight=None):
    next_obs = obs.flip(0) if next_obs is None else next_obs
    return batch_of(obs=obs, next_obs=next_obs, action=action, discount=discount, weight=weight)


class Table(nn.Module):
    """Probabilities of atoms as a table, (states, actions, atoms)."""

    def __init__(self, probabilities):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(probabilities).clamp(min=1e-30).log())

    def forward(self, features, skill):
        return torch.einsum("bs,san->ban", features, self.logits)


def table_rainbow(online, target=None, **options):
    """With atoms −1, 0 and 1."""
    options = {"atoms": 3, "v_min": -1.0, "v_max": 1.0, "n_step": 1, **options}
    encoder = Encoder(seen_as((2,)), EncoderConfig("mlp", feature_dim=0))
    learner = Rainbow(SPEC, RainbowConfig(**options), encoder, Table(online), 0)
    if target is not None:
        learner.target_critic.logits.copy_(Table(target).logits)
    return learner


# The projection


def test_three_atoms_by_hand():
    support = torch.tensor([-1.0, 0.0, 1.0])
    p = torch.tensor([[0.2, 0.3, 0.5]]).expand(4, -1)
    reward = torch.tensor([0.25, 2.0, -2.0, 0.5])
    discount = torch.tensor([0.5, 0.5, 0.5, 1.0])
    # 0.25 + 0.5 z = −0.25, 0.25, 0.75: quarters of the way between atoms.
    # ±2 is beyond the ends for all z. 0.5 + z = −0.5, 0.5, 1.5, of which the last is clipped to 1.
    expected = [
        [0.25 * 0.2, 0.75 * 0.2 + 0.75 * 0.3 + 0.25 * 0.5, 0.25 * 0.3 + 0.75 * 0.5],
        [0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0],
        [0.5 * 0.2, 0.5 * 0.2 + 0.5 * 0.3, 0.5 * 0.3 + 0.5],
    ]
    torch.testing.assert_close(project_distribution(reward, discount, p, support), torch.tensor(expected))


# Loss and targets

ONLINE = [
    [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]],
    [[0.25, 0.5, 0.25], [0.0, 0.5, 0.5]],
]  # (states, actions, atoms)
TARGET = [[[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]], [[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]]]


@pytest.mark.parametrize("double", [False, True])
def test_double_and_plain_targets_by_hand(double):
    learner = table_rainbow(ONLINE, TARGET, double=double)
    loss = next(learner.losses(make_batch(action=(1, 1)), torch.zeros(2), 0))
    # s' is state 1 of the first transition and state 0 of the second. The online network's best actions there
    # are 1 and 0, the target's own 0 and 1.
    chosen = [TARGET[1][1], TARGET[0][0]] if double else [TARGET[1][0], TARGET[0][1]]
    m = project_distribution(
        torch.zeros(2), torch.full((2,), 0.5), torch.tensor(chosen), torch.tensor([-1.0, 0, 1])
    )
    log_p = torch.tensor([ONLINE[0][1], ONLINE[1][1]]).clamp(min=1e-30).log()
    expected = -(m * log_p).sum(1)
    torch.testing.assert_close(loss.priority, expected)
    torch.testing.assert_close(loss.value, expected.mean())
    means = [p[2] - p[0] for p in chosen]
    assert loss.metrics["q_target"].item() == pytest.approx(0.5 * sum(means) / 2)
    assert loss.metrics["q_mean"].item() == pytest.approx((0.0 + 0.5) / 2)
    assert loss.metrics["critic_loss"] == loss.value


def test_the_divergence_is_zero_where_the_prediction_is_right():
    half = [0.0, 0.5, 0.5]
    batch = make_batch(action=(0, 0), discount=0)
    reward = torch.tensor([0.5, 0.5])  # halfway between atoms: the target is `half`
    learner = table_rainbow([[half, half], [[0.0, 0.25, 0.75], half]], priority="kl")
    kl = next(learner.losses(batch, reward, 0)).priority
    expected = [0.0, 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)]
    torch.testing.assert_close(kl, torch.tensor(expected))
    learner = table_rainbow([[half, half], [[0.0, 0.25, 0.75], half]])
    torch.testing.assert_close(next(learner.losses(batch, reward, 0)).priority, kl + math.log(2))


# Noise and acting


def test_each_loss_has_new_noise_in_online_and_target_network():
    agent, replay = make_agent(learner="rainbow"), fill_replay()
    batch = replay.batch(replay.sample(16), 1, 0.99)
    drawn = []
    for _ in range(2):
        next(agent.learner.losses(batch, batch.reward, 0))
        drawn += [
            module.advantage[0].eps_in.clone()
            for module in (agent.learner.critic, agent.learner.target_critic)
        ]
    assert len({tuple(noise.tolist()) for noise in drawn}) == 4


@pytest.mark.parametrize(("act_with", "expected"), [("online", 0), ("target", 1)])
def test_acting_by_the_target_network(act_with, expected):
    up, down = [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]
    online, target = [[up, down], [up, down]], [[down, up], [down, up]]
    learner = table_rainbow(online, target, act_with=act_with)
    for deterministic in (False, True):
        actions = learner.act(SEEN, NO_SKILL, deterministic=deterministic)
        assert actions.tolist() == [expected] * 2


# With everything else


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"atoms": 1}, "atoms = 1 cannot be used: expected 2 to 1001"),
        ({"v_min": 10.0}, "v_min = 10.0 cannot be used: expected a finite number below v_max = 10.0"),
        ({"noisy_sigma": -1.0}, "noisy_sigma = -1.0 cannot be used: expected 0"),
        ({"noisy_sigma": 0.0}, "noisy_sigma = 0.0 cannot be used: .* nothing would explore"),
    ],
)
def test_bad_values_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RainbowConfig(**options)
    RainbowConfig(noisy_sigma=0.0, epsilon_start=1.0)
