"""SPR: predictions along the actions taken, within an episode, next to the learner's loss."""

import numpy as np
import pytest
import torch
from helpers import (
    CONTINUOUS,
    DISCRETE,
    PIXELS,
    Chain,
    config,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    snapshot,
)
from tiny_runs import rows

import voidrl
from voidrl.augment import Augment
from voidrl.config import AugmentConfig
from voidrl.representations.base import Views
from voidrl.types import Layout


def views_of(replay, slots):
    segment = replay.segment(torch.tensor(slots), 1, 1.0)
    return Views(replay, segment, Augment(AugmentConfig(shift_pixels=0)), Layout())


def test_a_sequence_stops_at_the_end_of_its_episode():
    replay = fill_replay(DISCRETE, num_envs=1, end_every=4)
    starts = sorted(replay.starts[: len(replay)].tolist())[:40]
    sequence = views_of(replay, starts).sequence(5)
    assert sequence.obs.shape == (6, len(starts), 4)
    assert sequence.action.shape == sequence.mask.shape == (5, len(starts))
    for i, start in enumerate(starts):
        valid = 0
        while valid < 5 and start + valid in [*starts, starts[-1] + 1] and replay.ending[start + valid] == 0:
            valid += 1
        if start + 5 < starts[-1]:
            assert sequence.mask[:, i].tolist() == [1.0] * valid + [0.0] * (5 - valid)
        for k in range(valid):
            assert torch.equal(sequence.obs[k + 1, i], replay.frames[start + k + 1])
            assert sequence.action[k, i] == replay.action[start + k]


def test_what_comes_after_the_end_does_not_matter():
    agent = make_agent(representation="spr")
    replay = fill_replay(DISCRETE, num_envs=1, end_every=3)
    starts = sorted(replay.starts[: len(replay)].tolist())[:30]
    ends = [slot for slot in starts if replay.ending[slot]]
    before = agent.representation.loss(views_of(replay, ends))[0]
    assert before == 0  # each of them ends with its first step
    one = [slot for slot in starts if not replay.ending[slot] and replay.ending[slot + 1]]
    first = agent.representation.loss(views_of(replay, one))[0]
    for slot in one:
        replay.frames[slot + 2] += 100
    assert agent.representation.loss(views_of(replay, one))[0] == first > 0


def test_the_target_gets_no_gradient():
    agent = make_agent(PIXELS, representation="spr", representation__momentum=0.9)
    replay = fill_replay(PIXELS)
    target = snapshot(parameters_of(agent.representation.target_encoder))
    agent.step(replay)
    assert all(p.grad is None for p in agent.representation.target_encoder.parameters())
    online = parameters_of(agent.representation.encoder)
    for name, value in agent.representation.target_encoder.named_parameters():
        torch.testing.assert_close(value, 0.9 * target[name] + 0.1 * online[name], atol=1e-6, rtol=0)


def test_a_perfect_prediction_costs_nothing():
    """An identity for transition and predictor, where observations do not change."""
    agent = make_agent(CONTINUOUS, representation="spr", learner="sac")
    f = agent.representation
    f.transition.forward = lambda latent, action: latent
    f.predictor = torch.nn.Identity()
    obs = torch.randn(1, 8, 4).expand(6, 8, 4)
    loss, _ = f.predict(obs, torch.randn(5, 8, 2), torch.ones(5, 8))
    assert loss.item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("spec", [DISCRETE, PIXELS], ids=["vector", "pixels"])
def test_next_to_dqn_on_a_task_the_loss_falls_and_the_encoder_changes(spec):
    """Compared with the same DQN without it: the same samples, another encoder."""
    options = {"phase": "train", "learner__learning_rate": 1e-3, "representation__learning_rate": 1e-3}
    replay = fill_replay(spec, end_every=50)
    losses, encoders = {}, {}
    for weight in (1e-9, 5.0):
        agent = make_agent(spec, representation="spr", representation__loss_weight=weight, **options)
        torch.manual_seed(1)
        losses[weight] = [agent.step(replay)["spr_loss"].item() for _ in range(80)]
        encoders[weight] = parameters_of(agent.learner.encoder)
    assert np.mean(losses[5.0][-10:]) < 0.6 * np.mean(losses[5.0][:5])
    assert np.mean(losses[5.0][-10:]) < np.mean(losses[1e-9][-10:])
    assert moved(encoders[1e-9], encoders[5.0])


def test_on_a_task_from_scratch_the_loss_falls(tmp_path):
    changes = config(representation="spr", updates_per_step=0.5, log__log_every_steps=100)
    voidrl.train(Chain, steps=900, out=tmp_path / "run", config=changes)
    losses = [row["train/spr_loss"] for row in rows(tmp_path / "run") if "train/spr_loss" in row]
    assert np.mean(losses[-2:]) < 0.5 * losses[0]


def test_switched_off_it_leaves_dqn_as_it_is():
    """Bit for bit, with the same weights to begin with and the same random numbers."""
    plain = make_agent(PIXELS, representation="learner", phase="train")
    off = make_agent(PIXELS, representation="spr", representation__auxiliary=False, phase="train")
    shared = {k: v for k, v in plain.tensors().items() if not k.startswith("representation.")}
    names = {k.removeprefix("representation.encoder."): v for k, v in plain.tensors().items()}
    with torch.no_grad():
        for name, value in off.tensors().items():
            source = shared.get(name, names.get(name.removeprefix("representation.encoder.")))
            if source is not None:
                value.copy_(source)
    replay = fill_replay(PIXELS)
    for agent in (plain, off):
        torch.manual_seed(0)
        for i in range(4):
            metrics = agent.step(replay, i % agent.learner.period)
        assert "spr_loss" not in metrics
    assert not moved(parameters_of(plain.learner), parameters_of(off.learner))
