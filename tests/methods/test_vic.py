"""VIC: options that end in different rooms earn log K at their end, and nothing before."""

import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import (
    CPU,
    PIXELS,
    PIXELS_CONTINUOUS,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    run_loop,
    snapshot,
    spec_of,
    watch_losses,
)

from voidrl.agent.dry_build import dry_build
from voidrl.build import build_config, layers_for
from voidrl.errors import ConfigError
from voidrl.replay import Draw, Replay

K, STEPS = 4, 5
LARGE, LARGE_CONTINUOUS = (
    dataclasses.replace(spec, frame_shape=(3, 84, 84), raw_shape=(84, 84, 3))
    for spec in (PIXELS, PIXELS_CONTINUOUS)
)
OPTIONS = {
    "name": "vic",
    "num_skills": K,
    "skill_every_steps": STEPS,
    "learning_rate": 1e-2,
    "hidden_dim": 32,
}


def rooms_replay(rooms, steps=60):
    """Option i passes through all rooms at random and ends in room i, or all of them end in one."""
    eye, rng = np.eye(K, dtype=np.float32), np.random.default_rng(0)
    replay, no = Replay(make_agent().spec, K, 400, K, CPU, CPU), np.zeros(K, bool)
    replay.reset(eye[[0] * K])
    skill = np.arange(K)
    for t in range(steps):
        last = (t + 1) % STEPS == 0
        at = (skill if rooms == K else np.zeros(K, int)) if last else rng.integers(K, size=K)
        given = torch.from_numpy(eye[skill])
        replay.add(np.zeros(K, np.int64), np.zeros(K), no, no, eye[at], given, no, ~no & last)
        skill = rng.permutation(K) if last else skill
    return replay


@pytest.mark.parametrize("rooms", [1, K])
def test_k_rooms_earn_log_k_at_the_end_and_one_room_nothing(rooms):
    agent, replay, found = make_agent(method=OPTIONS, learner__batch_size=64), rooms_replay(rooms), []
    watch_losses(agent, lambda batch, reward: found.append((batch.ended, reward)))
    for _ in range(100):
        metrics = agent.step(replay)
    ended, reward = (torch.cat(each) for each in zip(*found[-10:], strict=True))
    assert 0.1 < ended.mean() < 0.3
    assert (reward[ended == 0] == 0).all()  # otherwise it would be DIAYN
    assert reward.max() <= math.log(K) + 1e-5
    expected = math.log(K) if rooms == K else 0
    assert reward[ended == 1].mean().item() == pytest.approx(expected, abs=0.1)
    assert metrics["vic_information"].item() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("returns", ["summed", "single"])
def test_n_step_returns_have_the_reward_of_the_end_that_they_reach(returns):
    options = {"learner__n_step": 3, "learner__discount": 0.5, "learner__intrinsic_n_step": returns}
    agent, replay, found = make_agent(method=OPTIONS, **options), rooms_replay(K), []
    watch_losses(agent, lambda batch, reward: found.append(reward))
    slots = torch.arange(STEPS) * K + 2  # the first option of the third environment
    replay.draw = lambda count: Draw(slots, torch.ones(len(slots)))
    agent.step(replay)
    both = replay.frames[[2, STEPS * K + 2]].flatten()[None]
    with torch.no_grad():
        log_q = agent.method.classifier(both).log_softmax(1)[0, 2].item()
    worth = [0, 0, 0.25, 0.5, 1] if returns == "summed" else [0, 0, 1, 1, 1]
    torch.testing.assert_close(found[0], (log_q + math.log(K)) * torch.tensor(worth), atol=1e-5, rtol=1e-5)


def test_every_option_counts_the_same_however_long_it_is():
    method = make_agent(method=OPTIONS).method
    replay = rooms_replay(K, steps=2 * STEPS)
    segment = replay.segment(torch.arange(8), 1, 1.0)
    agent = make_agent(method=OPTIONS)
    option = agent._option(replay, segment)(STEPS)
    skill = torch.eye(K).repeat(2, 1)
    loss, _ = method.classify(option, skill)
    longer = option._replace(steps=torch.tensor([1, 1, 1, 1, 3, 3, 3, 3]))
    alone = option._replace(mask=torch.tensor([1.0] * 4 + [0.0] * 4))
    rest = option._replace(mask=torch.tensor([0.0] * 4 + [1.0] * 4))
    each = [method.classify(part, skill)[0] for part in (alone, rest)]
    torch.testing.assert_close(loss, (each[0] + each[1]) / 2)
    torch.testing.assert_close(method.classify(longer, skill)[0], 0.75 * each[0] + 0.25 * each[1])
    nothing = option._replace(mask=torch.zeros(8))
    assert method.classify(nothing, skill)[0] == 0  # before the first option is over


class FourRooms(gym.Env):
    """A hall with doors to four rooms, which are not left again; 4 steps."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 1, (K + 1,), np.float32)
        self.action_space = spaces.Discrete(K)

    def _obs(self):
        return np.eye(K + 1, dtype=np.float32)[self.at]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = 0, 0
        return self._obs(), {}

    def step(self, action):
        self.at, self.time = self.at or 1 + int(action), self.time + 1
        return self._obs(), 0.0, False, self.time >= 4, {}


def test_four_reachable_rooms_are_told_apart(tmp_path):
    learner = {"hidden_dim": 32, "batch_size": 64, "learning_rate": 3e-3, "discount": 0.8, "target_tau": 0.1}
    learner |= {"epsilon_decay_steps": 200, "epsilon_end": 0.02}
    options = {"method": {**OPTIONS, "skill_every_steps": 4}, "learner": learner, "updates_per_step": 0.5}
    agent = make_agent(spec_of(FourRooms), steps=1000, warmup_steps=60, **options)
    replay = run_loop(tmp_path / "run", FourRooms, agent, num_envs=4).replay
    hall = torch.eye(K + 1)[:1].expand(K, -1)
    chosen = agent.choose(hall, torch.eye(K), deterministic=True)
    assert len(set(chosen.tolist())) == K  # each option has a room of its own
    newest = replay.newest(160)
    for _ in range(40):  # q catches up with what the policy does now
        agent.step(replay.restricted(newest))
    segment = replay.segment(newest, 1, 1.0)
    batch = replay.n_step_batch(segment)
    with torch.no_grad():
        latents = agent._latents(batch, agent._pool(replay), agent._option(replay, segment))
        reward = agent.method.reward(batch, latents)
    at_ends = reward[batch.ended == 1]
    assert at_ends.mean() > 0.8 * math.log(K)
    assert at_ends.max() <= math.log(K) + 1e-5


def test_from_pixels_the_classifier_can_train_the_learners_encoder():
    options = {"method": {**OPTIONS, "skill_every_steps": 20}, "learner__learning_rate": 1e-12}
    agent = make_agent(PIXELS, encoder_trainers=("method",), **options)
    assert agent.config.representation.name == "learner"
    before = snapshot(parameters_of(agent.learner.encoder))
    agent.step(fill_replay(PIXELS, skill_dim=K))
    assert moved(before, parameters_of(agent.learner.encoder)) == set(before)  # the learner's rate moves none


def test_an_option_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="skill_every_steps = 0 cannot be used: expected 1 or more"):
        make_agent(method={**OPTIONS, "skill_every_steps": 0})


@pytest.mark.parametrize("representation", ["simclr", "learner"])
@pytest.mark.parametrize("preset", ["atari-paper", "atari-fast", "maze-demo", "urlb-pixels"])
def test_recipes_have_a_variant_with_and_one_without_contrast(preset, representation):
    env = {"atari": "atari/pong", "maze": "voidrl/PixelMaze-v0"}.get(preset.partition("-")[0], "dmc/walker")
    spec = LARGE_CONTINUOUS if preset == "urlb-pixels" else LARGE
    layers = layers_for(env, "pretrain", preset, {"method": "vic", "representation": representation})
    agent = dry_build(spec, build_config(spec, [layer.values for layer in layers]))
    trainers = {"representation"} if representation == "simclr" else {"method", "learner"}
    assert agent.trainers == trainers  # with the contrastive loss alone, or without it
