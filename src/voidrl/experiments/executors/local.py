"""The executor `local`: a process per cell on this machine, which ends with the command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from voidrl.config import require
from voidrl.errors import ConfigError
from voidrl.experiments.executors.base import (
    Ended,
    Executor,
    cell_command,
    cell_environment,
    log_path,
    option,
)
from voidrl.experiments.executors.devices import Gpu, Placement, parse_devices, read_gpus
from voidrl.experiments.executors.mps import Mps, MpsError, is_served
from voidrl.system.machine import whole_cores
from voidrl.system.terminal.signals import end_with_process

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job
    from voidrl.experiments.plan import Plan

LOOK_SECONDS = 2.0  # between two looks at the memory of GPUs
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
    from voidrl.runs.experiment_record import read_gpu_memory
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
    threads = max(1, whole_cores() // options.jobs) if on_cpu and options.jobs > 1 else None
    return Local(
        options,
        device=None if options.devices is None else name,
        gpus=gpus,
        need=max((read_gpu_memory(plan.out, cell.folder) for cell in plan.cells), default=0),
        threads=threads,
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
        device: The device in the config of cells; None leaves it.
        gpus: The GPUs over which cells are distributed; without any, all cells share one device.
        need: Bytes of GPU memory that earlier cells took.
        threads: CPU threads of cells, where the experiment does not say.
        shares_gpus: Whether several cells run on one GPU.
    """

    def __init__(
        self,
        options: Options,
        *,
        device: str | None = None,
        gpus: list[Gpu] | None = None,
        need: int = 0,
        threads: int | None = None,
        shares_gpus: bool = False,
    ) -> None:
        self._options, self._device, self._threads = options, device, threads
        self._placement = Placement(gpus, options.jobs, need) if gpus else None
        self._shares_gpus = shares_gpus
        self._mps: Mps | None = None
        self._children: dict[str, _Child] = {}
        self._gpu: int | None = None  # of the next cell
        self._looked = -LOOK_SECONDS
        self._waiting = False

    def __enter__(self) -> Self:
        if self._shares_gpus and self._options.mps != "off" and not is_served():
            gpus = self._placement.gpus.values() if self._placement else ()
            try:
                self._mps = Mps([gpu.uuid for gpu in gpus])
            except MpsError as error:
                if self._options.mps == "on":
                    raise ConfigError(f"--mps on cannot be used: {error}") from None
                self.say(f"note: runs share a GPU without CUDA's multi-process service: {error}")
        return self

    def has_room(self, cell: str) -> bool:  # noqa: D102
        if self._placement is None:
            return len(self._children) < self._options.jobs
        if self._gpu is None and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._gpu = self._placement.choose()
            if self._gpu is None:
                self._looked = time.monotonic()
                self._explain()
        return self._gpu is not None

    def _explain(self) -> None:
        assert self._placement is not None
        if not self._waiting and (why := self._placement.shortage()):
            self._waiting = True
            self.say(f"note: {why}")

    def submit(self, job: Job) -> None:  # noqa: D102
        variables = dict(self._mps.variables) if self._mps is not None else {}
        if self._device is not None:
            job = {**job, "config": {**job["config"], "device": self._device}}
        if job["threads"] is None:
            job = {**job, "threads": self._threads}
        if self._placement is not None:
            assert self._gpu is not None
            # Every process sees only its own GPU, as cuda:0: its run can be resumed on any other.
            variables["CUDA_VISIBLE_DEVICES"] = self._placement.gpus[self._gpu].uuid
        try:
            self._children[job["cell"]] = _Child(job, variables)
        except OSError as error:
            raise OSError(f"its process could not be started ({error.strerror or error})") from error
        self._root = Path(job["root"])
        if self._placement is not None and self._gpu is not None:
            self._placement.cells[job["cell"]] = self._gpu
            self._gpu = None
            self._waiting = False

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        from voidrl.runs.experiment_record import read_gpu_memory  # imports torch

        codes = {cell: child.process.poll() for cell, child in self._children.items()}
        ended = {cell: Ended(code) for cell, code in codes.items() if code is not None}
        for cell in ended:
            self._children.pop(cell).close()
            if self._placement is not None:
                del self._placement.cells[cell]
                self._placement.need = max(self._placement.need, read_gpu_memory(self._root, cell))
                self._looked = -LOOK_SECONDS  # there is a slot again
        return ended

    def where(self, cell: str) -> str:  # noqa: D102
        return "" if self._placement is None else f"cuda:{self._placement.cells[cell]}"

    def stop(self) -> None:  # noqa: D102
        for child in self._children.values():
            child.close()

    def kill(self) -> None:  # noqa: D102
        for child in self._children.values():
            child.process.kill()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for child in self._children.values():
            child.process.wait()
        if self._mps is not None:
            self._mps.close()


class _Child:
    """The process of a cell."""

    def __init__(self, job: Job, variables: Mapping[str, str]) -> None:
        log_file, lock = log_path(Path(job["root"]), job["cell"]), job["lock"]
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            date = datetime.now(UTC).isoformat(timespec="seconds")
            log.write(f"{date} {shlex.join(job['command'])}\n".encode())
            log.flush()
            # In its own session: a terminal's Ctrl-C goes only to the parent, which passes it on.
            self.process = subprocess.Popen(
                cell_command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=() if lock is None else (lock,),
                env={**os.environ, **cell_environment(job), **variables},
                start_new_session=True,
            )
        end_with_process(self.process, group=True)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its exit status says how
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Close the pipe, which asks the process to stop."""
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
