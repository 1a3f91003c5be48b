"""Environments of a custom experiment, one of which fails."""

from tiny_runs import Fickle, Walk


def good():
    return Walk()


def raising():
    return Fickle("raise", at=25)
