"""ImageNet features: the right network, read from the right file, and never changed."""

import hashlib
import json

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, PIXELS, PIXELS_CONTINUOUS, fill_replay, make_agent, moved, snapshot
from tiny_runs import MAZE, assert_same_run, newest, tiny
from tiny_weights import NARROW, reference, resnet_weights, write_weights

import voidrl
from voidrl.agent.reset import reset
from voidrl.config import update
from voidrl.errors import ConfigError
from voidrl.nets import resnet
from voidrl.nets.augment import images
from voidrl.nets.resnet import ResNet
from voidrl.report.videos.video import untrained
from voidrl.representations.imagenet import ImageNetConfig, find_weights
from voidrl.training.build import with_files
from voidrl.types import EnvSpec

SHARED = {"representation": "imagenet", "share_encoder": "all"}
GRAY = EnvSpec((1, 36, 36), True, 4, num_actions=3, raw_shape=(36, 36))


@pytest.fixture
def narrow(tmp_path, monkeypatch):
    """A file for a ResNet-18 of a few channels, to which the network is reduced for the test."""
    monkeypatch.setattr(resnet, "CHANNELS", NARROW)
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
    monkeypatch.setattr(resnet, "CHANNELS", channels)
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


def test_the_network_has_its_published_size():
    with torch.device("meta"):
        net = ResNet()
    parameters = sum(p.numel() for p in net.parameters())
    assert net.dim == 512
    assert (parameters + 1000 * 513) / 1e6 == pytest.approx(11.69, abs=0.005)  # with the classifier


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


def test_grayscale_frames_are_repeated_and_other_observations_refused(narrow):
    agent = given(make_agent(GRAY, representation="imagenet"), narrow)
    gray = fill_replay(GRAY).observations(torch.arange(2))  # (2, 4, 36, 36)
    rgb = gray.repeat_interleave(3, 1)
    spec = EnvSpec((3, 36, 36), True, 4, num_actions=3, raw_shape=(36, 36, 3))
    colored = given(make_agent(spec, representation="imagenet"), narrow)
    torch.testing.assert_close(
        agent.representation.encoder.stack(images(gray)), colored.representation.encoder.stack(images(rgb))
    )
    four = EnvSpec((4, 36, 36), True, 1, num_actions=3, raw_shape=(36, 36, 4))
    for spec in (CONTINUOUS, four):
        with pytest.raises(ConfigError, match=r"'imagenet' cannot be used on .*: it takes images with 1"):
            make_agent(spec, representation="imagenet")


# What is trained


@pytest.mark.parametrize(("phase", "share"), [("pretrain", "all"), ("train", "stack")])
def test_ten_updates_train_the_trunk_and_leave_the_network_alone(phase, share, narrow):
    pieces = {"representation": "imagenet", "representation__encoder__activation": "relu"}
    agent = given(make_agent(PIXELS_CONTINUOUS, phase=phase, share_encoder=share, **pieces), narrow)
    replay = fill_replay(PIXELS_CONTINUOUS)
    before = snapshot(agent.tensors())
    for i in range(10):
        agent.update(replay, i % agent.learner.period)
    changed = moved(before, agent.tensors())
    assert resnet_tensors(before)
    assert not resnet_tensors(dict.fromkeys(changed))
    trunk = "representation.encoder.trunk." if share == "all" else "learner.encoder.trunk."
    assert any(name.startswith(trunk) for name in changed)
    weights = resnet_weights(channels=NARROW)
    for name, tensor in agent.representation.given_part.resnet.state_dict().items():
        assert torch.equal(tensor, weights[name])
    x = torch.randn(2, 3, 36, 36)
    net = agent.representation.given_part.resnet.train()  # statistics of a batch are not even looked at
    torch.testing.assert_close(net(x), reference(weights, x))
    assert not any(p.requires_grad for p in net.parameters())


def test_targets_share_the_network_and_a_checkpoint_has_it_once(narrow):
    agent = given(make_agent(PIXELS, phase="train", **SHARED), narrow)
    assert agent.learner.target_encoder.stack is agent.learner.encoder.stack
    assert agent.learner.target_encoder.trunk is not agent.learner.encoder.trunk
    names = [name for name in agent.tensors() if name.endswith("resnet.conv1.weight")]
    assert names == ["representation.encoder.stack.resnet.conv1.weight"]


def test_a_reset_spares_the_network(narrow):
    agent = given(make_agent(PIXELS, phase="train", **SHARED), narrow)
    before = snapshot(agent.tensors())
    narrow.unlink()
    reset(agent)
    changed = moved(before, agent.tensors())
    assert "representation.encoder.trunk.0.weight" in changed
    assert not resnet_tensors(dict.fromkeys(changed))


def test_training_without_the_learner_reading_it_is_refused(narrow):
    with pytest.raises(ConfigError, match="would not read it; use share_encoder = 'all'"):
        make_agent(PIXELS, phase="train", representation="imagenet")
    alone = make_agent(PIXELS, representation="imagenet", representation__encoder__feature_dim=0)
    assert alone.representation.dim == 2 * 8 * NARROW


# Files


def test_a_file_of_another_network_is_refused_by_the_first_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr(resnet, "CHANNELS", NARROW)
    for network, sentence in {
        "resnet50": r"'layer1.0.conv1.weight' has shape \(4, 4, 3, 3\) in the network and \(4, 4, 1, 1\)",
        "resnet34": r"'layer1.2.conv1.weight' has shape nothing in the network and \(4, 4, 3, 3\)",
    }.items():
        with pytest.raises(ConfigError, match=f"does not hold a ResNet-18: {sentence}"):
            ResNet().load(resnet_weights(network, NARROW), "the file")
    broken = resnet_weights(channels=NARROW)
    broken["layer2.0.conv1.weight"][0, 0, 0, 0] = torch.nan
    with pytest.raises(ConfigError, match=r"'layer2.0.conv1.weight' has values that are NaN"):
        ResNet().load(broken, "the file")


def test_a_file_that_is_not_there_is_a_sentence_with_the_line_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    line = (
        'run `python -c "from torchvision.models import resnet18; '
        "resnet18(weights='IMAGENET1K_V1')\"` where there is network access"
    )
    for weights, why in (
        ("", "representation.weights is not set and there is no "),
        ("no.pth", "no such file"),
    ):
        with pytest.raises(ConfigError) as refused:
            voidrl.train(MAZE, out=tmp_path / "run", config=tiny(**SHARED, representation__weights=weights))
        assert why in str(refused.value)
        assert line in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_the_cache_of_torchvision_is_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    path = tmp_path / "torch/hub/checkpoints/resnet18-f37072fd.pth"
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_weights(ImageNetConfig()) == path


def test_files_that_are_no_weights_are_refused(tmp_path, narrow):
    def refusal(name, content):
        path = tmp_path / name
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        with pytest.raises(ConfigError) as refused:
            given(make_agent(PIXELS, representation="imagenet"), path)
        return str(refused.value)

    assert "cannot be read as weights" in refusal("text.pth", b"not a file of weights")
    assert "cannot be read as weights" in refusal("text.safetensors", b"not a file of weights")
    assert "cannot be read as weights" in refusal("code.pt", np.random.default_rng())  # would run code
    assert "holds a dict with other things than tensors" in refusal("nested.pth", {"state_dict": {}})
    assert "expected .pth, .pt, .bin, .safetensors" in refusal("weights.onnx", b"")
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        ImageNetConfig(weights_sha256="ABC")


# Runs


def test_a_run_keeps_the_hash_and_needs_the_file_only_once(tmp_path, narrow):
    """Train, resume bit for bit, evaluate, fine-tune and share, all after the file is gone."""
    config = tiny(**SHARED, representation__weights=str(narrow), log__checkpoint_every_steps=8)
    sha256 = hashlib.sha256(narrow.read_bytes()).hexdigest()
    straight = voidrl.train(MAZE, steps=16, seed=1, out=tmp_path / "straight", config=config)
    voidrl.train(MAZE, steps=8, seed=1, out=tmp_path / "resumed", config=config)
    saved = json.loads((tmp_path / "resumed/config.json").read_text())["representation"]
    assert (saved["weights"], saved["weights_sha256"]) == (str(narrow), sha256)
    loaded = torch.load(narrow)
    narrow.unlink()
    voidrl.resume(tmp_path / "resumed", steps=16)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=16)
    tensors = newest(tmp_path / "resumed")[0]
    name = "agent.safetensors/representation.encoder.stack.resnet.layer4.1.bn2.running_var"
    assert torch.equal(tensors[name], loaded["layer4.1.bn2.running_var"])
    assert voidrl.evaluate(tmp_path / "resumed", episodes=1, device="cpu").returns
    fresh = untrained(straight).representation.given_part.resnet.conv1.weight
    assert torch.equal(fresh, loaded["conv1.weight"])

    folder = voidrl.save_pretrained(straight, tmp_path / "shared")
    shared = voidrl.from_pretrained(folder, device="cpu")
    assert shared.config.representation.weights == ""  # a path on the author's machine
    assert shared.config.representation.weights_sha256 == sha256
    assert not moved(snapshot(straight.tensors()), shared.tensors())
    whole = update(straight.config, {"representation.weights": "", "representation.weights_sha256": ""})
    tuned = voidrl.finetune(shared, MAZE, steps=8, out=tmp_path / "tuned")
    assert torch.equal(tuned.representation.given_part.resnet.conv1.weight, loaded["conv1.weight"])
    with pytest.raises(
        ConfigError, match="cannot be used for fine-tuning: the agent has its weights already"
    ):
        voidrl.finetune(shared, MAZE, steps=8, config={"representation.weights": "other.pth"})
    assert with_files(whole, straight.config).representation == straight.config.representation
    with pytest.raises(ConfigError, match=r"representation.weights = .* cannot be set when a run is resumed"):
        voidrl.resume(tmp_path / "resumed", config={"representation.weights": "other.pth"})


def test_another_file_than_the_hash_says_is_refused(tmp_path, narrow):
    sha256 = hashlib.sha256(b"another").hexdigest()
    config = tiny(**SHARED, representation__weights=str(narrow), representation__weights_sha256=sha256)
    with pytest.raises(ConfigError, match=f"representation.weights_sha256 is {sha256}; bring back the file"):
        voidrl.train(MAZE, steps=8, out=tmp_path / "run", config=config)
    # A run that was stopped before its first checkpoint reads the file again.
    config = tiny(**SHARED, representation__weights=str(narrow))
    voidrl.train(MAZE, steps=8, out=tmp_path / "run", config=config)
    (tmp_path / "run/status.json").unlink(missing_ok=True)
    for path in sorted((tmp_path / "run/checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    write_weights(narrow, resnet_weights(channels=NARROW, seed=1))
    with pytest.raises(ConfigError, match="is not the file that the config says"):
        voidrl.resume(tmp_path / "run")
    write_weights(narrow, resnet_weights(channels=NARROW))
