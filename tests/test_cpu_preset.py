"""Without a GPU the preset `cpu` takes the place of defaults that would be hopeless, and only of those."""

from __future__ import annotations

import json

import pytest
import torch

import voidrl
from voidrl.agent.cost import update_gflop
from voidrl.cli import main as cli
from voidrl.presets.presets import default_preset
from voidrl.training import build
from voidrl.training.build import cpu_preset_note, layers_for
from voidrl.types import EnvSpec

SMALL = {"updates_per_step": 0.25, "learner.hidden_dim": 64, "learner.batch_size": 32, "warmup_steps": 20}
RACING = EnvSpec(
    (3, 96, 96), True, 1, 0, (-1.0,) * 3, (1.0,) * 3, raw_shape=(96, 96, 3), action_shape=(3,)
)  # CarRacing's


def built(spec, env, preset=None, **changes):
    layers = layers_for(env, "pretrain", preset, changes)
    return build.build_config(spec, [layer.values for layer in layers])


def vector(discrete):
    box = {"action_low": (-1.0,), "action_high": (1.0,), "action_shape": (1,)}
    return EnvSpec((24,), False, 1, 2 if discrete else 0, raw_shape=(24,), **({} if discrete else box))


PONG = EnvSpec((1, 84, 84), True, 4, 6, raw_shape=(1, 84, 84))
PLACES = [
    ("CartPole-v1", vector(True)),
    ("Pendulum-v1", vector(False)),
    ("CarRacing-v3", RACING),
    ("atari/pong", PONG),
    ("dmc/walker_run", vector(False)),
]


@pytest.mark.parametrize(("env", "spec"), PLACES)
def test_every_default_is_hopeless_and_the_preset_is_not(env, spec):
    config = built(spec, env)
    sentence = cpu_preset_note(env, spec, config)
    assert sentence.startswith("preset cpu, since ")
    assert f"preset={default_preset(env) or 'none'!r} keeps them" in sentence
    small = built(spec, env, "cpu")
    assert cpu_preset_note(env, spec, small) == ""
    assert update_gflop(spec, small) * small.updates_per_step < 1.25  # 100K steps within 42 minutes
    assert small.steps == 100_000


def test_what_is_small_already_stays_as_it_is():
    spec = vector(True)
    assert cpu_preset_note("CartPole-v1", spec, built(spec, "CartPole-v1", **SMALL)) == ""
    for preset in ("maze-demo", "atari-demo"):
        shape = (3, 39, 39) if preset == "maze-demo" else (1, 84, 84)
        images = EnvSpec(shape, True, 1 if preset == "maze-demo" else 4, 4, raw_shape=shape)
        assert cpu_preset_note("", images, built(images, "atari/pong", preset)) == ""


def test_nothing_is_hopeless_on_a_gpu(monkeypatch):
    monkeypatch.setattr(build, "pick_device", lambda name: torch.device("cuda"))
    assert cpu_preset_note("atari/pong", PONG, built(PONG, "atari/pong")) == ""


@pytest.mark.parametrize(("side", "stack"), [(7, "tiny"), (20, "drq"), (36, "paper"), (210, "paper")])
def test_light_encoders_read_images_of_any_size(side, stack):
    for actions in ({"num_actions": 3}, {"num_actions": 0, "action_low": (-1.0,), "action_high": (1.0,)}):
        shape = (3, side, side)
        config = built(EnvSpec(shape, True, 1, raw_shape=shape, **actions), "X-v0", "cpu")
        assert config.learner.encoder.stack == config.representation.encoder.stack == stack


def test_a_run_without_a_preset_takes_it_and_says_so(tmp_path, capsys):
    agent = voidrl.pretrain("CartPole-v1", steps=24, out=tmp_path / "run")
    said = capsys.readouterr().err
    assert "preset cpu, since the defaults would run at about 18." in said
    assert "preset='none' keeps them" in said
    assert "preset cpu, since" in (tmp_path / "run" / "log.txt").read_text()
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (saved["env"]["num_envs"], saved["learner"]["batch_size"]) == (8, 64)
    assert agent.config.updates_per_step == 0.25


def test_what_is_named_wins(tmp_path, capsys):
    given = {"steps": 4, "warmup_steps": 4}
    agent = voidrl.pretrain("CartPole-v1", preset="none", out=tmp_path / "none", config=given)
    assert agent.config.learner.batch_size == 256
    agent = voidrl.pretrain("CartPole-v1", out=tmp_path / "mine", config={**given, "learner.batch_size": 300})
    assert agent.config.learner.batch_size == 300
    assert agent.config.learner.hidden_dim == 256
    whole = built(agent.spec, "CartPole-v1", **given)
    agent = voidrl.train("CartPole-v1", out=tmp_path / "whole", config=whole)
    assert agent.config.learner.hidden_dim == 512
    assert capsys.readouterr().err.count("preset cpu") == 1


def test_the_command_line_chooses_alike_and_names_the_source(capsys):
    assert cli.main(["config", "pretrain", "CartPole-v1", "--json", "--learner.n-step", "2"]) == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert shown["learner.batch_size"] == {"value": 64, "source": "preset cpu"}
    assert shown["learner.n_step"] == {"value": 2, "source": "command"}
    assert "preset cpu, since the defaults would run at about " in err
    assert cli.main(["config", "pretrain", "CartPole-v1", "--json", "--preset", "none"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["learner.batch_size"] == {"value": 256, "source": "default"}
    assert err == ""
