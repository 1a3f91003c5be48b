"""How much of a continuous world was visited: bins of the body's pose, and the entropy of physics states.

Two states of a simulation are hardly ever equal, so distinct ones cannot be counted as on Atari. Bins say
what was reached; the entropy says how widely all that moves was spread. Imports neither torch nor dm_control.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

import numpy as np

from voidrl.errors import CheckpointError, EnvironmentFailedError

# Bins are small against what bodies can do (the walker stands 1.3 m high and walks at 1 m/s), and large
# against the trembling of one that rests. They are centerd on multiples of their size: 0 is no border.
HEIGHT_BIN_M = 0.05
ANGLE_BINS = 36  # of 10°
VELOCITY_BIN_MPS = 0.25
MAX_HEIGHT_M, MAX_VELOCITY_MPS = 10.0, 25.0  # up and down, back and forth; what is beyond shares the last bin

VELOCITY_SCALE_S = 0.1  # joints spread over 0.1 to 1 rad and 2 to 6 rad/s: so both weigh alike
RESOLUTION = 0.01  # m and rad; 0.1 m/s and rad/s
SAMPLE_STATES = 1024  # few, so that neighbors are not the step before and after; a walker's take 20 ms
FEWEST_STATES = 64  # of which there is an entropy
NEIGHBOR = 3

POSE = 3  # height, angle and velocity, which come before the physics state
FREE, BALL, SLIDE, HINGE = range(4)  # MuJoCo's mjtJoint


class Layout(NamedTuple):
    """Where a model has what is measured."""

    body: int
    single: tuple[np.ndarray, np.ndarray]  # positions of one number: where in qpos, where in what is measured
    hinges: np.ndarray  # where in what is measured
    rotations: list[tuple[int, int]]  # quaternions: where in qpos, where in what is measured
    velocities: int  # where they begin in what is measured
    spatial: np.ndarray  # (6,) to write a body's velocity to

    @classmethod
    def of(cls, model: Any) -> Layout:
        """That of MuJoCo's `model`."""
        root = int(np.argmax(model.body_jntnum > 0))
        sources: list[int] = []
        targets: list[int] = []
        hinges, rotations, place = [], [], POSE
        for joint in range(model.njnt):
            kind, address = int(model.jnt_type[joint]), int(model.jnt_qposadr[joint])
            of_root = model.jnt_bodyid[joint] == root
            if kind == FREE:
                taken = [address + 2] if of_root else [address, address + 1, address + 2]
            elif kind == BALL or (of_root and _says_only_how_far(model, joint)):
                taken = []
            else:
                taken = [address]
            if kind == HINGE:
                hinges.append(place)
            sources += taken
            targets += range(place, place + len(taken))
            place += len(taken)
            if kind in (FREE, BALL):
                rotations.append((address + 3 if kind == FREE else address, place))
                place += 3
        single = np.array(sources, np.intp), np.array(targets, np.intp)
        return cls(_body(model, root), single, np.array(hinges, np.intp), rotations, place, np.zeros(6))


def _says_only_how_far(model: Any, joint: int) -> bool:
    """A slide along an endless floor; between stops or against a spring, places differ."""
    level = model.jnt_type[joint] == SLIDE and abs(model.jnt_axis[joint, 2]) < 1e-6
    return bool(level and not model.jnt_limited[joint] and not np.any(model.jnt_stiffness[joint]))


def _body(model: Any, root: int) -> int:
    """The root, if it can go anywhere; else it is the base of an arm, of which the last link says more."""
    first = model.body_jntadr[root]
    if np.isin(model.jnt_type[first : first + model.body_jntnum[root]], (FREE, SLIDE)).any():
        return root
    links = (model.body_rootid == model.body_rootid[root]) & (model.body_jntnum > 0)
    return int(np.flatnonzero(links)[-1])


_layouts: weakref.WeakKeyDictionary[Any, Layout] = weakref.WeakKeyDictionary()


def measure(physics: Any) -> np.ndarray:
    """What a simulation of dm_control looks like now: (S,) float64, the pose of its body and its whole state.

    The pose is height (m), angle (rad) and velocity (m/s): z of the body's frame, its pitch in (−π, π], its
    velocity along x. The body is the first one with a joint, in arms the last. What the world does not let it
    do stays constant.

    The state is `qpos` and, times 0.1 s, `qvel`. Angles of hinges lie in (−π, π]. A quaternion becomes a
    rotation vector, the same one for q and −q. Where on an endless floor the first body is is left out: the
    same posture elsewhere is no new state.
    """
    import mujoco

    model, data = physics.model.ptr, physics.data.ptr
    layout = _layouts.get(model)
    if layout is None:  # a new simulation; or an arm's next episode, for which its world is compiled anew
        layout = _layouts[model] = Layout.of(model)
    state, qpos, axes = np.empty(layout.velocities + model.nv), data.qpos, data.xmat[layout.body]
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, layout.body, layout.spatial, 0)
    state[0] = data.xpos[layout.body, 2]
    state[1] = wrap(math.atan2(axes[2], axes[8]))  # of the frame's z axis, x against z
    state[2] = layout.spatial[3]  # after the three of the rotation
    sources, targets = layout.single
    state[targets] = qpos[sources]
    state[layout.hinges] = wrap(state[layout.hinges])
    for source, target in layout.rotations:
        state[target : target + 3] = rotation_vector(*qpos[source : source + 4].tolist())
    np.multiply(data.qvel, VELOCITY_SCALE_S, out=state[layout.velocities :])
    return state


def wrap(angle: Any) -> Any:
    """The same angle in (−π, π]; what lies there already is kept to the last bit."""
    return angle - 2 * np.pi * np.ceil((angle - np.pi) / (2 * np.pi))


def rotation_vector(w: float, x: float, y: float, z: float) -> tuple[float, float, float]:
    """Axis times angle, 0 to π, of a quaternion of any length: as many numbers as degrees of freedom."""
    if (w, x, y, z) < (0.0, 0.0, 0.0, 0.0):  # q and −q are the same rotation
        w, x, y, z = -w, -x, -y, -z
    sine = math.hypot(x, y, z)
    factor = 2 * math.atan2(sine, w) / sine if sine else 0.0
    return x * factor, y * factor, z * factor


class PhysicsCoverage:
    """Measures how much of a domain is visited, as `bins` and `entropy`.

    `bins` is the number of distinct bins of height, angle and velocity, of 5 cm, 10° and 0.25 m/s.

    `entropy` is the particle entropy (eq. 1), in nats, of a uniform sample of the visited physics states. The
    data do not scale it, so that runs in one domain can be compared; domains cannot be, as the states of each
    have a dimension of their own. States count as known to 1 cm, 0.01 rad, 0.1 m/s or 0.1 rad/s: an error of
    this size is added, the same in all runs. Without it states that repeat, or coordinates that never change,
    would give −∞; with it such a coordinate adds log 0.01, and what is spread wider hardly changes.

    Args:
        domain: Its name.
        width: S of `measure` in it.
    """

    def __init__(self, domain: str, width: int) -> None:
        self.domain, self.width = domain, width
        self._bins: set[int] = set()
        self._sample = np.zeros((SAMPLE_STATES, width - POSE))
        self._seen = 0
        self._random = _random(0)

    def add(self, states: np.ndarray) -> None:
        """Take in (n, S) visited states, as `measure` gives them."""
        if not np.isfinite(states).all():
            raise EnvironmentFailedError(f"the physics of {self.domain!r} are in a state that is not finite")
        self._bins.update(_bin_numbers(states[:, :POSE]).tolist())
        # Algorithm R: the t-th state replaces one of the sample with probability SAMPLE_STATES / t.
        seen = self._seen + np.arange(len(states))
        drawn = (self._random.random(len(states)) * (seen + 1)).astype(np.int64)
        slots = np.where(seen < SAMPLE_STATES, seen, drawn)
        taken = slots < SAMPLE_STATES
        self._sample[slots[taken]] = states[taken, POSE:]  # of two in one slot the later stays
        self._seen += len(states)

    def counts(self) -> dict[str, float]:
        """Both measures of all states so far; the entropy of 64 or more."""
        found: dict[str, float] = {"bins": len(self._bins)}
        sample = self._filled()  # (n, d)
        if len(sample) >= FEWEST_STATES:
            import torch

            from voidrl.entropy import particle_entropy

            error = np.random.default_rng(0).random(sample.shape) - 0.5
            blurred = torch.from_numpy(sample + RESOLUTION * error)
            found["entropy"] = float(particle_entropy(blurred, NEIGHBOR))
        return found

    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs."""
        return {
            "domain": np.frombuffer(self.domain.encode(), np.uint8).copy(),
            "bins": np.array(sorted(self._bins), np.int64),
            "sample": self._filled().copy(),
            "seen": np.array([self._seen]),
        }

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` returned, in place of what was visited so far."""
        if state.keys() != self.state().keys():
            raise CheckpointError(
                f"the visited states cannot be loaded: expected {sorted(self.state())} of domain "
                f"{self.domain!r}, got {sorted(state)}; they were counted in another kind of environment"
            )
        sample, seen = state["sample"], int(state["seen"][0])
        domain, width = state["domain"].tobytes().decode(), sample.shape[1] + POSE
        if (domain, width) != (self.domain, self.width) or len(sample) != min(seen, SAMPLE_STATES):
            raise CheckpointError(
                f"the visited states cannot be loaded: expected {min(seen, SAMPLE_STATES)} of {seen}, of "
                f"{self.width} numbers in domain {self.domain!r}, got {len(sample)} of {width} numbers in "
                f"{domain!r}; they were visited in another world"
            )
        self._bins = set(state["bins"].tolist())
        self._sample[: len(sample)] = sample
        self._seen, self._random = seen, _random(seen)

    def _filled(self) -> np.ndarray:
        return self._sample[: min(self._seen, SAMPLE_STATES)]


def _random(drawn: int) -> np.random.Generator:
    """The sampler's numbers from the given one on: each state takes one, so `seen` says where it stands."""
    return np.random.Generator(np.random.PCG64(0).advance(drawn))


def _bin_numbers(pose: np.ndarray) -> np.ndarray:
    """(n, 3) → (n,) int64."""
    heights, velocities = round(MAX_HEIGHT_M / HEIGHT_BIN_M), round(MAX_VELOCITY_MPS / VELOCITY_BIN_MPS)
    height = np.rint(pose[:, 0] / HEIGHT_BIN_M).clip(-heights, heights)
    angle = np.rint(pose[:, 1] / (2 * np.pi / ANGLE_BINS)) % ANGLE_BINS  # −180° is 180°
    velocity = np.rint(pose[:, 2] / VELOCITY_BIN_MPS).clip(-velocities, velocities)
    number: np.ndarray = (height * ANGLE_BINS + angle) * (2 * velocities + 1) + velocity
    return number.astype(np.int64)
