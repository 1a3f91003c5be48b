"""A thread that copies runs from and to nodes that do not share the experiment's folder.

Copies take time, during which the command shows progress and reacts to signals.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from voidrl.experiments.executors.base import ClusterLostError, Ended
from voidrl.experiments.executors.ray import cluster
from voidrl.experiments.executors.ray.run_copy import Call, RunCopy
from voidrl.experiments.prune import prune_path

TURN_SECONDS = 0.2  # between two looks at all cells
FETCH_SECONDS = 2.0  # between two copies of a cell
CALL_SECONDS = 300.0  # for an answer of a node about a part of a file
FETCH_TRIES = 3


@dataclass
class Submitted:
    """A submitted cell."""

    name: str
    attempt: str
    actor: Any
    """None for one whose actor has ended while no command was attached."""
    source: str | None = None
    submitted: float = field(default_factory=time.time)
    refs: dict[Any, str] = field(default_factory=dict)
    """Pending calls, by what they ask for."""
    node: str = ""
    host: str = ""
    has_begun: bool = False
    is_pruned: bool = False
    """Its node has the request to end it."""
    is_dead: bool = False
    """Its actor has ended; with its own answer in `end`, or without."""
    end: dict[str, Any] | None = None
    lock: int | None = None
    run_copy: RunCopy | None = None
    fetched: float = 0.0
    tries: int = 0
    """Number of failed copies."""
    is_collected: bool = False
    """Whether everything of it has been copied."""
    is_kept: bool = False
    """Its files could not be copied and stay on its node, for the next command."""


class Fetcher(threading.Thread):
    """Copies the inputs of cells to their nodes, and their output back.

    Args:
        out: The experiment's folder.
        cells: Submitted cells, which the command adds and removes.
        put: Takes a cell that has ended, after the last copy, and how.
        lost: How the loss of a cell is described.
        namespace: Ray's namespace for the experiment's folder.
        node_folder: The folder of runs on nodes.
    """

    def __init__(
        self,
        out: Path,
        cells: Mapping[str, Submitted],
        put: Callable[[tuple[Submitted, Ended]], None],
        lost: Callable[[Submitted], Ended],
        namespace: str,
        node_folder: str | None,
    ) -> None:
        super().__init__(name="voidrl-fetch", daemon=True)
        self._out, self._cells, self._put, self._lost = out, cells, put, lost
        self._namespace, self._node_folder = namespace, node_folder
        self._agents: dict[str, Any] = {}
        self._is_closed = threading.Event()

    def close(self, seconds: float) -> None:
        """End after the copy that is being made."""
        self._is_closed.set()
        if self.is_alive():
            self.join(timeout=seconds)

    def clear_nodes(self) -> None:
        """Delete the experiment's folder on all nodes."""
        refs = [agent.clear.remote() for agent in self._agents.values()]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=30.0)

    def attempts(self) -> dict[tuple[str, str], str]:
        """The node of each attempt that left something there."""
        nodes = cluster.alive_nodes()
        self._agents |= cluster.agents_on(nodes, self._namespace, self._node_folder)
        found = {}
        for node, agent in self._agents.items():
            with suppress(ray.exceptions.RayError):
                for name, attempt in ray.get(agent.attempts.remote(), timeout=CALL_SECONDS).items():
                    found[name, attempt] = node
        return found

    def run(self) -> None:
        """Copy the inputs of cells to nodes, and their output back."""
        while not self._is_closed.wait(TURN_SECONDS):
            for cell in [*self._cells.values()]:
                if self._is_closed.is_set():
                    return
                if (cell.node or cell.is_dead) and not cell.is_collected:
                    self._copy_one(cell)

    def _copy_one(self, cell: Submitted) -> None:
        assert cell.run_copy is not None
        try:
            call = self._agent(cell.node)
            if call is None:
                if cell.is_dead:
                    self._finish(cell, self._lost(cell))
                return
            if cell.is_dead:
                self._copy_last(cell, call)
            elif not cell.has_begun:
                if call("is_free", cell.name):  # of a process that was lost on this very node
                    cell.run_copy.send(call, cell.source)
                    ray.get(cell.actor.begin.remote(), timeout=CALL_SECONDS)
                    cell.has_begun = True
            elif not cell.is_pruned and prune_path(self._out, cell.name).exists():
                call("prune", cell.name)
                cell.is_pruned = True
            elif time.monotonic() - cell.fetched > FETCH_SECONDS:
                cell.run_copy.fetch(call)
                cell.fetched = time.monotonic()
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, ClusterLostError):
            self._agents.pop(cell.node, None)  # asked again, or lost with its node or the cluster
        except Exception as error:  # any error: without this thread the command would wait forever
            if not cell.is_dead and cell.has_begun:
                return  # a file was replaced meanwhile; at the latest it is copied at the end
            cell.tries += 1
            if cell.tries == FETCH_TRIES:
                self._finish(cell, Ended(None, self._describe_failed_copy(cell, error)))

    def _finish(self, cell: Submitted, how: Ended) -> None:
        cell.is_collected = True
        self._put((cell, how))

    def _describe_failed_copy(self, cell: Submitted, error: Exception) -> str:
        """Reason for a failed copy, and the place of an ended cell's files."""
        why = f"its files could not be copied ({' '.join(str(error).split())[-300:]})"
        if not cell.is_dead:
            return why
        cell.is_kept = True
        place = "on its node"
        with suppress(Exception):
            call = self._agent(cell.node)
            place = place if call is None else f"in {call('place_of', cell.name)}"
        remedy = "the same command copies them again, or trains again if they are removed"
        return f"{why}; they stay {place}: {remedy}"

    def _copy_last(self, cell: Submitted, call: Call) -> None:
        assert cell.run_copy is not None
        if not call("is_free", cell.name):
            return  # its actor is gone, and the process still writes its checkpoint
        cell.end = cell.end or call("end_of", cell.name)  # kept: after `remove` the node cannot say it again
        cell.run_copy.fetch(call, final=True)
        cell.run_copy.close()
        if cell.end is not None and cell.end["attempt"] == cell.attempt:
            how = Ended(cell.end["code"], cell.end["why"])
        else:
            how = self._lost(cell)
        call("remove", cell.name)
        self._finish(cell, how)

    def _agent(self, node: str) -> Call | None:
        """The function that calls the agent of a node; None if the node is gone."""
        if node not in self._agents:
            there = [each for each in cluster.alive_nodes() if each["NodeID"] == node]
            self._agents |= cluster.agents_on(there, self._namespace, self._node_folder)
        agent = self._agents.get(node)

        def call(method: str, *args: Any) -> Any:
            return ray.get(getattr(agent, method).remote(*args), timeout=CALL_SECONDS)

        return None if agent is None else call
