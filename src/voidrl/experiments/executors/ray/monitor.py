"""Detects the loss of a Ray cluster earlier than Ray does.

Ray waits in the middle of any call for a cluster that does not answer, and after a minute ends the process
without an exception. Therefore, once a cluster is connected and checked, a thread asks it for its nodes again
and again, and calls that wait for its head are made in threads that can be left behind.
"""

from __future__ import annotations

import atexit
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import ray

from voidrl.experiments.executors.base import ClusterLostError
from voidrl.experiments.executors.ray import cluster
from voidrl.system.terminal.ending import skip_destructors

LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 20.0  # with a cluster that does not answer: Ray has 60
CLOSE_SECONDS = 10.0
SILENT = f"the Ray cluster has not answered for {PATIENCE_SECONDS:.0f} seconds"
T = TypeVar("T")


class ClusterMonitor(threading.Thread):
    """Polls the nodes of the cluster while the command runs."""

    def __init__(self) -> None:
        super().__init__(name="voidrl-ray-monitor", daemon=True)
        self._nodes: list[dict[str, Any]] | None = None
        self._asked: float | None = None
        self._has_raylet = True
        self._is_closed = threading.Event()

    def run(self) -> None:
        """Ask until closed."""
        while not self._is_closed.wait(LOOK_SECONDS):
            self._has_raylet = _has_raylet()
            if self._asked is None:
                self._asked = time.monotonic()
            with suppress(Exception):  # it is asked again, for a while
                self._nodes = cluster.alive_nodes()
                self._asked = None

    def require(self) -> None:
        """Raise `ClusterLostError` if the cluster is gone."""
        if not self._has_raylet:
            raise ClusterLostError("Ray has ended on this machine")
        asked = self._asked
        if asked is not None and time.monotonic() - asked > PATIENCE_SECONDS:
            raise ClusterLostError(SILENT)

    def has_node_for(self, resources: Mapping[str, float]) -> bool:
        """Whether a node has the resources of a cell, free or in use."""
        needed = {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
        return self._nodes is None or any(
            all(node["Resources"].get(name, 0.0) >= amount for name, amount in needed.items())
            for node in self._nodes
        )

    def close(self) -> None:
        """End after the current query."""
        self._is_closed.set()


def _has_raylet() -> bool:
    """Whether Ray's process on this machine is there, through which all calls go; ray:// has none."""
    node = getattr(ray._private.worker, "_global_node", None)
    path = getattr(node, "raylet_socket_name", None)
    if not path:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE_SECONDS)
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # it is busy
            return True
    return True


def answer_of(
    call: Callable[..., T],
    *args: Any,
    seconds: float = PATIENCE_SECONDS,
    monitor: ClusterMonitor | None = None,
) -> T:
    """The result of a call to Ray; raises `ClusterLostError` if it does not return in time.

    With a monitor, it has as long as the cluster is there.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call(*args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="voidrl-ray-call", daemon=True)
    thread.start()
    thread.join(seconds)
    while monitor is not None and thread.is_alive():
        monitor.require()
        thread.join(LOOK_SECONDS)
    if errors:
        raise errors[0]
    if not results:
        raise ClusterLostError(SILENT)
    return results[0]


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Raise `ClusterLostError` in place of Ray's own errors."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise ClusterLostError(
            f"the Ray cluster cannot be used any more ({cluster.first_sentence(error)})"
        ) from error


def disconnect_from_lost() -> None:
    """Close the connection to a cluster that may be gone, or have the command end without closing it."""
    try:
        answer_of(cluster.disconnect, False, seconds=CLOSE_SECONDS)
    except Exception:
        atexit.unregister(ray.shutdown)  # it would wait until Ray ends the process
        skip_destructors()  # Ray's crash without a cluster
