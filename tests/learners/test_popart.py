"""PopArt: statistics by hand, values that do not move with them, and targets of any scale."""

import pytest
import torch
from hand_batches import batch_of
from helpers import DISCRETE, Constant, fill_replay, make_agent, seen_as, snapshot

from voidrl.agent.reset import reset
from voidrl.config import EncoderConfig
from voidrl.engine.host_reads import HostReads
from voidrl.errors import CheckpointError, ConfigError
from voidrl.learners.dqn import DQN, DQNConfig
from voidrl.nets import DuelingQ, Encoder, PopArt, redraw_noise
from voidrl.types import EnvSpec

SPEC = EnvSpec((4,), False, 1, num_actions=3, raw_shape=(4,))
NOTHING = torch.zeros(64, 0)


def dqn(seed=0, rate=0.5, **options):
    torch.manual_seed(seed)
    encoder = Encoder(seen_as((4,)), EncoderConfig(stack="mlp", feature_dim=0))
    learner = DQN(SPEC, DQNConfig(**{"hidden_dim": 16, "popart": True} | options), encoder, None, 0)
    if learner.popart is not None:
        learner.popart = PopArt(rate)
    return learner


def states(n=64, seed=0):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def test_statistics_by_hand():
    popart = PopArt(rate=0.25)
    assert popart.mean.item() == 0
    assert popart.std.item() == 1
    popart.update(torch.tensor([1.0, 5.0]))
    assert popart.mean.item() == 3
    assert popart.std.item() == pytest.approx(2)
    popart.update(torch.tensor([10.0, 10.0]))  # weights ¾ and 1
    mean = (0.75 * 6 + 20) / 3.5
    variance = (0.75 * (1 + 25) + 200) / 3.5 - mean**2
    assert popart.mean.item() == pytest.approx(mean)
    assert popart.std.item() == pytest.approx(variance**0.5)
    torch.testing.assert_close(popart.denormalize(popart.normalize(states())), states())
    for _ in range(80):
        popart.update(torch.full((2,), 7.0))
    assert popart.std.item() == pytest.approx(1e-4)  # no weight grows without limit


@pytest.mark.parametrize("options", [{}, {"shared_hidden": True, "noisy_sigma": 0.5}, {"dueling": False}])
def test_values_of_both_networks_are_preserved_while_statistics_move(options):
    learner = dqn(**options, rate=0.3)
    with torch.no_grad():
        for weight in learner.target_critic.parameters():
            weight.add_(0.1 * torch.randn_like(weight))  # an older network
    redraw_noise(learner.critic, learner.target_critic)
    networks = learner.critic, learner.target_critic
    before = [learner.values(network(states(), NOTHING)) for network in networks]
    outputs = learner.critic(states(), NOTHING)
    for scale, mean in ((1.0, 0.0), (100.0, 30.0), (0.1, -3.0), (10.0, 5.0)):
        learner.popart.update(mean + scale * torch.randn(32), *networks)
    for network, values in zip(networks, before, strict=True):
        torch.testing.assert_close(learner.values(network(states(), NOTHING)), values, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(learner.critic(states(), NOTHING), outputs, atol=0.1)


def transitions(obs, discount=0.0):
    return batch_of(obs=obs, next_obs=obs.flip(0), action=torch.arange(len(obs)) % 3, discount=discount)


@pytest.mark.parametrize("double", [True, False])
def test_targets_are_those_of_the_plain_learner(double):
    """As long as the values are the same: the statistics do not matter for r + γⁿ Q."""
    plain, learner = dqn(popart=False, double=double), dqn(double=double)
    learner.popart.update(7 + 3 * torch.randn(99), learner.critic, learner.target_critic)
    batch, reward = transitions(states(), 0.9), torch.randn(64)
    torch.testing.assert_close(
        learner.target(batch, reward), plain.target(batch, reward), atol=1e-5, rtol=1e-5
    )
    one, other = next(plain.losses(batch, reward, 0)), next(learner.losses(batch, reward, 0))
    for name in ("q_mean", "q_target"):
        torch.testing.assert_close(one.metrics[name], other.metrics[name], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one.priority, other.priority, atol=1e-5, rtol=1e-5)
    assert other.value.item() != pytest.approx(one.value.item(), rel=0.01)  # on another scale
    for deterministic in (True, False):
        actions = []
        for agent in (plain, learner):
            torch.manual_seed(1)
            actions.append(agent.act(states(), NOTHING, deterministic=deterministic))
        assert torch.equal(*actions)


def fitted(popart, scales, updates=100):
    """Relative error after regressions of a linear function, one scale after the other."""
    learner = dqn(popart=popart, rate=0.1, hidden_dim=64)
    adam = torch.optim.Adam(learner.critic.parameters(), 2e-2)
    losses, errors = [], []
    for scale in scales:
        for update in range(updates):
            obs = states(seed=update)
            loss = next(learner.losses(transitions(obs), scale * (2 + obs.sum(1)), 0))
            adam.zero_grad()
            loss.value.backward()
            adam.step()
            losses.append(loss.value.item())
        obs = states(seed=999)
        q = learner.chosen(learner.values(learner.critic(obs, NOTHING)), transitions(obs).action)
        errors.append(((q - scale * (2 + obs.sum(1))).abs().mean() / scale).item())
    return errors, losses, learner


def test_targets_a_thousand_times_larger_are_learned_as_fast():
    errors, losses, learner = fitted(True, (1.0, 1e3))
    assert errors[0] < 0.3
    assert errors[1] < 0.3
    assert max(losses) < 5  # errors in units of σ, through the change as well
    assert learner.popart.mean.item() == pytest.approx(2e3, rel=0.1)
    assert learner.popart.std.item() == pytest.approx(2e3, rel=0.15)  # of a sum of four normal numbers
    assert fitted(False, (1e3,))[0][0] > 3 * errors[1]


def test_an_update_reads_nothing_on_the_host_and_values_follow_the_reward():
    options = {"learner__popart": True, "learner__n_step": 3, "learner__discount": 0.5}
    options |= {"learner__learning_rate": 1e-2, "learner__target_tau": 0.5, "intrinsic_scale": 500.0}
    agent, replay = make_agent(method=Constant, **options), fill_replay(end_every=10**9)
    for _ in range(60):
        metrics = agent.update(replay)
    with HostReads() as reads:
        agent.update(replay)
    assert reads.first is None, reads.what
    assert metrics["q_mean"].item() == pytest.approx(1000, rel=0.1)  # 500 / (1 − ½)
    assert metrics["popart_mean"].item() == pytest.approx(1000, rel=0.5)


def pretrained(**options):
    agent = make_agent(learner__popart=True, **options)
    replay = fill_replay()
    for _ in range(3):
        agent.update(replay)
    return agent, snapshot(agent.tensors())


def test_fine_tuning_keeps_the_statistics_together_with_the_heads():
    agent, saved = pretrained()
    kept = make_agent(phase="finetune", learner__popart=True)
    kept.load_pretrained(saved)
    assert torch.equal(kept.learner.popart.mean, agent.learner.popart.mean)
    obs = states()
    torch.testing.assert_close(
        kept.learner.values(kept.learner.critic(kept.learner.features(obs), NOTHING)),
        agent.learner.values(agent.learner.critic(agent.learner.features(obs), NOTHING)),
    )
    fresh = make_agent(phase="finetune", learner__popart=True, finetune__heads="random")
    fresh.load_pretrained(saved)
    assert fresh.learner.popart.mean.item() == 0
    assert fresh.learner.popart.moments.count == 0
    without = make_agent(phase="finetune", finetune__heads="random")
    without.load_pretrained(saved)
    with pytest.raises(CheckpointError, match=r"learner.popart is False here; use learner.popart = True"):
        make_agent(phase="finetune").load_pretrained(saved)
    with pytest.raises(CheckpointError, match=r"learner\.popart\.moments.*finetune.heads = 'random'"):
        kept.load_pretrained(snapshot(make_agent().tensors()))


def test_a_reset_keeps_what_is_known_of_the_returns():
    agent, _ = pretrained(phase="train")
    agent.learner.popart.update(1000 + torch.randn(500), agent.learner.critic, agent.learner.target_critic)
    mean = agent.learner.popart.mean.clone()
    reset(agent)
    assert torch.equal(agent.learner.popart.mean, mean)
    for network in (agent.learner.critic, agent.learner.target_critic):  # fresh heads predict the mean
        values = agent.learner.values(network(agent.learner.features(states()), NOTHING))
        torch.testing.assert_close(values.mean(), mean[0], rtol=0, atol=agent.learner.popart.std.item())


def test_what_cannot_be_normalized_is_refused():
    with pytest.raises(ConfigError, match=r"popart = True cannot be used.*fixed support; or use dqn"):
        make_agent(learner={"name": "rainbow", "popart": True})
    with pytest.raises(ConfigError, match=r"learner.popart = True cannot be used with SuccessorDuelingQ"):
        make_agent(DISCRETE, method="aps", learner__popart=True)
    assert isinstance(dqn().critic, DuelingQ)
