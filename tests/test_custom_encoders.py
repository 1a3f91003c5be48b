"""Encoders of one's own, for the learner and for the representation, by name and by class."""

import pytest
from helpers import DISCRETE, PIXELS, config, fill_replay, make_agent, moved, parameters_of, snapshot
from torch import nn

import voidrl
from voidrl.errors import ConfigError


class TinyConv(nn.Module):
    """Images to a map of features."""

    def __init__(self, obs_shape):
        super().__init__()
        self.conv = nn.Conv2d(obs_shape[0], 4, 5, stride=4)

    def forward(self, x):
        return self.conv(x).relu()


class TinyMLP(nn.Module):
    """Vectors to features."""

    def __init__(self, obs_shape):
        super().__init__()
        self.layer = nn.Linear(obs_shape[0], 5)

    def forward(self, x):
        return self.layer(x).tanh()


class WrongShape(TinyMLP):
    def forward(self, x):
        return super().forward(x).sum(1)


class NoModule:
    def __init__(self, obs_shape):
        pass


@pytest.mark.parametrize("stack", [TinyConv, f"{__name__}:TinyConv"], ids=["class", "name"])
@pytest.mark.parametrize("piece", ["learner", "representation"])
def test_a_custom_stack_is_built_trained_and_named_in_the_config(piece, stack):
    agent = make_agent(PIXELS, representation="simclr", **{f"{piece}__encoder__stack": stack})
    encoder = getattr(agent, piece).encoder
    assert isinstance(encoder.stack, TinyConv)
    assert getattr(agent.config, piece).encoder.stack == f"{__name__}:TinyConv"
    assert encoder.feature_dim == getattr(agent.config, piece).encoder.feature_dim
    before = snapshot(parameters_of(encoder.stack))
    agent.update(fill_replay(PIXELS))
    assert moved(before, parameters_of(encoder.stack)) == set(before)


def test_without_layers_behind_it_the_features_are_its_own():
    for spec, stack, width in ((DISCRETE, TinyMLP, 5), (PIXELS, TinyConv, 4 * 8 * 8)):
        agent = make_agent(spec, learner__encoder={"stack": stack, "feature_dim": 0, "hidden_dim": 0})
        assert agent.learner.encoder.feature_dim == width
        agent.update(fill_replay(spec))


def test_a_run_with_one_is_saved_and_loaded(tmp_path):
    changes = config(learner__encoder__stack=TinyMLP, learner__encoder__feature_dim=8)
    agent = voidrl.train("CartPole-v1", steps=220, out=tmp_path / "run", config=changes)
    loaded = voidrl.load(tmp_path / "run", device="cpu")
    assert not moved(agent.tensors(), loaded.tensors())
    assert isinstance(loaded.learner.encoder.stack, TinyMLP)


@pytest.mark.parametrize(
    ("spec", "stack", "sentence"),
    [
        (
            DISCRETE,
            "WrongShape",
            r"cannot read observations of 4 \(.*2 observations become \(2,\)\): expected",
        ),
        (DISCRETE, "NoModule", r"expected a subclass of torch\.nn\.Module"),
        (DISCRETE, "Missing", r"encoder stack 'test_custom_encoders:Missing' cannot be imported"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_agent_is_built(spec, stack, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_agent(spec, learner__encoder__stack=f"{__name__}:{stack}")


def test_fields_that_mean_nothing_for_it_are_refused():
    encoder = {"stack": TinyConv, "spectral_norm_iterations": 2}
    with pytest.raises(ConfigError, match="spectral_norm_iterations = 2 cannot be used with encoder stack"):
        make_agent(PIXELS, learner__encoder=encoder)
