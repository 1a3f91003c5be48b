"""Whole runs that take a fraction of a second, and what they leave behind."""

import json
import shutil
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import voidrl
from voidrl.config import merge
from voidrl.methods.base import Method
from voidrl.runs import checkpoint
from voidrl.runs.metrics import read_metrics

MAZE = "voidrl/PixelMaze-v0?size=5&image_size=36&goal=far&slip=0.2&max_episode_steps=9"
TINY = {
    "device": "cpu",
    "warmup_steps": 8,
    "updates_per_step": 1,
    "learner": {"batch_size": 8, "hidden_dim": 8, "encoder": {"feature_dim": 4, "width": 0.1}},
    "representation": {"batch_size": 8, "encoder": {"feature_dim": 3, "width": 0.1}},
    "replay": {"capacity_steps": 30},  # smaller than the runs: it wraps
    "finetune": {"warmup_steps": 8},
    "log": {"tensorboard": False, "log_every_steps": 7, "checkpoint_every_steps": 20, "eval_episodes": 2},
}
QUICK = [  # the same for a command
    "--device", "cpu", "--log.tensorboard", "False", "--learner.batch-size", "8", "--learner.hidden-dim", "8",
    "--learner.encoder.feature-dim", "4", "--warmup-steps", "8",
]  # fmt: skip


def tiny(**changes):
    """Config changes; `__` stands for a dot."""
    return merge(TINY, {key.replace("__", "."): value for key, value in changes.items()})


def callback(**hooks):
    """A callback with these functions of the run as its hooks."""
    functions = {event: lambda self, run, hook=hook: hook(run) for event, hook in hooks.items()}
    return type("Listens", (voidrl.Callback,), functions)()


class Walk(gym.Env):
    """A noisy walk of 6 steps in 3 dimensions, with discrete or continuous actions."""

    def __init__(self, continuous=False, length=6):
        self.length = length
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-2, 2, (2,), np.float32) if continuous else spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = self.np_random.normal(size=3), 0
        return self._seen()

    def step(self, action):
        self.at = self.at * 0.9 + 0.1 * float(np.sum(action)) + 0.1 * self.np_random.normal(size=3)
        self.time += 1
        (obs, info), ends = self._seen(), self.time >= self.length
        return obs, float(self.at[0]), ends and bool(self.at[1] > 0), ends and bool(self.at[1] <= 0), info

    def _seen(self):
        return self.at.astype(np.float32), {"cell": int(np.abs(self.at[0]) * 3)}


class Placed(Walk):
    """Reports its position instead of a cell."""

    def _seen(self):
        return self.at.astype(np.float32), {"variables": {"x": float(self.at[0]), "y": float(self.at[1])}}


def make_continuous():
    return Walk(continuous=True)


class Skilled(Method):
    """A skill per episode, and a reward that depends on it."""

    skill_dim = 2

    def reward(self, batch, latents):
        return (batch.skill * latents.z_next[:, :2]).sum(1)

    def sample_skill(self, episode_steps):
        return torch.randn(len(episode_steps), 2, device=episode_steps.device)


class Fickle(Walk):
    """Goes wrong at a given step of its own, counted over episodes: `obs`, `reward`, `raise` or `reset`."""

    def __init__(self, how, at=25):
        super().__init__()
        self.how, self.at_step, self.count = how, at, 0

    def step(self, action):
        self.count += 1
        obs, reward, *rest = super().step(action)
        if self.count >= self.at_step:
            if self.how == "obs":
                obs = obs * np.nan
            if self.how == "reward":
                reward = float("inf")
            if self.how == "raise":
                raise RuntimeError("the wheel fell off")
        return obs, reward, *rest

    def reset(self, *, seed=None, options=None):
        if self.how == "reset" and self.count >= self.at_step:
            raise RuntimeError("the wheel fell off")
        return super().reset(seed=seed, options=options)


def newest(run):
    """Everything in the newest checkpoint of a run: tensors by file and name, and the rest."""
    saved = checkpoint.latest(run / "checkpoints", lambda text: None)
    tensors = {f"{file}/{k}": v for file in saved.files for k, v in saved.tensors(file).items()}
    return tensors, {k: v for k, v in saved.meta.items() if k != "metrics_bytes"}


def copy_as_of(run, copy, step):
    """A copy of a run without its checkpoints after this step."""
    shutil.copytree(run, copy)
    for saved in checkpoint.list_steps(copy / "checkpoints"):
        if saved > step:
            checkpoint.discard(copy / "checkpoints", saved)
    return copy


def rows(run):
    """The rows of metrics.jsonl without what depends on the clock."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(run)]


def assert_same_run(one, other, steps=None):
    """Bit for bit: weights, optimizers, replay, random numbers, visits, counters, config, metrics."""
    tensors, meta = newest(one)
    others, other_meta = newest(other)
    assert meta == other_meta
    assert steps is None or meta["steps"] >= steps
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name
    assert rows(one) == rows(other)


def sealed(data):
    """The text of a config.json with these fields and a matching hash, as anybody can make one."""
    data = {name: value for name, value in data.items() if name != "sha256"}
    return json.dumps({**data, "sha256": checkpoint.seal(data)})


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=60.0):
    """Waits for what `condition` returns to be true, and returns it."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)
    return value
