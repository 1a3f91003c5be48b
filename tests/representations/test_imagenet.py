"""ImageNet features: the right network, read from the right file, and never changed."""

import pytest
import torch
from helpers import CONTINUOUS, PIXELS, PIXELS_CONTINUOUS, fill_replay, make_agent, moved, snapshot
from tiny_runs import MAZE, assert_same_run, tiny
from tiny_weights import NARROW, reference, resnet_weights, write_weights

import voidrl
from voidrl.errors import ConfigError
from voidrl.nets.augment import images
from voidrl.representations import imagenet
from voidrl.representations.imagenet import ImageNetConfig
from voidrl.types import EnvSpec

SHARED = {"representation": "imagenet", "share_encoder": "all"}
GRAY = EnvSpec((1, 36, 36), True, 4, num_actions=3, raw_shape=(36, 36))


@pytest.fixture
def narrow(tmp_path, monkeypatch):
    """A file for a ResNet-18 of a few channels, to which the network is reduced for the test."""
    monkeypatch.setattr(imagenet, "CHANNELS", NARROW)
    return write_weights(tmp_path / "narrow.pth", resnet_weights(channels=NARROW))


def given(agent, path):
    """The agent as a run has it that reads this file."""
    config = ImageNetConfig("imagenet", encoder=agent.config.representation.encoder, weights=str(path))
    agent.representation.config = config
    agent.representation.read_files()
    return agent


def resnet_tensors(tensors):
    return {name: tensor for name, tensor in tensors.items() if ".resnet." in name}


# The network


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files_of_both_kinds_give_the_features_of_the_definition(suffix, tmp_path, monkeypatch):
    channels = 16
    monkeypatch.setattr(imagenet, "CHANNELS", channels)
    weights = resnet_weights(channels=channels)
    path = write_weights(tmp_path / f"file{suffix}", weights)
    agent = make_agent(PIXELS, representation={"name": "imagenet", "weights": str(path)})
    agent.representation.read_files()
    net = agent.representation.given_part.resnet
    unread = {name for name in weights if name.startswith("fc.") or name.endswith("tracked")}
    assert net.state_dict().keys() == weights.keys() - unread
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    x = torch.randn(2, 3, 40, 36, dtype=torch.float64)
    expected = reference({name: tensor.double() for name, tensor in weights.items()}, x)
    assert expected.shape == (2, channels * 8)
    torch.testing.assert_close(net.double()(x), expected)


def test_each_frame_is_normalized_and_read_by_itself(narrow):
    agent = given(make_agent(PIXELS, representation__name="imagenet"), narrow)
    obs = fill_replay(PIXELS).observations(torch.arange(3))  # (3, 2 · 3, 36, 36)
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    weights = resnet_weights(channels=NARROW)
    stack = agent.representation.encoder.stack
    found = stack(images(obs))
    for frame in (0, 1):
        rgb = obs[:, 3 * frame : 3 * frame + 3].float() / 255
        expected = reference(weights, (rgb - mean) / std)
        width = expected.shape[1]
        torch.testing.assert_close(found[:, frame * width : (frame + 1) * width], expected)
    assert agent.representation.encoder.trunk(found).shape == (3, agent.representation.dim)
    assert agent.representation.dim == 6
    assert ImageNetConfig().encoder.feature_dim == 50


def test_other_observations_than_gray_and_colored_images_are_refused():
    make_agent(GRAY, representation="imagenet")
    four = EnvSpec((4, 36, 36), True, 1, num_actions=3, raw_shape=(36, 36, 4))
    for spec in (CONTINUOUS, four):
        with pytest.raises(ConfigError, match=r"'imagenet' cannot be used on .*: it takes images with 1"):
            make_agent(spec, representation="imagenet")


# What is trained


@pytest.mark.parametrize(("phase", "share"), [("pretrain", "all"), ("train", "stack")])
def test_updates_train_the_trunk_and_leave_the_network_alone(phase, share, narrow):
    pieces = {"representation": "imagenet", "representation__encoder__activation": "relu"}
    agent = given(make_agent(PIXELS_CONTINUOUS, phase=phase, share_encoder=share, **pieces), narrow)
    replay = fill_replay(PIXELS_CONTINUOUS)
    before = snapshot(agent.tensors())
    for i in range(3):
        agent.update(replay, i % agent.learner.period)
    changed = moved(before, agent.tensors())
    assert resnet_tensors(before)
    assert not resnet_tensors(dict.fromkeys(changed))
    trunk = "representation.encoder.trunk." if share == "all" else "learner.encoder.trunk."
    assert any(name.startswith(trunk) for name in changed)
    x = torch.randn(2, 3, 36, 36)
    net = agent.representation.given_part.resnet.train()  # statistics of a batch are not even looked at
    torch.testing.assert_close(net(x), reference(resnet_weights(channels=NARROW), x))
    assert not any(p.requires_grad for p in net.parameters())


def test_training_without_the_learner_reading_it_is_refused(narrow):
    with pytest.raises(ConfigError, match="would not read it; use share_encoder = 'all'"):
        make_agent(PIXELS, phase="train", representation="imagenet")
    alone = make_agent(PIXELS, representation="imagenet", representation__encoder__feature_dim=0)
    assert alone.representation.dim == 2 * 8 * NARROW


# Files


def test_a_file_that_is_not_there_is_a_sentence_with_the_line_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    line = (
        'run `python -c "from torchvision.models import resnet18; '
        "resnet18(weights='IMAGENET1K_V1')\"` where there is network access"
    )
    for weights, why in (("", "there is no "), ("no.pth", "no.pth")):
        with pytest.raises(ConfigError) as refused:
            voidrl.train(MAZE, out=tmp_path / "run", config=tiny(**SHARED, representation__weights=weights))
        assert why in str(refused.value)
        assert line in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_weights_of_a_resnet_18_are_refused(tmp_path, narrow):
    other, text = tmp_path / "other.pth", tmp_path / "text.pth"
    write_weights(other, resnet_weights("resnet50", NARROW))
    text.write_bytes(b"not a file of weights")
    for path, sentence in ((other, "does not hold a ResNet-18"), (text, "cannot be read as weights")):
        with pytest.raises(ConfigError, match=sentence):
            given(make_agent(PIXELS, representation="imagenet"), path)


def test_a_run_needs_the_file_only_once(tmp_path, narrow):
    """Train, resume bit for bit, evaluate, fine-tune and share, all after the file is gone."""
    config = tiny(**SHARED, representation__weights=str(narrow), log__checkpoint_every_steps=8)
    straight = voidrl.train(MAZE, steps=16, seed=1, out=tmp_path / "straight", config=config)
    voidrl.train(MAZE, steps=8, seed=1, out=tmp_path / "resumed", config=config)
    loaded = torch.load(narrow)
    narrow.unlink()
    voidrl.resume(tmp_path / "resumed", steps=16)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=16)
    names = [name for name in straight.tensors() if name.endswith("resnet.conv1.weight")]
    assert names == ["representation.encoder.stack.resnet.conv1.weight"]  # which targets share
    assert voidrl.evaluate(tmp_path / "resumed", episodes=1, device="cpu").returns
    shared = voidrl.from_pretrained(voidrl.save_pretrained(straight, tmp_path / "shared"), device="cpu")
    assert shared.config.representation.weights == ""  # a path on the author's machine
    tuned = voidrl.finetune(shared, MAZE, steps=8, out=tmp_path / "tuned")
    assert torch.equal(tuned.representation.given_part.resnet.conv1.weight, loaded["conv1.weight"])
