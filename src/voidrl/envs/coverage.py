"""Counts of visited states: of distinct memories on Atari, and on DMControl of bins of a body's pose.

Two states of a simulation are almost never equal, so distinct states cannot be counted as on Atari. Imports
neither torch nor dm_control.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from voidrl.errors import CheckpointError, EnvironmentFailedError

# Bins are small compared with what bodies can do (the walker stands 1.3 m high and walks at 1 m/s), and large
# compared with the jitter of a body at rest. They are centered on multiples of their size, so 0 is no border.
HEIGHT_BIN_M = 0.05
ANGLE_BINS = 36  # of 10°
VELOCITY_BIN_MPS = 0.25
MAX_HEIGHT_M, MAX_VELOCITY_MPS = 10.0, 25.0  # in both directions; anything beyond falls into the last bin

FREE, BALL, SLIDE = range(3)  # MuJoCo's mjtJoint

_bodies: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by model


class StateCounter:
    """Counts the distinct states that environments visit, each identified by 64 bits.

    Args:
        measures: The kinds of state that are counted, such as `ram` and `positions`.
    """

    def __init__(self, measures: Iterable[str]) -> None:
        self._known = {measure: np.zeros(0, np.int64) for measure in measures}  # sorted
        self._new: dict[str, set[int]] = {measure: set() for measure in self._known}

    def add(self, measure: str, states: Iterable[int]) -> None:
        """Count visited states."""
        self._new[measure].update(states)

    def counts(self) -> dict[str, int]:
        """The number of distinct states by measure over all steps so far."""
        return {measure: len(known) for measure, known in self.state().items()}

    def state(self) -> dict[str, np.ndarray]:
        """All states counted so far by measure."""
        for measure, new in self._new.items():
            if new:
                fresh, known = np.array(sorted(new), np.int64), self._known[measure]
                fresh = fresh[~np.isin(fresh, known, assume_unique=True)]
                self._known[measure] = np.insert(known, np.searchsorted(known, fresh), fresh)
                new.clear()
        return dict(self._known)

    def clear(self) -> None:
        """Forget all states."""
        self.__init__(self._known)  # type: ignore[misc]

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, replacing everything counted so far."""
        self.clear()
        self.merge(state)

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Add the states of another counter, whose `state` this is."""
        if state.keys() != self._known.keys():
            raise CheckpointError(
                f"the counted states cannot be loaded: expected {', '.join(self._known)}, got "
                f"{', '.join(state)}; they were counted in another environment"
            )
        for measure, known in self.state().items():
            self._known[measure] = np.union1d(known, state[measure])


def measure_pose(physics: Any) -> np.ndarray:
    """Height (m), angle (rad) and velocity (m/s) of the body in a dm_control simulation, (3,).

    They are z of the body's frame, its pitch, and its velocity along x. The body is the first one with a
    joint, for arms the last.
    """
    import mujoco

    model, data = physics.model.ptr, physics.data.ptr
    body = _bodies.get(model)
    if body is None:  # a new simulation, or an arm's next episode, which recompiles the model
        body = _bodies[model] = _moving_body(model)
    velocity = np.empty(6)  # angular, then linear
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
    axes = data.xmat[body]
    angle = math.atan2(axes[2], axes[8])  # of the body's z axis in the x–z plane
    return np.array([data.xpos[body, 2], angle, velocity[3]])


def _moving_body(model: Any) -> int:
    """The root if it can move freely; otherwise it is the base of an arm, and the last link is used."""
    root = int(np.argmax(model.body_jntnum > 0))
    first = model.body_jntadr[root]
    if np.isin(model.jnt_type[first : first + model.body_jntnum[root]], (FREE, SLIDE)).any():
        return root
    links = (model.body_rootid == model.body_rootid[root]) & (model.body_jntnum > 0)
    return int(np.flatnonzero(links)[-1])


def pose_bins(poses: np.ndarray, name: str) -> list[int]:
    """The bins, of 5 cm, 10° and 0.25 m/s, of poses (n, 3) in environment `name`."""
    if not np.isfinite(poses).all():
        raise EnvironmentFailedError(f"the physics state of {name!r} has become NaN or infinite")
    heights, velocities = round(MAX_HEIGHT_M / HEIGHT_BIN_M), round(MAX_VELOCITY_MPS / VELOCITY_BIN_MPS)
    height = np.rint(poses[:, 0] / HEIGHT_BIN_M).clip(-heights, heights)
    angle = np.rint(poses[:, 1] / (2 * np.pi / ANGLE_BINS)) % ANGLE_BINS  # −180° is 180°
    velocity = np.rint(poses[:, 2] / VELOCITY_BIN_MPS).clip(-velocities, velocities)
    number = (height * ANGLE_BINS + angle) * (2 * velocities + 1) + velocity
    return number.astype(np.int64).tolist()  # type: ignore[no-any-return]
