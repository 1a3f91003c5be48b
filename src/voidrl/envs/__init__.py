"""Environments behind one vector interface."""

from voidrl.envs import maze
from voidrl.envs.vector import Envs, StepResult, make_envs, parse_id

maze.register()

__all__ = ["Envs", "StepResult", "make_envs", "parse_id"]
