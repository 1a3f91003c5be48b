"""ICM as a method: it rewards the forward error of its representation and trains nothing itself."""

import torch
from hand_batches import batch_of
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent

from voidrl.agent.rewards import batch_latents


def test_the_reward_is_the_representations_forward_error():
    for spec in (DISCRETE, CONTINUOUS):
        agent, replay = make_agent(spec, method="icm"), fill_replay(spec)
        assert agent.config.representation.name == "icm"
        batch = replay.batch(replay.sample(9), 1, 1.0)
        f = agent.representation
        with torch.no_grad():
            reward = agent.method.reward(batch, batch_latents(agent, batch, None))
            z, z_next = f.encode(batch.obs), f.encode(batch.next_obs)
            action = batch.action if not spec.discrete else torch.eye(3)[batch.action]
            predicted = f.forward_net(torch.cat([z, action], 1))
        torch.testing.assert_close(reward, torch.log(1 + (predicted - z_next).norm(dim=1)))
        assert not list(agent.method.parameters())
        assert set(agent.optimizers) >= {"representation", "critic"}


def test_the_reward_ignores_noise_that_nobody_controls():
    """Three of four dimensions are noise: raw states are never predicted, and f leaves the noise out."""
    generator = torch.Generator().manual_seed(0)

    def mean_error(**encoder):
        agent = make_agent(
            method="icm",
            representation__encoder={"stack": "mlp", "hidden_dim": 0, **encoder},
            representation__learning_rate=3e-3,
        )
        for _ in range(300):
            obs, next_obs = torch.randn(2, 64, 4, generator=generator)
            action = torch.randint(3, (64,), generator=generator)
            next_obs[:, 0] = action - 1.0
            loss, _ = agent.representation.dynamics(torch.cat([obs, next_obs]), action)
            agent.optimizers.minimize(["representation"], loss)
        batch = batch_of(obs=obs, next_obs=next_obs, action=action)
        with torch.no_grad():
            error = agent.method.reward(batch, batch_latents(agent, batch, None)).expm1()
            scale = agent.representation.encode(next_obs).std(0).norm()
        return (error / scale).mean().item()

    raw = mean_error(feature_dim=0)
    assert raw > 0.7  # the noise
    assert mean_error(feature_dim=8) < 0.6 * raw
