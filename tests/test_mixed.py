"""Images with numbers: how they are stored, split, augmented and read; every piece runs on them."""

import struct

import numpy as np
import pytest
import torch
from helpers import BOX, CPU, fill_replay, make_agent, moved, packed, small_method, snapshot, update

from voidrl.agent.dry_build import dry_build
from voidrl.config import AugmentConfig, EncoderConfig, registry
from voidrl.engine.host_reads import HostReads
from voidrl.errors import ConfigError
from voidrl.nets import Encoder
from voidrl.nets.augment import Augment, images
from voidrl.nets.observations import input_shape, symlog, unpack, visible_numbers
from voidrl.probing.probe import encode_states
from voidrl.replay import Replay
from voidrl.replay.ring import slot_bytes
from voidrl.types import EnvSpec, Frames

MIXED = EnvSpec((1, 7, 7), True, 2, num_actions=3, raw_shape=(7, 7, 1), num_values=4)
MASKED = EnvSpec((1, 7, 7), True, 2, num_actions=3, raw_shape=(7, 7, 1), num_values=4, masked=True)
CONTINUOUS = EnvSpec((2, 16, 20), True, 1, num_actions=0, raw_shape=(16, 20, 2), num_values=4, **BOX)
SPECS = {"discrete": MIXED, "masked": MASKED, "continuous": CONTINUOUS}


def some(spec, n=3, seed=0):
    """Stored observations, with their images (n, C · stack, H, W) and numbers (n, stack · v)."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (spec.frame_stack, n, *spec.frame_shape), dtype=np.uint8)
    numbers = rng.normal(size=(spec.frame_stack, n, spec.num_values)).astype(np.float32)
    stored = np.concatenate([packed(*frame) for frame in zip(pictures, numbers, strict=True)], 1)
    together = (np.concatenate(list(part), 1) for part in (pictures, numbers))
    return (torch.from_numpy(part) for part in (stored, *together))


def test_numbers_are_the_bytes_behind_the_channels():
    spec = EnvSpec((1, 2, 3), True, 2, num_actions=2, raw_shape=(2, 3, 1), num_values=3)  # 12 bytes: 2 planes
    assert spec.stored_shape == (3, 2, 3)
    frames = []
    for first, values in ((0, (1.5, -2.0, 1e6)), (10, (0.0, 3.25, -1e-3))):
        picture = bytes(range(first, first + 6))
        frames.append(np.frombuffer(picture + struct.pack("<3f", *values), np.uint8).reshape(3, 2, 3))
    obs = torch.from_numpy(np.concatenate(frames))[None]
    pictures, numbers = unpack(obs, spec)
    assert pictures.flatten().tolist() == [*range(6), *range(10, 16)]
    assert pictures.shape == (1, 2, 2, 3)
    assert torch.equal(numbers, torch.tensor([[1.5, -2.0, 1e6, 0.0, 3.25, -1e-3]]))


def test_numbers_are_read_wherever_the_bytes_begin():
    spec = EnvSpec((1, 2, 2), True, 1, num_actions=2, raw_shape=(2, 2, 1), num_values=1)
    content = bytes(3) + bytes(4) + struct.pack("<f", 2.5)
    obs = torch.frombuffer(bytearray(content), dtype=torch.uint8)[3:].view(1, 2, 2, 2)
    assert unpack(obs, spec)[1].item() == 2.5


def test_the_replay_stores_the_planes_and_counts_their_bytes():
    replay = Replay(MIXED, 2, 10, 0, CPU, CPU)
    assert replay.frames.shape[1:] == (2, 7, 7)
    plain = EnvSpec((1, 7, 7), True, 2, num_actions=3)
    assert slot_bytes(MIXED, 0) == slot_bytes(plain, 0) + 49
    first, then = (packed(np.full((2, 1, 7, 7), i, np.uint8), np.full((2, 4), i / 4)) for i in (1, 2))
    replay.reset(first)
    replay.add(np.zeros(2, int), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), then, torch.zeros(2, 0))
    pictures, numbers = unpack(replay.latest(), MIXED)
    assert pictures[:, :, 0, 0].tolist() == [[1, 2]] * 2
    assert numbers.tolist() == [[0.25] * 4 + [0.5] * 4] * 2


@pytest.mark.parametrize("crop", [0, 12])
def test_augmentation_moves_the_images_and_not_the_numbers(crop):
    stored, pictures, numbers = some(CONTINUOUS, n=40)
    frames = Frames(stored, torch.arange(40)[:, None])
    augment = Augment(AugmentConfig(3, 0.1, crop_size=crop), CONTINUOUS)
    torch.manual_seed(0)
    made = augment(frames)
    torch.manual_seed(0)
    alone = Augment(AugmentConfig(3, 0.1, crop_size=crop))(Frames(pictures, torch.arange(40)[:, None]))
    assert torch.equal(made[:, -4:], numbers)
    assert torch.equal(made[:, :-4], alone.flatten(1))
    plain = augment.plain(frames)
    assert torch.equal(plain[:, -4:], numbers)
    assert not torch.equal(plain[:, :-4], made[:, :-4])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("feature_dim", [0, 5])
def test_stored_bytes_and_network_input_have_the_same_features(spec, feature_dim):
    stored, pictures, numbers = some(spec)
    hidden_dim = 6 if feature_dim else 0
    encoder = Encoder(spec, EncoderConfig("tiny", feature_dim=feature_dim, hidden_dim=hidden_dim))
    count = 3 * spec.frame_stack
    frames = Frames(stored.view(count, *spec.stored_shape), torch.arange(count).view(3, -1))
    made = Augment(AugmentConfig(0), spec).plain(frames)
    assert made.shape == (3, *input_shape(spec))
    features = encoder(stored)
    assert torch.equal(encoder(made), features)
    assert features.shape == (3, encoder.feature_dim)
    if feature_dim:
        return
    seen = numbers.unflatten(1, (spec.frame_stack, -1))[..., : 1 if spec.masked else None].flatten(1)
    assert seen.shape[1] == visible_numbers(spec)
    assert torch.equal(features[:, -seen.shape[1] :], symlog(seen))
    assert torch.equal(features[:, : -seen.shape[1]], encoder.latent(stored).flatten(1))
    assert torch.equal(encoder.latent(stored), encoder.stack(images(pictures)))


def test_numbers_reach_the_features_and_masks_do_not():
    _, _, numbers = some(MASKED)
    encoder = Encoder(MASKED, EncoderConfig("tiny", feature_dim=5))
    x = torch.cat([torch.rand(3, 2 * 49) - 0.5, numbers], 1).requires_grad_()
    encoder(x).square().sum().backward()
    gradient = x.grad[:, -8:].unflatten(1, (2, 4))
    assert (gradient[..., 0] != 0).all()
    assert (gradient[..., 1:] == 0).all()
    assert symlog(torch.tensor([-1e6, -1.0, 0.0, 1.0, 1e6])).sign().tolist() == [-1, -1, 0, 1, 1]
    assert symlog(torch.tensor(np.e - 1)).item() == pytest.approx(1)


ON_MASKS = ("apt", "aps", "rnd", "metra", "random")  # of the others nothing else reads masks


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, k) for k in SPECS for name in (registry.names("method") if k == "discrete" else ON_MASKS)],
)
def test_every_method_trains_on_mixed_observations(name, kind):
    spec = SPECS[kind]
    agent = make_agent(spec, method=small_method(name), learner__n_step=2, finetune__warmup_steps=9)
    sizes = {"skill_dim": agent.method.skill_dim, "note_dim": agent.note_dim}
    replay = fill_replay(spec, steps=20, **sizes)
    obs, env = replay.observations(replay.sample(4)), torch.arange(4)
    agent.method.begin(obs, env, agent.representation)
    agent.method.observe(obs, torch.zeros(4, agent.method.skill_dim), env, agent.representation)
    before = snapshot(dict(agent.named_parameters()))
    with HostReads() as reads:
        metrics = update(agent, replay)
    assert reads.first is None or agent.learner.rollout_steps  # which says how many steps it takes
    assert all(torch.isfinite(value) for value in metrics.values())
    assert bool(moved(before, dict(agent.named_parameters()))) == agent.learns
    assert dry_build(spec, agent.config) is not None


@pytest.mark.parametrize("name", registry.names("representation"))
def test_every_representation_trains_on_mixed_observations_or_says_why_not(name):
    if name == "identity":
        with pytest.raises(ConfigError, match=r"'identity' cannot be used .* simclr, fixed or learner"):
            make_agent(MIXED, representation=name)
        return
    agent = make_agent(MIXED, representation=name)
    agent.update(fill_replay(MIXED, steps=20))
    stored = next(some(MIXED))
    assert agent.representation.encode(stored).shape == (3, agent.representation.dim)


def test_an_encoder_of_mixed_observations_is_shared():
    agent = make_agent(MIXED, share_encoder="stack", representation="icm", learner__encoder__activation="elu")
    agent.update(fill_replay(MIXED, steps=20))


def test_self_prediction_through_the_heads_has_the_numbers():
    spr = {"name": "spr", "projection": "head", "target": "learner"}
    agent = make_agent(MASKED, phase="train", learner="rainbow", representation=spr)
    assert agent.representation.latent_shape == (agent.learner.encoder.feature_dim,)
    agent.update(fill_replay(MASKED, steps=20))
    with pytest.raises(ConfigError, match="batch_norm = True cannot be used"):
        make_agent(MIXED, phase="train", representation={"name": "spr", "batch_norm": True})


def test_a_probe_looks_at_the_images_alone_for_its_baseline():
    agent = make_agent(MIXED)
    replay = fill_replay(MIXED, steps=20)
    found = encode_states(agent, replay, torch.arange(8), None)
    assert found["pixels"].shape == (8, 2 * 49)
    assert found["z"].shape == found["random"].shape == (8, agent.representation.dim)


def test_numbers_tell_states_apart_that_look_alike():
    """The images are all the same, the reward is where the number is positive: values must follow it."""
    spec = EnvSpec((1, 7, 7), True, 1, num_actions=2, raw_shape=(7, 7, 1), num_values=1)
    rng = np.random.default_rng(0)
    values = rng.choice([-1.0, 1.0], (200, 1))
    picture = np.full((1, 1, 7, 7), 9, np.uint8)
    replay = Replay(spec, 1, 500, 0, CPU, CPU)
    replay.reset(packed(picture, values[:1]))
    yes, no = np.ones(1, bool), np.zeros(1, bool)
    for t in range(1, 200):  # action 1 pays where the number is positive, action 0 where it is negative
        action = rng.integers(2, size=1)
        paid = (action[0] == 1) == (values[t - 1, 0] > 0)
        after, skill = packed(picture, values[t : t + 1]), torch.zeros(1, 0)
        replay.add(action, np.array([float(paid)]), yes, no, after, skill)
        replay.add(action, np.zeros(1), no, no, after, skill)
    agent = make_agent(spec, phase="train", learner__learning_rate=3e-3, learner__batch_size=64)
    for _ in range(40):
        agent.update(replay)
    obs = torch.from_numpy(packed(np.repeat(picture, 2, 0), np.array([[-1.0], [1.0]])))
    assert agent.choose(obs, torch.zeros(2, 0), deterministic=True).tolist() == [0, 1]
