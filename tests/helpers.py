"""Tiny specs, agents, replays and environments for the tests."""

import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from voidrl.agent import Agent
from voidrl.agent.on_policy import rollout_step
from voidrl.config import EnvConfig, merge, registry
from voidrl.engine.engine import Engine
from voidrl.envs.make import make_envs
from voidrl.methods.base import Method
from voidrl.replay import Replay
from voidrl.runs.folder import RunFolder
from voidrl.training.build import build_config
from voidrl.training.run import Run
from voidrl.training.saved_run import LoopState
from voidrl.training.starting import make_loop
from voidrl.types import EnvSpec

CPU = torch.device("cpu")
HAS_CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
KERNEL_DEVICES = [  # without a GPU kernels are run by Triton's interpreter
    pytest.param("cpu", marks=pytest.mark.skipif(HAS_CUDA, reason="compiled, not interpreted")),
    pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda]),
]
DISCRETE = EnvSpec((4,), False, 1, num_actions=3, raw_shape=(4,))
BOX = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0), "action_shape": (2,)}
CONTINUOUS = EnvSpec((4,), False, 1, num_actions=0, raw_shape=(4,), **BOX)
LINE = EnvSpec((1,), False, 1, num_actions=2, raw_shape=(1,))
PIXELS = EnvSpec(
    (3, 36, 36), True, 2, num_actions=3, raw_shape=(36, 36, 3)
)  # the smallest that `nature` reads
PIXELS_CONTINUOUS = EnvSpec((3, 36, 36), True, 2, num_actions=0, raw_shape=(36, 36, 3), **BOX)

TINY = {
    "learner": {"batch_size": 16, "hidden_dim": 16, "encoder": {"feature_dim": 8, "width": 0.1}},
    "representation": {"batch_size": 16, "encoder": {"feature_dim": 6, "width": 0.1}},
    "log": {"tensorboard": False},
}
SMALL = {  # fields of methods whose default size would take most of the time
    "hidden_dim": 8,
    "rep_dim": 4,
    "code_dim": 4,
    "projection_dim": 4,
    "num_prototypes": 8,
    "table_size": 2**12,
    "num_skills": 3,
    "skill_dim": 3,
    "k": 3,
}
NORMED = {  # for `make_agent`: every encoder under spectral normalization
    "representation": "simclr",
    "representation__encoder__spectral_norm_iterations": 2,
    "learner__encoder__spectral_norm_iterations": 2,
}


def make_agent(spec=DISCRETE, seed=0, device=CPU, **changes):
    """A tiny agent; `changes` as in `voidrl.pretrain(config=…)`, with `__` for dots."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    config = build_config(spec, [TINY, changes])
    torch.manual_seed(seed)
    return Agent(spec, config, device)


def small_method(name, **options):
    """A method of the registry with small networks, for `make_agent`."""
    fields = {field.name for field in dataclasses.fields(registry.find("method", name).Config)}
    return {"name": name, **{field: value for field, value in SMALL.items() if field in fields}, **options}


def update(agent, replay, index=0):
    """One update of any agent: on a rollout if its learner is on-policy."""
    if agent.learner.rollout_steps:
        return rollout_step(agent, replay, len(replay))
    return agent.update(replay, index % agent.learner.period)


def fill_replay(
    spec=DISCRETE,
    steps=64,
    num_envs=2,
    skill_dim=0,
    seed=0,
    end_every=7,
    storage=CPU,
    device=CPU,
    config=None,
    note_dim=0,
):
    """A replay of random transitions, in episodes of about `end_every` steps, half of them terminated."""
    rng = np.random.default_rng(seed)
    replay = Replay(spec, num_envs, steps * num_envs + 50, skill_dim, storage, device, config, note_dim)

    def frames():
        numbers = spec.num_values if spec.pixels else spec.frame_shape[0]
        values = rng.normal(size=(num_envs, numbers)).astype(np.float32)
        if spec.masked:
            values[:, -spec.num_actions :] = rng.random((num_envs, spec.num_actions)) < 0.5
        if not spec.pixels:
            return values
        images = rng.integers(0, 256, (num_envs, *spec.frame_shape), dtype=np.uint8)
        return packed(images, values) if spec.num_values else images

    replay.reset(frames())
    for _ in range(steps):
        if spec.discrete:
            action = rng.integers(spec.num_actions, size=num_envs)
        else:
            action = rng.uniform(-1, 1, (num_envs, spec.action_dim)).astype(np.float32)
        ends = rng.random(num_envs) < 1 / end_every
        terminated = ends & (rng.random(num_envs) < 0.5)
        skill = torch.from_numpy(rng.normal(size=(num_envs, skill_dim)).astype(np.float32))
        replay.add(action, rng.normal(size=num_envs), terminated, ends & ~terminated, frames(), skill)
        if note_dim:
            replay.annotate(torch.arange(num_envs), torch.from_numpy(rng.random((num_envs, note_dim))))
    return replay


def packed(images, numbers):
    """Images (n, C, H, W) with numbers (n, v), as stored: planes behind the channels hold the bytes."""
    n, _, height, width = images.shape
    planes = -(-4 * numbers.shape[1] // (height * width))
    behind = np.zeros((n, planes * height * width), np.uint8)
    behind[:, : 4 * numbers.shape[1]] = np.ascontiguousarray(numbers, "<f4").view(np.uint8)
    return np.concatenate([images, behind.reshape(n, planes, height, width)], 1)


def line_replay(values, rewards=None, terminated_at=(), spec=None, actions=None):
    """One environment whose observation at time t is `values[t]`; the reward of step t is `rewards[t]`."""
    spec = spec or LINE
    replay = Replay(spec, 1, len(values) + 5, 0, CPU, CPU)
    frames = [np.full((1, *spec.frame_shape), value, np.float32) for value in values]
    replay.reset(frames[0])
    for t, frame in enumerate(frames[1:]):
        ended = np.array([t in terminated_at])
        reward = np.array([0.0 if rewards is None else rewards[t]])
        action = np.array([0]) if actions is None else actions[t]
        replay.add(action, reward, ended, np.array([False]), frame, torch.zeros(1, 0))
    return replay


def obs_of(spec, n):
    """Random observations of `n` environments, as they return them."""
    rng = np.random.default_rng(0)
    shape = (n, *((spec.frame_stack,) if spec.frame_stack > 1 else ()), *spec.raw_shape)
    if spec.pixels:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.normal(size=shape).astype(np.float32)


def watch_losses(agent, look):
    """Call `look(batch, reward)` whenever the learner is given a batch."""
    losses = agent.learner.losses

    def watched(batch, reward, index):
        look(batch, reward)
        return losses(batch, reward, index)

    agent.learner.losses = watched


def watched_update(agent, replay):
    """One update: the batch and the rewards that the learner was given, and the metrics."""
    seen = []
    watch_losses(agent, lambda batch, reward: seen.append((batch, reward.clone())))
    metrics = agent.update(replay)
    return *seen[0], metrics


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def brute_force(queries, particles, k, exclude_self=False):
    """The definition, in float64: every difference, sorted."""
    distances = (queries.double()[:, None] - particles.double()[None]).norm(dim=-1)
    if exclude_self:
        distances.fill_diagonal_(math.inf)
    return distances.sort(dim=1).values[:, :k]


def mutate(data, rng, values, keys):
    """Change, remove, add or repeat something anywhere in nested data."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice([*data])
        changed = {k: mutate(v, rng, values, keys) if k == key else v for k, v in data.items()}
        if rng.random() < 0.1:
            changed.pop(key)
        elif rng.random() < 0.15:
            changed[rng.choice([*data, *keys])] = data[key]
        return changed
    if isinstance(data, list) and data and rng.random() < 0.8:
        index = rng.randrange(len(data))
        return [*data[:index], mutate(data[index], rng, values, keys), *data[index + rng.choice([0, 1, 1]) :]]
    more = [[], {}, [data], {"name": data}, {"x": data}, [[data] * 3], rng.randrange(10**6)]
    return rng.choice([*values, *more])


def parameters_of(agent):
    return dict(agent.named_parameters())


def snapshot(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def moved(before, after):
    """The names whose values differ."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def shake(module, scale=1.0):
    """Move the weights away from where they began."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return module


def seen_as(shape):
    """The spec of an environment whose observations have this shape."""
    return EnvSpec(tuple(shape), len(shape) == 3, 1, num_actions=2, raw_shape=tuple(shape))


def spec_of(factory):
    """What the agent must know of an environment."""
    return make_envs(EnvConfig(id="test"), factory).spec


def run_loop(folder, factory, agent, num_envs=1):
    """The training loop itself, for what the API does not hand out: returns the run, with its replay."""
    envs = make_envs(EnvConfig(id="test", num_envs=num_envs), factory)
    size = num_envs, 10_000, agent.method.skill_dim
    replay = Replay(envs.spec, *size, CPU, CPU, agent.config.replay, agent.note_dim)
    with RunFolder.create(folder) as home:
        loop = make_loop(Run(Engine(agent, replay, print), envs, home, LoopState()))
    loop.train()
    envs.close()
    return loop.run


def config(**changes):
    """Changes for `voidrl.train` and friends, small and quiet."""
    quick = {
        "learner": {"batch_size": 64, "hidden_dim": 64, "target_tau": 0.05},
        "updates_per_step": 1,
        "warmup_steps": 200,
        "log": {"tensorboard": False},
        "device": "cpu",
    }
    return merge(quick, {key.replace("__", "."): value for key, value in changes.items()})


class Chain(gym.Env):
    """Rooms in a row, seen one-hot. Reward 1 in the last one; 2 n steps are given, a random walk needs n²."""

    def __init__(self, rooms=6):
        self.rooms = rooms
        self.observation_space = spaces.Box(0, 1, (rooms,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        return np.eye(self.rooms, dtype=np.float32)[self.at]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = 0, 0
        return self._obs(), {}

    def step(self, action):
        self.at, self.time = max(0, self.at + (1 if action == 1 else -1)), self.time + 1
        done = self.at == self.rooms - 1
        return self._obs(), float(done), done, not done and self.time >= 2 * self.rooms, {}


class Point(gym.Env):
    """A point in [−1, 1]^d that starts anywhere and is rewarded for lying near `goal`, 20 steps long."""

    def __init__(self, dim=2, goal=0.5):
        self.goal = goal
        self.observation_space = spaces.Box(-1, 1, (dim,), np.float32)
        self.action_space = spaces.Box(-2, 2, (dim,), np.float32)  # not [−1, 1], so that scaling matters

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)
        self.time = 0
        return self.at.copy(), {}

    def step(self, action):
        self.at = np.clip(self.at + 0.15 * np.asarray(action, np.float32), -1, 1)
        self.time += 1
        reward = 1 - np.abs(self.at - self.goal).mean()
        return self.at.copy(), float(reward), False, self.time >= 20, {}


class Constant(Method):
    """The same reward for everything."""

    value = 1.0

    def reward(self, batch, latents):
        return torch.full_like(batch.reward, self.value)


class Five(Constant):
    value = 5.0


class Place(Method):
    """The reward is the first coordinate of s'."""

    def reward(self, batch, latents):
        return batch.next_obs[:, 0]
