"""Tasks missing from dm_control's suite: the paper's sparse tasks and URLB's. Does not import torch.

Models, observations, control steps and time limits are the suite's, so that an agent pre-trained in a
domain fits all of its tasks. The paper does not give its heights and distances. Ours are out of reach of
uniform random actions, as measured in 1000 episodes of 1000 control steps:

    task                    goal                             threshold  random's best  its successes
    cheetah_jump_sparse     height of the torso                  1.3 m         0.93 m     0 of 1000
    hopper_jump_sparse      height of the torso                  1.1 m         1.02 m     0 of 1000
    walker_jump_sparse      height of the torso                  1.6 m         1.38 m     0 of 1000
    cheetah_reach_sparse    x of the torso                       5.0 m         2.78 m     0 of 1000
    hopper_reach_sparse     x of the torso                       3.0 m         1.29 m     0 of 1000
    walker_reach_sparse     x of the torso                      10.0 m         7.16 m     0 of 1000
    walker_turnover_sparse  height of the torso, if upright      1.2 m         1.28 m     3 of 1000

The actions in tests/envs/dmc_proofs.json show that each task can be solved.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from dm_control import suite
from dm_control.rl import control
from dm_control.suite import cheetah, hopper, quadruped, walker
from dm_control.utils import rewards

INFINITY = float("inf")
LQR_TIME_LIMIT = 30.0  # s, 1000 control steps as in all other domains
UPRIGHT = 0.9  # cosine of the angle between the torso's axis and the vertical, 26°


class Sparse:
    """Reward 1 and the end of the episode once `measure` reaches `threshold`, and 0 before.

    Both depend only on the physics state, so that a restored state gets its original reward.
    """

    threshold: float  # m

    def measure(self, physics: Any) -> float:
        """The value to compare with the threshold."""
        raise NotImplementedError

    def succeeded(self, physics: Any) -> bool:
        """Whether the goal is reached."""
        return bool(self.measure(physics) >= self.threshold)

    def get_reward(self, physics: Any) -> float:
        """1 at the goal."""
        return float(self.succeeded(physics))

    def get_termination(self, physics: Any) -> float | None:
        """A discount of 0 at the goal, which terminates the episode in dm_control."""
        return 0.0 if self.succeeded(physics) else None


class Jump(Sparse):
    """The torso's height. Thresholds exceed the height of any pose on the floor, even rearing or on tiptoe.

    Rearing, the cheetah's is at 1.23 m. On tiptoe, the hopper's is at 1.08 m and the walker's at 1.42 m.

    The suite drops the walker and the hopper from a height. Here they start in its poses on the floor,
    so that the energy of the fall does not help.
    """

    def initialize_episode(self, physics: Any) -> None:
        """Set the suite's random pose down on the floor."""
        super().initialize_episode(physics)  # type: ignore[misc]
        set_down(physics)

    def measure(self, physics: Any) -> float:
        """Height of the torso's center."""
        return float(physics.named.data.xpos["torso", "z"])


class Reach(Sparse):
    """The torso's position along x. Episodes start near 0."""

    def measure(self, physics: Any) -> float:
        """Position of the torso's center."""
        return float(physics.named.data.xpos["torso", "x"])


def clearance(physics: Any) -> float:
    """Height of the body's lowest point above the floor, in the planar domains, whose bodies are capsules."""
    model, data = physics.model, physics.data
    radius, half_length = model.geom_size[1:, 0], model.geom_size[1:, 1]  # geom 0 is the floor
    axis_z = data.geom_xmat[1:, 8]
    return float((data.geom_xpos[1:, 2] - np.abs(axis_z) * half_length - radius).min())


def set_down(physics: Any) -> None:
    """Move the body up or down until its lowest point is on the floor."""
    physics.forward()
    physics.named.data.qpos["rootz"] -= clearance(physics)


class Turnover(Sparse):
    """Get from its head to its feet, as high as in the suite's stand task.

    An upright torso is not enough: with random actions the walker often sits upright.
    """

    def initialize_episode(self, physics: Any) -> None:
        """Place the suite's random pose upside down, with the head on the floor."""
        super().initialize_episode(physics)  # type: ignore[misc]
        physics.named.data.qpos["rooty"] = np.pi
        set_down(physics)

    def measure(self, physics: Any) -> float:
        """Height of the torso's center if it is upright, else 0."""
        return float(physics.torso_height()) if physics.torso_upright() >= UPRIGHT else 0.0


class WalkerFlip(walker.PlanarWalker):
    """Somersaults (URLB): the walk task with angular momentum in place of speed."""

    def get_reward(self, physics: Any) -> float:
        """URLB's `PlanarWalker` with `flip=True`."""
        standing = rewards.tolerance(physics.torso_height(), bounds=(1.2, INFINITY), margin=0.6)
        upright = (1 + physics.torso_upright()) / 2
        # About the center of mass, kg·m²/s. MuJoCo computes it with the velocity of the model's sensor.
        spin = physics.named.data.subtree_angmom["torso"][1]
        move = rewards.tolerance(spin, bounds=(5, INFINITY), margin=5, value_at_margin=0, sigmoid="linear")
        return float((3 * standing + upright) / 4 * (5 * move + 1) / 6)


class QuadrupedStand(quadruped.Move):
    """An upright torso (URLB), at whatever height."""

    def get_reward(self, physics: Any) -> float:
        """URLB's `Stand`: 0 upside down, 1 upright."""
        upright = physics.torso_upright()
        return float(
            rewards.tolerance(upright, bounds=(1, INFINITY), margin=2, value_at_margin=0, sigmoid="linear")
        )


class QuadrupedJump(QuadrupedStand):
    """A high center of mass over an upright torso (URLB)."""

    def get_reward(self, physics: Any) -> float:
        """URLB's `Jump`: half of it on the floor and all of it at 1 m."""
        height = physics.named.data.sensordata["center_of_mass"][2]
        jump = rewards.tolerance(
            height, bounds=(1, INFINITY), margin=1, value_at_margin=0.5, sigmoid="linear"
        )
        return super().get_reward(physics) * float(jump)


def _sparse(goal: type[Sparse], body: type, threshold: float) -> type:
    return type(f"{body.__name__}{goal.__name__}", (goal, body), {"threshold": threshold})


TASKS: dict[str, dict[str, Any]] = {
    "cheetah": {
        "jump_sparse": _sparse(Jump, cheetah.Cheetah, 1.3),
        "reach_sparse": _sparse(Reach, cheetah.Cheetah, 5.0),
    },
    "hopper": {
        "jump_sparse": _sparse(Jump, hopper.Hopper, 1.1),
        "reach_sparse": _sparse(Reach, hopper.Hopper, 3.0),
    },
    "quadruped": {"jump": QuadrupedJump, "stand": QuadrupedStand},
    "walker": {
        "flip": WalkerFlip,
        "jump_sparse": _sparse(Jump, walker.PlanarWalker, 1.6),
        "reach_sparse": _sparse(Reach, walker.PlanarWalker, 10.0),
        "turnover_sparse": _sparse(Turnover, walker.PlanarWalker, 1.2),
    },
}
# The suite's task that provides the physics, the time limit in seconds (1000 control steps), and arguments
# that the suite's class requires, though its reward is not used.
SUITE: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cheetah": ("run", 10, {}),
    "hopper": ("hop", 20, {"hopping": True}),
    "quadruped": ("walk", 20, {"desired_speed": 0}),  # URLB's two have the floor of its walk task too
    "walker": ("walk", 25, {"move_speed": 0}),
}
# Position of the brick to reach, m; seen from the front camera, y points away from it.
JACO = {
    "reach_bottom_left": (-0.09, -0.09),
    "reach_bottom_right": (0.09, -0.09),
    "reach_top_left": (-0.09, 0.09),
    "reach_top_right": (0.09, 0.09),
}
CUSTOM: dict[str, tuple[str, ...]] = {
    **{domain: tuple(tasks) for domain, tasks in TASKS.items()},
    "jaco": tuple(JACO),
}
"""The tasks defined here, by domain."""


def load(domain: str, task: str, seed: int) -> Any:
    """Load a dm_control environment with a task of the suite or of this file.

    All of its randomness comes from `task.random`, for jaco from `random_state`: reseeding it in place is
    equivalent to creating a new environment.
    """
    if domain == "jaco":
        return _load_jaco(task, seed)
    if task not in CUSTOM.get(domain, ()):
        # The suite's regulators run until they are at rest, which may never happen.
        limit = {"time_limit": LQR_TIME_LIMIT} if domain == "lqr" else {}
        return suite.load(domain, task, task_kwargs={"random": seed, **limit})
    name, time_limit, arguments = SUITE[domain]
    base = suite.load(domain, name)
    return control.Environment(
        base.physics,
        TASKS[domain][task](**arguments, random=seed),
        time_limit=time_limit,
        control_timestep=base.control_timestep(),
    )


def _load_jaco(task: str, seed: int) -> Any:
    """Load one of URLB's four tasks: dm_control's `reach_duplo_features` with a fixed brick position."""
    from dm_control import composer  # not needed by other domains
    from dm_control.entities import props
    from dm_control.manipulation import reach
    from dm_control.manipulation.shared import arenas, constants, observations, robots, workspaces

    position = (*JACO[task], 0.001)  # just above the floor, onto which the brick settles
    workspace = SimpleNamespace(
        target_bbox=workspaces.BoundingBox(lower=position, upper=position),
        tcp_bbox=workspaces.BoundingBox(lower=(-0.1, -0.1, 0.2), upper=(0.1, 0.1, 0.4)),
        arm_offset=robots.ARM_OFFSET,
    )
    features = observations.PERFECT_FEATURES
    brick = observations.make_options(features, observations.FREEPROP_OBSERVABLES)
    reaching = reach.Reach(
        arena=arenas.Standard(),
        arm=robots.make_arm(obs_settings=features),
        hand=robots.make_hand(obs_settings=features),
        prop=props.Duplo(observable_options=brick),
        obs_settings=features,
        workspace=workspace,
        control_timestep=constants.CONTROL_TIMESTEP,
    )
    return composer.Environment(reaching, time_limit=10.0, random_state=seed)
