"""PointMass: a point with inertia in a square box, with one of several small tasks.

A bench for adaptation: pre-train without a task, then fine-tune on tasks whose rewards differ in scale, sign
and density. Random actions stay near the middle; full acceleration reaches a corner in about 30 steps.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from voidrl.errors import UnknownNameError

TASKS = ("pickup", "touch", "dense", "hurry", "jackpot", "stay")
GOAL, GOAL_RADIUS = (0.8, 0.8), 0.3  # the corner (1, 1) lies within
FARTHEST = math.dist(GOAL, (-1.0, -1.0))
INERTIA = 0.95  # fraction of the velocity kept per step; the action supplies the rest
SPEED = 0.07  # of the box's half side per step, along each axis, at full velocity
START = 0.1  # episodes start within ±START of the middle, at rest
STAY_RADIUS, STAY_SPEED = 0.3, 0.3
CELLS = 10  # per side of the grid in which coverage is counted
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 0))  # right, left, up, down, nothing
Info = dict[str, Any]
Observation = NDArray[np.float32]


class PointMass(gym.Env[Observation, Any]):
    """A point in the box [−1, 1]², driven by acceleration; it observes (x, y, vx, vy), all within [−1, 1].

    The tasks other than `stay` have a goal, a disc around (0.8, 0.8), reported as `info["success"]`:

    | task | reward | the goal ends the episode |
    |---|---|---|
    | None | 0 | no goal |
    | pickup | 1 at the goal | yes |
    | touch | 1 per step at the goal | no |
    | dense | 1 − distance / largest distance | no |
    | hurry | −1 per step | yes |
    | jackpot | 1000 at the goal | yes |
    | stay | 1 per step, slow and close to the middle | no goal |

    Args:
        task: The task that pays, or None for no reward.
        discrete: False: accelerations in [−1, 1]²; True: right, left, up, down, nothing.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 – as Gymnasium declares it

    def __init__(self, *, task: str | None = None, discrete: bool = False) -> None:
        if task is not None and task not in TASKS:
            raise UnknownNameError("task", str(task), TASKS, "Leave it out for no reward.")
        self.task, self.discrete = task, discrete
        self.observation_space = gym.spaces.Box(-1, 1, (4,))
        self.action_space = gym.spaces.Discrete(len(DIRECTIONS)) if discrete else gym.spaces.Box(-1, 1, (2,))
        self._position = self._velocity = (0.0, 0.0)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """Start an episode at rest, near the middle."""
        super().reset(seed=seed)
        x, y = self.np_random.uniform(-START, START, 2).tolist()
        self._position, self._velocity = (x, y), (0.0, 0.0)
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Accelerate for one step; walls stop the velocity across them."""
        push = DIRECTIONS[int(action)] if self.discrete else np.asarray(action).tolist()
        moved = [_move(*axis) for axis in zip(self._position, self._velocity, push, strict=True)]
        (x, vx), (y, vy) = moved
        self._position, self._velocity = (x, y), (vx, vy)
        ends = self.task in ("pickup", "hurry", "jackpot") and self._at_goal()
        return self._observation(), self._reward(), ends, False, self._info()

    def _reward(self) -> float:
        match self.task:
            case "pickup" | "touch":
                return float(self._at_goal())
            case "dense":
                return 1 - math.dist(self._position, GOAL) / FARTHEST
            case "hurry":
                return -1.0
            case "jackpot":
                return 1000.0 * self._at_goal()
            case "stay":
                slow = math.hypot(*self._velocity) <= STAY_SPEED
                return float(slow and math.hypot(*self._position) <= STAY_RADIUS)
        return 0.0

    def _at_goal(self) -> bool:
        return math.dist(self._position, GOAL) <= GOAL_RADIUS

    def _observation(self) -> Observation:
        return np.array([*self._position, *self._velocity], np.float32)

    def _info(self) -> Info:
        column, row = (min(int((value + 1) / 2 * CELLS), CELLS - 1) for value in self._position)
        info: Info = {"cell": row * CELLS + column}
        if self.task not in (None, "stay"):
            info["success"] = self._at_goal()
        return info


def _move(position: float, velocity: float, push: float) -> tuple[float, float]:
    """The next position and velocity along one axis."""
    velocity = INERTIA * velocity + (1 - INERTIA) * max(-1.0, min(1.0, push))
    position += SPEED * velocity
    if abs(position) > 1:
        return math.copysign(1.0, position), 0.0
    return position, velocity
