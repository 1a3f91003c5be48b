"""Environments of a custom experiment, some of which fail, and a method."""

import os
import signal
from dataclasses import dataclass

from helpers import Constant
from tiny_runs import Fickle, Walk

from voidrl.config import MethodConfig


class Noted(Constant):
    """Has a setting of its own."""

    @dataclass(frozen=True)
    class Config(MethodConfig):
        notes: int = 0


def good():
    return Walk()


def raising():
    return Fickle("raise", at=25)


class Dying(Walk):
    """Takes its process with it, as the kernel does when memory runs out."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 10:  # before the first checkpoint
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
