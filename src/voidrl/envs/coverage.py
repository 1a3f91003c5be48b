"""State coverage in DMControl: visited bins of a body's height, angle and velocity.

Two states of a simulation are almost never equal, so distinct states cannot be counted as on Atari. Imports
neither torch nor dm_control.
"""

from __future__ import annotations

import math
import weakref
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


class PoseBins:
    """Counts the distinct bins of height, angle and velocity, of 5 cm, 10° and 0.25 m/s.

    Args:
        domain: The domain's name.
    """

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self._bins: set[int] = set()

    def clear(self) -> None:
        """Forget all bins."""
        self._bins.clear()

    def add(self, poses: np.ndarray) -> None:
        """Add (n, 3) visited poses, as `measure_pose` returns them."""
        if not np.isfinite(poses).all():
            raise EnvironmentFailedError(f"the physics state of {self.domain!r} has become NaN or infinite")
        self._bins.update(_bin_numbers(poses).tolist())

    def recent(self) -> dict[str, int]:
        """No measure restricted to recent steps."""
        return {}

    def counts(self) -> dict[str, int]:
        """The number of bins visited so far."""
        return {"bins": len(self._bins)}

    def state(self) -> dict[str, np.ndarray]:
        """The state for a checkpoint."""
        return {
            "domain": np.frombuffer(self.domain.encode(), np.uint8).copy(),
            "bins": np.array(sorted(self._bins), np.int64),
        }

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, replacing everything visited so far."""
        self.clear()
        self.merge(state)

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Add the bins of another counter of this domain, whose `state` this is."""
        domain = state["domain"].tobytes().decode() if "domain" in state else "another kind of environment"
        if domain != self.domain:
            raise CheckpointError(
                f"the visited states cannot be loaded: expected those of {self.domain!r}, got those of "
                f"{domain!r}"
            )
        self._bins.update(state["bins"].tolist())


def _bin_numbers(poses: np.ndarray) -> np.ndarray:
    """(n, 3) → (n,) int64."""
    heights, velocities = round(MAX_HEIGHT_M / HEIGHT_BIN_M), round(MAX_VELOCITY_MPS / VELOCITY_BIN_MPS)
    height = np.rint(poses[:, 0] / HEIGHT_BIN_M).clip(-heights, heights)
    angle = np.rint(poses[:, 1] / (2 * np.pi / ANGLE_BINS)) % ANGLE_BINS  # −180° is 180°
    velocity = np.rint(poses[:, 2] / VELOCITY_BIN_MPS).clip(-velocities, velocities)
    number: np.ndarray = (height * ANGLE_BINS + angle) * (2 * velocities + 1) + velocity
    return number.astype(np.int64)
