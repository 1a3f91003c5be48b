"""The executor `slurm`: cells as tasks of array jobs, which SLURM queues, starts and requeues.

Scripts, pickles and submitit's own logs are in OUT/slurm/, as is `jobs.json` with the jobs that no command
has collected yet. It is written before cells are submitted and after SLURM has given them ids: where a
command is killed in between, or sbatch fails but may have submitted them, it has the name of the jobs to
cancel. One command at a time submits from a folder; it may be closed at any time, and running it again
attaches to its jobs.
"""

from __future__ import annotations

import math
import pickle
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from voidrl.config import require
from voidrl.errors import CheckpointError, ConfigError, MissingExtraError, RunFolderError
from voidrl.experiments.executors.base import (
    Ended,
    Executor,
    cell_command,
    cell_environment,
    log_path,
    option,
)
from voidrl.experiments.executors.slurm_task import INTERRUPTED, CellTask
from voidrl.runs import locks

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job
    from voidrl.experiments.plan import Plan

FOLDER, JOBS_FILE = "slurm", "jobs.json"
MAX_ARRAY = 1000  # SLURM's default MaxArraySize is 1001
POLL_SECONDS = 5.0  # between two looks at the files of jobs
SACCT_SECONDS = 30.0  # between two questions to SLURM's accounting
GRACE_SECONDS = 60.0  # for the files of a job that has ended to appear, or for SLURM to requeue it
CHECKPOINT_SECONDS = 300  # the signal comes this long before the limit
UNLIMITED = 10**6
# By the first word of sacct's state; a job in any other state is not over.
LOST = ("TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED")
FAILED = ("FAILED", "OUT_OF_MEMORY", "CANCELLED", "COMPLETED")
# Options of sbatch that are made from other options, or that submitit needs.
RESERVED = {
    "time": "use --time",
    "partition": "use --partition",
    "gpus-per-node": "use --gpus-per-cell",
    "cpus-per-task": "use --cpus-per-cell",
    "mem": "use --mem",
    **dict.fromkeys(
        ("array", "job-name", "output", "error", "open-mode", "nodes", "requeue", "wrap"), "voidrl sets it"
    ),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-gpu"), "a run is one task"),
    **dict.fromkeys(("no-requeue", "parsable", "test-only", "wait"), "voidrl could not follow its jobs"),
}
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


@dataclass(frozen=True)
class Options:
    """Options of `--on slurm`."""

    time: str = option("24:00:00", "limit of a job, in minutes or HH:MM:SS (default: 24:00:00)")
    partition: str | None = option(None, "partition of jobs (default: the cluster's)", metavar="NAME")
    gpus_per_cell: float | None = option(
        None, "GPUs of a run (default: 1, or 0 with --device cpu)", type=float, metavar="N"
    )
    cpus_per_cell: float | None = option(
        None, "CPUs to reserve for a run (default: 1)", type=float, metavar="N"
    )
    mem: str | None = option(None, "memory of a run, such as 32G (default: the cluster's)")
    slurm_option: tuple[str, ...] = option(
        (), "any option of sbatch, such as account=rl or exclusive", metavar="NAME=VALUE", nargs="+",
        action="extend",
    )  # fmt: skip
    max_running: int | None = option(
        None, "tasks of an array that run at a time (default: all)", type=int, metavar="N"
    )

    def __post_init__(self) -> None:
        parse_minutes(self.time)
        gpus = self.gpus_per_cell
        expected = "0 or 1 with --on slurm: a run trains on one GPU, which SLURM does not divide"
        require(gpus in (None, 0, 1), "--gpus-per-cell", gpus, expected)
        cpus = self.cpus_per_cell
        whole = cpus is None or (cpus >= 1 and cpus == int(cpus))
        require(whole, "--cpus-per-cell", cpus, "a whole number above 0 with --on slurm")
        few = self.max_running is None or self.max_running >= 1
        require(few, "--max-running", self.max_running, "a whole number above 0")
        size = self.mem is None or re.fullmatch(r"\d+[KMGT]?B?", self.mem, re.IGNORECASE) is not None
        require(size, "--mem", self.mem, "a size such as 32G or 64000M")
        given = parse_sbatch_options(self.slurm_option).get("signal")
        if given is not None:
            found = re.fullmatch(r"USR2@(\d+)", str(given))
            early = found is not None and int(found[1]) < 60 * parse_minutes(self.time)
            expected = f"USR2@SECONDS, fewer than --time {self.time} has, as runs write checkpoints on USR2"
            require(early, "--slurm-option signal", given, expected)


def parse_minutes(text: str | float) -> int:
    """Minutes from `90`, `HH:MM`, `HH:MM:SS` or `D-HH:MM:SS`, rounded up."""
    seconds = 0.0
    if match := _TIME.fullmatch(str(text).strip()):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif re.fullmatch(r"\d+", str(text).strip()):
        seconds = int(text) * 60
    require(seconds > 0, "--time", text, "minutes, HH:MM:SS or D-HH:MM:SS, above 0")
    return math.ceil(seconds / 60)


def parse_sbatch_options(texts: Sequence[str]) -> dict[str, str | bool]:
    """Parameters of sbatch by name; one without a value is a flag."""
    found: dict[str, str | bool] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().lstrip("-").replace("_", "-")
        known = re.fullmatch(r"[a-z][a-z0-9-]*", name) is not None and "\n" not in value
        require(known, "--slurm-option", text, "NAME=VALUE with an option of sbatch, such as account=rl")
        if name in RESERVED:
            raise ConfigError(f"--slurm-option {text} cannot be used: {RESERVED[name]}")
        found[name] = value if equals else True
    return found


def sbatch_parameters(options: Options, device: str, count: int) -> dict[str, Any]:
    """Parameters from which submitit writes the script of an array of `count` cells."""
    minutes = parse_minutes(options.time)
    gpus = options.gpus_per_cell
    gpus = int(gpus) if gpus is not None else 0 if device == "cpu" else 1
    cpus = int(options.cpus_per_cell or 1)
    more: dict[str, Any] = {"requeue": True, **parse_sbatch_options(options.slurm_option)}
    return {
        "time": minutes,
        "partition": options.partition,
        "gpus_per_node": gpus or None,
        "cpus_per_task": cpus,
        "mem": options.mem,
        "array_parallelism": min(count, options.max_running or count),
        "signal_delay_s": min(CHECKPOINT_SECONDS, minutes * 60 // 5),
        "stderr_to_stdout": True,
        "wckey": None,  # submitit's own, which a cluster with such keys may refuse
        # Since SLURM 22.05, srun does not take this from sbatch.
        "srun_args": [f"--cpus-per-task={cpus}"],
        "additional_parameters": more,
    }


def make(plan: Plan, options: Options) -> Slurm:
    """Make the executor, if submitit and SLURM's commands are there."""
    purpose = "--on slurm"
    if find_spec("submitit") is None:
        raise MissingExtraError("submitit", "slurm", purpose)
    for command in ("sbatch", "srun", "scancel", "sacct"):
        if shutil.which(command) is None:
            raise ConfigError(
                f"{purpose} cannot be used: the command {command} is not found; run this on a login node of "
                f"the cluster, or use --on local or --on ray"
            )
    require("%" not in str(plan.out.absolute()), "--out", str(plan.out), "a path without %, for SLURM")
    return Slurm(plan.out, plan.experiment.name, options, plan.request.device)


class Slurm(Executor):
    """Jobs of SLURM.

    Args:
        out: The folder of the experiment, which all nodes share.
        name: Name of the experiment, for the names of jobs.
        options: The options of the command line.
        device: Device of the runs.
    """

    preempts = True
    detaches = True

    def __init__(self, out: Path, name: str, options: Options, device: str) -> None:
        self._out, self._name, self._options, self._device = out, name, options, device
        self._folder = out.absolute() / FOLDER
        self._lock: int | None = None
        self._batch: list[Job] = []
        self._jobs: dict[str, str] = {}
        """Ids of jobs by cell."""
        self._unknown: set[str] = set()
        """Names of arrays that may be in the queue, without known ids."""
        self._over: dict[str, float] = {}
        """First time at which the job of a cell seemed to be over."""
        self._stopped: set[str] = set()
        """Ids of jobs that were asked to stop."""
        self._next_look = 0.0
        self._info: dict[str, dict[str, str]] = {}
        """Latest answers of sacct, by id."""
        self._next_sacct = 0.0
        self._warned: set[str] = set()
        """Commands whose failure has been reported."""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / ".lock"
        self._lock = locks.acquire(path)
        if self._lock is None:
            raise RunFolderError(
                f"another command ({locks.holder(path)}) submits jobs from {self._out} to SLURM: wait for "
                f"it, or stop it, which leaves its jobs running"
            )
        locks.sign(self._lock)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            locks.release(self._lock)
            self._lock = None

    def attach(self, cells: Collection[str]) -> set[str]:  # noqa: D102
        saved = self._read()
        self._jobs, self._stopped = saved["jobs"], {*saved["stopped"]}
        self._unknown = {*saved["submitting"]}
        self._cancel_unknown()
        if self._unknown:
            raise RunFolderError(
                f"an earlier command was ended while it submitted jobs to SLURM, and scancel cannot cancel "
                f"them now: try again, or cancel {', '.join(sorted(self._unknown))} by name and delete "
                f"{self._folder / JOBS_FILE}"
            )
        return {cell for cell in self._jobs if cell in cells}

    def has_room(self, cell: str) -> bool:
        """Whether a cell may be submitted: always, as SLURM has a queue, unless it is still to be chosen.

        `--tune` asks for no cell, and chooses the later the better: not more than may run at a time.
        """
        limit = self._options.max_running
        return bool(cell) or limit is None or len(self._jobs) + len(self._batch) < limit

    def submit(self, job: Job) -> None:  # noqa: D102
        self._batch.append({**job, "lock": None})

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        ended: dict[str, Ended] = {}
        while self._batch:
            part, self._batch = self._batch[:MAX_ARRAY], self._batch[MAX_ARRAY:]
            ended |= self._send(part)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + POLL_SECONDS
            self._ask(now)
            with suppress(OSError):  # a network file system may have kept an old listing of the folder
                self._folder.chmod(self._folder.stat().st_mode)
            found = {cell: self._look(cell, job_id, now) for cell, job_id in self._jobs.items()}
            collected = {cell: how for cell, how in found.items() if how is not None}
            if collected:
                for cell in collected:
                    self._stopped.discard(self._jobs.pop(cell))
                    self._over.pop(cell, None)
                self._write()
            ended |= collected
        return ended

    def where(self, cell: str) -> str:  # noqa: D102
        if cell not in self._jobs:
            return ""
        info = self._info.get(self._jobs[cell], {})
        return info.get("NodeList", "") if info.get("State") == "RUNNING" else ""

    def stop(self) -> None:  # noqa: D102
        self._batch.clear()
        self._stopped = {*self._jobs.values()}
        self._write()
        self._next_look = self._next_sacct = 0.0

    def kill(self) -> None:  # noqa: D102
        self._batch.clear()
        if self._jobs:
            self._run("scancel", *self._jobs.values())

    # Submission

    def _send(self, batch: Sequence[Job]) -> dict[str, Ended]:
        """Submit cells as one array; those that SLURM does not take have ended."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        cells = [job["cell"] for job in batch]
        name = f"voidrl-{self._name}-{uuid.uuid4().hex[:8]}"
        self._unknown.add(name)
        self._write()
        try:
            ids = self._sbatch(batch, name)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            self._cancel_unknown()  # SLURM may have them: sbatch fails also where the answer comes too late
            why = next(filter(None, reversed(str(error).strip().splitlines())), "no reason given")
            if len(batch) > 1 and "job array" in why:  # longer than the cluster's MaxArraySize
                half = len(batch) // 2
                return self._send(batch[:half]) | self._send(batch[half:])
            return dict.fromkeys(cells, Ended(None, f"sbatch did not take it: {why}"))
        self._jobs.update(zip(cells, ids, strict=True))
        self._unknown.discard(name)
        self._write()
        self.say(f"submitted {len(cells)} runs to SLURM as job {ids[0].partition('_')[0]}")
        self._next_look = 0.0
        return {}

    def _cancel_unknown(self) -> None:
        """Cancel arrays by name; those that cannot be canceled now stay in the file for the next command."""
        for name in sorted(self._unknown):
            if self._run("scancel", f"--name={name}") is not None:
                self._unknown.discard(name)
        self._write()

    def _sbatch(self, batch: Sequence[Job], name: str) -> list[str]:
        import submitit

        executor = submitit.SlurmExecutor(self._folder, max_num_timeout=UNLIMITED)
        executor.update_parameters(
            job_name=name, **sbatch_parameters(self._options, self._device, len(batch))
        )
        return [job.job_id for job in executor.submit_array([self._task(job) for job in batch])]

    def _task(self, job: Job) -> CellTask:
        log = log_path(self._out.absolute(), job["cell"])
        return CellTask(job, cell_command(), cell_environment(job), Path.cwd(), log)

    # How jobs end

    def _look(self, cell: str, job_id: str, now: float) -> Ended | None:
        """The end of a job; None while it may still run."""
        from submitit.core.utils import JobPaths

        paths: Any = JobPaths(self._folder, job_id)
        if paths.result_pickle.exists():
            return _read_result(job_id, paths.result_pickle)
        state = self._info.get(job_id, {}).get("State", "").partition(" ")[0].rstrip("+").upper()
        stopped = job_id in self._stopped
        if state not in (*LOST, *FAILED) and (state or not stopped):  # sacct may fail, and a stop has to end
            self._over.pop(cell, None)
            return None
        if now - self._over.setdefault(cell, now) < GRACE_SECONDS and not (stopped and state):
            return None
        return self._judge(job_id, state, paths.stdout)

    def _judge(self, job_id: str, state: str, log: Path) -> Ended:
        if job_id in self._stopped:
            return Ended(INTERRUPTED)
        if state in LOST:
            self._run("scancel", job_id)  # it is submitted again, and must not be requeued as well
            return Ended(None, f"SLURM ended job {job_id} ({state})", lost=True)
        if state == "CANCELLED":
            return Ended(None, f"job {job_id} was canceled")
        if state == "OUT_OF_MEMORY":
            return Ended(None, f"job {job_id} ran out of memory: give it more with --mem")
        return Ended(None, f"job {job_id} ended as {state} and left no result; {log} may say why")

    def _ask_to_stop(self, jobs: Sequence[str]) -> None:
        """Stop jobs in any state; repeated with every poll, as a job between two states misses signals.

        A running job only gets a signal: if it were canceled, it would be killed within seconds, checkpoint
        or not.
        """
        if jobs:
            self._run("scancel", "--state=PENDING", *jobs)
            self._run("scancel", "--state=SUSPENDED", *jobs)
            self._run("scancel", "--state=RUNNING", "--signal=TERM", *jobs)

    def _ask(self, now: float) -> None:
        """Ask sacct for the states of all jobs in one call.

        submitit's own watcher takes a suspended job for an ended one, and asks no more about it.
        """
        from submitit.slurm.slurm import SlurmInfoWatcher

        if now < self._next_sacct or not self._jobs:
            return
        self._next_sacct = now + SACCT_SECONDS
        self._ask_to_stop([job_id for job_id in self._jobs.values() if job_id in self._stopped])
        arrays = sorted({job_id.partition("_")[0] for job_id in self._jobs.values()})
        output = self._run("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", ",".join(arrays))
        self._info = SlurmInfoWatcher().read_info(output) if output else {}

    # Files and commands

    def _read(self) -> dict[str, Any]:
        from voidrl.runs.checkpoint import read_json

        path = self._folder / JOBS_FILE
        if not path.is_file():
            return {"jobs": {}, "stopped": [], "submitting": []}
        with suppress(CheckpointError):
            saved = read_json(path, "the jobs that an earlier command submitted")
            if saved.keys() >= {"jobs", "stopped", "submitting"}:
                return saved
        raise RunFolderError(
            f"{path} is damaged, so that it does not say which jobs are in the queue: cancel those of this "
            f"experiment (squeue shows them as voidrl-{self._name}-…), and delete the file"
        )

    def _write(self) -> None:
        from voidrl.runs.checkpoint import write_json_atomic

        saved = {
            "jobs": self._jobs,
            "stopped": sorted(self._stopped),
            "submitting": sorted(self._unknown),
        }
        write_json_atomic(self._folder / JOBS_FILE, saved)

    def _run(self, *command: str) -> str | None:
        """The output of a command of SLURM; None if it failed, which is reported once."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            why = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        except (OSError, subprocess.TimeoutExpired) as error:
            done, why = None, [str(error)]
        if why and command[0] not in self._warned:
            self._warned.add(command[0])
            self.say(f"{command[0]} failed: {why[0]}")
        return done.stdout if done is not None and not done.returncode else None


def _read_result(job_id: str, path: Path) -> Ended:
    from submitit.core.utils import pickle_load

    try:
        outcome, value = pickle_load(path)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        return Ended(None, f"the result of job {job_id} cannot be read: {error}", lost=True)
    if outcome == "success":
        return Ended(int(value))
    last = str(value).strip().splitlines()[-1:]
    return Ended(None, f"job {job_id} failed: {''.join(last)}")
