"""DIAYN: skills that can be told apart earn log K, others nothing; they last, and are tried for a task."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hand_batches import rooms_replay
from helpers import (
    make_agent,
    run_loop,
    spec_of,
    watch_losses,
)

from voidrl.replay import SKILL_ENDED

K = 4


@pytest.mark.parametrize("rooms", [1, K])
def test_k_rooms_earn_log_k_and_one_room_nothing(rooms):
    """A replay in which skill i stays in room i, or all skills in one, and updates of the agent."""
    options = {"num_skills": K, "learning_rate": 1e-2, "hidden_dim": 32}
    agent = make_agent(method={"name": "diayn", **options}, learner__batch_size=64)
    replay, rewards = rooms_replay(agent, rooms), []
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


def test_a_skill_lasts_its_period_and_returns_stop_where_it_changes(tmp_path):
    options = {"method": "diayn", "method__num_skills": 50, "method__skill_every_steps": 7}
    agent = make_agent(spec_of(Rooms), steps=200, warmup_steps=195, learner__n_step=3, **options)
    replay = run_loop(tmp_path / "run", Rooms, agent).replay
    slots = sorted(replay.starts[: len(replay)].tolist())
    skills = replay.skill[slots].argmax(1)
    lengths, run = [], 1
    for before, now, slot in zip(skills, skills[1:], slots, strict=False):
        if replay.ending[slot]:
            lengths.append(run)
            run = 1
        else:
            assert before == now  # never changes unmarked
            run += 1
    assert set(lengths) == {7, 40 % 7}
    assert (replay.ending[slots] == SKILL_ENDED).any()
    changed = [slot for slot in slots if replay.ending[slot] == SKILL_ENDED]
    segment = replay.segment(torch.tensor(changed), 3, 0.5)
    assert (segment.weights[:, 1:] == 0).all()
    assert (segment.discount == 0.5).all()  # cut, but the value goes on


@pytest.mark.parametrize(("num_envs", "period"), [(2, 5), (1, 20)])
def test_fine_tuning_tries_every_skill_in_turn_and_keeps_the_best(tmp_path, num_envs, period):
    """Also where episodes end with a skill: of the two that follow, the one of the new episode is tried."""
    options = {"method": "diayn", "method__num_skills": 3, "method__skill_every_steps": period}
    agent = make_agent(spec_of(Rooms), phase="finetune", steps=150, finetune__warmup_steps=120, **options)

    def act(obs, skill, deterministic):
        return skill.argmax(1)  # skill i always takes action i, of which the last pays

    agent.learner.act = act
    loop = run_loop(tmp_path / "run", Rooms, agent, num_envs)
    slots = sorted(loop.replay.starts[:120].tolist())
    counts = loop.replay.skill[slots].sum(0)
    assert counts.min() > 30  # dealt evenly, 40 steps each
    assert agent.task_skill.argmax() == 2
    assert agent.task_skill_chosen
    later = sorted(loop.replay.starts[: len(loop.replay)].tolist())[124:]
    assert not (loop.replay.ending[later] == SKILL_ENDED).any()  # the chosen skill stays
