"""ATC: pairs within an episode only, a momentum encoder, and states that find their future."""

import numpy as np
import pytest
import torch
from helpers import CPU, DISCRETE, line_replay, make_agent

from voidrl.config import AugmentConfig
from voidrl.nets.augment import Augment
from voidrl.replay import Replay
from voidrl.representations import atc
from voidrl.representations.base import Views
from voidrl.types import EnvSpec, Layout

SMALL = {"representation__encoder__feature_dim": 8}


def views_of(replay, slots):
    segment = replay.segment(torch.as_tensor(slots), 1, 1.0)
    return Views(replay, segment, Augment(AugmentConfig(shift_pixels=0)), Layout())


def test_later_is_the_state_some_steps_ahead_within_the_episode():
    replay = line_replay([float(t) for t in range(12)], terminated_at=(4,))  # a reset from 5 to 6
    pairs = views_of(replay, [0, 1, 2, 3, 6, 7, 9, 10]).later(3)
    assert pairs.obs.flatten().tolist() == [0, 1, 2, 3, 6, 7, 9, 10]
    assert pairs.later.flatten().tolist() == [3, 4, 5, 5, 9, 10, 11, 11]  # the last state where it ends
    assert pairs.mask.tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


def test_a_pair_across_an_end_is_left_out_and_stays_a_candidate():
    """Hand-computed: its own loss is 0, the mean is over the others, whose candidates include its state."""
    torch.manual_seed(0)
    f = make_agent(DISCRETE, representation="atc", **SMALL).representation
    obs, later, mask = torch.randn(4, 4), torch.randn(4, 4), torch.tensor([1.0, 1.0, 0.0, 1.0])
    losses, metrics = f.contrast(obs, later, mask)
    with torch.no_grad():
        code = f.encode(obs)
        logits = (code + f.anchor(code)) @ f.bilinear @ f.target_encoder(later).T
        expected = (logits.logsumexp(1) - logits.diagonal())[mask.bool()]
        correct = (logits.argmax(1) == torch.arange(4))[mask.bool()].float().mean()
    assert losses[2] == 0
    torch.testing.assert_close(losses.mean(), expected.mean())
    assert metrics["atc_accuracy"].item() == pytest.approx(correct.item())
    assert metrics["atc_valid"].item() == 0.75
    assert f.contrast(obs, later, torch.zeros(4))[0].sum() == 0  # no valid pair, and nothing is divided by 0


SQUARE = EnvSpec((1, 16, 16), True, 1, num_actions=2, raw_shape=(16, 16, 1))


def moving_squares(steps=50, num_envs=16):
    """One square in each environment, in a row of its own, which moves by a pixel in each step."""
    replay = Replay(SQUARE, num_envs, steps * num_envs + 50, 0, CPU, CPU)
    image = np.zeros(SQUARE.frame_shape, np.uint8)
    image[0, :5, :5] = 255
    first = np.stack([np.roll(image, (env, 5 * env), (1, 2)) for env in range(num_envs)])
    replay.reset(first)
    zeros, never = np.zeros(num_envs), np.zeros(num_envs, bool)
    for t in range(1, steps):
        replay.add(zeros.astype(int), zeros, never, never, np.roll(first, t, 3), torch.zeros(num_envs, 0))
    return replay


def test_states_learn_to_find_their_future(monkeypatch):
    monkeypatch.setattr(atc, "MOMENTUM", 0.9)
    options = {"learning_rate": 3e-3, "warmup_updates": 0}
    encoder = {"feature_dim": 64, "width": 0.5}
    agent = make_agent(SQUARE, representation={"name": "atc", "encoder": encoder, **options})
    replay, f, accuracy = moving_squares(), agent.representation, []
    for _ in range(100):
        views = views_of(replay, replay.sample(32))
        loss, metrics = f.loss(views)
        agent.optimizers.minimize(["representation"], loss.mean())
        f.after_update()
        accuracy.append(metrics["atc_accuracy"].item())
    assert np.mean(accuracy[:5]) < 0.2  # chance: 1 / 32
    assert np.mean(accuracy[-10:]) > 0.65
