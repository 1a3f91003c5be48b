"""Environments of a custom experiment, some of which fail, and a method."""

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
