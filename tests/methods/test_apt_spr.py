"""APT in the space of SPR: one encoder for particles, predictions and the policy, in both phases."""

import math

import pytest
import torch
from helpers import PIXELS, fill_replay, make_agent, moved, parameters_of, snapshot

from voidrl.agent.dry_build import dry_build
from voidrl.training import build
from voidrl.training.layers import finetune_layers, layers_for
from voidrl.types import EnvSpec

GAME = EnvSpec((1, 84, 84), True, 4, num_actions=9, raw_shape=(84, 84))
SMALL_MAZE = EnvSpec((3, 39, 39), True, 1, num_actions=4, raw_shape=(39, 39, 3))
PRESETS = {
    "atari-paper": ("atari/ms_pacman", GAME),
    "atari-fast": ("atari/ms_pacman", GAME),
    "atari-demo": ("atari/ms_pacman", GAME),
    "atari-authors": ("atari/ms_pacman", GAME),
    "maze-demo": ("voidrl/PixelMaze-v0", SMALL_MAZE),
}


def configs(preset, env, spec, **named):
    """The configs of pre-training and of the fine-tuning that follows it."""
    layers = layers_for(env, "pretrain", preset, None, {"method": "apt", **named})
    config = build.build_config(spec, [layer.values for layer in layers])
    tuning = finetune_layers(config, None)
    return config, build.build_config(spec, [layer.values for layer in tuning])


@pytest.mark.parametrize("preset", PRESETS)
def test_one_encoder_is_trained_by_both_losses_and_protected_in_fine_tuning(preset):
    env, spec = PRESETS[preset]
    pretraining, tuning = configs(preset, env, spec, representation="spr")
    agent, tuned = dry_build(spec, pretraining), dry_build(spec, tuning)
    for each in (agent, tuned):
        assert each.representation.encoder is each.learner.encoder
        assert each.encoder_trainers == {"representation", "learner"}
        assert "representation" in each.optimizers
    spr, finetune = pretraining.representation, tuning.finetune
    assert (spr.loss_weight, spr.batch_size, spr.projection) == (5.0, 0, "head")
    assert spr.warmup_updates == 0  # a predictor that lags behind the encoder lets it collapse
    assert math.prod(agent.representation.latent_shape) == agent.representation.dim  # z is what is predicted
    assert finetune.heads == "first_layer"  # which self-prediction has trained
    heads, encoder = tuning.effective.learning_rate, finetune.encoder_learning_rate
    assert 0 < encoder <= heads / 10
    parts = {group["lr"] for group in tuned.optimizers._plans["critic"].groups}
    assert parts == {heads, encoder, finetune.first_layer_learning_rate or heads}


def test_spr_still_trains_the_encoder_in_fine_tuning():
    options = {"phase": "finetune", "learner__encoder__feature_dim": 0, "representation__projection": "head"}
    after = {}
    for auxiliary in (True, False):
        agent = make_agent(PIXELS, representation={"name": "spr", "auxiliary": auxiliary}, **options)
        before = snapshot(parameters_of(agent))
        torch.manual_seed(1)
        metrics = agent.update(fill_replay(PIXELS))
        after[auxiliary] = snapshot(parameters_of(agent))
        assert ("spr_loss" in metrics) == auxiliary
        assert any("transition" in name for name in moved(before, after[auxiliary])) == auxiliary
    encoder = {name: value for name, value in after[True].items() if "encoder.stack" in name}
    assert moved(encoder, after[False]) == encoder.keys()
