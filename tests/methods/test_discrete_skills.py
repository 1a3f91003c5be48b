"""DIAYN, SMM, VIC, BeCL: skills that can be told apart are rewarded, and the best of them serves a task."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hand_batches import batch_of, latents_of, minimize, rooms_replay
from helpers import CPU, Place, fill_replay, line_replay, make_agent, run_loop, seen_as, spec_of, watch_losses
from torch import nn

from voidrl.agent.rewards import batch_latents
from voidrl.methods import becl as module
from voidrl.replay import SKILL_ENDED, Replay
from voidrl.types import Loss

K = 4


@pytest.mark.parametrize("rooms", [1, K])
def test_k_rooms_earn_log_k_and_one_room_nothing(rooms):
    """Skill i stays in room i, or all skills in one."""
    method = {"name": "diayn", "num_skills": K, "learning_rate": 1e-2, "hidden_dim": 32}
    agent, rewards = make_agent(method=method, learner__batch_size=64), []
    replay = rooms_replay(agent, rooms)
    watch_losses(agent, lambda batch, reward: rewards.append(reward))
    for _ in range(60):
        agent.update(replay)
    last = torch.cat(rewards[-10:])
    assert last.max() <= math.log(K) + 1e-5
    assert last.mean().item() == pytest.approx(math.log(K) if rooms == K else 0, abs=0.05)


class Rooms(gym.Env):
    """A corridor of K rooms in the middle of which episodes begin; steps to the right pay. 40 steps."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 1, (K,), np.float32)
        self.action_space = spaces.Discrete(3)

    def _obs(self):
        return np.eye(K, dtype=np.float32)[self.at]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = K // 2, 0
        return self._obs(), {}

    def step(self, action):
        self.at, self.time = int(np.clip(self.at + action - 1, 0, K - 1)), self.time + 1
        return self._obs(), float(action == 2), False, self.time >= 40, {}


@pytest.mark.parametrize(("num_envs", "period"), [(2, 5), (1, 20)])
def test_fine_tuning_tries_every_skill_in_turn_and_keeps_the_best(tmp_path, num_envs, period):
    """Also where episodes end with a skill: of the two that follow, the one of the new episode is tried."""
    options = {"method": "diayn", "method__num_skills": 3, "method__skill_every_steps": period}
    agent = make_agent(spec_of(Rooms), phase="finetune", steps=150, finetune__warmup_steps=120, **options)
    # Skill i always takes action i, of which the last pays.
    agent.learner.act = lambda obs, skill, deterministic: skill.argmax(1)
    loop = run_loop(tmp_path / "run", Rooms, agent, num_envs)
    slots = sorted(loop.replay.starts[:120].tolist())
    counts = loop.replay.skill[slots].sum(0)
    assert counts.min() > 30  # dealt evenly, 40 steps each
    assert agent.task_skill.argmax() == 2
    assert agent.task_skill_chosen
    later = sorted(loop.replay.starts[: len(loop.replay)].tolist())[124:]
    assert not (loop.replay.ending[later] == SKILL_ENDED).any()  # the chosen skill stays


PLANE = seen_as((2,))
COMMON, RARE = 0, 1
PLACES = np.float32([[[0, 1], [0, -1]]] * 2)  # of both skills


def mixture(shares):
    """Two skills, each in two places for these shares of its steps."""
    rng, steps, eye = np.random.default_rng(0), 300, np.eye(2, dtype=np.float32)
    replay = Replay(PLANE, 2, 2 * (steps + 2), 2, CPU, CPU)
    replay.reset(PLACES[:, COMMON])
    no = np.zeros(2, bool)
    for _ in range(steps):
        place = rng.choice(2, size=2, p=shares)
        frames = PLACES[[0, 1], place] + rng.normal(0, 0.05, (2, 2)).astype(np.float32)
        replay.add(np.zeros(2, np.int64), np.zeros(2), no, no, frames, torch.from_numpy(eye))
    return replay


def score(agent, place):
    """The mean reward of both skills at one of their places, over the samples of the VAE's code."""
    obs = torch.from_numpy(PLACES[:, place]).repeat(200, 1)
    batch = fill_replay(PLANE, skill_dim=2).batch(torch.zeros(400, dtype=torch.int64), 1, 1.0)
    batch = batch._replace(skill=torch.eye(2).repeat(200, 1))
    with torch.no_grad():
        return agent.method.reward(batch, latents_of(None, obs)).mean().item()


def test_a_rare_state_earns_more_than_a_common_one():
    method = {"name": "smm", "num_skills": 2, "hidden_dim": 32, "code_dim": 4}
    agent, replay = make_agent(PLANE, method=method), mixture([0.97, 0.03])
    for _ in range(120):
        batch = replay.batch(replay.sample(64), 1, 1.0)
        metrics = minimize(agent, agent.method.losses(batch, batch_latents(agent, batch, None)))
    assert score(agent, RARE) > score(agent, COMMON) + 1  # neither tells which skill it is
    assert metrics["smm_error"] < 2  # the variance of two standardized coordinates


def test_the_reward_by_hand():
    """With networks that output 0, and then a code that is 1 with a variance of e."""
    agent = make_agent(method={"name": "smm", "num_skills": 3, "code_dim": 4, "density_weight": 2.0})
    for parameter in agent.method.parameters():
        parameter.data.zero_()
    method = agent.method
    method.moments.update(torch.tensor([[-1.0, 0.0, 2.0, 5.0], [3.0, 1.0, 4.0, 9.0]]))
    # Standardized: (1, 0, −3, 0), (0, 0, 0, 5).
    z = torch.tensor([[3.0, 0.5, 0.0, 7.0], [1.0, 0.5, 3.0, 1000.0]])
    replay = fill_replay(skill_dim=3)
    batch = replay.batch(replay.sample(2), 1, 1.0)._replace(skill=torch.eye(3)[:2])
    latents = latents_of(None, z)
    with torch.no_grad():  # log q + log K is 0: the classifier guesses
        torch.testing.assert_close(method.reward(batch, latents), torch.tensor([20.0, 50.0]))
        method.vae.encoder[-1].bias.fill_(1.0)  # KL of each of 4 coordinates: (1 + e − 1 − 1) / 2
        kl = 4 * (math.e - 1) / 2
        torch.testing.assert_close(method.reward(batch, latents), torch.tensor([20.0, 50.0]) + 2 * 0.5 * kl)


STEPS = 5
OPTIONS = {
    "name": "vic",
    "num_skills": K,
    "learning_rate": 1e-2,
    "hidden_dim": 32,
    "skill_every_steps": STEPS,
}


def options_replay(rooms, steps=60):
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
    agent, replay, found = make_agent(method=OPTIONS, learner__batch_size=64), options_replay(rooms), []
    watch_losses(agent, lambda batch, reward: found.append((batch.ended, reward)))
    for _ in range(100):
        metrics = agent.update(replay)
    ended, reward = (torch.cat(each) for each in zip(*found[-10:], strict=True))
    assert 0.1 < ended.mean() < 0.3
    assert (reward[ended == 0] == 0).all()  # otherwise it would be DIAYN
    assert reward.max() <= math.log(K) + 1e-5
    expected = math.log(K) if rooms == K else 0
    assert reward[ended == 1].mean().item() == pytest.approx(expected, abs=0.1)
    assert metrics["vic_information"].item() == pytest.approx(expected, abs=0.1)


def becl(**changes):
    """A small BeCL whose embedding is the state itself."""
    method = make_agent(method="becl", method__hidden_dim=8, **changes).method
    method.embedding = nn.Identity()
    return method


def reward_of(method, z, skill):
    return method.contrast(z, skill)[0].exp()


def test_perfect_separation_earns_its_analytic_value_and_a_collapse_that_of_chance():
    method, skill = becl(), torch.eye(16).repeat(64, 1)  # B = 1024
    # Corners of a simplex have cosines of −1/15. 63 others are at 1 and 960 there; T is 1/2.
    corners = skill - 1 / 16
    perfect = math.exp(2) / (63 * math.exp(2) + 960 * math.exp(-2 / 15))
    assert perfect == pytest.approx(0.00566, abs=1e-5)
    torch.testing.assert_close(reward_of(method, corners, skill), torch.full((1024,), perfect))
    torch.testing.assert_close(
        reward_of(method, torch.ones_like(corners), skill), torch.full((1024,), 1 / 1023)
    )
    loss = next(method.losses(batch_of(skill), latents_of(None, corners)))
    assert loss.value.item() == pytest.approx(-math.log(perfect), rel=1e-5)
    assert loss.metrics["becl_accuracy"] == 1


def test_positives_are_drawn_evenly_and_rows_without_one_are_masked(monkeypatch):
    monkeypatch.setattr(module, "TEMPERATURE", 1.0)
    method = becl(method__num_skills=3)
    z = torch.tensor([[1.0, 0], [2, 0], [0, 3], [-1, 0]], requires_grad=True)  # cosines of 1, 0 and −1
    skill = torch.eye(3)[[0, 0, 0, 1]]
    total = math.e + 1 + 1 / math.e
    drawn = torch.stack([reward_of(method, z, skill) for _ in range(400)])
    torch.testing.assert_close(drawn[:, 3], torch.full((400,), 1 / 3))  # nothing to be paired with: chance
    near, far = (drawn[:, 0] - math.e / total).abs() < 1e-6, (drawn[:, 0] - 1 / total).abs() < 1e-6
    assert (near | far).all()
    assert 140 < near.sum() < 260
    torch.manual_seed(1)
    log_ratio, paired, _ = method.contrast(z, skill)
    assert paired.tolist() == [True, True, True, False]
    torch.manual_seed(1)
    loss = next(method.losses(batch_of(skill), latents_of(None, z))).value
    torch.testing.assert_close(loss, -log_ratio[:3].mean())
    loss.backward()
    assert z.grad.isfinite().all()


class Twice(Place):
    """Learns from two batches in each update."""

    loss_batches = 2

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.weight, self.seen, self.rewarded = nn.Parameter(torch.ones(())), [], []

    def losses(self, batch, latents):
        self.seen.append(batch)
        yield Loss("method", self.weight * latents.z_next.mean(), {})

    def reward(self, batch, latents):
        self.rewarded.append(batch)
        return super().reward(batch, latents)


@pytest.mark.parametrize(("intrinsic_n_step", "ahead"), [("summed", 1), ("single", 3)])
def test_several_batches_are_fresh_and_the_last_is_the_one_rewarded(intrinsic_n_step, ahead):
    learner = {"n_step": 3, "batch_size": 16, "intrinsic_n_step": intrinsic_n_step}
    replay = line_replay(range(100))
    agent = make_agent(replay.spec, method=Twice, learner=learner)
    steps = []
    minimize = agent.optimizers.minimize
    agent.optimizers.minimize = lambda names, loss: (steps.append(names), minimize(names, loss))
    agent.update(replay)
    first, last = agent.method.seen
    assert (first.next_obs - first.obs == ahead).float().mean() > 0.7  # the newest are cut short
    assert not torch.equal(first.obs, last.obs)
    assert torch.equal(last.next_obs, agent.method.rewarded[0].next_obs)
    assert steps[:2] == [["method"], ["method"]]
