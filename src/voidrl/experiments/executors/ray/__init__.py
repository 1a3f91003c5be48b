"""The executor `ray`: a process per cell on the nodes of a Ray cluster, which a command may leave."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from voidrl.config import require
from voidrl.errors import RunFolderError
from voidrl.experiments.executors.base import option

if TYPE_CHECKING:
    from voidrl.experiments.executors.ray.executor import Ray
    from voidrl.experiments.plan import Plan


@dataclass(frozen=True)
class Options:
    """Options of `--on ray`."""

    address: str | None = option(
        None,
        "a running Ray cluster: auto, HOST:PORT or ray://HOST:PORT (default: RAY_ADDRESS, or one that is "
        "started here and ends with the command)",
    )
    cpus_per_cell: float = option(1.0, "CPUs to reserve for a run (default: 1)", type=float, metavar="N")
    gpus_per_cell: float | None = option(
        None,
        "GPUs to reserve for a run, such as 0.25 (default: 1 if the cluster has any, 0 with --device cpu)",
        type=float,
        metavar="X",
    )
    storage: str = option(
        "shared",
        "whether all nodes see --out (shared) or runs are copied to and from them (fetch) (default: shared)",
        choices=["shared", "fetch"],
    )
    node_folder: str | None = option(
        None,
        "with --storage fetch, where nodes keep runs (default: their folder for temporary files)",
        metavar="PATH",
    )

    def __post_init__(self) -> None:
        cpus, gpus = self.cpus_per_cell, self.gpus_per_cell
        fine = isinstance(cpus, int | float) and (0 < cpus < 1 or (cpus >= 1 and cpus == int(cpus)))
        require(fine, "cpus_per_cell", cpus, "a fraction between 0 and 1, or a whole number above 0")
        fine = gpus is None or (isinstance(gpus, int | float) and 0 <= gpus <= 1)
        require(fine, "gpus_per_cell", gpus, "a number from 0 to 1, since a run trains on one GPU")
        require(self.storage in ("shared", "fetch"), "storage", self.storage, "shared or fetch")
        fine = self.node_folder is None or (self.storage == "fetch" and Path(self.node_folder).is_absolute())
        require(fine, "node_folder", self.node_folder, "an absolute path, with --storage fetch")


def make(plan: Plan, options: Options) -> Ray:
    """Connect to the cluster, or start one, and check its nodes; refuse what would fail there."""
    from voidrl.experiments.executors.ray import cluster
    from voidrl.runs import locks

    path = locks.cell_lock_path(plan.out, "ray")
    if locks.is_held(path):
        raise RunFolderError(
            f"{plan.out} is in use by process {locks.holder(path)}, which waits for its runs on a Ray "
            f"cluster: wait until it ends, or stop it"
        )
    was_connected = cluster.is_connected()
    owned = cluster.connect(options.address or os.environ.get("RAY_ADDRESS"))
    try:
        nodes = cluster.alive_nodes()
        resources = cluster.resources_per_cell(plan, options, nodes)
        variables = {"PYTHONPATH": cluster.own_paths()}
        if not resources["num_gpus"]:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        shared = options.storage == "shared"
        if not (owned and shared):
            agents = cluster.agents_on(nodes, "voidrl-check", options.node_folder)
            cluster.require_usable(agents, plan.out.absolute(), variables, shared=shared)
    except BaseException:
        cluster.disconnect(was_connected)
        raise
    from voidrl.experiments.executors.ray.executor import Ray  # which imports Ray, and it is there

    return Ray(plan.out, options, resources, variables, owned=owned, disconnects=not was_connected)
