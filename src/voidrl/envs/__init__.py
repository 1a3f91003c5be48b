"""Environments behind one vector interface."""

from voidrl.envs import maze
from voidrl.envs.make import make_envs
from voidrl.envs.vector import Envs, StepResult
from voidrl.ids import parse_id

maze.register()

__all__ = ["Envs", "StepResult", "make_envs", "parse_id"]
