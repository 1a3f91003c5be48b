"""The executor `slurm`: cells as tasks of array jobs, which submitit submits, checkpoints and requeues.

Scripts, pickles and submitit's logs are in OUT/slurm/. A file per cell has the id of its job: the command may
be closed at any time, and running it again attaches to the jobs that are still queued or running.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl.config import require
from voidrl.errors import ConfigError, MissingExtraError
from voidrl.experiments.executors.base import (
    INTERRUPTED,
    ClusterOptions,
    Ended,
    Executor,
    Job,
    option,
    start_cell,
    stop_cell,
    wait_for_cell,
)
from voidrl.runs.locks import CELLS
from voidrl.system.units import plural

if TYPE_CHECKING:
    from voidrl.experiments.planner import Plan

FOLDER = "slurm"
MAX_ARRAY = 1000  # SLURM's default MaxArraySize is 1001
POLL_SECONDS = 5.0  # between two looks at the files of jobs
SACCT_SECONDS = 60  # at most, between two questions to SLURM's accounting
CHECKPOINT_SECONDS = 300  # the signal comes this long before the limit
UNLIMITED = 10**6
# By the first word of sacct's state; after any other one, a job without a result is submitted again.
REASONS = {"CANCELLED": "was canceled", "OUT_OF_MEMORY": "ran out of memory: give it more with --mem"}


@dataclass(frozen=True)
class Options(ClusterOptions):
    """Options of `--on slurm`."""

    hours: float = option(24.0, "limit of a job (default: 24)", type=float, metavar="X")
    partition: str | None = option(None, "partition of jobs (default: the cluster's)", metavar="NAME")
    mem: str | None = option(None, "memory of a run, such as 32G (default: the cluster's)")
    slurm_option: tuple[str, ...] = option(
        (), "any option of sbatch, such as account=rl or exclusive", metavar="NAME=VALUE", nargs="+",
        action="extend",
    )  # fmt: skip
    max_running: int | None = option(
        None, "tasks of an array that run at a time (default: all)", type=int, metavar="N"
    )

    def __post_init__(self) -> None:
        require(self.hours > 0, "--hours", self.hours, "a number above 0")
        gpus, cpus, most = self.gpus_per_cell, self.cpus_per_cell, self.max_running
        expected = "0 or 1 with --on slurm: a run trains on one GPU, which SLURM does not divide"
        require(gpus in (None, 0, 1), "--gpus-per-cell", gpus, expected)
        expected = "a whole number above 0 with --on slurm"
        require(cpus >= 1 and cpus == int(cpus), "--cpus-per-cell", cpus, expected)
        require(most is None or most >= 1, "--max-running", most, expected)


def sbatch_parameters(options: Options, device: str, count: int) -> dict[str, Any]:
    """Parameters from which submitit writes the script of an array of `count` cells."""
    minutes, cpus, gpus = math.ceil(options.hours * 60), int(options.cpus_per_cell), options.gpus_per_cell
    gpus = int(device != "cpu" if gpus is None else gpus)
    given = [text.partition("=") for text in options.slurm_option]
    more = {name.strip().lstrip("-").replace("_", "-"): value if eq else True for name, eq, value in given}
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
        "additional_parameters": {"requeue": True, **more},
    }


def make(plan: Plan, options: Options) -> Slurm:
    """Make the executor, if submitit and SLURM's commands are there."""
    if find_spec("submitit") is None:
        raise MissingExtraError("submitit", "slurm", "--on slurm")
    for command in ("sbatch", "srun", "sacct"):
        if shutil.which(command) is None:
            raise ConfigError(
                f"--on slurm cannot be used: the command {command} is not found; run this on a login node of "
                f"the cluster, or use --on local or --on ray"
            )
    require("%" not in str(plan.out.absolute()), "--out", str(plan.out), "a path without %, for SLURM")
    return Slurm(plan.out, f"voidrl-{plan.experiment.name}", options, plan.request.device)


class CellTask:
    """The work of a job, which submitit pickles, and again when the job is requeued."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the cell to its end; returns the exit code of its process."""
        signal.signal(signal.SIGTERM, self._stop)  # `scancel` or a preemption; submitit's handler ignores it
        self._process = start_cell(self.job, {})
        code = wait_for_cell(self._process)
        if code == INTERRUPTED:  # without a result: the state of the job counts, which SLURM may requeue
            sys.exit(code)
        return code

    def checkpoint(self) -> Any:
        """Stop the cell before the job's time is up; returns the work of the requeued job."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        if self._process is not None:
            wait_for_cell(self._process)
        return DelayedSubmission(CellTask(self.job))

    def _stop(self, *signaled: object) -> None:
        if self._process is not None:
            stop_cell(self._process)


class Slurm(Executor):
    """Jobs of SLURM.

    Args:
        out: The folder of the experiment, which all nodes share.
        name: The name of jobs.
        options: The options of the command line.
        device: Device of the runs.
    """

    detaches = True

    def __init__(self, out: Path, name: str, options: Options, device: str) -> None:
        from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

        SlurmJob.watcher = SlurmInfoWatcher(delay_s=SACCT_SECONDS)
        self._out, self._name, self._options, self._device = out.absolute(), name, options, device
        self._folder = self._out / FOLDER
        self._batch: list[Job] = []
        self._jobs: dict[str, Any] = {}
        """submitit's jobs by cell."""
        self._looked = -POLL_SECONDS

    def attach(self, cells: Collection[str]) -> set[str]:  # noqa: D102
        from submitit import SlurmJob

        for cell in cells:
            if (path := self._id_path(cell)).is_file() and (job_id := path.read_text().strip()):
                self._jobs[cell] = SlurmJob(self._folder, job_id)
                if self._jobs[cell].done():
                    self._forget(cell)
        return {*self._jobs}

    def submit(self, job: Job) -> None:  # noqa: D102
        self._batch.append(job)

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        ended: dict[str, Ended] = {}
        while self._batch:
            part, self._batch = self._batch[:MAX_ARRAY], self._batch[MAX_ARRAY:]
            ended |= self._send(part)
        if time.monotonic() - self._looked >= POLL_SECONDS:
            self._looked = time.monotonic()
            for cell, job in [*self._jobs.items()]:
                if job.done() and (end := _end_of(job)) is not None:
                    ended[cell] = end
                    self._forget(cell)
        return ended

    def _send(self, batch: Sequence[Job]) -> dict[str, Ended]:
        """Submit cells as one array; those that SLURM does not take have ended."""
        import submitit

        executor = submitit.SlurmExecutor(self._folder, max_num_timeout=UNLIMITED)
        parameters = sbatch_parameters(self._options, self._device, len(batch))
        executor.update_parameters(job_name=self._name, **parameters)
        try:
            jobs = executor.submit_array([CellTask(job) for job in batch])
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            why = str(error).strip().splitlines()[-1]
            return {job["cell"]: Ended(None, f"sbatch did not take it: {why}") for job in batch}
        self._jobs |= {job["cell"]: submitted for job, submitted in zip(batch, jobs, strict=True)}
        for job in batch:
            path = self._id_path(job["cell"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._jobs[job["cell"]].job_id)
        self.say(f"submitted {plural(len(batch), 'run')} to SLURM as job {jobs[0].job_id.partition('_')[0]}")
        return {}

    def _id_path(self, cell: str) -> Path:
        return self._out / CELLS / f"{cell}.job"

    def _forget(self, cell: str) -> None:
        del self._jobs[cell]
        self._id_path(cell).unlink(missing_ok=True)

    def __exit__(self, *exc: object) -> None:
        if self._jobs:
            self.say(
                f"left in SLURM's queue: {plural(len(self._jobs), 'run')}; to stop them with checkpoints: "
                f"scancel --state=PENDING --name={self._name} && scancel --signal=TERM --name={self._name}"
            )


def _end_of(job: Any) -> Ended | None:
    """The end of a job that submitit takes to be done; None where it is not."""
    from submitit.core.utils import pickle_load

    if job.paths.result_pickle.exists():
        outcome, value = pickle_load(job.paths.result_pickle)
        return Ended(int(value)) if outcome == "success" else Ended(None, value.strip().splitlines()[-1])
    state = job.state.partition(" ")[0].rstrip("+").upper()
    if state == "SUSPENDED":  # submitit takes it to be done
        return None
    if state in REASONS:
        return Ended(None, f"job {job.job_id} {REASONS[state]}")
    job.cancel(check=False)  # it is submitted again, and must not be requeued as well
    return Ended(None, f"SLURM ended job {job.job_id} ({state}, see {job.paths.stdout})", lost=True)
