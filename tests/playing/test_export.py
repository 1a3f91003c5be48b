"""Policies as files: ONNX Runtime acts as the agent does."""

import json
import shutil

import numpy as np
import pytest
import torch
from helpers import (
    DISCRETE,
    NORMED,
    PIXELS,
    PIXELS_CONTINUOUS,
    config,
    make_agent,
    points,
    shake,
    small_method,
)

import voidrl
from voidrl.cli.main import main
from voidrl.envs.spaces import env_action
from voidrl.envs.spaces.frames import frames_of
from voidrl.errors import ConfigError, MissingExtraError
from voidrl.nets.observations import unpack
from voidrl.playing import export
from voidrl.playing.export import Policy
from voidrl.types import EnvSpec, ObsPart

UNEVEN = {"action_low": (-3.0, 0.0), "action_high": (1.0, 10.0), "action_shape": (2,)}
SCALED = EnvSpec((4,), False, 3, num_actions=0, raw_shape=(4,), **UNEVEN)
PARTS = (ObsPart(("image",), "image", (3, 36, 36), dtype="uint8"), ObsPart(("values",), "numbers", (5,)))
MIXED = EnvSpec((3, 36, 36), True, 2, num_actions=3, num_values=5, parts=PARTS)
MASKED = EnvSpec((6,), False, 2, num_actions=3, masked=True, raw_shape=(3,))  # 3 numbers and the mask
AGENTS = {
    "masked rainbow with skills": (MASKED, {"learner": "rainbow", "method": small_method("diayn")}),
    "rainbow on images": (PIXELS, {"learner": "rainbow"}),
    "ddpg": (SCALED, {"learner": "ddpg"}),
    "sac on images": (PIXELS_CONTINUOUS, NORMED),
    "aps": (DISCRETE, {"method": small_method("aps")}),
    "mixed": (MIXED, {}),
    "impala": (PIXELS, {"learner__encoder__stack": "impala", "learner__encoder__rescale": True}),
}


def trained(name):
    spec, changes = AGENTS[name]
    agent = make_agent(spec, **changes)
    shake(agent.learner, 0.3)
    if agent.learner.config.name == "rainbow":  # which leaves noise in its layers
        agent.choose(agent_obs(agent, 1), agent.task_skill.expand(1, -1), deterministic=False)
    return agent


def agent_obs(agent, n, seed=0):
    """Stacked frames as they are stored."""
    spec = agent.spec
    first, *rest = spec.stored_shape
    rng, shape = np.random.default_rng(seed), (n, first * spec.frame_stack, *rest)
    if spec.num_values:
        image = rng.integers(0, 256, (n * spec.frame_stack, *spec.frame_shape), np.uint8)
        values = rng.normal(size=(len(image), spec.num_values)).astype(np.float32)
        return torch.from_numpy(frames_of([image, values], spec).reshape(shape))
    if spec.pixels:
        return torch.from_numpy(rng.integers(0, 256, shape, np.uint8))
    obs = rng.normal(size=shape).astype(np.float32)
    if spec.masked:
        masks = obs.reshape(n, spec.frame_stack, -1)[..., -spec.num_actions :]
        one = np.eye(spec.num_actions)[rng.integers(spec.num_actions, size=masks.shape[:2])]
        masks[:] = np.minimum(one + (masks > 1), 1)
    return torch.from_numpy(obs)


def read(path):
    """The policy in a file as a function of arrays, and its metadata."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path))
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["voidrl"])

    def act(inputs):
        return session.run(["action"], {name: tensor.numpy() for name, tensor in inputs.items()})[0]

    return act, metadata


def inputs_of(agent, n):
    """Stacked frames as they are stored, and the same as inputs of a policy, with skills."""
    obs, skill, spec = agent_obs(agent, n, seed=n), points(n, agent.method.skill_dim), agent.spec
    found = dict(zip(("obs", "values"), unpack(obs, spec), strict=True)) if spec.num_values else {"obs": obs}
    return obs, skill, found | ({"skill": skill} if skill.shape[1] else {})


@pytest.mark.parametrize("name", AGENTS)
def test_a_policy_is_that_of_its_agent(name):
    agent = trained(name)
    policy, spec = Policy(agent), agent.spec
    obs, skill, inputs = inputs_of(agent, 20)
    action = policy(**inputs)
    torch.testing.assert_close(action, agent.choose(obs, skill, deterministic=True), atol=1e-5, rtol=0)
    if spec.masked:
        assert (obs[torch.arange(20), action - spec.num_actions] == 1).all()
    assert [*inputs] == [*policy.inputs]


@pytest.mark.slow  # torch's exporters take seconds to import
@pytest.mark.parametrize("name", AGENTS)
def test_acts_as_the_agent_does(name, tmp_path):
    agent = trained(name)
    before = {name: tensor.clone() for name, tensor in agent.tensors().items()}
    path = voidrl.export_policy(agent, tmp_path / "policy")
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.tensors().items())
    assert [file.name for file in tmp_path.iterdir()] == ["policy"]  # with its weights
    policy, metadata = read(path)
    spec = agent.spec
    for n in (1, 3, 20):
        obs, skill, inputs = inputs_of(agent, n)
        expected = agent.choose(obs, skill, deterministic=True).numpy()
        action = policy(inputs)
        assert action.dtype == expected.dtype
        np.testing.assert_allclose(action, expected, atol=1e-5)
    assert metadata["inputs"]["obs"]["shape"] == ["batch", *spec.obs_shape]
    assert [*metadata["inputs"]] == [*inputs]
    assert metadata["skill"] == agent.task_skill.tolist()
    scale = metadata["action"]
    if agent.spec.discrete:
        assert (scale["kind"], scale["n"], scale["shape"]) == ("discrete", spec.num_actions, [])
        assert ("mask" in scale) == spec.masked
    else:
        low, high = np.array(scale["low"]), np.array(scale["high"])
        taken = (low + (action + 1) / 2 * (high - low)).reshape(n, *scale["shape"])
        np.testing.assert_allclose(taken, env_action(expected, agent.spec), atol=1e-4)


def test_bad_input_gets_one_sentence(tmp_path, monkeypatch):
    agent = make_agent()
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ConfigError, match="there exists already: choose another name, or replace it"):
        voidrl.export_policy(agent, tmp_path / "there")
    with pytest.raises(ConfigError, match="cannot be written: expected a file in a folder that exists"):
        voidrl.export_policy(agent, tmp_path / "nowhere" / "x")
    with pytest.raises(ConfigError, match="method 'random' cannot be exported: it learned no policy"):
        voidrl.export_policy(make_agent(method="random"), tmp_path / "x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"export to ONNX needs onnx.*pip install 'onnx"):
        voidrl.export_policy(agent, tmp_path / "x")
    assert (tmp_path / "there").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["there"]


@pytest.mark.slow
def test_a_policy_that_cannot_be_traced_is_refused(tmp_path):
    agent = make_agent()

    def greedy(output):
        return output.argmax(-1) if float(output.sum()) > 0 else output.argmin(-1)  # reads a value

    agent.learner.greedy = greedy
    with pytest.raises(ConfigError, match=r"the policy cannot be exported .*that torch\.export can trace"):
        voidrl.export_policy(agent, tmp_path / "x")


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "_write_onnx", lambda policy, path, metadata: path.write_text(metadata))
    changes = config(steps=20, warmup_steps=20, env__num_envs=1, learner__encoder__width=0.1)
    run = tmp_path / "run"
    voidrl.pretrain("voidrl/PixelMaze-v0?size=5&image_size=15", config=changes, out=run)
    capsys.readouterr()
    path = run / "policy.onnx"
    path.touch()
    for argv, sentence in (
        (["--to", "onnx"], "exists already: choose another name, or replace it with --force"),
        (["--to", "flax"], "unknown format 'flax'; known: hub:user/name, minari, onnx"),
        ([], "required: --to"),
    ):
        assert main(["export", str(run), *argv]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["export", str(run), "--to", "onnx", "--force"]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    metadata = json.loads(path.read_text())
    assert metadata["environment"] == "voidrl/PixelMaze-v0?size=5&image_size=15"
    assert metadata["steps"] == 20
    (tmp_path / "other").mkdir()
    for to in ("onnx", "minari"):
        assert main(["export", str(tmp_path / "other"), "--to", to]) == 2
        assert "is no run" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    assert main(["export", str(run), "--to", "minari"]) == 2
    assert "holds no checkpoint yet" in capsys.readouterr().err
