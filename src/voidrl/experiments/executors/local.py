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
from voidrl.experiments.executors.devices import Gpu, parse_devices, read_gpus
from voidrl.experiments.executors.mps import Mps, MpsError, is_served
from voidrl.system.machine import CORES, claim_cores, whole_cores
from voidrl.system.terminal.signals import end_with_process

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job
    from voidrl.experiments.plan import Plan

MPS = ("auto", "on", "off")


@dataclass(frozen=True)
class Options:
    """Options of `--on local`."""

    jobs: int = option(1, "runs at a time, with --devices on each GPU (default: 1)", type=int)
    devices: str | None = option(
        None, "GPUs such as 0,1,2,3, or cpu (default: the one of --device)", metavar="LIST"
    )
    mps: str = option(
        "auto",
        "CUDA's multi-process service where runs share a GPU: auto, on or off (default: auto, if it works)",
        metavar="WHEN",
    )

    def __post_init__(self) -> None:
        require(isinstance(self.jobs, int) and self.jobs >= 1, "jobs", self.jobs, "a whole number above 0")
        require(self.mps in MPS, "mps", self.mps, "auto, on or off")
        if self.devices is not None:
            parse_devices(self.devices)

    @property
    def slots(self) -> int:
        """Largest number of concurrent runs."""
        return self.jobs * max(1, len(parse_devices(self.devices or "cpu")))


def make(plan: Plan, options: Options) -> Local:
    """Make the executor, if this machine meets its needs."""
    from voidrl.system.device import pick_device

    name, gpus = plan.request.device, []
    if options.devices is not None:
        if name != "auto":
            raise ConfigError(f"--devices {options.devices} and --device {name} exclude each other: give one")
        gpus = _require_gpus(options.devices)
        name = "cuda" if gpus else "cpu"
    on_cpu = pick_device(name).type == "cpu"
    if options.mps == "on" and (on_cpu or options.jobs == 1):
        why = "runs are on the CPU" if on_cpu else "one run at a time has a GPU to itself; raise --jobs"
        raise ConfigError(f"--mps on cannot be used: {why}")
    return Local(
        options,
        runs=options.slots if plan.request.tune is not None else min(options.slots, len(plan.cells)),
        device=None if options.devices is None else name,
        gpus=gpus,
        shares_gpus=not on_cpu and options.jobs > 1,
    )


def _require_gpus(devices: str) -> list[Gpu]:
    there = {gpu.number: gpu for gpu in read_gpus()}
    numbers = parse_devices(devices)
    for number in numbers:
        if number not in there:
            known = f"GPU {', '.join(map(str, there))}" if there else "none"
            remedy = f"nvidia-smi shows {known} here; use {'those, or ' if there else ''}cpu"
            raise ConfigError(f"--devices {devices} cannot be used: there is no GPU {number}; {remedy}")
    return [there[number] for number in numbers]


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
        if self._shares_gpus and self._options.mps != "off" and not is_served():
            try:
                self._mps = Mps([*self._gpus.values()])
            except MpsError as error:
                if self._options.mps == "on":
                    raise ConfigError(f"--mps on cannot be used: {error}") from None
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
