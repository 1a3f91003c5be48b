"""Connecting to a Ray cluster, and checking its nodes before anything is submitted there."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl import __version__
from voidrl.errors import ConfigError, MissingExtraError, shown
from voidrl.system.terminal.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from voidrl.experiments.executors.ray import Options
    from voidrl.experiments.plan import Plan

CONNECT_SECONDS = 5.0  # for a TCP connection
ANSWER_SECONDS = 20.0  # for the first answer of a cluster, with the start of a Python
CHECK_SECONDS = 180.0  # for all nodes, each of which starts a Python and looks for voidrl
OBJECT_STORE_BYTES = 100 << 20  # of a cluster started here: parts of files are the largest objects sent
# In a separate process: Ray would retry for minutes, print, and in the end exit.
_PROBE = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
try:
    address = canonicalize_bootstrap_address(sys.argv[1])
except ConnectionError:
    sys.exit(3)
GcsClient(address=address).get_all_node_info(timeout=10)
"""


def connect(address: str | None) -> bool:
    """Connect to a cluster, or start one here; returns whether it was started here."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray", "--on ray")
    import ray

    if ray.is_initialized():  # by a caller of voidrl in Python
        return False
    # Set before the first use of Ray: no reports to its makers, and no hints about variables.
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    else:
        _require_cluster(address)
    try:
        with _quiet(), _same_signals():
            ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        where = "a Ray cluster could not be started here" if address is None else _no_cluster(address)
        if "version mismatch" in str(error).lower():
            where = f"--address {shown(address)} cannot be used: use the Python and Ray of that cluster"
        raise ConfigError(f"{where}: {first_sentence(error)}") from None
    with suppress(AttributeError):  # it prints pages when a node is lost, which we say in a sentence
        ray._private.worker._worker_logs_enabled = False
    return address is None


def _no_cluster(address: str) -> str:
    return f"--address {shown(address)} cannot be used: no Ray cluster could be reached there"


def _require_cluster(address: str) -> None:
    """Refuse an address without a cluster within seconds."""
    remedy = "start one with `ray start --head`, or leave out --address to have one started here"
    if address != "auto":
        found = re.fullmatch(r"(ray://)?(\[[^\]]+\]|[^:/\s]+):(\d{1,5})", address)
        if found is None:
            raise ConfigError(
                f"--address {shown(address)} cannot be used: expected auto, HOST:PORT or ray://HOST:PORT"
            )
        try:
            with socket.create_connection((found[2].strip("[]"), int(found[3])), timeout=CONNECT_SECONDS):
                pass
        except (OSError, OverflowError) as error:
            raise ConfigError(f"{_no_cluster(address)} ({error}): {remedy}") from None
        if found[1]:
            return  # Ray gives up after half a minute where something else answers
    try:
        command = [sys.executable, "-c", _PROBE, address]
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, text=True, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{_no_cluster(address)} (what listens there is not Ray): {remedy}") from None
    if done.returncode == 3:
        raise ConfigError(f"{_no_cluster(address)}: {remedy}")
    if done.returncode and "ImportError" not in done.stderr:  # of another version of Ray, which may well work
        raise ConfigError(f"{_no_cluster(address)} ({_last_line(done.stderr)}): {remedy}")


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _same_signals() -> Iterator[None]:
    """Keep our handlers: Ray replaces the one for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def first_sentence(error: BaseException) -> str:
    """The message of an error, on one line and shortened if it is long."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it does not answer"])[-1][:300]


def resources_per_cell(plan: Plan, options: Options, nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """CPUs and GPUs to reserve for a cell, which some node must have."""
    device, gpus = plan.request.device, options.gpus_per_cell
    if device.startswith("cuda:"):
        raise ConfigError(
            f"--device {device} cannot be used with --on ray, which chooses the GPU of each run: expected "
            f"auto, cpu or cuda"
        )
    most = {name: max(node["Resources"].get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    if gpus is None:
        gpus = 1.0 if device != "cpu" and (most["GPU"] > 0 or device == "cuda") else 0.0
    if device == "cpu" and gpus > 0:
        raise ConfigError(f"--gpus-per-cell {gpus:g} cannot be used with --device cpu: leave out one of them")
    if device == "cuda" and gpus == 0:
        raise ConfigError("--gpus-per-cell 0 cannot be used with --device cuda: leave out one of them")
    for name, needed in {"CPU": options.cpus_per_cell, "GPU": gpus}.items():
        if needed > most[name]:
            raise ConfigError(
                f"--{name.lower()}s-per-cell {needed:g} cannot be used: no node of the cluster has more than "
                f"{most[name]:g} {name}s, so that no run would ever start"
                + ("; use --device cpu" if name == "GPU" else "")
            )
    return {"num_cpus": options.cpus_per_cell, "num_gpus": gpus}


def alive_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def agents_on(nodes: Sequence[Mapping[str, Any]], namespace: str, node_folder: str | None) -> dict[str, Any]:
    """Start an agent on each node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from voidrl.experiments.executors.ray import node as node_module

    ray.cloudpickle.register_pickle_by_value(node_module)
    remote = ray.remote(node_module.NodeAgent)
    agents = {}
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        agents[node["NodeID"]] = remote.options(num_cpus=0, scheduling_strategy=strategy).remote(
            namespace, node_folder
        )
    return agents


def require_usable(agents: Mapping[str, Any], out: Path, variables: dict[str, str], *, shared: bool) -> None:
    """Refuse nodes without this version of voidrl, and nodes that do not see the experiment's folder."""
    with _token(out if shared else None) as token:
        found = _answers([agent.check.remote(variables, token) for agent in agents.values()])
    folders = [] if shared else _answers([agent.check_folder.remote() for agent in agents.values()])
    for node in found:
        if node["voidrl"] != __version__:
            has = f"has voidrl {node['voidrl']}" if node["voidrl"] else "cannot import voidrl"
            raise ConfigError(
                f"node {node['host']} of the Ray cluster {has} ({node['python']}), and this command is "
                f"voidrl {__version__}: install the same version there, for the Python that runs Ray"
            )
    blind = sorted({node["host"] for node in found if not node["sees"]})
    if blind:
        raise ConfigError(
            f"{out} is not seen by {', '.join(blind)} of the Ray cluster: choose an --out on storage that "
            f"all nodes share under the same path, or use --storage fetch"
        )
    for fault in filter(None, folders):
        raise ConfigError(f"{fault}: choose another --node-folder")


def _answers(refs: Sequence[Any]) -> list[Any]:
    import ray

    try:
        return list(ray.get(refs, timeout=CHECK_SECONDS))
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"the nodes of the Ray cluster do not answer ({first_sentence(error)}): see `ray status`"
        ) from None


@contextmanager
def _token(out: Path | None) -> Iterator[str | None]:
    """A file in the experiment's folder, for nodes to look for; removed afterwards."""
    if out is None:
        yield None
        return
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    token = out / f".token-{uuid.uuid4().hex}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise ConfigError(f"cannot make {out} ({error.strerror or error}); choose another --out") from None
    try:
        yield str(token)
    finally:
        token.unlink(missing_ok=True)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def own_paths() -> str:
    """This process's `sys.path` without its Python installation: a node has its own Python."""
    prefixes = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix})
    entries = dict.fromkeys(entry or str(Path.cwd()) for entry in sys.path)
    return os.pathsep.join(entry for entry in entries if not entry.startswith(prefixes))


def is_connected() -> bool:
    """Whether this process has a connection to a cluster already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def disconnect(keep: bool) -> None:
    """Close the connection, which ends a cluster that was started here; not one that is to be kept."""
    if keep:
        return
    import ray

    with _quiet():
        ray.shutdown()
