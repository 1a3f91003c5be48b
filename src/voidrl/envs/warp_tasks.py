"""DMControl's domains as batches of tensors: episode starts, observations and rewards, as in `dmc_tasks`.

A reward computes in float32 what dm_control's or voidrl's task of the same name computes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import mujoco
import numpy as np
import torch
from torch import Tensor

from voidrl.envs import dmc_tasks
from voidrl.envs.warp_physics import WarpPhysics, lowest_points

INFINITY = float("inf")
SETTLE_STEPS = 200  # in which the cheetah falls onto the floor before an episode
HEIGHT_STEP_M = 0.01  # in which the quadruped is lifted until it touches nothing

Reward = Callable[[], Tensor]


def tolerance(
    value: Tensor,
    lower: float,
    upper: float = INFINITY,
    margin: float = 0.0,
    value_at_margin: float = 0.1,
    sigmoid: Literal["gaussian", "linear", "quadratic"] = "gaussian",
) -> Tensor:
    """`dm_control.utils.rewards.tolerance`: 1 in [lower, upper], and `value_at_margin` at the margin."""
    inside = (value >= lower) & (value <= upper)
    if margin == 0:
        return inside.float()
    distance = torch.where(value < lower, lower - value, value - upper) / margin
    if sigmoid == "gaussian":
        outside = torch.exp(math.log(value_at_margin) * distance**2)
    elif sigmoid == "linear":
        outside = (1 - (1 - value_at_margin) * distance).clamp(min=0)
    else:
        outside = (1 - (1 - value_at_margin) * distance**2).clamp(min=0)
    return torch.where(inside, 1.0, outside)


class WarpTask:
    """A domain, with the reward of one of its tasks or none.

    Args:
        physics: The simulations.
        task: The task's name; None for no reward.
    """

    domain: str

    def __init__(self, physics: WarpPhysics, task: str | None) -> None:
        self.physics, self.task = physics, task
        self._torso = physics.body("torso")
        self._goal = self._goals().get(task or "")
        self._reward = self._rewards().get(task or "")
        assert task is None or self._goal or self._reward

    @property
    def terminates(self) -> bool:
        """Whether episodes end at a goal, with reward 1; sparse tasks alone do."""
        return self._goal is not None

    def reward(self) -> Tensor:
        """(N,)."""
        if self._goal is not None:
            return self._goal().float()
        if self._reward is not None:
            return self._reward()
        return torch.zeros(self.physics.num_worlds, device=self.physics.device)

    def succeeded(self) -> Tensor:
        """Whether the goal of a sparse task is reached, (N,)."""
        assert self._goal is not None
        return self._goal()

    def observe(self) -> Tensor:
        """dm_control's observations in its order, (N, d)."""
        raise NotImplementedError

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        """A position in which an episode starts, (nq,): with the same seed dm_control draws the same."""
        raise NotImplementedError

    def begin(self, worlds: Tensor, positions: Tensor) -> None:
        """Start episodes in some simulations, by number, at positions from `draw`; others are unchanged."""
        physics = self.physics
        kept = [tensor.clone() for tensor in physics.state]
        physics.to_default(worlds)
        self._place(worlds, positions)
        others = torch.ones(physics.num_worlds, dtype=torch.bool, device=physics.device)
        others[worlds] = False
        for tensor, before in zip(physics.state, kept, strict=True):
            torch.where(others[:, None], before, tensor, out=tensor)
        physics.forward()

    def _place(self, worlds: Tensor, positions: Tensor) -> None:
        """Move simulations from the default position to the start of an episode."""
        self.physics.qpos[worlds] = positions
        if self.task in ("jump_sparse", "turnover_sparse"):
            self._set_down(worlds)

    def _set_down(self, worlds: Tensor) -> None:
        """Move bodies up or down until their lowest point is on the floor."""
        self.physics.update_poses()
        self.physics.qpos[worlds, self.physics.joint("rootz")] -= lowest_points(self.physics)[worlds]

    def _rewards(self) -> dict[str, Reward]:
        """The rewards of dense tasks."""
        return {}

    def _goals(self) -> dict[str, Reward]:
        """The goals of sparse tasks."""
        return {}

    def _reaches(self, task: str, measure: Reward) -> Reward:
        threshold = dmc_tasks.TASKS[self.domain][task].threshold
        return lambda: measure() >= threshold

    def _jump_and_reach(self) -> dict[str, Reward]:
        return {
            "jump_sparse": self._reaches("jump_sparse", self._height),
            "reach_sparse": self._reaches("reach_sparse", lambda: self.physics.xpos[:, self._torso, 0]),
        }

    def _height(self) -> Tensor:
        return self.physics.xpos[:, self._torso, 2]

    def _upright(self) -> Tensor:
        """Cosine of the angle between the torso's axis and the vertical."""
        return self.physics.xmat[:, self._torso, 2, 2]

    def _speed(self) -> Tensor:
        """Velocity of the center of mass along x."""
        return self.physics.sensor("torso_subtreelinvel")[:, 0]


def _uniform_joints(model: mujoco.MjModel, random: np.random.RandomState) -> np.ndarray:
    """dm_control's `randomize_limited_and_rotational_joints`, for slides and hinges."""
    position: np.ndarray = model.qpos0.copy()
    limited, hinge = model.jnt_limited == 1, model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE
    low, high = np.where(limited[:, None], model.jnt_range, (-np.pi, np.pi)).T
    drawn = limited | hinge
    position[drawn] = random.uniform(low[drawn], high[drawn])
    return position


class WarpWalker(WarpTask):
    """The planar walker."""

    domain = "walker"

    def observe(self) -> Tensor:
        """Orientations of the bodies, height, velocities."""
        bodies = self.physics.xmat[:, 1:, 0]  # (N, bodies, 3): the first row
        orientations = bodies[:, :, ::2].flatten(1)
        return torch.cat([orientations, self._height()[:, None], self.physics.qvel], 1)

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        """Random angles."""
        position = _uniform_joints(self.physics.model, random)
        if self.task == "turnover_sparse":
            position[self.physics.joint("rooty")] = np.pi
        return position

    def _stand(self) -> Tensor:
        standing = tolerance(self._height(), 1.2, margin=0.6)
        return (3 * standing + (1 + self._upright()) / 2) / 4

    def _move(self, speed: float) -> Tensor:
        move = tolerance(self._speed(), speed, margin=speed / 2, value_at_margin=0.5, sigmoid="linear")
        return self._stand() * (5 * move + 1) / 6

    def _flip(self) -> Tensor:
        spin = self.physics.subtree_angmom[:, self._torso, 1]
        move = tolerance(spin, 5, margin=5, value_at_margin=0, sigmoid="linear")
        return self._stand() * (5 * move + 1) / 6

    def _rewards(self) -> dict[str, Reward]:
        return {
            "stand": self._stand,
            "walk": lambda: self._move(1.0),
            "run": lambda: self._move(8.0),
            "flip": self._flip,
        }

    def _goals(self) -> dict[str, Reward]:
        def standing_height() -> Tensor:
            return torch.where(self._upright() >= dmc_tasks.UPRIGHT, self._height(), 0.0)

        return self._jump_and_reach() | {"turnover_sparse": self._reaches("turnover_sparse", standing_height)}


class WarpCheetah(WarpTask):
    """The planar cheetah."""

    domain = "cheetah"

    def observe(self) -> Tensor:
        """Positions except x, velocities."""
        return torch.cat([self.physics.qpos[:, 1:], self.physics.qvel], 1)

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        """Random angles of the limited joints."""
        model = self.physics.model
        limited = model.jnt_limited == 1
        position: np.ndarray = model.qpos0.copy()
        position[limited] = random.uniform(*model.jnt_range[limited].T)
        return position

    def _place(self, worlds: Tensor, positions: Tensor) -> None:
        physics = self.physics
        assert physics.substeps == 1
        physics.forward()  # dm_control's first step starts from what was computed in the default position
        physics.qpos[worlds] = positions
        controls = physics.ctrl.clone()
        physics.ctrl.zero_()
        for _ in range(SETTLE_STEPS):
            physics.advance()
        physics.ctrl.copy_(controls)
        if self.task == "jump_sparse":
            self._set_down(worlds)

    def _rewards(self) -> dict[str, Reward]:
        return {"run": lambda: tolerance(self._speed(), 10, margin=10, value_at_margin=0, sigmoid="linear")}

    def _goals(self) -> dict[str, Reward]:
        return self._jump_and_reach()


class WarpHopper(WarpTask):
    """The planar hopper."""

    domain = "hopper"

    def observe(self) -> Tensor:
        """Positions except x, velocities, and the logarithm of the forces under toe and heel."""
        touch = self.physics.sensor("touch_toe", "touch_heel").log1p()
        return torch.cat([self.physics.qpos[:, 1:], self.physics.qvel, touch], 1)

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        """Random angles."""
        return _uniform_joints(self.physics.model, random)

    def _standing(self) -> Tensor:
        xipos, foot = self.physics.xipos, self.physics.body("foot")
        return tolerance(xipos[:, self._torso, 2] - xipos[:, foot, 2], 0.6, 2)

    def _stand(self) -> Tensor:
        small = tolerance(self.physics.ctrl, 0, 0, margin=1, value_at_margin=0, sigmoid="quadratic").mean(1)
        return self._standing() * (small + 4) / 5

    def _hop(self) -> Tensor:
        move = tolerance(self._speed(), 2, margin=1, value_at_margin=0.5, sigmoid="linear")
        return self._standing() * move

    def _rewards(self) -> dict[str, Reward]:
        return {"stand": self._stand, "hop": self._hop}

    def _goals(self) -> dict[str, Reward]:
        return self._jump_and_reach()


class WarpQuadruped(WarpTask):
    """The quadruped on an even floor."""

    domain = "quadruped"

    def __init__(self, physics: WarpPhysics, task: str | None) -> None:
        super().__init__(physics, task)
        model, sensor = physics.model, mujoco.mjtSensor
        hinges = model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE
        self._hinge_positions, self._hinge_velocities = (
            torch.from_numpy(addresses[hinges]).long().to(physics.device)
            for addresses in (model.jnt_qposadr, model.jnt_dofadr)
        )
        self._imu = physics.sensors_of(sensor.mjSENS_GYRO, sensor.mjSENS_ACCELEROMETER)
        self._forces = physics.sensors_of(sensor.mjSENS_FORCE, sensor.mjSENS_TORQUE)

    def observe(self) -> Tensor:
        """Joints and actuators, velocity and upright torso, accelerations, forces at the toes."""
        physics = self.physics
        parts = [
            physics.qpos[:, self._hinge_positions],
            physics.qvel[:, self._hinge_velocities],
            physics.act,
            physics.sensor("velocimeter"),
            self._upright()[:, None],
            physics.sensor(*self._imu),
            physics.sensor(*self._forces).arcsinh(),
        ]
        return torch.cat(parts, 1)

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        """A random orientation at height 0."""
        orientation = random.randn(4)
        position: np.ndarray = self.physics.model.qpos0.copy()
        position[:3] = 0.0
        position[3:7] = orientation / np.linalg.norm(orientation)
        return position

    def _place(self, worlds: Tensor, positions: Tensor) -> None:
        physics = self.physics
        physics.qpos[worlds] = positions
        physics.update_poses()
        steps = (-lowest_points(physics)[worlds] / HEIGHT_STEP_M).ceil()
        physics.qpos[worlds, 2] = steps * HEIGHT_STEP_M

    def _stand(self) -> Tensor:
        return tolerance(self._upright(), 1, margin=2, value_at_margin=0, sigmoid="linear")

    def _move(self, speed: float) -> Tensor:
        velocity = self.physics.sensor("velocimeter")[:, 0]
        move = tolerance(velocity, speed, margin=speed, value_at_margin=0.5, sigmoid="linear")
        return self._stand() * move

    def _jump(self) -> Tensor:
        height = self.physics.sensor("center_of_mass")[:, 2]
        return self._stand() * tolerance(height, 1, margin=1, value_at_margin=0.5, sigmoid="linear")

    def _rewards(self) -> dict[str, Reward]:
        return {
            "walk": lambda: self._move(0.5),
            "run": lambda: self._move(5.0),
            "stand": self._stand,
            "jump": self._jump,
        }


DOMAINS = {kind.domain: kind for kind in (WarpCheetah, WarpHopper, WarpQuadruped, WarpWalker)}
