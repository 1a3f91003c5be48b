"""APT in the space of SPR: one encoder for particles, predictions and the policy, in both phases."""

import math

import pytest
import torch
from helpers import DISCRETE, PIXELS, fill_replay, make_agent, moved, parameters_of, snapshot
from tiny_runs import MAZE, newest, rows

import voidrl
from voidrl.agent.dry_build import dry_build
from voidrl.agent.rewards import intrinsic_scale
from voidrl.training import build
from voidrl.training.layers import finetune_layers, layers_for
from voidrl.types import CHECK, EnvSpec

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


def test_a_run_of_both_phases_minimizes_the_loss_in_both(tmp_path):
    config = {"learner.batch_size": 16, "learner.hidden_dim": 16, "representation": "spr", "device": "cpu"}
    config |= {"learner.encoder.width": 0.2, "env.num_envs": 4}
    config |= {"warmup_steps": 40, "finetune.warmup_steps": 40, "log.log_every_steps": 40}
    agent = voidrl.pretrain(
        MAZE, "apt", preset="maze-demo", steps=200, out=tmp_path / "pretrain", config=config
    )
    voidrl.finetune(agent, steps=120, out=tmp_path / "task", config={"log.checkpoint_every_steps": 60})
    for run in ("pretrain", "task"):
        losses = [row["train/spr_loss"] for row in rows(tmp_path / run) if "train/spr_loss" in row]
        assert losses
        assert losses[-1] < losses[0] or run == "task"
    last = rows(tmp_path / "pretrain")[-1]
    assert last["train/particle_mean"] > 0
    tensors = newest(tmp_path / "task")[0]
    assert all(torch.isfinite(value).all() for value in tensors.values() if value.is_floating_point())


def test_the_agent_spr_can_be_pretrained_by_apt_within_its_support(tmp_path):
    pretraining, tuning = configs("spr", "atari/ms_pacman", GAME)
    agent = dry_build(GAME, pretraining)
    assert agent.encoder_trainers == dry_build(GAME, tuning).encoder_trainers == {"representation", "learner"}
    discount, learner = pretraining.learner.discount, pretraining.learner
    assert intrinsic_scale(agent) == pytest.approx(1 - discount)
    assert intrinsic_scale(agent) / (1 - discount) < learner.v_max  # rewards are about 1 per step
    small = make_agent(DISCRETE, learner="rainbow", representation="spr", replay__priority_exponent=0.5)
    replay = fill_replay(config=small.config.replay)
    for _ in range(20):
        metrics = small.update(replay)
    assert metrics["support_share"] < 0.2
    assert metrics["q_mean"].abs() < 2
    assert not any(key.startswith(CHECK) and not torch.isfinite(value) for key, value in metrics.items())
