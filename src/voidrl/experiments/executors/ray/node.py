"""The part of the executor `ray` on the nodes of a cluster: the process of a cell, and access to its files.

Ray is sent this module by value, so that a node without voidrl, or with another version of it, can say so: it
imports only the standard library and Ray.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CELLS = ".cells"
PINNED, INCOMING = ".pinned", ".incoming"
STEP = re.compile(r"step_\d{12}(\.\d+)?")
LINGER_SECONDS = 2.0  # of an actor after its process, so that a waiting caller gets its answer
CHECK_SECONDS = 120.0  # for the import of voidrl, on a slow network file system


def node_id() -> str:
    """The node that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def root_on_node(namespace: str, folder: str | None) -> Path:
    """The experiment's folder on this node, where storage is not shared; two nodes may be on one machine."""
    return Path(folder or tempfile.gettempdir()) / namespace / node_id()[:12]


def write_json(path: Path, data: Any) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    tmp.write_text(json.dumps(data), encoding="utf-8")
    tmp.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read what `write_json` wrote; None where it is missing or unusable."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def attempt_path(root: Path, cell: str) -> Path:
    """The file with the number of the attempt at a cell that has begun."""
    return root / CELLS / f"{cell}.attempt.json"


def ended_path(root: Path, cell: str) -> Path:
    """The file that says how the last attempt at a cell ended."""
    return root / CELLS / f"{cell}.ended.json"


def prune_path(root: Path, cell: str) -> Path:
    """The file with which a cell is pruned, where `voidrl.experiments.prune` looks for it."""
    return root / CELLS / f"{cell}.prune"


def pending_actors() -> list[str]:
    """The names of actors that wait for a node, in all namespaces; runs on a node, as `ray://` cannot ask."""
    from ray._private import state

    pending = ("DEPENDENCIES_UNREADY", "PENDING_CREATION")
    return [str(each["Name"]) for kind in pending for each in state.actors(actor_state_name=kind).values()]


class CellActor:
    """Starts the process of a cell, waits for it and ends with it.

    Args:
        job: The input of the process; without `root`, which may be another one on each node.
        setup: `attempt`, `namespace`, `root` (None: a folder on the node), `node_folder`, `source` (relative
            to the root), `variables` and whether it `begins` by itself.
    """

    def __init__(self, job: dict[str, Any], setup: dict[str, Any]) -> None:
        shared = setup["root"]
        self._root = Path(shared) if shared else root_on_node(setup["namespace"], setup["node_folder"])
        source = setup["source"]
        self._job = {**job, "root": str(self._root), "source": source and str(self._root / source)}
        self._setup = setup
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: dict[str, Any] = {}
        self._has_ended = threading.Event()
        self._is_stopped = False
        self._started: float | None = None
        if setup["begins"]:
            self.begin()

    def where(self) -> dict[str, Any]:
        """The node, and whether the process has begun."""
        return {"node": node_id(), "host": socket.gethostname(), "begun": self._started is not None}

    def begin(self) -> None:
        """Start the process, once."""
        with self._guard:
            if self._process is not None or self._is_stopped:
                return
            try:
                self._start()
            except OSError as error:
                why = f"its process could not be started on {socket.gethostname()} ({error})"
                self._finish({"code": None, "why": why})

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """Wait for the end: `code` or `why`, and when it `started` and `ended`; None if it takes longer.

        The caller asks again: a call without an end would stay here after its caller was killed.
        """
        return self._end if self._has_ended.wait(seconds) else None

    def stop(self) -> None:
        """Have a checkpoint written; the process ends after that."""
        with self._guard:
            self._is_stopped = True
            if self._process is None:
                self._finish({"code": 75, "why": ""})
                return
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.write(b"\n")  # if this actor is lost, the pipe is just closed
                self._process.stdin.flush()
            with suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """End the process and its workers at once."""
        with self._guard:
            self._is_stopped = True
            if self._process is not None:
                with suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _start(self) -> None:
        cell = self._job["cell"]
        log_path = self._root / "logs" / f"{cell}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        ended_path(self._root, cell).unlink(missing_ok=True)
        if not self._setup["root"]:
            prune_path(self._root, cell).unlink(missing_ok=True)  # of an attempt that was lost here
            write_json(attempt_path(self._root, cell), {"attempt": self._setup["attempt"]})
        mode = "ab" if self._setup["root"] else "wb"  # elsewhere the logs of all attempts are joined
        with log_path.open(mode) as log:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            log.write(f"{now} {shlex.join(self._job['command'])}\n".encode())
            log.write(f"{now} on {socket.gethostname()}, node {node_id()[:12]} of Ray\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "voidrl.experiments.cell"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=variables_on_node(self._setup["variables"]),
                start_new_session=True,
            )
        self._started = time.time()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its exit status says how
            self._process.stdin.write(json.dumps(self._job).encode() + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        assert self._process is not None
        self._finish({"code": self._process.wait(), "why": ""})

    def _finish(self, end: dict[str, Any]) -> None:
        times = {"started": self._started or time.time(), "ended": time.time()}
        self._end = {**end, **self.where(), **times, "attempt": self._setup["attempt"]}
        with suppress(OSError):  # of a full disk: a waiting caller still gets the answer
            write_json(ended_path(self._root, self._job["cell"]), self._end)
        self._has_ended.set()
        threading.Thread(target=_exit_soon, daemon=True).start()


def _exit_soon() -> None:
    """End this actor, which would keep its CPUs and GPUs while no command is there to collect it."""
    time.sleep(LINGER_SECONDS)
    os._exit(0)


def variables_on_node(variables: dict[str, str]) -> dict[str, str]:
    """The environment of a process on this node: its own, with the caller's modules first."""
    paths = [variables.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class NodeAgent:
    """Answers questions about a node, and reads and writes the files of its cells.

    Paths are relative to the experiment's folder on the node.
    """

    def __init__(self, namespace: str, node_folder: str | None) -> None:
        self._root = root_on_node(namespace, node_folder)

    def check(self, variables: dict[str, str], token: str | None) -> dict[str, Any]:
        """Its `host`, its version of `voidrl` (empty: none), and whether it `sees` a file."""
        code = "import importlib.util as u, voidrl; u.find_spec('torch').name; print(voidrl.__version__)"
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", code],
                capture_output=True,
                text=True,
                timeout=CHECK_SECONDS,
                env=variables_on_node(variables),
                check=False,
            )
            version = done.stdout.strip() if done.returncode == 0 else ""
        except (OSError, subprocess.SubprocessError):
            version = ""
        sees = token is None or Path(token).is_file()
        return {"host": socket.gethostname(), "python": sys.executable, "voidrl": version, "sees": sees}

    def check_folder(self) -> str:
        """Try to make a folder on this node; why that failed, or empty."""
        base = self._root.parent.parent
        try:
            base.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=base):
                pass
        except OSError as error:
            return f"{base} on {socket.gethostname()} cannot be written ({error.strerror or error})"
        return ""

    def attempts(self) -> dict[str, str]:
        """The cells that have begun on this node, and the attempts at them."""
        found = {}
        for path in (self._root / CELLS).glob("**/*.attempt.json"):
            cell = path.relative_to(self._root / CELLS).as_posix().removesuffix(".attempt.json")
            found[cell] = (read_json(path) or {}).get("attempt", "")
        return found

    def end_of(self, cell: str) -> dict[str, Any] | None:
        """The end of the last attempt at a cell, if its actor recorded it."""
        return read_json(ended_path(self._root, cell))

    def is_free(self, cell: str) -> bool:
        """Whether no process works on a cell any more."""
        import fcntl

        try:
            descriptor = os.open(self._root / CELLS / f"{cell}.lock", os.O_RDONLY)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return True

    def files(self, cell: str) -> dict[str, tuple[int, int, int]]:
        """Size, time and inode of a cell's files, except its checkpoints."""
        named = [self._root / "logs" / f"{cell}.log", self._root / CELLS / f"{cell}.failure.json"]
        found = {}
        for path in (*named, *(self._root / cell).rglob("*")):
            inside = path.relative_to(self._root)
            if any(STEP.fullmatch(part) or part.startswith((".tmp-", ".trash-")) for part in inside.parts):
                continue
            with suppress(OSError):  # gone again
                if path.is_file() and path.name != ".lock":
                    stat = path.stat()
                    found[inside.as_posix()] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return found

    def pin(self, cell: str) -> dict[str, dict[str, int]]:
        """Hold the checkpoints of a cell, which deletes old ones; their files and sizes, under `.pinned`.

        One that cannot be held has no files.
        """
        shutil.rmtree(self._root / PINNED / cell, ignore_errors=True)
        found: dict[str, dict[str, int]] = {}
        for path in sorted((self._root / cell).glob("*/step_*")):
            if not STEP.fullmatch(path.name):
                continue
            name = path.relative_to(self._root).as_posix()
            target = self._root / PINNED / name
            target.mkdir(parents=True, exist_ok=True)
            try:
                for file in path.iterdir():
                    _link(file, target / file.name)
            except OSError:  # deleted or renamed meanwhile, or damaged
                found[name] = {}
                continue
            found[name] = {file.name: file.stat().st_size for file in target.iterdir()}
        return found

    def unpin(self, cell: str) -> None:
        """Release the files that `pin` holds."""
        shutil.rmtree(self._root / PINNED / cell, ignore_errors=True)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """A part of a file, as far as it exists."""
        with (self._root / name).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write a part of a file of a folder that `accept` will move to its place."""
        path = self._root / INCOMING / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def has(self, cell: str) -> bool:
        """Whether a cell's folder was sent here; one that was trained here may be incomplete."""
        return (self._root / cell).is_dir() and not attempt_path(self._root, cell).exists()

    def accept(self, cell: str) -> None:
        """Replace the folder of a cell by the one that was written."""
        folder = self._root / cell
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        (self._root / INCOMING / cell).rename(folder)

    def place_of(self, cell: str) -> str:
        """The machine and the folder of a cell here."""
        return f"{socket.gethostname()}:{self._root / cell}"

    def prune(self, cell: str) -> None:
        """Ask a cell that runs here to write a checkpoint and end."""
        prune_path(self._root, cell).touch()

    def remove(self, cell: str) -> None:
        """Delete a cell's files here."""
        for path in (attempt_path, ended_path, prune_path):
            path(self._root, cell).unlink(missing_ok=True)
        shutil.rmtree(self._root / cell, ignore_errors=True)

    def clear(self) -> None:
        """Delete the experiment's folder on this node."""
        shutil.rmtree(self._root, ignore_errors=True)
        with suppress(OSError):  # of other nodes on this machine
            self._root.parent.rmdir()


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)
