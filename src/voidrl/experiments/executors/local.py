"""The executor `local`: processes on this machine, which end with the command.

Each has one cell, or with `--together` several that differ in their seed alone.
"""

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
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from voidrl.config import require, to_json
from voidrl.errors import ConfigError
from voidrl.experiments.executors.base import (
    CELL_MODULE,
    CELLS_MODULE,
    Ended,
    Executor,
    cell_command,
    cell_environment,
    log_path,
    option,
)
from voidrl.experiments.executors.devices import Gpu, Placement, parse_devices, read_gpus
from voidrl.experiments.executors.mps import Mps, MpsError, is_served
from voidrl.machine import whole_cores
from voidrl.platforms import require_workers
from voidrl.terminal.signals import end_with_process

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job
    from voidrl.experiments.plan import Plan

MOST_BYTES = 2**16  # of reports that are read at once
JOBS_BYTES = 2**20  # of a pipe, which takes the jobs before the process has started
LOOK_SECONDS = 2.0  # between two looks at the memory of GPUs
MPS = ("auto", "on", "off")


@dataclass(frozen=True)
class Options:
    """Options of `--on local`."""

    jobs: int = option(1, "runs at a time, with --devices on each GPU (default: 1)", type=int)
    together: int = option(
        1, "runs in one process, of those that differ in their seed alone (default: 1)", type=int, metavar="N"
    )
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
        whole = isinstance(self.together, int) and self.together >= 1
        require(whole, "together", self.together, "a whole number above 0")
        require(self.mps in MPS, "mps", self.mps, "auto, on or off")
        if self.devices is not None:
            parse_devices(self.devices)

    @property
    def slots(self) -> int:
        """Processes at a time in all."""
        return self.jobs * max(1, len(parse_devices(self.devices or "cpu")))


def make(plan: Plan, options: Options) -> Local:
    """Make the executor, if this machine has what it needs."""
    from voidrl.device import pick_device
    from voidrl.runs.experiment_record import read_gpu_memory

    require_workers("an experiment", "start its runs one by one with voidrl pretrain, finetune and train")
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
        need=options.together * max((read_gpu_memory(plan.out, c.folder) for c in plan.cells), default=0),
        settings={c.folder: settings_of(c.phase, to_json(c.config), c.evaluation) for c in plan.cells},
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
        options: What the command line asks for.
        device: The device in the config of cells; None leaves it.
        gpus: Those over which cells are placed; without any, all have the same device.
        need: Bytes of GPU memory that a process with earlier cells took.
        settings: Of cells, by folder: those with the same ones may share a process.
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
        settings: Mapping[str, str] | None = None,
        threads: int | None = None,
        shares_gpus: bool = False,
    ) -> None:
        self._options, self._device, self._threads = options, device, threads
        self._placement = Placement(gpus, options.jobs, need) if gpus else None
        self._shares_gpus = shares_gpus
        self._mps: Mps | None = None
        self._settings = settings or {}
        self._open: dict[str, list[Job]] = {}  # jobs whose process takes more of the same settings, by those
        self._children: dict[str, _Child] = {}  # by the first of their cells
        self._dropped: dict[str, Ended] = {}  # cells that were collected, but have not been started
        self._gpu: int | None = None  # of the next process
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
        if self._settings.get(cell) in self._open:
            return True
        if self._placement is None:
            return len(self._children) + len(self._open) < self._options.jobs
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
        self._root = Path(job["root"])
        lock = None if job["lock"] is None else os.dup(job["lock"])  # until its process is started
        job = {**job, "lock": lock}
        if self._device is not None:
            job = {**job, "config": {**job["config"], "device": self._device}}
        if job["threads"] is None:
            job = {**job, "threads": self._threads}
        settings = settings_of(job["phase"], job["config"], job["evaluation"])
        jobs = self._open.setdefault(settings, [])
        jobs.append(job)
        if self._placement is not None and len(jobs) == 1:
            assert self._gpu is not None
            self._placement.cells[job["cell"]] = self._gpu
            self._gpu = None
            self._waiting = False
        if len(jobs) == self._options.together:
            self._start(settings)

    def _start(self, settings: str) -> None:
        """Start the process of the jobs that were collected."""
        jobs = self._open.pop(settings)
        variables = dict(self._mps.variables) if self._mps is not None else {}
        first = jobs[0]["cell"]
        if self._placement is not None:
            # Every process sees its own GPU alone, as cuda:0: its run can be resumed on any other.
            variables["CUDA_VISIBLE_DEVICES"] = self._placement.gpus[self._placement.cells[first]].uuid
        try:
            self._children[first] = _Child(jobs, variables)
        except OSError as error:
            why = f"its process could not be started ({error.strerror or error})"
            self._dropped |= {job["cell"]: Ended(None, why) for job in jobs}
            if self._placement is not None:
                del self._placement.cells[first]

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        from voidrl.runs.experiment_record import read_gpu_memory  # imports torch

        for settings in [*self._open]:
            self._start(settings)
        ended, self._dropped = self._dropped, {}
        for first, child in [*self._children.items()]:
            has_ended = child.process.poll() is not None  # before its last reports are read
            ended |= {cell: Ended(code) for cell, code in child.ended_cells().items()}
            if not has_ended:
                continue
            self._children.pop(first).finish()
            if self._placement is not None:
                del self._placement.cells[first]
                took = self._options.together * read_gpu_memory(self._root, first)
                self._placement.need = max(self._placement.need, took)
                self._looked = -LOOK_SECONDS  # there is a slot again
        return ended

    def where(self, cell: str) -> str:  # noqa: D102
        if self._placement is None:
            return ""
        groups = [[job["cell"] for job in jobs] for jobs in self._open.values()]
        groups += [child.cells for child in self._children.values()]
        firsts = [cells[0] for cells in groups if cell in cells]
        return f"cuda:{self._placement.cells[firsts[0]]}" if firsts else ""

    def stop(self) -> None:  # noqa: D102
        from voidrl.experiments.cell import INTERRUPTED  # imports torch

        for job in chain(*self._open.values()):
            self._dropped[job["cell"]] = Ended(INTERRUPTED)
            release_lock(job)
        self._open.clear()
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


def settings_of(phase: str, config: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> str:
    """All settings of a cell but its seed."""
    evaluated = None if evaluation is None else {**evaluation, "seed": None}
    return json.dumps([phase, {**config, "seed": None, "device": None}, evaluated], sort_keys=True)


def release_lock(job: Job) -> None:
    """Close this process's copy of a cell's lock."""
    if job["lock"] is not None:
        os.close(job["lock"])


class _Child:
    """The process of one cell, or of several."""

    def __init__(self, jobs: list[Job], variables: Mapping[str, str]) -> None:
        self.cells = [job["cell"] for job in jobs]
        self._left = {*self.cells}
        self._reports, report = os.pipe()
        os.set_blocking(self._reports, False)
        locks = [job["lock"] for job in jobs if job["lock"] is not None]
        several = len(jobs) > 1
        try:
            with _begin_logs(jobs) as log:
                self.process = subprocess.Popen(
                    cell_command(CELLS_MODULE if several else CELL_MODULE),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[*locks, *([report] if several else [])],
                    env={**os.environ, **cell_environment(jobs[0]), **variables},
                    pipesize=JOBS_BYTES if several else -1,
                    # In its own session: a terminal's Ctrl-C goes to the parent alone, which passes it on.
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._reports)
            raise
        finally:
            os.close(report)
            for job in jobs:
                release_lock(job)
        end_with_process(self.process, group=True)
        assert self.process.stdin is not None
        line = json.dumps({"jobs": jobs, "report": report} if several else jobs[0])
        with suppress(BrokenPipeError):  # it has ended already, and its exit status says how
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def ended_cells(self) -> dict[str, int]:
        """Exit codes of the cells that have ended since the last call."""
        ended: dict[str, int] = {}
        code = self.process.poll()
        with suppress(BlockingIOError):
            # Each report is one write that is shorter than what a pipe takes at once.
            ended = dict(map(json.loads, os.read(self._reports, MOST_BYTES).splitlines()))
        self._left -= {*ended}
        if code is not None:
            ended |= dict.fromkeys(self._left, code)
            self._left.clear()
        return ended

    def close(self) -> None:
        """Close the pipe, which asks the process to stop."""
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def finish(self) -> None:
        """Close what is left of a process that has ended."""
        self.close()
        os.close(self._reports)


def _begin_logs(jobs: list[Job]) -> BinaryIO:
    """Begin the logs of cells; the first one has what cannot be told apart, such as output of C libraries."""
    logs = []
    for job in jobs:
        path = log_path(Path(job["root"]), job["cell"])
        path.parent.mkdir(parents=True, exist_ok=True)
        logs.append(path.open("ab", buffering=0))
        date = datetime.now(UTC).isoformat(timespec="seconds")
        logs[-1].write(f"{date} {shlex.join(job['command'])}\n".encode())
    for log in logs[1:]:
        log.close()
    return logs[0]
