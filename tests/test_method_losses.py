"""A method's losses train the weights of their own optimizers, and nothing trains nothing unnoticed."""

import pytest
import torch
from helpers import fill_replay, make_agent, snapshot

from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.types import Loss


class TwoNetworks(Method):
    """A method with two networks in groups of their names, each with a loss."""

    grouped, named, logged = ("fast", "slow"), ("fast", "slow"), ("fast_loss", "slow_loss")

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.fast, self.slow = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def groups(self):
        networks = zip(self.grouped, (self.fast, self.slow), strict=False)
        return {name: network.parameters() for name, network in networks}  # generators, as torch gives

    def learning_rate(self, group):
        return {"fast": 1e-2, "slow": 1e-4}[group]

    def losses(self, batch, latents):
        one = torch.ones(1, 1)
        for name, metric, network in zip(self.named, self.logged, (self.fast, self.slow), strict=True):
            loss = network(one).square().mean()
            yield Loss(name, loss, {metric: loss.detach()})

    def reward(self, batch, latents):
        return torch.ones(len(batch.action))


def test_a_method_may_have_two_optimizers_with_rates_of_their_own():
    agent = make_agent(method=TwoNetworks)
    before = snapshot(agent.tensors())
    agent.update(fill_replay())
    step = {
        name: (agent.tensors()[f"method.{name}.weight"] - before[f"method.{name}.weight"]).abs().item()
        for name in ("fast", "slow")
    }
    assert step == pytest.approx({"fast": 1e-2, "slow": 1e-4}, rel=1e-3)  # Adam's first step is its rate


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (("critic", "slow"), "has 'critic', which is reserved"),
        (("representation", "slow"), "has 'representation', which is reserved"),
        (("fast",), r"weight slow\.weight of method .* is in no group"),
    ],
)
def test_groups_that_would_leave_weights_untrained_are_refused(groups, sentence, monkeypatch):
    monkeypatch.setattr(TwoNetworks, "grouped", groups)
    with pytest.raises(ConfigError, match=sentence):
        make_agent(method=TwoNetworks)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"named": ("slow", "fast")}, "loss of optimizer 'slow' depends on none of its weights"),
        ({"named": ("critic", "slow")}, r"names optimizer 'critic': expected one of .*'fast' or 'slow'"),
        ({"logged": ("critic_loss", "slow_loss")}, "'critic_loss' is logged by both the method and"),
    ],
    ids=["swapped", "the learner's", "metric"],
)
def test_what_would_train_or_log_something_else_is_refused(change, sentence, monkeypatch):
    for name, value in change.items():
        monkeypatch.setattr(TwoNetworks, name, value)
    agent = make_agent(method=TwoNetworks)
    with pytest.raises(ConfigError, match=sentence):
        agent.update(fill_replay())


ONE = torch.ones(1, 1)
MISTAKES = {
    "each transition": (lambda m: Loss("fast", m.fast(ONE.expand(4, 1)), {}), "expected Loss"),
    "a number as metric": (lambda m: Loss("fast", m.fast(ONE).sum(), {"loss": 1.0}), "expected Loss"),
    "detached": (lambda m: Loss("fast", m.fast(ONE).sum().detach(), {}), "depends on none"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_losses_are_sentences(mistake, monkeypatch):
    make, sentence = MISTAKES[mistake]
    monkeypatch.setattr(TwoNetworks, "losses", lambda method, batch, latents: iter([make(method)]))
    with pytest.raises(ConfigError, match=sentence):
        make_agent(method=TwoNetworks).update(fill_replay())


def test_a_reward_of_another_shape_is_a_sentence(monkeypatch):
    monkeypatch.setattr(TwoNetworks, "reward", lambda method, batch, latents: batch.reward[:, None])
    with pytest.raises(ConfigError, match=r"rewards of shape \(\d+, 1\).*expected \(\d+,\)"):
        make_agent(method=TwoNetworks).update(fill_replay())
