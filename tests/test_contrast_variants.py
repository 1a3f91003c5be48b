"""Every method with and without contrast: with `--representation simclr` and `--representation learner`."""

import pytest

from voidrl.agent.combinations import Combination
from voidrl.agent.dry_build import dry_build
from voidrl.config import registry
from voidrl.training import build
from voidrl.training.build import finetune_layers, layers_for
from voidrl.types import EnvSpec

BOX = {"action_low": (-1.0,) * 6, "action_high": (1.0,) * 6, "action_shape": (6,)}
GAME = EnvSpec((1, 84, 84), True, 4, num_actions=9, raw_shape=(84, 84))
MAZE = EnvSpec((3, 39, 39), True, 1, num_actions=4, raw_shape=(39, 39, 3))
WALKER = EnvSpec((3, 84, 84), True, 3, num_actions=0, raw_shape=(84, 84, 3), **BOX)
PRESETS = {  # environment, what it looks like, and the batch of contrast
    "atari-paper": ("atari/ms_pacman", GAME, 512),
    "atari-fast": ("atari/ms_pacman", GAME, 256),
    "maze-demo": ("voidrl/PixelMaze-v0", MAZE, 64),
    "urlb-pixels": ("dmc/walker", WALKER, 256),
}


def config_of(method, preset, representation=None):
    """The config of `voidrl pretrain --preset … --method … --representation …`."""
    env, spec, _ = PRESETS[preset]
    named = {} if representation is None else {"representation": representation}
    layers = layers_for(env, "pretrain", preset, None, {"method": method, **named})
    return build.build_config(spec, [layer.values for layer in layers])


@pytest.mark.parametrize("variant", ["simclr", "learner"])
@pytest.mark.parametrize("method", registry.names("method"))
def test_a_method_has_a_recipe_with_and_without_contrast(method, variant):
    cls = registry.find("method", method)
    for preset, (_, spec, batch_size) in PRESETS.items():
        config = config_of(method, preset, variant)
        combination = Combination(spec, config)
        combination.check()
        assert config.representation.name == variant
        tuned = build.build_config(spec, [layer.values for layer in finetune_layers(config, None)])
        Combination(spec, tuned).check()
        trainers = combination.training.trainers
        if not cls.uses_latents(config):  # f serves nothing else, and contrast would train nothing
            assert variant == "learner" or not combination.training.trains_representation
        elif variant == "simclr":
            assert trainers == {"representation"}
            assert config.representation.batch_size == batch_size
        else:
            assert "representation" not in trainers
            assert ("method" in trainers) == cls.can_train_encoder
            assert "learner" in trainers or method == "proto"  # whose loss alone trains f, as its authors'


@pytest.mark.parametrize("preset", ["atari-paper", "atari-fast", "maze-demo"])
def test_apt_shares_its_encoder_with_spr_and_protects_it_in_fine_tuning(preset):
    config, spec = config_of("apt", preset, "spr"), PRESETS[preset][1]
    tuning = build.build_config(spec, [layer.values for layer in finetune_layers(config, None)])
    for each in (dry_build(spec, config), tuned := dry_build(spec, tuning)):
        assert each.representation.encoder is each.learner.encoder
        assert each.encoder_trainers == {"representation", "learner"}
        assert "representation" in each.optimizers
    heads, encoder = tuning.effective.learning_rate, tuning.finetune.encoder_learning_rate
    assert tuning.finetune.heads == "first_layer"  # which self-prediction has trained
    assert 0 < encoder <= heads / 10
    parts = {group["lr"] for group in tuned.optimizers._groups["critic"]}
    assert parts == {heads, encoder, tuning.finetune.first_layer_learning_rate or heads}
