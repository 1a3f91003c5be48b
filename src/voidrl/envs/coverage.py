"""State coverage in DMControl: visited bins of the body's pose, and the entropy of the physics states.

Two states of a simulation are almost never equal, so distinct states cannot be counted as on Atari. Bins
measure the reached poses, the entropy how spread out the states are. Imports neither torch nor dm_control.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

import numpy as np

from voidrl.errors import CheckpointError, EnvironmentFailedError

# Bins are small compared with what bodies can do (the walker stands 1.3 m high and walks at 1 m/s), and large
# compared with the jitter of a body at rest. They are centered on multiples of their size, so 0 is no border.
HEIGHT_BIN_M = 0.05
ANGLE_BINS = 36  # of 10°
VELOCITY_BIN_MPS = 0.25
MAX_HEIGHT_M, MAX_VELOCITY_MPS = 10.0, 25.0  # in both directions; anything beyond falls into the last bin

VELOCITY_SCALE_S = 0.1  # joints spread over 0.1 to 1 rad and 2 to 6 rad/s: this gives both equal weight
RESOLUTION = 0.01  # m and rad; 0.1 m/s and rad/s
SAMPLE_STATES = (
    1024  # few, so that neighbors are not consecutive steps; the entropy of a walker's takes 20 ms
)
LEAST_STATES = 64  # below, no entropy is reported
NEIGHBOR = 3

POSE = 3  # height, angle and velocity come before the physics state
FREE, BALL, SLIDE, HINGE = range(4)  # MuJoCo's mjtJoint


class StateIndex(NamedTuple):
    """Indices of the measured values in a model's `qpos` and in the measured state."""

    body: int
    scalars: tuple[np.ndarray, np.ndarray]  # scalar positions: indices into qpos, and into the state
    hinges: np.ndarray  # into the state
    rotations: list[tuple[int, int]]  # quaternions: start in qpos, and in the state
    velocities: int  # start in the state
    spatial: np.ndarray  # (6,) buffer for a body's velocity

    @classmethod
    def of_model(cls, model: Any) -> StateIndex:
        """The index for MuJoCo's `model`."""
        root = int(np.argmax(model.body_jntnum > 0))
        sources: list[int] = []
        targets: list[int] = []
        hinges, rotations, at = [], [], POSE
        for joint in range(model.njnt):
            kind, address = int(model.jnt_type[joint]), int(model.jnt_qposadr[joint])
            of_root = model.jnt_bodyid[joint] == root
            if kind == FREE:
                taken = [address + 2] if of_root else [address, address + 1, address + 2]
            elif kind == BALL or (of_root and _is_endless_slide(model, joint)):
                taken = []
            else:
                taken = [address]
            if kind == HINGE:
                hinges.append(at)
            sources += taken
            targets += range(at, at + len(taken))
            at += len(taken)
            if kind in (FREE, BALL):
                rotations.append((address + 3 if kind == FREE else address, at))
                at += 3
        scalars = np.array(sources, np.intp), np.array(targets, np.intp)
        return cls(_body(model, root), scalars, np.array(hinges, np.intp), rotations, at, np.zeros(6))


def _is_endless_slide(model: Any, joint: int) -> bool:
    """Whether a joint slides along an endless floor, without stops or springs that make positions differ."""
    level = model.jnt_type[joint] == SLIDE and abs(model.jnt_axis[joint, 2]) < 1e-6
    return bool(level and not model.jnt_limited[joint] and not np.any(model.jnt_stiffness[joint]))


def _body(model: Any, root: int) -> int:
    """The root if it can move freely; otherwise it is the base of an arm, and the last link is used."""
    first = model.body_jntadr[root]
    if np.isin(model.jnt_type[first : first + model.body_jntnum[root]], (FREE, SLIDE)).any():
        return root
    links = (model.body_rootid == model.body_rootid[root]) & (model.body_jntnum > 0)
    return int(np.flatnonzero(links)[-1])


_indices: weakref.WeakKeyDictionary[Any, StateIndex] = weakref.WeakKeyDictionary()


def measure(physics: Any) -> np.ndarray:
    """The current pose and physics state of a dm_control simulation, (S,) float64.

    The pose is height (m), angle (rad) and velocity (m/s): z of the body's frame, its pitch in (−π, π], its
    velocity along x. The body is the first one with a joint, for arms the last.

    The physics state is `qpos` and, times 0.1 s, `qvel`. Hinge angles lie in (−π, π]. A quaternion becomes a
    rotation vector, equal for q and −q. The root's position on an endless floor is left out: a known
    posture elsewhere is not a new state.
    """
    import mujoco

    model, data = physics.model.ptr, physics.data.ptr
    index = _indices.get(model)
    if index is None:  # a new simulation, or an arm's next episode, which recompiles the model
        index = _indices[model] = StateIndex.of_model(model)
    state, qpos, axes = np.empty(index.velocities + model.nv), data.qpos, data.xmat[index.body]
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, index.body, index.spatial, 0)
    state[0] = data.xpos[index.body, 2]
    state[1] = wrap(math.atan2(axes[2], axes[8]))  # of the body's z axis in the x–z plane
    state[2] = index.spatial[3]  # the linear part follows the three angular velocities
    sources, targets = index.scalars
    state[targets] = qpos[sources]
    state[index.hinges] = wrap(state[index.hinges])
    for source, target in index.rotations:
        state[target : target + 3] = rotation_vector(*qpos[source : source + 4].tolist())
    np.multiply(data.qvel, VELOCITY_SCALE_S, out=state[index.velocities :])
    return state


def wrap(angle: Any) -> Any:
    """The angle wrapped to (−π, π]; angles already in that range stay bit-identical."""
    return angle - 2 * np.pi * np.ceil((angle - np.pi) / (2 * np.pi))


def rotation_vector(w: float, x: float, y: float, z: float) -> tuple[float, float, float]:
    """Axis times angle, 0 to π, of a quaternion of any norm: one number per degree of freedom."""
    if (w, x, y, z) < (0.0, 0.0, 0.0, 0.0):  # q and −q are one rotation
        w, x, y, z = -w, -x, -y, -z
    sine = math.hypot(x, y, z)
    factor = 2 * math.atan2(sine, w) / sine if sine else 0.0
    return x * factor, y * factor, z * factor


class PhysicsCoverage:
    """Measures how much of a domain is visited, as `bins` and `entropy`.

    `bins` is the number of distinct bins of height, angle and velocity, of 5 cm, 10° and 0.25 m/s.

    `entropy` is the particle entropy (eq. 1), in nats, of a uniform sample of the visited physics states. It
    is not normalized by the data, so runs in one domain can be compared; domains cannot, since their states
    differ in dimension. Noise of 1 cm, 0.01 rad, 0.1 m/s or 0.1 rad/s, equal in all runs, is added to the
    states. Without it, repeated states or constant coordinates would give −∞; with it a constant coordinate
    adds log 0.01, and coordinates with a larger spread hardly change.

    Args:
        domain: The domain's name.
    """

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self._sample = np.zeros((0, 0))  # (SAMPLE_STATES, d) from the first states on
        self.clear()

    def clear(self) -> None:
        """Forget all states."""
        self._bins: set[int] = set()
        self._seen = 0
        self._random = _random(0)

    def add(self, states: np.ndarray) -> None:
        """Add (n, S) visited states, as `measure` returns them."""
        if not np.isfinite(states).all():
            raise EnvironmentFailedError(f"the physics state of {self.domain!r} has become NaN or infinite")
        self._reserve(states.shape[1] - POSE)
        self._bins.update(_bin_numbers(states[:, :POSE]).tolist())
        # Algorithm R: the t-th state replaces one of the sample with probability SAMPLE_STATES / t.
        seen = self._seen + np.arange(len(states))
        drawn = (self._random.random(len(states)) * (seen + 1)).astype(np.int64)
        slots = np.where(seen < SAMPLE_STATES, seen, drawn)
        taken = slots < SAMPLE_STATES
        self._sample[slots[taken]] = states[taken, POSE:]  # of two in one slot the later one stays
        self._seen += len(states)

    def _reserve(self, width: int) -> None:
        if not len(self._sample):
            self._sample = np.zeros((SAMPLE_STATES, width))

    def recent(self) -> dict[str, float]:
        """No measure restricted to recent steps."""
        return {}

    def counts(self) -> dict[str, float]:
        """Both measures over all states so far; the entropy needs at least 64."""
        found: dict[str, float] = {"bins": len(self._bins)}
        sample = self._filled()  # (n, d)
        if len(sample) >= LEAST_STATES:
            import torch

            from voidrl.entropy import particle_entropy

            noise = np.random.default_rng(0).random(sample.shape) - 0.5
            noisy = torch.from_numpy(sample + RESOLUTION * noise)
            found["entropy"] = float(particle_entropy(noisy, NEIGHBOR))
        return found

    def state(self) -> dict[str, np.ndarray]:
        """The state for a checkpoint."""
        return {
            "domain": np.frombuffer(self.domain.encode(), np.uint8).copy(),
            "bins": np.array(sorted(self._bins), np.int64),
            "sample": self._filled().copy(),
            "seen": np.array([self._seen]),
        }

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, replacing everything visited so far."""
        sample = self._checked(state)
        self._bins = set(state["bins"].tolist())
        self._sample[: len(sample)] = sample
        self._seen = int(state["seen"][0])
        self._random = _random(self._seen)

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Add the states of another measure of this domain, whose `state` this is.

        The sample is again uniform over all states. Its members differ from a single
        measure's, and depend only on the two that are merged.
        """
        theirs, their_seen = self._checked(state), int(state["seen"][0])
        mine = self._filled()
        random = np.random.default_rng((self._seen, their_seen))
        size = min(self._seen + their_seen, SAMPLE_STATES)
        own = int(random.hypergeometric(self._seen, their_seen, size)) if size else 0  # without replacement
        kept = mine[random.permutation(len(mine))[:own]]
        self._sample[:size] = np.concatenate([kept, theirs[random.permutation(len(theirs))[: size - own]]])
        self._bins |= set(state["bins"].tolist())
        self._seen += their_seen
        self._random = _random(self._seen)

    def _checked(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """The sample in a state of this domain."""
        domain = state["domain"].tobytes().decode() if "domain" in state else "another kind of environment"
        if domain != self.domain:
            raise CheckpointError(
                f"the visited states cannot be loaded: expected those of {self.domain!r}, got those of "
                f"{domain!r}"
            )
        if len(state["sample"]):
            self._reserve(state["sample"].shape[1])
        return state["sample"]

    def _filled(self) -> np.ndarray:
        return self._sample[: min(self._seen, SAMPLE_STATES)]


def _random(drawn: int) -> np.random.Generator:
    """The sampler's generator after `drawn` draws, one per state, so that `seen` suffices to restore it."""
    return np.random.Generator(np.random.PCG64(0).advance(drawn))


def _bin_numbers(pose: np.ndarray) -> np.ndarray:
    """(n, 3) → (n,) int64."""
    heights, velocities = round(MAX_HEIGHT_M / HEIGHT_BIN_M), round(MAX_VELOCITY_MPS / VELOCITY_BIN_MPS)
    height = np.rint(pose[:, 0] / HEIGHT_BIN_M).clip(-heights, heights)
    angle = np.rint(pose[:, 1] / (2 * np.pi / ANGLE_BINS)) % ANGLE_BINS  # −180° is 180°
    velocity = np.rint(pose[:, 2] / VELOCITY_BIN_MPS).clip(-velocities, velocities)
    number: np.ndarray = (height * ANGLE_BINS + angle) * (2 * velocities + 1) + velocity
    return number.astype(np.int64)
