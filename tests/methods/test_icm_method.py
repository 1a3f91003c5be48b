"""ICM as a method: it rewards the forward error of its representation and trains nothing itself."""

import torch
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
