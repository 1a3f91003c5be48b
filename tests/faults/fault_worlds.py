"""Environments and methods that go wrong, as `fault_worlds:Name?option=value` on the command line."""

import os
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from voidrl.methods.base import Method


def mark(text="."):
    """Count steps where the test can see them."""
    if "FAULT_MARKS" in os.environ:
        with Path(os.environ["FAULT_MARKS"]).open("a") as file:
            file.write(text)


class Slow(gym.Env):
    """A noisy walk whose steps take as long as FAULT_DELAY says, and whose episodes take 10."""

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, build_s=0.0):
        mark("b")
        time.sleep(build_s if "FAULT_DELAY" in os.environ else 0.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = self.np_random.normal(size=3), 0
        return self._obs(), {}

    def step(self, action):
        mark()
        time.sleep(float(os.environ.get("FAULT_DELAY", 0)))
        self.at = self.at * 0.9 + 0.1 * float(action) + 0.1 * self.np_random.normal(size=3)
        self.time += 1
        return self._obs(), float(self.at[0]), False, self.time >= 10, {}

    def _obs(self):
        return self.at.clip(-9, 9).astype(np.float32)


WRONG = {  # the index of a step's result, and what becomes of it
    "obs nan": (0, lambda obs: obs * np.nan),
    "obs outside": (0, lambda obs: obs + 1000),
    "obs dtype": (0, lambda obs: obs / np.float32(255)),
    "reward nan": (1, lambda reward: float("nan")),
    "reward none": (1, lambda reward: None),
    "reward str": (1, lambda reward: "7"),
    "flag none": (2, lambda terminated: None),
    "flag str": (3, lambda truncated: "no"),
}


class Fickle(Slow):
    """Goes wrong at its own step `at`, in the way that `how` names; with FAULT_CURED it does not."""

    def __init__(self, how, at=25):
        super().__init__()
        self.how, self.at_step, self.count = how, at, 0
        if "FAULT_CURED" in os.environ:
            self.how = ""
        if self.how == "constructor":
            raise RuntimeError("the wheel fell off")
        if self.how == "constructor exit":
            sys.exit("the wheel fell off")

    def step(self, action):
        self.count += 1
        result = list(super().step(action))
        if self.count >= self.at_step:
            if self.how in WRONG:
                index, change = WRONG[self.how]
                result[index] = change(result[index])
            elif self.how == "raise":
                raise RuntimeError("the wheel fell off")
            elif self.how == "exit":
                sys.exit(0)
            elif self.how == "os exit":
                os._exit(0)
            elif self.how == "hang":
                self._hang()
            elif self.how == "swallow":
                self._swallow()
        return tuple(result)

    def reset(self, *, seed=None, options=None):
        if self.how == "hang reset" and self.count:
            self._hang()
        return super().reset(seed=seed, options=options)

    def _hang(self):
        mark("h")
        time.sleep(600)

    def _swallow(self):
        mark("h")
        end = time.monotonic() + 600
        while time.monotonic() < end:
            try:  # noqa: SIM105 - as users write it
                time.sleep(0.05)
            except:  # noqa: E722 - the fault itself
                pass


class Image(Fickle):
    """Bytes, as of an image, instead of floats."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def _obs(self):
        return np.full((36, 36, 3), 100 + 10 * self.at[0].clip(-9, 9), np.uint8)


class Constant(Slow):
    """Every observation is the same, so that no representation can tell two apart."""

    def _obs(self):
        return np.ones(3, np.float32)


def called(**options):
    """A factory that leaves a file where it was called."""
    Path("factory_was_called").touch()
    return Slow()


class NanReward(Method):
    """An intrinsic reward that turns into NaN after a few calls."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer("calls", torch.zeros(()))

    def reward(self, batch, latents):
        self.calls += 1
        return latents.z_next[:, 0] * torch.where(self.calls > 20, torch.nan, 1.0)
