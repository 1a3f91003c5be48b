"""SPR: predictions along the actions taken, within an episode, next to the learner's loss."""

import pytest
import torch
import torch.nn.functional as F
from hand_batches import views_of
from helpers import DISCRETE, PIXELS, fill_replay, make_agent, moved, parameters_of, shake, snapshot

from voidrl.errors import ConfigError

HEAD = {"representation": "spr", "representation__projection": "head", "learner__encoder__feature_dim": 0}
BBF = {**HEAD, "representation__target": "learner", "learner__encoder__rescale": True}


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


def test_one_step_computed_by_hand():
    """Directions at 90° cost 2, at 45° 2 − √2, the same direction nothing, and a masked step nothing."""
    f = make_agent(DISCRETE, representation="spr").representation
    f.encoder.latent = lambda obs: obs[:, :3]
    f.transition.forward = lambda latent, action: latent
    f.projection = f.predictor = torch.nn.Identity()
    first = torch.tensor([[1.0, 0, 0, 9], [1, 0, 1, 9], [0, 1, 0, 9], [1, 0, 0, 9]])
    second = torch.tensor([[0.0, 1, 0, 9], [1, 0, 0, 9], [0, 3, 0, 9], [0, 1, 0, 9]])
    mask = torch.tensor([[1.0, 1, 1, 0]])
    losses, metrics = f.predict(torch.stack([first, second]), torch.zeros(1, 4, dtype=torch.int64), mask)
    assert losses.tolist() == pytest.approx([2, 2 - 2**0.5, 0, 0], abs=1e-4)
    assert metrics["spr_loss"].item() == pytest.approx((4 - 2**0.5) / 4, abs=1e-4)
    # A second step of which only the first transition's is valid: the mean over K = 2 counts the others 0.
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0]])
    losses, _ = f.predict(torch.stack([first, second, first]), torch.zeros(2, 4, dtype=torch.int64), mask)
    assert losses.tolist() == pytest.approx([1, 1 - 2**-0.5, 0, 0], abs=1e-4)


def test_the_transition_model_of_the_public_code():
    """Conv, ReLU, BatchNorm over the batch, conv, ReLU, then [0, 1] over each sample."""
    options = {"representation__batch_norm": True, "learner__encoder__width": 0.25}
    f = make_agent(PIXELS, representation="spr", **options).representation
    h = f.transition
    shake(h, 0.2)
    first, _, norm, last, _ = h.layers
    latent, action = torch.rand(8, first.out_channels, 3, 3), torch.eye(3)[torch.arange(8) % 3]
    for mode in (True, False):
        planes = action[:, :, None, None].expand(8, 3, 3, 3)
        x = F.relu(F.conv2d(torch.cat([latent, planes], 1), first.weight, first.bias, padding=1))
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        x = (x - mean) / (var + norm.eps).sqrt()
        x = x * norm.weight[:, None, None] + norm.bias[:, None, None]
        x = F.relu(F.conv2d(x, last.weight, last.bias, padding=1))
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        found = h.train(mode)(latent, action)
        torch.testing.assert_close(found, (x - low) / (high - low + 1e-5), atol=1e-4, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(latent.bfloat16()).dtype == torch.float32
    assert not list(h.buffers())  # no running statistics, which nothing would read
    with pytest.raises(ConfigError, match=r"batch_norm = True cannot be used on vector.*use False"):
        make_agent(DISCRETE, representation="spr", representation__batch_norm=True)


def test_through_the_heads_the_loss_trains_the_critics_first_layers():
    agent = make_agent(PIXELS, **HEAD, phase="train")
    f, critic, replay = agent.representation, agent.learner.critic, fill_replay(PIXELS)
    names = dict(agent.named_parameters(remove_duplicate=False))
    assert [name for name, p in names.items() if any(p is q for q in critic.parameters())] == [
        f"learner.critic.{name}" for name, _ in critic.named_parameters()
    ]
    optimized = agent.optimizers.all_parameters()
    assert len(optimized) == len({id(p) for p in optimized})
    assert f.predictor.weight.shape == (critic.projection_dim,) * 2 == (32, 32)  # both streams of 16
    loss = f.loss(views_of(replay, replay.sample(16), agent.learner))[0].mean()
    weights = dict(critic.named_parameters())
    gradients = torch.autograd.grad(loss, weights.values(), allow_unused=True)
    reached = {
        name for name, g in zip(weights, gradients, strict=True) if g is not None and g.abs().max() > 0
    }
    assert reached == {"advantage.0.weight", "advantage.0.bias", "value.0.weight", "value.0.bias"}
    before = snapshot(parameters_of(f))
    agent.update(replay)
    assert moved(before, parameters_of(f)) == set(before)


def test_targets_of_the_learners_target_network():
    """As in SR-SPR and BBF: RL, predictions and targets see the same rescaled latents."""
    agent = make_agent(PIXELS, **BBF, phase="train")
    f, learner, replay = agent.representation, agent.learner, fill_replay(PIXELS)
    obs = torch.rand(4, *PIXELS.obs_shape)
    assert torch.equal(f.latent(obs).flatten(1), learner.features(obs))
    views = views_of(replay, replay.sample(16), learner)
    losses = [f.loss(views)[0].mean()]
    for part in ("target_encoder", "target_critic"):
        shake(getattr(learner, part), 0.3)
        losses.append(f.loss(views)[0].mean())
    assert len({loss.item() for loss in losses}) == 3
    losses[-1].backward()
    targets = [*learner.target_encoder.parameters(), *learner.target_critic.parameters()]
    assert all(p.grad is None for p in targets)
    assert not any("target" in name for name, _ in f.named_parameters())
    with pytest.raises(
        ConfigError, match=r"momentum = 0.995 cannot be used: expected 0 with projection = 'head'"
    ):
        make_agent(PIXELS, **HEAD, representation__momentum=0.995)


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
