"""Actors on a Ray cluster, each of which starts the process of a cell and ends with it.

They are detached and named by cell and attempt, in a namespace of the experiment's folder. A command that is
started again finds them by name. An attempt that ends while no command is there leaves a note in the folder
that its process works in, and gives its CPUs and GPUs back.
"""

from __future__ import annotations

import os
import queue
import time
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from voidrl.errors import RunFolderError
from voidrl.experiments.cell import INTERRUPTED
from voidrl.experiments.executors.base import ClusterLostError, Ended, Executor
from voidrl.experiments.executors.ray import cluster, node
from voidrl.experiments.executors.ray.fetcher import Fetcher, Submitted
from voidrl.experiments.executors.ray.monitor import (
    ClusterMonitor,
    answer_of,
    cluster_errors,
    disconnect_from_lost,
)
from voidrl.experiments.executors.ray.run_copy import RunCopy
from voidrl.runs import locks

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job
    from voidrl.experiments.executors.ray import Options

ASK_SECONDS = 0.2  # between two polls of Ray's answers
WAIT_SECONDS = 20.0  # for the end of a process, before it is asked for again
QUEUED_SECONDS = 10.0  # without an answer of an actor that is to be stopped: it may have no node yet
END_SECONDS = 120.0  # for checkpoints, when a cluster started here ends
MAX_QUEUED = 1000


class Times(NamedTuple):
    """When a cell was submitted, when its process started and ended, and when that was known here."""

    submitted: float
    started: float
    ended: float
    collected: float


class Ray(Executor):
    """Cells on a Ray cluster.

    Args:
        out: The experiment's folder.
        options: The options of the command line.
        resources: CPUs and GPUs of each cell.
        variables: Environment variables of their processes.
        owned: Whether the cluster was started here.
        disconnects: Whether the connection is ours to close.
    """

    def __init__(
        self,
        out: Path,
        options: Options,
        resources: dict[str, float],
        variables: dict[str, str],
        *,
        owned: bool,
        disconnects: bool,
    ) -> None:
        self._out, self._options = out.absolute(), options
        self._resources, self._variables = resources, variables
        self._owned, self._disconnects = owned, disconnects
        self._shared = options.storage == "shared"
        self.detaches = not owned
        self.times: dict[str, Times] = {}
        self._cells: dict[str, Submitted] = {}
        self._ended: queue.SimpleQueue[tuple[Submitted, Ended]] = queue.SimpleQueue()
        self._asked = 0.0
        self._driver_lock: int | None = None
        self._stopping: float | None = None
        self._pending: Any = None  # the answer to come: which actors wait for a node
        self._fetcher: Fetcher | None = None
        self._monitor = ClusterMonitor()
        self._has_nodes = True

    def __enter__(self) -> Ray:
        ray.cloudpickle.register_pickle_by_value(node)
        self._driver_lock = locks.acquire(locks.cell_lock_path(self._out, "ray"))
        if self._driver_lock is None:
            raise RunFolderError(f"{self._out} is in use by another command that waits for its runs on Ray")
        locks.sign(self._driver_lock)
        self._namespace = _namespace(self._out)
        self._monitor.start()
        if not self._shared:
            folder = self._options.node_folder
            self._fetcher = Fetcher(
                self._out, self._cells, self._ended.put, self._lost, self._namespace, folder
            )
        return self

    def attach(self, cells: Collection[str]) -> set[str]:  # noqa: D102
        with cluster_errors():
            return self._attach(cells)

    def _attach(self, cells: Collection[str]) -> set[str]:
        every = answer_of(ray.util.list_named_actors, True)
        names = {entry["name"] for entry in every if entry["namespace"] == self._namespace}
        on_nodes = {}
        if self._fetcher is not None:
            on_nodes = answer_of(self._fetcher.attempts, monitor=self._monitor)
        attached = set()
        for name in cells:
            record = node.read_json(self._record_path(name))
            if record is None:
                continue
            attempt = str(record["attempt"])
            cell = Submitted(name, attempt, None, record["source"], record["submitted"])
            with suppress(ValueError):  # it has ended this moment
                if f"{name}#{attempt}" in names:
                    self._require_same_storage(name, record["storage"])
                    cell.actor = answer_of(ray.get_actor, f"{name}#{attempt}", self._namespace)
            if cell.actor is None:
                cell.is_dead = True
                cell.end = node.read_json(node.ended_path(self._out, name)) if self._shared else None
                cell.node = on_nodes.get((name, attempt), "")
                if not cell.node and (cell.end is None or cell.end["attempt"] != attempt):
                    self._record_path(name).unlink(missing_ok=True)
                    continue  # nothing is left of it: it is submitted again
            if self._take(cell):
                attached.add(name)
        for name in names:
            cell_name, _, attempt = name.rpartition("#")
            known = self._cells.get(cell_name)
            if cell_name in cells and (known is None or known.attempt != attempt):
                with suppress(ValueError):
                    answer_of(ray.kill, answer_of(ray.get_actor, name, self._namespace))
        if self._fetcher is not None:
            self._fetcher.start()
        return attached

    def _require_same_storage(self, cell: str, storage: str) -> None:
        """Refuse to attach to a cell whose files are in another place than this command would look."""
        if storage != _storage(self._options):
            raise RunFolderError(
                f"{cell} is still in the Ray cluster, submitted with {storage}, and this command has "
                f"{_storage(self._options)}: use the same, or stop it first with the same and --stop"
            )

    def _take(self, cell: Submitted, lock: int | None = None) -> bool:
        """Wait for a cell from now on; without shared storage, in the name of its process."""
        if not self._shared:
            path = locks.cell_lock_path(self._out, cell.name)
            cell.lock = locks.acquire(path) if lock is None else os.dup(lock)
            if cell.lock is None:
                return False  # another command does it here meanwhile
            cell.run_copy = RunCopy(self._out, cell.name, cell.attempt)
        if cell.actor is not None:
            for what in ("where", "wait"):
                self._request(cell, what)
        elif self._shared and cell.end is not None:
            self._ended.put((cell, Ended(cell.end["code"], cell.end["why"])))
        self._cells[cell.name] = cell
        return True

    def _request(self, cell: Submitted, what: str) -> None:
        """Ask an actor for its node (`where`) or its end (`wait`), without waiting for the answer."""
        ref = cell.actor.wait.remote(WAIT_SECONDS) if what == "wait" else cell.actor.where.remote()
        cell.refs[ref] = what

    def has_room(self, cell: str) -> bool:  # noqa: D102
        return sum(not each.node for each in self._cells.values()) < MAX_QUEUED

    def has_queue(self) -> bool:  # noqa: D102
        return any(not cell.node and not cell.is_dead for cell in self._cells.values())

    def submit(self, job: Job) -> None:  # noqa: D102
        name, attempt, lock = job["cell"], uuid.uuid4().hex[:12], job["lock"]
        source = job["source"] and Path(job["source"]).relative_to(job["root"]).as_posix()
        needs_files = source is not None or (self._out / name / "config.json").is_file()
        variables = dict(self._variables)
        if job["fixed_threads"]:
            variables["OMP_NUM_THREADS"] = str(job["threads"])
        setup = {
            "attempt": attempt,
            "namespace": self._namespace,
            "root": str(self._out) if self._shared else None,
            "node_folder": self._options.node_folder,
            "source": source,
            "variables": variables,
            "begins": self._shared or not needs_files,
        }
        threads = job["threads"] or max(1, int(self._options.cpus_per_cell))
        cell = Submitted(name, attempt, None, source)
        record = {
            "attempt": attempt,
            "source": source,
            "submitted": cell.submitted,
            "storage": _storage(self._options),
        }
        node.write_json(self._record_path(name), record)  # before the actor: no attempt is ever unknown
        actor: Any = ray.remote(node.CellActor)
        make = actor.options(
            name=f"{name}#{attempt}",
            namespace=self._namespace,
            lifetime="detached",
            max_concurrency=8,
            **self._resources,
        ).remote
        with cluster_errors():
            self._monitor.require()
            sent = {**job, "lock": None, "threads": threads, "dies_with_parent": True}
            cell.actor = answer_of(make, sent, setup)
            self._take(cell, lock)

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        now = time.monotonic()
        if now - self._asked > ASK_SECONDS:
            self._asked = now
            with cluster_errors():
                self._monitor.require()
                self._ask()
                self._explain()
                if self._stopping is not None and now - self._stopping > QUEUED_SECONDS:
                    self._look_for_queued()
        ended = {}
        with suppress(queue.Empty):
            while True:
                cell, how = self._ended.get_nowait()
                self._collect(cell)
                ended[cell.name] = how
        return ended

    def _ask(self) -> None:
        """Read the answers of actors that have come."""
        refs = {ref: (cell, what) for cell in self._cells.values() for ref, what in cell.refs.items()}
        if not refs:
            return
        ready, _ = ray.wait([*refs], num_returns=len(refs), timeout=0)
        for ref in ready:
            cell, what = refs[ref]
            if ref not in cell.refs:
                continue  # its actor has died, as the answer before has said
            del cell.refs[ref]
            try:
                answer = ray.get(ref)
            except ray.exceptions.ActorUnavailableError:  # which may come back
                self._request(cell, what)
            except ray.exceptions.RayError as error:
                self._die(cell, error)
            else:
                if answer is None:  # it has not ended yet
                    self._request(cell, what)
                    continue
                cell.node, cell.host = answer["node"], answer["host"]
                if what == "wait":
                    self._end(cell, answer)
                    continue
                cell.has_begun = answer["begun"]
                if self._stopping is not None:
                    cell.actor.stop.remote()

    def _explain(self) -> None:
        """Report that cells wait for a missing node, and when there is one again."""
        before, self._has_nodes = self._has_nodes, self._monitor.has_node_for(self._resources)
        if before == self._has_nodes:
            return
        cpus, gpus = (self._resources[name] for name in ("num_cpus", "num_gpus"))
        what = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        if self._has_nodes:
            self.say(f"note: a node of the Ray cluster has {what} again")
        else:
            self.say(f"note: no node of the Ray cluster has {what} any more; runs wait until one joins it")

    def _end(self, cell: Submitted, end: dict[str, Any]) -> None:
        cell.end, cell.is_dead = end, True
        cell.refs.clear()
        self.times[cell.name] = Times(cell.submitted, end["started"], end["ended"], time.time())
        if self._shared:
            self._ended.put((cell, Ended(end["code"], end["why"])))

    def _die(self, cell: Submitted, error: Exception) -> None:
        """An actor has ended without an answer: it may have left a note."""
        cell.is_dead = True
        cell.refs.clear()
        if not self._shared:
            return  # left to the fetcher, which can ask the node
        end = node.read_json(node.ended_path(self._out, cell.name))
        if end is not None and end["attempt"] == cell.attempt:
            self._ended.put((cell, Ended(end["code"], end["why"])))
        else:
            self._ended.put((cell, self._lost(cell, error)))

    def _lost(self, cell: Submitted, error: Exception | None = None) -> Ended:
        is_there = any(each["NodeID"] == cell.node for each in answer_of(cluster.alive_nodes))
        why = f"node {cell.host or cell.node[:12]} of the Ray cluster was lost"
        if is_there or not cell.node:
            why = f"Ray ended its actor ({type(error).__name__ if error else 'it is no longer there'})"
        return Ended(None, why, lost=True)

    def _collect(self, cell: Submitted) -> None:
        if cell.actor is not None:
            with suppress(ray.exceptions.RayError, ValueError):  # at once, for the next cell
                answer_of(ray.kill, cell.actor)
        self._cells.pop(cell.name, None)
        if not cell.is_kept:
            for path in (self._record_path(cell.name), node.ended_path(self._out, cell.name)):
                with suppress(OSError):
                    path.unlink()
        if cell.run_copy is not None:
            cell.run_copy.close()
        if cell.lock is not None:
            locks.unlock(cell.lock)
            cell.lock = None

    def where(self, cell: str) -> str:  # noqa: D102
        found = self._cells.get(cell)
        return "" if found is None or not found.node else f"{found.host or 'node'}/{found.node[:6]}"

    def stop(self) -> None:  # noqa: D102
        self._stopping = time.monotonic()
        with cluster_errors():
            for cell in self._cells.values():
                if cell.node and not cell.is_dead and cell.actor is not None:
                    cell.actor.stop.remote()

    def _look_for_queued(self) -> None:
        """Ask Ray which actors wait for a node, if some that are to be stopped have not said where they are.

        One that runs may be late with its answer; it is stopped as soon as that comes.
        """
        if self._pending is None:
            if any(cell.actor and not cell.node and not cell.is_dead for cell in self._cells.values()):
                self._pending = answer_of(ray.remote(num_cpus=0)(node.pending_actors).remote)
        elif ray.wait([self._pending], timeout=0)[0]:
            ref, self._pending = self._pending, None
            with suppress(ray.exceptions.RayError):  # its node was lost: another one is asked
                self._drop_queued({*ray.get(ref)})

    def _drop_queued(self, pending: Collection[str]) -> None:
        """End the actors that wait for a node."""
        for cell in self._cells.values():
            if cell.node or cell.is_dead or f"{cell.name}#{cell.attempt}" not in pending:
                continue
            with suppress(ray.exceptions.RayError, ValueError):
                answer_of(ray.kill, cell.actor)
            cell.is_collected = True  # before it is dead: the fetcher collects those that are dead
            cell.is_dead = True
            cell.refs.clear()
            self._ended.put((cell, Ended(INTERRUPTED)))

    def kill(self) -> None:  # noqa: D102
        with cluster_errors():
            refs = [cell.actor.kill.remote() for cell in self._cells.values() if cell.actor and cell.node]
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=5.0)
            for cell in [*self._cells.values()]:
                self._collect(cell)

    def __exit__(self, *exc: object) -> None:
        is_lost = ClusterLostError in exc
        try:
            if not is_lost:
                self._close()
        except (ClusterLostError, ray.exceptions.RayError):  # the next command finds the remaining cells
            is_lost = True
        self._release()
        if not self._disconnects:
            return
        if is_lost:
            disconnect_from_lost()
        else:
            cluster.disconnect(keep=False)

    def _close(self) -> None:
        """Stop cells that would end with the cluster, and leave no unneeded files on nodes."""
        if self._owned and self._cells:
            self.stop()
            deadline = time.monotonic() + END_SECONDS
            while self._cells and time.monotonic() < deadline:
                self.poll()
                time.sleep(ASK_SECONDS)
        if self._fetcher is not None:
            self._fetcher.close(END_SECONDS)
            if not any((self._out / locks.CELLS).glob("**/*.ray.json")):  # of any command
                self._fetcher.clear_nodes()

    def _release(self) -> None:
        """Release the folder for other commands."""
        self._monitor.close()
        if self._fetcher is not None:
            self._fetcher.close(0.0)
        for cell in self._cells.values():
            if cell.run_copy is not None:
                cell.run_copy.close()
            if cell.lock is not None:
                locks.unlock(cell.lock)
        if self._driver_lock is not None:
            locks.unlock(self._driver_lock)

    def _record_path(self, cell: str) -> Path:
        return self._out / locks.CELLS / f"{cell}.ray.json"


def _storage(options: Options) -> str:
    """The options that locate the files of cells."""
    folder = f" --node-folder {options.node_folder}" if options.node_folder else ""
    return f"--storage {options.storage}{folder}"


def _namespace(out: Path) -> str:
    """The namespace of an experiment's folder, which a copy of the folder does not share."""
    path = out / locks.CELLS / "ray.json"
    found = node.read_json(path)
    if found is None or found.get("folder") != str(out):
        found = {"folder": str(out), "namespace": f"voidrl-{uuid.uuid4().hex[:16]}"}
        node.write_json(path, found)
    return str(found["namespace"])
