"""The executor `local`: a process per cell on this machine, which ends with the command.

The GPUs are read from `nvidia-smi`: asking CUDA itself would take memory on every GPU.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from voidrl.config import require
from voidrl.errors import ConfigError
from voidrl.experiments.executors.base import Ended, Executor, Job, option, start_cell, stop_cell
from voidrl.experiments.executors.mps import MpsError, mps_daemon
from voidrl.system.machine import CORES, claim_cores, whole_cores
from voidrl.system.terminal.signals import end_with_process

if TYPE_CHECKING:
    from voidrl.experiments.planner import Plan

QUERY = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """Options of `--on local`."""

    jobs: int = option(1, "runs at a time, with --devices on each GPU (default: 1)", type=int)
    devices: str | None = option(None, "GPUs such as 0,1,2,3 (default: the one of --device)", metavar="LIST")
    no_mps: bool = option(
        False, "do not start CUDA's multi-process service where runs share a GPU", action="store_true"
    )

    def __post_init__(self) -> None:
        require(isinstance(self.jobs, int) and self.jobs >= 1, "jobs", self.jobs, "a whole number above 0")
        words = [] if self.devices is None else [word.strip() for word in self.devices.split(",")]
        ok = len({*words}) == len(words) and all(map(str.isdecimal, words))
        require(ok, "--devices", self.devices, "numbers of GPUs such as 0,1,2,3, each of them once")

    @property
    def gpus(self) -> list[int]:
        """Numbers of GPUs as CUDA numbers them."""
        return [] if self.devices is None else [*map(int, self.devices.split(","))]

    @property
    def slots(self) -> int:
        """Largest number of concurrent runs."""
        return self.jobs * max(1, len(self.gpus))


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs that CUDA may use here, in its order; empty without GPUs, or without `nvidia-smi`."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
        there = dict(line.replace(" ", "").split(",") for line in done.stdout.splitlines() if line.strip())
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for entry in map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(there)).split(",")):
        begins = [uuid for uuid in there.values() if entry.startswith("GPU-") and uuid.startswith(entry)]
        if not (named := [there[entry]] if entry in there else begins):
            break  # as in CUDA: devices after an unknown one are invisible
        found.append(named[0])
    return found


def make(plan: Plan, options: Options) -> Local:
    """Make the executor, if this machine meets its needs."""
    from voidrl.system.device import pick_device

    device, uuids = plan.request.device, []
    if options.gpus:
        if device != "auto":
            raise ConfigError(
                f"--devices {options.devices} and --device {device} exclude each other: give one"
            )
        there = visible_gpus()
        known = f"GPU {', '.join(map(str, range(len(there))))}" if there else "none"
        fits = max(options.gpus) < len(there)
        require(fits, "--devices", options.devices, f"GPUs that nvidia-smi shows here ({known})")
        device, uuids = "cuda", [there[number] for number in options.gpus]
    runs = options.slots if plan.request.tune is not None else min(options.slots, len(plan.cells))
    starts_mps = options.jobs > 1 and not options.no_mps and pick_device(device).type != "cpu"
    return Local(options, runs=runs, device=device, gpus=uuids, starts_mps=starts_mps)


class Local(Executor):
    """Processes on this machine.

    Args:
        options: The options of the command line.
        runs: Largest number of concurrent runs, which divide the cores.
        device: The device of cells.
        gpus: UUIDs of the GPUs over which cells are distributed; without any, all cells share one device.
        starts_mps: Whether several cells run on one GPU, under CUDA's multi-process service.
    """

    def __init__(
        self,
        options: Options,
        *,
        runs: int = 1,
        device: str = "auto",
        gpus: Sequence[str] = (),
        starts_mps: bool = False,
    ) -> None:
        self._options, self._runs, self._device, self._gpus = options, runs, device, gpus
        self._starts_mps = starts_mps
        self._places: dict[str, str] = {}
        """The GPU of every running cell."""
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._variables: dict[str, str] = {}
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(claim_cores(self._runs))
        if self._starts_mps:
            try:
                self._variables = self._held.enter_context(mps_daemon(self._gpus))
            except MpsError as error:
                self.say(f"note: runs share a GPU without CUDA's multi-process service: {error}")
        return self

    def has_room(self) -> bool:  # noqa: D102
        return len(self._children) < self._options.slots

    def submit(self, job: Job) -> None:  # noqa: D102
        variables = {**self._variables, CORES: str(whole_cores(self._runs))}
        job = {**job, "config": {**job["config"], "device": self._device}}
        gpu = min(self._gpus, key=[*self._places.values()].count, default=None)
        if gpu is not None:
            # Every process sees only its own GPU, as cuda:0: its run can be resumed on any other.
            variables["CUDA_VISIBLE_DEVICES"] = gpu
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
        self._held.close()
