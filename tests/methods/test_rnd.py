"""RND: the error falls where states are visited, and only there."""

import numpy as np
import torch
from helpers import (
    Chain,
    fill_replay,
    make_agent,
    moved,
    points,
    run_loop,
    snapshot,
    spec_of,
)

from voidrl.entropy import RunningMoments


def test_moments_are_those_of_everything_seen():
    moments = RunningMoments((3,))
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1]) + 7
    for part in x.split([1, 99, 400]):
        moments.update(part)
    moments.update(x[:0])
    torch.testing.assert_close(moments.mean, x.mean(0))
    torch.testing.assert_close(moments.std, x.std(0, correction=0))
    torch.testing.assert_close(moments.standardize(x).std(0, correction=0), torch.ones(3))


def test_the_error_on_visited_states_falls_below_a_fifth_of_that_on_unseen_ones():
    """By updates of the agent from a replay that holds the visited states alone."""
    options = {"method__hidden_dim": 64, "method__rep_dim": 64, "method__learning_rate": 1e-3}
    options |= {"learner__batch_size": 64}
    agent, replay = make_agent(method="rnd", **options), fill_replay()
    replay.frames.copy_(0.5 * replay.frames + 1)  # around (1, 1, 1, 1)
    visited = replay.batch(replay.newest(100), 1, 1.0).next_obs
    unseen = visited - 2
    agent.method.observe(torch.cat([visited, unseen]), torch.zeros(2 * len(visited), 0), None, None)
    before = agent.method.error(visited).mean() / agent.method.error(unseen).mean()
    target = snapshot(agent.method.target.state_dict())
    for _ in range(200):
        agent.update(replay)
    after = agent.method.error(visited).mean() / agent.method.error(unseen).mean()
    assert before > 0.5
    assert after < 0.2
    assert not moved(target, agent.method.target.state_dict())


def test_the_reward_is_the_error_on_the_next_observation_standardized_and_clipped():
    agent, replay = make_agent(method="rnd", method__hidden_dim=16, method__rep_dim=8), fill_replay()
    method, batch = agent.method, replay.batch(replay.sample(64), 1, 1.0)
    visited = 2 + 3 * points(500, 4)
    method.observe(visited, torch.zeros(500, 0), None, None)
    batch.next_obs[:8] *= 100
    x = (batch.next_obs - visited.mean(0)) / visited.std(0, correction=0)
    assert x.abs().max() > 10
    x = x.clamp(-5, 5)
    with torch.no_grad():
        error = (method.predictor(x) - method.target(x)).square().mean(1)
        (loss,) = method.losses(batch, None)
        torch.testing.assert_close(loss.value, error.mean())
        torch.testing.assert_close(method.reward(batch, None), error / error.std(correction=0))


def test_every_state_reached_is_observed_once(tmp_path):
    agent = make_agent(spec_of(Chain), method="rnd", steps=60, warmup_steps=20, method__hidden_dim=16)
    loop = run_loop(tmp_path / "run", Chain, agent, num_envs=3)
    assert agent.method.observations.count.item() == loop.state.steps
    slots = loop.replay.starts[: len(loop.replay)]
    reached = loop.replay.batch(slots, 1, 1.0).next_obs
    np.testing.assert_allclose(agent.method.observations.mean, reached.mean(0), atol=1e-6)
