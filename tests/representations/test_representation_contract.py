"""What every representation must do, for all that the registry finds."""

import pytest
import torch
from helpers import DISCRETE, PIXELS, config, fill_replay, make_agent, moved, shake, snapshot

import voidrl
from voidrl.config import registry
from voidrl.engine.host_reads import HostReads
from voidrl.errors import ConfigError
from voidrl.representations.base import Representation
from voidrl.types import CHECK

REPRESENTATIONS = registry.names("representation")
PIXELS_ONLY = ("curl", "imagenet")
WITH_LOSS = [name for name in REPRESENTATIONS if registry.find("representation", name).has_loss]


@pytest.mark.parametrize("spec", [DISCRETE, PIXELS], ids=["vector", "pixels"])
@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_encodes_both_raw_and_augmented_observations_to_dim(name, spec):
    if (name == "identity" and spec.pixels) or (name in PIXELS_ONLY and not spec.pixels):
        return  # refused; tests/test_trainers.py
    agent = make_agent(spec, representation=name)
    frames = fill_replay(spec).frames_of(torch.arange(5))
    z = agent.representation.encode(frames.stacked())
    assert z.shape == (5, agent.representation.dim)
    assert z.dtype == torch.float32
    augmented = agent.augment(frames, agent.representation.layout)
    assert agent.representation.encode(augmented).shape == z.shape


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_f_is_trained_by_somebody_exactly_if_it_says_so(name):
    spec = PIXELS if name in PIXELS_ONLY else DISCRETE
    agent, replay = make_agent(spec, representation=name), fill_replay(spec)
    f = agent.representation
    before = snapshot(dict(f.named_parameters()))
    agent.update(replay)
    changed = bool(moved(before, dict(f.named_parameters())))
    assert changed == (f.has_loss or f.uses_learner_encoder)
    if not f.has_loss:
        with pytest.raises(TypeError, match="has no loss"):
            f.loss(None)


def test_identity_is_the_observation_and_refuses_pixels():
    agent = make_agent(representation="identity")
    obs = torch.randn(3, 4)
    assert torch.equal(agent.representation.encode(obs), obs)
    assert agent.representation.dim == 4
    assert not list(agent.representation.parameters())
    with pytest.raises(
        ConfigError, match=r"'identity' cannot be used on pixels 3×36×36 × 2 frames.*use simclr"
    ):
        make_agent(PIXELS, representation="identity")


@pytest.mark.parametrize("share", ["nothing", "all"])
def test_fixed_never_moves_not_even_its_normalization(share):
    options = {"representation__encoder__spectral_norm_iterations": 3, "share_encoder": share}
    agent = make_agent(representation="fixed", **options)
    with torch.no_grad():  # away from where the power iteration has converged
        for weight in agent.representation.encoder.parameters():
            weight += 0.3 * torch.randn_like(weight)
    replay, obs = fill_replay(), torch.randn(6, 4)
    before, z = snapshot(agent.representation.state_dict()), agent.representation.encode(obs)
    for i in range(3):
        agent.update(replay, i % agent.learner.period)
    assert not moved(before, agent.representation.state_dict())
    assert torch.equal(agent.representation.encode(obs), z)


def built(name, **changes):
    spec = PIXELS if name in PIXELS_ONLY else DISCRETE
    return make_agent(spec, representation=name, **changes), fill_replay(spec)


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_the_step_can_be_captured_and_losses_are_exact_in_bf16(name):
    agent, replay = built(name)
    with HostReads() as reads:
        agent.update(replay)
    assert reads.first is None
    metrics = built(name, precision="bf16")[0].update(replay)
    assert all(value.dtype == torch.float32 and value.isfinite() for value in metrics.values())


MOMENTA = {"atc": 0.99, "curl": 0.999, "spr": 0.9, "sgi": 0.99, "combined": 0.99}


@pytest.mark.parametrize("name", MOMENTA)
def test_targets_follow_with_their_momentum_and_take_no_gradients(name):
    agent, replay = built(name, **({"representation__momentum": 0.9} if name == "spr" else {}))
    f = agent.representation
    targets = {n: p for n, p in f.named_parameters(remove_duplicate=False) if "target_" in n}
    assert targets
    shake(f, 0.1)  # or one step would hardly move them
    before = snapshot(targets)
    agent.update(replay)
    for path, target in targets.items():
        owner, _, online = path.rpartition("target_")
        home = f if online.startswith("encoder.") else f.get_submodule(owner.rstrip("."))
        wanted = before[path].lerp(home.get_parameter(online), 1 - MOMENTA[name])
        torch.testing.assert_close(target, wanted, atol=1e-6, rtol=0)
        assert target.grad is None
        assert not target.requires_grad
    assert not set(agent.optimizers.all_parameters()) & set(targets.values())


@pytest.mark.parametrize("name", WITH_LOSS)
def test_its_loss_falls_on_a_few_transitions(name):
    agent, _ = built(name, representation__learning_rate=3e-3, augment__shift_pixels=0)
    replay = fill_replay(agent.spec, steps=10)
    losses = [agent.update(replay)[f"{CHECK}representation/representation"] for _ in range(40)]
    assert losses[-1] < 0.95 * losses[0]


class Mistaken(Representation):
    """A contrastive loss with one mistake at a time."""

    has_loss = True
    returns = "vector"

    def encode(self, obs):
        return super().encode(obs)[:, : 3 if self.returns == "width" else None]

    def loss(self, views):
        z = self.encode(views.obs())
        wrong = {
            "vector": (z.sum(0), {}),
            "alone": z.sum(),
            "detached": (z.detach().sum(), {}),
            "nothing": None,
            "width": (z.sum(), {}),
            "raises": None,
        }
        return wrong[self.returns] if self.returns != "raises" else z @ z


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("vector", r"loss of representation '.*:Mistaken' returned \(15,\): expected a scalar tensor"),
        ("alone", r"returned \(\): expected a scalar tensor, or one loss"),
        ("width", r"encode of representation .* to \(\d+, 3\): expected \(\d+, 15\), since its dim is 15"),
        ("nothing", "returned NoneType: expected a scalar tensor"),
        ("detached", "has no gradient: expected one that depends on trainable weights"),
        ("raises", r"failed in `loss`, line \d+ of .* \(RuntimeError.*given made-up transitions"),
    ],
)
def test_mistakes_in_a_custom_representation_are_sentences(mistake, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(Mistaken, "returns", mistake)
    with pytest.raises(ConfigError, match=sentence):
        voidrl.pretrain("CartPole-v1", steps=10, out=tmp_path / "run", config=config(representation=Mistaken))
    assert not (tmp_path / "run").exists()
