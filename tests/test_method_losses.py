"""A method's losses train the weights of their own optimizers, and nothing trains nothing unnoticed."""

import pytest
import torch
from helpers import fill_replay, make_agent, moved, snapshot

from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.training.rehearsal import rehearse_method
from voidrl.types import Loss


class TwoNetworks(Method):
    """A method with two networks in groups of their names, each with a loss."""

    named, logged = ("fast", "slow"), ("fast_loss", "slow_loss")

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.fast, self.slow = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def groups(self):
        return {"fast": self.fast.parameters(), "slow": self.slow.parameters()}  # generators, as torch gives

    def losses(self, batch, latents):
        one = torch.ones(1, 1)
        for name, metric, network in zip(self.named, self.logged, (self.fast, self.slow), strict=True):
            loss = network(one).square().mean()
            yield Loss(name, loss, {metric: loss.detach()})

    def reward(self, batch, latents):
        return torch.ones(len(batch.action))


def test_groups_may_be_generators():
    agent = make_agent(method=TwoNetworks)
    before = snapshot(agent.tensors())
    agent.update(fill_replay())
    assert {"method.fast.weight", "method.slow.weight"} <= {*moved(before, agent.tensors())}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"named": ("slow", "fast")}, "loss of optimizer 'slow' depends on none of its weights"),
        ({"named": ("critic", "slow")}, r"names optimizer 'critic': expected one of .*'fast' or 'slow'"),
        ({"named": ("fats", "slow")}, "names optimizer 'fats': expected one of"),
        (
            {"logged": ("critic_loss", "slow_loss")},
            "'critic_loss' is logged by both the method and",
        ),
    ],
    ids=["swapped", "the learner's", "misspelled", "metric"],
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
    "a number as metric": (
        lambda m: Loss("fast", m.fast(ONE).sum(), {"loss": 1.0}),
        "expected Loss",
    ),
    "no Loss": (lambda m: m.fast(ONE).sum(), "expected Loss"),
    "detached": (lambda m: Loss("fast", m.fast(ONE).sum().detach(), {}), "depends on none"),
    "swapped": (lambda m: Loss("slow", m.fast(ONE).sum(), {}), "depends on none"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_losses_are_found_before_training(mistake, monkeypatch):
    make, sentence = MISTAKES[mistake]
    monkeypatch.setattr(TwoNetworks, "losses", lambda method, batch, latents: iter([make(method)]))
    with pytest.raises(ConfigError, match=sentence):
        rehearse_method(make_agent(method=TwoNetworks))


def test_a_rehearsal_changes_nothing():
    agent = make_agent(method=TwoNetworks)
    before = snapshot(agent.tensors())
    rehearse_method(agent)
    assert not moved(before, agent.tensors())


def test_a_reward_without_a_return_is_found_before_training(monkeypatch):
    monkeypatch.setattr(TwoNetworks, "reward", lambda method, batch, latents: None)
    with pytest.raises(ConfigError, match="gave rewards None for 16 transitions"):
        rehearse_method(make_agent(method=TwoNetworks))
