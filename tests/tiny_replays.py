"""Replays of a few frames, each of which is a number of its own, beside a plain list of episodes."""

import numpy as np
import pytest
import torch

from voidrl.replay import Replay
from voidrl.types import EnvSpec

CPU = torch.device("cpu")


def pixel_spec(stack=1):
    return EnvSpec((1, 2, 2), True, stack, num_actions=10**9)


def vector_spec(stack=1):
    return EnvSpec((1,), False, stack, 0, (-1.0, -1.0), (1.0, 1.0))


def frame(number):
    """A 1×2×2 uint8 image that spells a number."""
    return np.frombuffer(int(number).to_bytes(4, "little"), np.uint8).reshape(1, 2, 2)


def numbers(obs):
    """(B, stack, 2, 2) images → (B, stack) numbers."""
    return obs.flatten(2).numpy().copy().view("<u4").squeeze(-1)


def steps_of(replay, segment):
    """The one-step transitions of a segment, with the stored observations."""
    states = segment.states.T
    return replay.steps(segment, replay.observations(states.flatten()).unflatten(0, states.shape))


class Oracle:
    """Fills a replay as environments would, and keeps every episode as a plain list.

    Each frame is a number of its own, and so is each action, which tells where a sampled transition was made.
    """

    def __init__(
        self, num_envs, capacity, stack, seed=0, skill_dim=0, end=0.25, place=CPU, storage=None, config=None
    ):
        size = num_envs, capacity, skill_dim
        self.replay = Replay(pixel_spec(stack), *size, storage or place, place, config)
        self.n, self.stack, self.skill_dim, self.end = num_envs, stack, skill_dim, end
        self.rng = np.random.default_rng(seed)
        self.next_frame, self.row = 0, -1
        self.episodes = [[] for _ in range(num_envs)]
        self.where = {}  # action → (environment, episode, time, row)

    def frames(self):
        ids = [self.next_frame + i for i in range(self.n)]
        self.next_frame += self.n
        return ids, np.stack([frame(i) for i in ids])

    def reset(self):
        ids, images = self.frames()
        for episodes, first in zip(self.episodes, ids, strict=True):
            if episodes and episodes[-1]["steps"] and episodes[-1]["steps"][-1]["end"] is None:
                episodes[-1]["steps"][-1]["end"] = "truncated"
            episodes.append({"frames": [first], "steps": []})
        self.replay.reset(images)
        self.row += 1

    def step(self):
        ids, images = self.frames()
        action = 1000 + self.row * self.n + np.arange(self.n)
        reward = self.rng.normal(size=self.n)
        ends = np.where(self.rng.random(self.n) < self.end, self.rng.integers(1, 3, self.n), 0)
        skill = self.rng.normal(size=(self.n, self.skill_dim)).astype(np.float32)
        real = 0
        for i, episodes in enumerate(self.episodes):
            steps = episodes[-1]["steps"]
            if steps and steps[-1]["end"]:  # the step in which it resets: reward and action mean nothing
                episodes.append({"frames": [ids[i]], "steps": []})
                ends[i], reward[i] = 0, 777.0
                continue
            self.where[int(action[i])] = (i, len(episodes) - 1, len(steps), self.row)
            end = (None, "terminated", "truncated")[ends[i]]
            steps.append({"reward": np.float32(reward[i]), "end": end, "skill": skill[i]})
            episodes[-1]["frames"].append(ids[i])
            real += 1
        self.last = (action, reward, ends == 1, ends == 2, images, torch.from_numpy(skill))
        assert self.replay.add(*self.last) == real
        self.row += 1

    def oldest(self):
        """The oldest row whose full stacks are still stored."""
        return self.row - self.replay.rows + self.stack

    def valid(self):
        """Actions whose full stack is still stored."""
        return {action for action, (*_, row) in self.where.items() if row >= self.oldest()}

    def awaited(self):
        """The observations on which the environments wait for an action."""
        return [self.stacked(e[-1], len(e[-1]["frames"]) - 1) for e in self.episodes]

    def stacked(self, episode, time):
        return [episode["frames"][max(0, time - back)] for back in reversed(range(self.stack))]

    def check(self, slots, n, discount):
        batch = self.replay.batch(slots, n, discount)
        obs, next_obs = numbers(batch.obs), numbers(batch.next_obs)
        for i, action in enumerate(batch.action.tolist()):
            env, number, time, _ = self.where[action]
            episode = self.episodes[env][number]
            total, length, worth = 0.0, 0, 1.0
            for step in episode["steps"][time : time + n]:
                total, length, worth = total + worth * step["reward"], length + 1, worth * discount
                if step["end"]:
                    break
            assert obs[i].tolist() == self.stacked(episode, time)
            assert next_obs[i].tolist() == self.stacked(episode, time + length)
            assert batch.reward[i].item() == pytest.approx(total, abs=1e-5)
            bootstrapped = 0.0 if step["end"] == "terminated" else worth
            assert batch.discount[i].item() == pytest.approx(bootstrapped, abs=1e-6)
            assert np.array_equal(batch.skill[i].numpy(), episode["steps"][time]["skill"])


def line(rewards, ends, stack=1, capacity=20):
    """One environment, frames 0, 1, 2, …; `ends` maps a step to how it ends; `lost` is a life only."""
    replay = Replay(vector_spec(stack), 1, capacity, 1, CPU, CPU)
    replay.reset(np.zeros((1, 1), np.float32))
    for i, reward in enumerate(rewards):
        end = ends.get(i)
        replay.add(
            np.full((1, 2), i / 100, np.float32),
            np.array([reward]),
            np.array([end in ("terminated", "lost")]),
            np.array([end == "truncated"]),
            np.full((1, 1), i + 1, np.float32),
            torch.tensor([[float(i)]]),
            np.array([end in ("terminated", "truncated")]),
        )
    return replay
