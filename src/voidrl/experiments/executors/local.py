"""The executor `local`: a process per cell on this machine, which ends with the command."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from voidrl.config import require
from voidrl.errors import ConfigError
from voidrl.experiments.executors.base import (
    Ended,
    Executor,
    import_paths,
    option,
    start_cell,
    stop_cell,
)
from voidrl.experiments.executors.devices import Gpu, parse_devices, require_gpus
from voidrl.experiments.executors.mps import Mps, MpsError, is_served
from voidrl.system.machine import CORES, claim_cores, whole_cores
from voidrl.system.terminal.signals import end_with_process

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job
    from voidrl.experiments.plan import Plan


@dataclass(frozen=True)
class Options:
    """Options of `--on local`."""

    jobs: int = option(1, "runs at a time, with --devices on each GPU (default: 1)", type=int)
    devices: str | None = option(
        None, "GPUs such as 0,1,2,3, or cpu (default: the one of --device)", metavar="LIST"
    )
    no_mps: bool = option(
        False, "do not start CUDA's multi-process service where runs share a GPU", action="store_true"
    )

    def __post_init__(self) -> None:
        require(isinstance(self.jobs, int) and self.jobs >= 1, "jobs", self.jobs, "a whole number above 0")
        parse_devices(self.devices)

    @property
    def slots(self) -> int:
        """Largest number of concurrent runs."""
        return self.jobs * max(1, len(parse_devices(self.devices)))


def make(plan: Plan, options: Options) -> Local:
    """Make the executor, if this machine meets its needs."""
    from voidrl.system.device import pick_device

    device, gpus = None, []
    if options.devices is not None:
        if plan.request.device != "auto":
            name = plan.request.device
            raise ConfigError(f"--devices {options.devices} and --device {name} exclude each other: give one")
        gpus = require_gpus(options.devices)
        device = "cuda" if gpus else "cpu"
    runs = options.slots if plan.request.tune is not None else min(options.slots, len(plan.cells))
    on_gpu = pick_device(device or plan.request.device).type != "cpu"
    return Local(options, runs=runs, device=device, gpus=gpus, shares_gpus=on_gpu and options.jobs > 1)


class Local(Executor):
    """Processes on this machine.

    Args:
        options: The options of the command line.
        runs: Largest number of concurrent runs, which divide the cores.
        device: The device in the config of cells; None leaves it.
        gpus: The GPUs over which cells are distributed; without any, all cells share one device.
        shares_gpus: Whether several cells run on one GPU.
    """

    def __init__(
        self,
        options: Options,
        *,
        runs: int = 1,
        device: str | None = None,
        gpus: list[Gpu] | None = None,
        shares_gpus: bool = False,
    ) -> None:
        self._options, self._runs, self._device = options, runs, device
        self._gpus = {gpu.number: gpu.uuid for gpu in gpus or ()}
        self._places: dict[str, int] = {}
        """The GPU of every running cell."""
        self._shares_gpus = shares_gpus
        self._mps: Mps | None = None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._claim = ExitStack()

    def __enter__(self) -> Self:
        self._claim.enter_context(claim_cores(self._runs))
        if self._shares_gpus and not self._options.no_mps and not is_served():
            try:
                self._mps = Mps([*self._gpus.values()])
            except MpsError as error:
                self.say(f"note: runs share a GPU without CUDA's multi-process service: {error}")
        return self

    def has_room(self) -> bool:  # noqa: D102
        return len(self._children) < self._options.slots

    def submit(self, job: Job) -> None:  # noqa: D102
        variables = {"PYTHONPATH": import_paths(), CORES: str(whole_cores(self._runs))}
        variables |= self._mps.variables if self._mps is not None else {}
        if self._device is not None:
            job = {**job, "config": {**job["config"], "device": self._device}}
        used = [*self._places.values()]
        gpu = min(self._gpus, key=used.count, default=None)
        if gpu is not None:
            # Every process sees only its own GPU, as cuda:0: its run can be resumed on any other.
            variables["CUDA_VISIBLE_DEVICES"] = self._gpus[gpu]
        try:
            process = self._children[job["cell"]] = start_cell(job, variables)
        except OSError as error:
            raise OSError(f"its process could not be started ({error.strerror or error})") from error
        end_with_process(process, group=True)
        if gpu is not None:
            self._places[job["cell"]] = gpu

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        codes = {cell: child.poll() for cell, child in self._children.items()}
        ended = {cell: Ended(code) for cell, code in codes.items() if code is not None}
        for cell in ended:
            stop_cell(self._children.pop(cell))
            self._places.pop(cell, None)
        return ended

    def where(self, cell: str) -> str:  # noqa: D102
        return f"cuda:{self._places[cell]}" if cell in self._places else ""

    def stop(self) -> None:  # noqa: D102
        for child in self._children.values():
            stop_cell(child)

    def kill(self) -> None:  # noqa: D102
        for child in self._children.values():
            child.kill()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for child in self._children.values():
            child.wait()
        self._claim.close()
        if self._mps is not None:
            self._mps.close()
