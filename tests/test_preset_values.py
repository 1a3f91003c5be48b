"""Presets and recipes: values as they were recorded, and what naming a piece changes and what not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from voidrl.agent.dry_build import dry_build
from voidrl.config import Config, flat, registry, to_json
from voidrl.errors import ConfigError
from voidrl.presets.presets import NAMES, PRESETS
from voidrl.training import build
from voidrl.training.build import config_sources, finetune_layers, layers_for, task_config
from voidrl.types import EnvSpec

RECORDED = json.loads((Path(__file__).parent / "data" / "preset_values.json").read_text())
ENVS = {"maze": "voidrl/PixelMaze-v0", "atari": "atari/pong", "dmc": "dmc/walker", "urlb": "dmc/walker"}
ENVS |= {"cpu": "CartPole-v1"}


def spec_of(preset):
    shape = (24,) if preset in ("urlb-states", "cpu") else (3, 84, 84)
    if preset.startswith(("maze", "atari", "cpu")):
        return EnvSpec(shape, len(shape) == 3, 1, num_actions=18, raw_shape=shape)
    box = {"action_low": (-1.0,), "action_high": (1.0,), "action_shape": (1,)}
    return EnvSpec(shape, len(shape) == 3, 1, num_actions=0, raw_shape=shape, **box)


def resolve(preset, phase="pretrain", **changes):
    """The config of a command with this preset, and where its values come from."""
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    layers = layers_for(ENVS[preset.partition("-")[0]], phase, preset, changes)
    config = build.build_config(spec_of(preset), [layer.values for layer in layers])
    return config, config_sources(config, layers)


def changed(one, other):
    """The fields of both that differ."""
    a, b = flat(to_json(one)), flat(to_json(other))
    return {name for name in a.keys() & b.keys() if a[name] != b[name]}


@pytest.mark.parametrize("preset", NAMES)
def test_apt_has_the_values_that_were_recorded(preset):
    recorded = RECORDED[preset]["pretrain"]
    built = resolve(preset)[0]
    config = flat(to_json(built))
    assert {name: config[name] for name in recorded} == recorded
    pieces = {name: type(getattr(built, name))() for name in ("method", "representation", "learner")}
    defaults = flat(to_json(replace(Config(), **pieces)))
    assert {name: config[name] for name in config.keys() - recorded.keys()} == {
        name: defaults[name] for name in config.keys() - recorded.keys()
    }


def test_from_scratch_the_command_wins_over_the_values_of_fine_tuning():
    changes = {"steps": 5, "learner__learning_rate": 3e-4, "finetune__warmup_steps": 17}
    config, sources = resolve("atari-fast", "train", **changes)
    assert (config.steps, config.learner.learning_rate) == (5, 3e-4)
    assert (config.warmup_steps, sources["warmup_steps"]) == (17, "command")
    assert (config.updates_per_step, sources["updates_per_step"]) == (0.125, "preset atari-fast")
    config, _ = resolve("atari-fast", "train", finetune__updates_per_step=None)
    assert config.updates_per_step == 0.0625
    rates = {"encoder_learning_rate": 0.0, "first_layer_learning_rate": 0.0}
    config, _ = resolve("atari-fast", "train", finetune=rates)
    assert config.learner.learning_rate == 2.5e-4


def test_a_method_changes_its_recipe_and_nothing_of_the_preset():
    apt, _ = resolve("urlb-states")
    for method in ("rnd", "diayn", "icm", "random", "positive"):
        other, sources = resolve("urlb-states", method=method)
        moved = {name for name in changed(apt, other) if not name.startswith(("method.", "representation."))}
        assert moved == set(), method
        assert sources["method.name"] == "command"
        assert other.representation.encoder.stack == "mlp"


@pytest.mark.parametrize(
    ("preset", "method", "representation", "source"),
    [
        ("urlb-states", "apt", "icm", "recipe apt"),
        ("urlb-pixels", "apt", "simclr", "recipe apt"),
        ("urlb-states", "rnd", "learner", "method rnd"),
        ("urlb-states", "diayn", "identity", "method diayn"),
        ("urlb-pixels", "diayn", "learner", "recipe diayn"),
        ("atari-fast", "apt", "icm", "recipe apt"),
        ("maze-demo", "proto", "learner", "recipe proto"),
        ("maze-demo", "re3", "fixed", "method re3"),
    ],
)
def test_every_method_has_the_representation_that_it_wants(preset, method, representation, source):
    config, sources = resolve(preset, method=method)
    assert (config.representation.name, sources["representation.name"]) == (representation, source)
    if source.startswith("method"):  # no recipe: nothing is shared, and nobody is named to train f
        assert (config.share_encoder, config.encoder_trainers) == ("nothing", ())


def methods_and_presets():
    """Every method with one preset of each family, and APT with all."""
    for method in registry.names("method"):
        families = "urlb-states", "urlb-pixels", "atari-fast", "maze-demo"
        for preset in NAMES if method == "apt" else families:
            yield method, preset


@pytest.mark.parametrize(("method", "preset"), [*methods_and_presets()])
def test_every_method_fits_every_preset(method, preset):
    """Nothing is refused when the agent is built."""
    config, _ = resolve(preset, method=method)
    assert dry_build(spec_of(preset), config).config.method.name == method


@pytest.mark.parametrize(("preset", "representation"), [("atari-fast", "fixed"), ("urlb-pixels", "simclr")])
def test_a_method_with_a_learner_of_its_own_takes_it_along(preset, representation):
    config, sources = resolve(preset, method="mepol", representation=representation)
    assert (config.learner.name, sources["learner.name"]) == ("mepol", "method mepol")
    assert sources["learner.rollout_steps"] == "recipe mepol"
    assert config.learner.encoder.stack == resolve(preset)[0].learner.encoder.stack
    agent = dry_build(spec_of(preset), config)
    trainers = {"simclr": {"representation"}, "fixed": set()}
    assert agent.encoder_trainers == trainers[representation]
    other = resolve(preset, method="mepol", learner="dqn" if agent.spec.discrete else "sac")[0]
    with pytest.raises(ConfigError, match="method 'mepol' cannot be used with learner"):
        dry_build(spec_of(preset), other)
    scratch, _ = resolve(preset, "train", learner="mepol")
    assert dry_build(spec_of(preset), scratch).learner.rollout_steps == 400  # its default


@pytest.mark.parametrize("preset", ["atari-paper", "atari-fast", "dmc-paper", "urlb-pixels", "urlb-states"])
def test_another_representation_keeps_the_shape_of_f(preset):
    apt, _ = resolve(preset)
    fixed, sources = resolve(preset, representation="fixed")
    assert fixed.representation.encoder == apt.representation.encoder
    assert sources["representation.name"] == "command"
    outside = {name for name in changed(apt, fixed) if not name.startswith("representation.")}
    shared = {"share_encoder"} if apt.share_encoder == "stack" else set()
    assert outside == ({"encoder_trainers", *shared} if apt.encoder_trainers else set())
    assert shared == ({"share_encoder"} if preset == "atari-fast" else set())
    assert fixed.encoder_trainers == ()
    assert fixed.method == apt.method


def test_another_learner_keeps_what_all_learners_have():
    ddpg, _ = resolve("urlb-states")
    sac, sources = resolve("urlb-states", learner="sac")
    assert (sac.learner.batch_size, sac.learner.n_step, sac.learner.hidden_layers) == (1024, 3, 1)
    assert sac.learner.encoder == ddpg.learner.encoder
    assert sources["learner.batch_size"] == "preset urlb-states"
    assert {sources[f"learner.{name}"] for name in ("log_std_min", "initial_temperature")} == {"default"}
    assert not {name for name in changed(ddpg, sac) if not name.startswith("learner.")}


def test_the_shared_layer_of_an_experiment_lies_below_the_values_of_fine_tuning():
    shared = {"updates_per_step": 1.0, "finetune.warmup_steps": 9}
    layers = layers_for("atari/pong", "train", "atari-fast", {"seed": 3}, shared=shared)
    config = build.build_config(spec_of("atari-fast"), [layer.values for layer in layers])
    assert (config.updates_per_step, config.warmup_steps, config.seed) == (0.125, 9, 3)


def test_a_whole_config_has_neither_preset_nor_recipe():
    (values, command) = layers_for("dmc/walker", "pretrain", None, Config())
    assert values.values == to_json(Config())
    assert command.values == {"phase": "pretrain"}
    with pytest.raises(ConfigError, match="cannot be used with a whole"):
        layers_for("dmc/walker", "pretrain", "urlb-states", Config())


def test_options_of_dmcontrol_are_left_out_elsewhere():
    layers = layers_for("Pendulum-v1", "pretrain", "urlb-states")
    assert layers[0].values["env"] == {"num_envs": 8}
    assert PRESETS["urlb-states"].values["env"]["dmc"]["action_repeat"] == 1  # and are still in the preset


def test_one_learning_rate_and_one_warm_up_hold_while_fine_tuning():
    """The preset's rate becomes the learner's, where the command can still change it."""
    pretrained, _ = resolve("atari-paper", method="apt")
    assert (pretrained.learner.learning_rate, pretrained.finetune.learning_rate) == (1e-4, 1e-3)
    tuned = task_config(pretrained)
    assert (tuned.learner.learning_rate, tuned.finetune.learning_rate) == (1e-3, None)
    command = finetune_layers(pretrained, {"learner.learning_rate": 3e-4})[-1]
    assert command.values["learner"] == {"learning_rate": 3e-4}
    with pytest.raises(ConfigError, match=r"warmup_steps = 5 cannot be used while fine-tuning"):
        finetune_layers(pretrained, {"warmup_steps": 5})
