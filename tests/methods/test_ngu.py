"""NGU: copies within an episode count, a new episode forgets, and RND's error scales the reward."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Chain, fill_replay, make_agent, run_loop, small_method, spec_of

from voidrl.methods import ngu as module

C = module.PSEUDO_COUNT
IDENTITY = SimpleNamespace(encode=lambda obs: obs)  # f(s) = s


def ngu(num_envs=2, **options):
    """A method on vectors of 4 numbers, where f is the identity, after the first states."""
    agent = make_agent(method=small_method("ngu", **options))
    begin(agent.method, torch.zeros(num_envs, 4), range(num_envs))
    return agent.method


def begin(method, states, envs):
    method.begin(states, torch.tensor([*envs]), IDENTITY)


def observe(method, states, envs):
    return method.observe(states, torch.zeros(len(states), 0), torch.tensor([*envs]), IDENTITY)[:, 0].tolist()


def test_m_copies_earn_one_over_the_root_of_m_and_a_new_episode_forgets(monkeypatch):
    monkeypatch.setattr(module, "NEIGHBORS", 3)
    method, state = ngu(), torch.zeros(2, 4)
    for m in (1, 2, 3, 3):  # the first state of the episode is the first copy; no more than k count
        assert observe(method, state, [0, 1]) == pytest.approx([1 / (math.sqrt(m) + C)] * 2)
    begin(method, state[:1], [1])
    assert observe(method, state, [0, 1]) == pytest.approx([1 / (math.sqrt(3) + C), 1 / (1 + C)])
    begin(method, state + 1, [0, 1])
    far = observe(method, state, [0, 1])
    assert min(far) > 5  # nothing near it in this episode


def test_the_reward_is_the_papers_formula(monkeypatch):
    monkeypatch.setattr(module, "CLUSTER_DISTANCE", 0.1)
    monkeypatch.setattr(module, "NEIGHBORS", 2)
    method = ngu(num_envs=1, kernel_epsilon=0.01, mean_momentum=None)
    x = torch.eye(4)
    assert observe(method, 2 * x[:1], [0]) == pytest.approx([1 / (math.sqrt(0.01 / (1 - 0.1 + 0.01)) + C)])
    # Squared distances 1 and 9 to the two before: their mean, with the 4 of the first, is 14/3.
    near, far = (0.01 / (max(d * 3 / 14 - 0.1, 0) + 0.01) for d in (1, 9))
    assert observe(method, 3 * x[:1], [0]) == pytest.approx([1 / (math.sqrt(near + far) + C)])


def test_the_scale_follows_the_error_of_rnd():
    method = ngu()
    method.errors.update(torch.tensor([1.0, 3.0]))  # mean 2, deviation 1
    assert method.scale(torch.tensor([1.0, 2.0, 2.5, 3.0, 9.0])).tolist() == [1, 1, 1.5, 2, 5]
    replay = fill_replay(note_dim=1)
    batch = replay.batch(replay.sample(32), 1, 1.0)
    with torch.no_grad():
        reward, error = method.reward(batch, None), method.rnd.error(batch.next_obs)
        torch.testing.assert_close(reward, batch.note[:, 0] * method.scale(error))
    assert (reward >= batch.note[:, 0]).all()


def by_lists(episodes, method):
    """The episodic rewards of one environment's episodes, in plain Python."""
    config, distances, found = method.config, [], []
    for episode in episodes:
        for t in range(1, len(episode)):
            squares = sorted(((episode[t] - episode[i]) ** 2).sum() for i in range(t))[: module.NEIGHBORS]
            distances += squares
            mean = max(np.mean(distances), 1e-8)
            excess = [max(d / mean - module.CLUSTER_DISTANCE, 0) for d in squares]
            kernel = sum(config.kernel_epsilon / (d + config.kernel_epsilon) for d in excess)
            found.append(1 / (math.sqrt(kernel) + C))
    return found


def test_the_loop_notes_the_novelty_within_each_episode(tmp_path):
    """Also across checkpoints, where episodes are cut."""
    options = {"method": small_method("ngu", mean_momentum=None), "log__checkpoint_every_steps": 25}
    agent = make_agent(spec_of(Chain), steps=60, warmup_steps=50, **options)
    replay = run_loop(tmp_path / "run", Chain, agent).replay
    slots = sorted(replay.starts[: len(replay)].tolist())
    episodes = []
    for slot in slots:
        if replay.age[slot] == 0:
            episodes.append([replay.frames[slot].double().numpy()])
        episodes[-1].append(replay.frames[slot + 1].double().numpy())
    assert len(episodes) > 4
    np.testing.assert_allclose(replay.note[slots, 0], by_lists(episodes, agent.method), rtol=1e-4)
    assert agent.method.rnd.observations.count.item() == 60
