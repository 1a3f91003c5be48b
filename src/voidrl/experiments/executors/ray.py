"""The executor `ray`: a task per cell on a Ray cluster whose nodes share the experiment's folder.

Ray places tasks by the CPUs and GPUs that they reserve, queues the others, and runs a task again whose node
was lost or whose process was killed: the cell resumes from its last checkpoint.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voidrl.config import require
from voidrl.errors import ConfigError, MissingExtraError
from voidrl.experiments.executors.base import (
    INTERRUPTED,
    ClusterOptions,
    Ended,
    Executor,
    Job,
    import_paths,
    option,
    start_cell,
    stop_cell,
    wait_for_cell,
)
from voidrl.system.machine import CORES

if TYPE_CHECKING:
    from voidrl.experiments.planner import Plan

RETRIES = 10  # of a cell whose node is lost, or whose process is killed
CONNECT_SECONDS = 5.0
OBJECT_STORE_BYTES = 100 << 20  # of a cluster started here, which stores nothing


@dataclass(frozen=True)
class Options(ClusterOptions):
    """Options of `--on ray`."""

    address: str | None = option(
        None,
        "a running Ray cluster: auto, HOST:PORT or ray://HOST:PORT (default: RAY_ADDRESS, or one that is "
        "started here and ends with the command)",
    )

    def __post_init__(self) -> None:
        cpus, gpus = self.cpus_per_cell, self.gpus_per_cell
        whole = cpus > 0 and (cpus < 1 or cpus == int(cpus))
        require(whole, "cpus_per_cell", cpus, "a fraction between 0 and 1, or a whole number above 0")
        fits = gpus is None or 0 <= gpus <= 1
        require(fits, "gpus_per_cell", gpus, "a number from 0 to 1, as a run has one")


def make(plan: Plan, options: Options) -> Ray:
    """Connect to the cluster, or start one; refuse resources that no node has."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray", "--on ray")
    import ray

    device = plan.request.device
    if device.startswith("cuda:"):
        raise ConfigError(
            f"--device {device} cannot be used with --on ray, which chooses the GPU of each run"
        )
    connect(options.address or os.environ.get("RAY_ADDRESS"))
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Ray(**resources_per_cell(options, device, nodes))


def connect(address: str | None) -> None:
    """Connect to a cluster, or start one here."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no reports to its makers
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    elif found := re.fullmatch(r"(?:ray://)?([^:/\s]+):(\d{1,5})", address):
        try:  # Ray itself would retry for minutes
            socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ConfigError(f"no Ray cluster could be reached at --address {address}: {error}") from None
    try:
        ray.init(address=address or "local", **options)
        with suppress(AttributeError):  # it prints pages when a node is lost
            ray._private.worker._worker_logs_enabled = False
    except (OSError, RuntimeError, ValueError) as error:
        where = "a Ray cluster could not be started here" if address is None else f"--address {address}"
        raise ConfigError(f"{where}: {' '.join(str(error).split())[:300]}") from None


def resources_per_cell(options: Options, device: str, nodes: list[dict[str, float]]) -> dict[str, float]:
    """CPUs and GPUs to reserve for a cell, which some node must have."""
    most = {name: max(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    gpus = options.gpus_per_cell
    if gpus is None:
        gpus = 1.0 if device != "cpu" and (most["GPU"] > 0 or device == "cuda") else 0.0
    if (gpus > 0) != (device != "cpu") and device != "auto":
        raise ConfigError(f"--gpus-per-cell {gpus:g} cannot be used with --device {device}")
    for name, needed in {"CPU": options.cpus_per_cell, "GPU": gpus}.items():
        if needed > most[name]:
            raise ConfigError(
                f"--{name.lower()}s-per-cell {needed:g} cannot be used: no node of the cluster has more than "
                f"{most[name]:g} {name}s, so that no run would ever start"
            )
    return {"num_cpus": options.cpus_per_cell, "num_gpus": gpus}


class CellKilledError(Exception):
    """A cell whose process a signal has ended, after which Ray runs the task again."""


def run_cell(job: Job, cores: int) -> int:
    """Run the process of a cell as a Ray task; returns its exit code."""
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray's; within its cores a run chooses its threads
    process = start_cell(job, {CORES: str(cores)})
    try:
        code = wait_for_cell(process)
    except KeyboardInterrupt:  # `ray.cancel`
        stop_cell(process)
        code = wait_for_cell(process)
    if code < 0:
        name = signal.Signals(-code).name
        raise CellKilledError(f"its process was ended by {name} on {socket.gethostname()}")
    return code


class Ray(Executor):
    """Cells as tasks of a Ray cluster.

    Args:
        num_cpus: CPUs that Ray reserves for each cell.
        num_gpus: GPUs that Ray reserves for each cell.
    """

    def __init__(self, num_cpus: float, num_gpus: float) -> None:
        import ray

        self._cores = max(1, int(num_cpus))
        variables = {"PYTHONPATH": import_paths()} | ({} if num_gpus else {"CUDA_VISIBLE_DEVICES": ""})
        self._task: Any = ray.remote(run_cell).options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            max_retries=RETRIES,
            retry_exceptions=[CellKilledError],
            runtime_env={"env_vars": variables},
        )
        self._tasks: dict[Any, str] = {}
        """Cells by the reference to their task's result."""

    def submit(self, job: Job) -> None:  # noqa: D102
        self._tasks[self._task.remote(job, self._cores)] = job["cell"]

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        import ray

        ended: dict[str, Ended] = {}
        if not self._tasks:
            return ended
        for ref in ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=0)[0]:
            cell = self._tasks.pop(ref)
            try:
                ended[cell] = Ended(ray.get(ref))
            except ray.exceptions.TaskCancelledError:
                ended[cell] = Ended(INTERRUPTED)
            except ray.exceptions.RayTaskError as error:
                ended[cell] = Ended(None, str(error.cause))
            except ray.exceptions.RayError as error:
                ended[cell] = Ended(None, f"Ray gave it up: {' '.join(str(error).split())[:300]}")
        return ended

    def stop(self, *, force: bool = False) -> None:  # noqa: D102
        import ray

        for ref in self._tasks:
            ray.cancel(ref, force=force)

    def kill(self) -> None:  # noqa: D102
        self.stop(force=True)

    def __exit__(self, *exc: object) -> None:
        import ray

        self.stop()  # of an error: otherwise all have ended
        ray.shutdown()
