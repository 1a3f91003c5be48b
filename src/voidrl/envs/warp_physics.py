"""N copies of a MuJoCo model, simulated and drawn together on one device by MuJoCo Warp.

Their states are torch tensors in the memory of Warp's arrays. On a GPU each program of kernels is captured
once as a CUDA graph. The order of computations is dm_control's: a control step ends with the positions,
velocities and sensors of the new state, while sensors of accelerations and forces are those of the last
substep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

# Of one simulation. Bodies of the supported domains had at most 6 contacts and 28 constraints in random play;
# a walker that lies flat on the floor has 14 and 62. Beyond these, `failures` reports an overflow.
MAX_CONTACTS = 32
MAX_CONSTRAINTS = 96
MAX_VALUE = 1e10  # of a position or velocity, as in MuJoCo (mjMAXVAL)
# Limits on iterations are reached in C MuJoCo as well, without a word.
HARMLESS = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS


class WarpPhysics:
    """N simulations of one model.

    Args:
        model: MuJoCo's model, integrated by Euler's method as all supported ones are.
        num_worlds: N.
        device: Where they are.
        substeps: Physics steps of a control step.
    """

    def __init__(self, model: mujoco.MjModel, num_worlds: int, device: torch.device, substeps: int) -> None:
        assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
        self.model, self.num_worlds, self.device, self.substeps = model, num_worlds, device, substeps
        wp.config.log_level = wp.LOG_WARNING  # a line for each of a hundred compiled kernels otherwise
        wp.init()
        self._place = wp.device_from_torch(device)
        with wp.ScopedDevice(self._place):
            self.warp_model: Any = mjw.put_model(model)
            self.warp_data: Any = mjw.make_data(
                model, nworld=num_worlds, nconmax=MAX_CONTACTS, njmax=MAX_CONSTRAINTS
            )
            self._sensed = wp.zeros_like(self.warp_data.sensordata)
        self.warp_model.opt.warn_overflow = 0  # `failures` says it in a sentence instead
        data = self.warp_data
        self.qpos: Tensor = wp.to_torch(data.qpos)  # (N, nq)
        self.qvel: Tensor = wp.to_torch(data.qvel)  # (N, nv)
        # (N, na); an empty array has no memory to share
        self.act: Tensor = wp.to_torch(data.act) if model.na else torch.zeros(num_worlds, 0, device=device)
        self.ctrl: Tensor = wp.to_torch(data.ctrl)  # (N, nu)
        self.xpos: Tensor = wp.to_torch(data.xpos)  # (N, bodies, 3)
        self.xipos: Tensor = wp.to_torch(data.xipos)  # (N, bodies, 3)
        self.xmat: Tensor = wp.to_torch(data.xmat)  # (N, bodies, 3, 3)
        self.geom_xpos: Tensor = wp.to_torch(data.geom_xpos)  # (N, geoms, 3)
        self.geom_xmat: Tensor = wp.to_torch(data.geom_xmat)  # (N, geoms, 3, 3)
        self.subtree_angmom: Tensor = wp.to_torch(data.subtree_angmom)  # (N, bodies, 3)
        self._sensor_views: dict[tuple[str, ...], list[Tensor]] = {}
        self._warmstart, self._overflow = wp.to_torch(data.qacc_warmstart), wp.to_torch(data.overflow)
        self._initial = torch.from_numpy(model.qpos0).float().to(device)
        self._forward = self.program(self._launch_forward)
        self._advance = self.program(self._launch_control_step)
        self._kinematics = self.program(self._launch_kinematics)
        self._overflow.zero_()

    # Names

    def body(self, name: str) -> int:
        """The number of a body."""
        return int(self.model.body(name).id)

    def joint(self, name: str) -> int:
        """The index of a joint's position in `qpos`."""
        return int(self.model.joint(name).qposadr[0])

    def sensor(self, *names: str) -> Tensor:
        """The readings of sensors, (N, d)."""
        if names not in self._sensor_views:
            self._sensor_views[names] = [self._sensor_view(name) for name in names]
        return torch.cat(self._sensor_views[names], 1)

    def _sensor_view(self, name: str) -> Tensor:
        sensor = self.model.sensor(name)
        first, width = int(sensor.adr[0]), int(sensor.dim[0])
        is_late = self.model.sensor_needstage[sensor.id] == mujoco.mjtStage.mjSTAGE_ACC
        readings: Tensor = wp.to_torch(self._sensed if is_late else self.warp_data.sensordata)
        return readings[:, first : first + width]

    def sensors_of(self, *kinds: mujoco.mjtSensor) -> tuple[str, ...]:
        """Names of the sensors of some types, in the order of the model."""
        numbers = np.flatnonzero(np.isin(self.model.sensor_type, kinds))
        return tuple(self.model.sensor(int(number)).name for number in numbers)

    # Computing

    @property
    def state(self) -> tuple[Tensor, ...]:
        """All that the next control step depends on, except the controls."""
        return self.qpos, self.qvel, self.act, self._warmstart

    def advance(self) -> None:
        """One control step of all simulations, with the controls in `ctrl`."""
        self._advance()

    def forward(self) -> None:
        """Compute what depends on the states, as dm_control does after a reset: without actuators."""
        self._forward()

    def update_poses(self) -> None:
        """Compute the poses of bodies, geoms, cameras and lights alone."""
        self._kinematics()

    def to_default(self, worlds: Tensor) -> None:
        """Put some simulations, by number, at rest into the model's default position."""
        self.qpos[worlds] = self._initial
        for rest in (self.qvel, self.act, self._warmstart, self.ctrl, self._overflow):
            rest[worlds] = 0

    def failures(self) -> Tensor:
        """What went wrong in each simulation since its episode began, (N,): 0, or `explain` knows what."""
        values = torch.cat([self.qpos, self.qvel, self.act], 1)
        lost = ~(values.abs() < MAX_VALUE).all(1)  # NaN is not smaller either
        return torch.where(lost, -1, self._overflow & ~int(HARMLESS))

    @staticmethod
    def explain(failure: int) -> str:
        """What a value of `failures` means."""
        if failure < 0:
            return f"positions or velocities that are not numbers or beyond {MAX_VALUE:.0e}"
        parts = [flag.name for flag in mjw.OverflowType if flag & failure and flag & (flag - 1) == 0]
        return (
            f"an overflow ({', '.join(map(str, parts))}), so that contacts were left out: there is room for "
            f"{MAX_CONTACTS} contacts and {MAX_CONSTRAINTS} constraints in a simulation"
        )

    def program(self, launch: Callable[[], None]) -> Callable[[], None]:
        """A sequence of Warp's kernels, after all that torch has launched and before all that it will.

        It is run once, which compiles its kernels and changes the states.
        """

        def run() -> None:
            with wp.ScopedDevice(self._place):
                launch()

        if self.device.type == "cpu":
            run()
            return run
        there = wp.stream_to_torch(self._place)  # Warp's own stream

        def ordered(launched: Callable[[], object]) -> None:
            here = torch.cuda.current_stream(self.device)
            there.wait_stream(here)
            launched()
            here.wait_stream(there)

        ordered(run)
        with wp.ScopedDevice(self._place), wp.ScopedCapture() as capture:
            launch()
        return lambda: ordered(lambda: wp.capture_launch(capture.graph))

    def _launch_control_step(self) -> None:
        # The first half of the first physics step was the end of the last control step.
        *steps, last = [mjw.step2, *[mjw.step] * (self.substeps - 1)]
        with self._disabled(mjw.DisableBit.SENSOR):  # which nobody reads: a sixth of the walker's kernels
            for step in steps:
                step(self.warp_model, self.warp_data)
        last(self.warp_model, self.warp_data)
        self._keep_sensors()
        mjw.step1(self.warp_model, self.warp_data)

    def _launch_forward(self) -> None:
        with self._disabled(mjw.DisableBit.ACTUATION):
            mjw.forward(self.warp_model, self.warp_data)
        self._keep_sensors()

    def _launch_kinematics(self) -> None:
        mjw.kinematics(self.warp_model, self.warp_data)
        mjw.com_pos(self.warp_model, self.warp_data)
        mjw.camlight(self.warp_model, self.warp_data)

    @contextmanager
    def _disabled(self, part: mjw.DisableBit) -> Iterator[None]:
        """Leave out a part of the physics; the host decides which kernels are launched."""
        options, before = self.warp_model.opt, int(self.warp_model.opt.disableflags)
        options.disableflags = before | int(part)
        try:
            yield
        finally:
            options.disableflags = before

    def _keep_sensors(self) -> None:
        """Sensors of accelerations: `step1` clears them, which MuJoCo's does not."""
        wp.copy(self._sensed, self.warp_data.sensordata)


class WarpCamera:
    """Images of all simulations from one of the model's cameras.

    Args:
        physics: The simulations.
        camera: Number of the camera.
        size: Height and width of the images.
        fast: Without shadows, and with one ray per pixel in place of 2 × 2.
    """

    def __init__(self, physics: WarpPhysics, camera: int, size: int, *, fast: bool = False) -> None:
        self.physics, self.size = physics, size
        with wp.ScopedDevice(wp.device_from_torch(physics.device)):
            self._context: Any = mjw.create_render_context(
                physics.model,
                nworld=physics.num_worlds,
                cam_res=(size, size),
                render_rgb=True,
                render_depth=False,
                render_seg=False,
                use_shadows=not fast,
                cam_active=[camera],
                render_skybox=True,
                samples_per_pixel=1 if fast else 2,
            )
        packed = wp.to_torch(self._context.rgb_data.view(wp.int32))  # (N, H · W)
        self._bytes = packed.view(torch.uint8).view(-1, size, size, 4)  # blue, green, red, alpha
        self._images = torch.empty(
            (physics.num_worlds, 3, size, size), dtype=torch.uint8, device=physics.device
        )
        self._draw = physics.program(self._launch)

    def render(self) -> Tensor:
        """(N, H, W, 3) uint8 of the poses that the simulations have, with the channels first in memory."""
        self._draw()
        for channel, byte in enumerate((2, 1, 0)):
            self._images[:, channel] = self._bytes[..., byte]
        return self._images.permute(0, 2, 3, 1)

    def _launch(self) -> None:
        mjw.refit_bvh(self.physics.warp_model, self.physics.warp_data, self._context)
        mjw.render(self.physics.warp_model, self.physics.warp_data, self._context)


def lowest_points(physics: WarpPhysics) -> Tensor:
    """Height of the lowest point of each simulation's bodies above the floor, the plane z = 0: (N,)."""
    model, kind = physics.model, mujoco.mjtGeom
    [floor] = np.flatnonzero(model.geom_type == kind.mjGEOM_PLANE)
    meets = (model.geom_contype & model.geom_conaffinity[floor]) | (
        model.geom_conaffinity & model.geom_contype[floor]
    )
    geoms = np.flatnonzero((meets != 0) & (np.arange(model.ngeom) != floor))
    kinds, sizes = model.geom_type[geoms], model.geom_size[geoms].copy()
    # Each geom is an ellipsoid with these radii, or a disk, swept along its own z axis by a half-length.
    swept = np.isin(kinds, (kind.mjGEOM_CAPSULE, kind.mjGEOM_CYLINDER))
    assert (swept | np.isin(kinds, (kind.mjGEOM_SPHERE, kind.mjGEOM_ELLIPSOID))).all()
    half_lengths = np.where(swept, sizes[:, 1], 0.0)
    round_ones = kinds != kind.mjGEOM_ELLIPSOID
    sizes[round_ones] = sizes[round_ones, :1]
    sizes[kinds == kind.mjGEOM_CYLINDER, 2] = 0.0
    radii, half_length = (torch.from_numpy(a).float().to(physics.device) for a in (sizes, half_lengths))
    index = torch.from_numpy(geoms).to(physics.device)
    up = physics.geom_xmat[:, index, 2]  # (N, geoms, 3): how far each axis points up
    extent = (radii * up).norm(dim=2) + half_length * up[..., 2].abs()
    heights: Tensor = physics.geom_xpos[:, index, 2] - extent
    return heights.amin(1)
