"""The folder of a run: config, environment, status, metrics, checkpoints, snapshots, best and a text log."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from voidrl import __version__, dist
from voidrl.errors import RunFolderError, VoidrlWarning, by_caller
from voidrl.runs import locks
from voidrl.runs.checkpoint import TEMPORARY, list_steps, remove_leftovers, write_json_atomic
from voidrl.runs.evaluations import BEST
from voidrl.runs.status import FILE_NAME as STATUS_FILE
from voidrl.runs.status import StatusWriter, utc_now
from voidrl.system.files import (
    MAX_JSON_BYTES,
    open_regular,
    parse_json,
    path_hint,
    read_text,
    user_path,
    why_refused,
)
from voidrl.system.machine import memory

# All that voidrl writes into a run folder: an overwrite removes only these. First the one that
# makes it a run, last the one that makes it voidrl's, so that a kill in between leaves no dead end.
_OWN_NAMES = (
    *("config.json", "metrics.jsonl", "tb", "wandb", "checkpoints", "log.txt", "status.json", "snapshots"),
    *("ranks", BEST, "evaluation.json", "probe.json", "videos", "report", "policy.onnx", "environment.json"),
)
# Files of a start that was killed before config.json: a folder with no more is free.
_BEFORE_CONFIG = {"environment.json", "checkpoints", "status.json", "log.txt"}
_MAX_NAME_BYTES = 200  # of 255 that file systems take, some of which a number at its end may need
_MAX_OPTIONS = 60  # characters of the environment's options
VISIBLE_SECONDS = 20.0  # until a network file system shows the files of another machine
_EXPERIMENT_NAMES = ("experiment.json", locks.CELLS)


class RunFolder:
    """The folder of one run; `create` makes a new one, `open` finds an existing one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # user code may change the working directory
        self.shown = Path(path)  # for messages
        self.config_path = self.path / "config.json"
        self.environment_path = self.path / "environment.json"  # machine, versions, command line
        self.checkpoints_path = self.path / "checkpoints"
        self.ranks_path = self.path / "ranks"  # a folder for each rank other than the first
        self.snapshots_path = self.path / "snapshots"  # agents that are never deleted
        self.best_path = self.path / BEST  # the agent of a fine-tuning with the best evaluation
        self.log_path = self.path / "log.txt"  # for humans
        self.lock_path = self.path / locks.RUN_LOCK  # held by the process that trains
        self.status = StatusWriter(self.path)
        self._warned_of_log = self._is_silent = False

    @classmethod
    @contextmanager
    def create(cls, path: str | Path, *, overwrite: bool = False) -> Iterator[Self]:
        """Make a folder for a new run and hold its lock; with `overwrite`, the run that is there is replaced.

        Only files that voidrl writes are ever removed, and a folder that holds something else is refused.
        """
        folder = cls(user_path(path))
        folder.require_free(overwrite)  # before a lock file is added to a foreign folder
        with folder._usable():
            folder.path.mkdir(parents=True, exist_ok=True)
        with folder.lock():
            folder.require_free(overwrite)  # another process may have been quicker
            with folder._usable():
                folder._remove_own_files()
                write_json_atomic(folder.environment_path, environment_info())
                folder.checkpoints_path.mkdir(exist_ok=True)
            yield folder

    @classmethod
    @contextmanager
    def create_unnamed(cls, env_id: str, method: str, seed: int, root: str | Path = "runs") -> Iterator[Self]:
        """`create` at `default_run_path`: of several processes that begin at once, each gets its own."""
        with ExitStack() as stack:
            folder = None
            while folder is None:
                path = default_run_path(env_id, method, seed, root)
                try:
                    folder = stack.enter_context(cls.create(path))
                except RunFolderError:
                    if cls(path).is_free:  # no other process took it: another path would fail too
                        raise
            yield folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Find a run by its folder, by a file in it, or by one of its checkpoints."""
        given = user_path(path)
        if not given.exists():
            raise RunFolderError(f"there is no run at {given}: the path does not exist{path_hint(given)}")
        # Checkpoints first: they may hold their own config.json.
        absolute = given.absolute()
        for parent in (absolute, *absolute.parents):
            if parent.name == "checkpoints" and (parent.parent / "config.json").is_file():
                return cls(parent.parent)
        folder = cls(given.parent if given.is_file() else given)
        if not folder.config_path.is_file():
            if folder._is_ours():
                raise RunFolderError(
                    f"{given} holds no run yet, or one that lost its config.json: run the same command "
                    f"again, or replace what is there with {overwriting()}"
                )
            inside = sorted(found.parent for found in folder.path.glob("*/config.json"))
            hint = f"; did you mean a run in it, such as {inside[0]}?" if inside else ""
            raise RunFolderError(f"{given} is no run: it holds no config.json{hint}")
        return folder

    @classmethod
    def follow(cls, path: str | Path) -> Self:
        """The folder of a run for a rank that writes only checkpoints of its part and tracebacks."""
        folder = cls(path)
        folder._is_silent, folder.status = True, StatusWriter(folder.path, is_silent=True)
        return folder

    def require_visible(self, seconds: float = VISIBLE_SECONDS) -> None:
        """Refuse a folder that another rank has made where this one does not see it."""
        last = time.monotonic() + seconds
        while not self.environment_path.is_file():
            if time.monotonic() > last:
                raise RunFolderError(
                    f"{self.shown}, made by the first rank, is not on {socket.gethostname()}: expected a "
                    f"folder that all ranks share; choose one with --out"
                )
            time.sleep(seconds / 100)

    @property
    def is_free(self) -> bool:
        """Whether a new run may begin here: it is empty, or has only the remains of a failed start."""
        return self._is_unborn() and not locks.is_held(self.lock_path)

    @property
    def holds_run(self) -> bool:
        """Whether a run began here, complete or damaged; the remains of a failed start are no run."""
        with self._usable():
            return self.config_path.exists() or (self._is_ours() and not self._is_unborn())

    def log(self, text: str, *, by_any_rank: bool = False) -> None:
        """Append a line to log.txt, with the time in UTC; further lines of `text` are indented.

        A log that cannot be written is a warning, once: it must neither stop a run nor hide why one failed.
        """
        if self._is_silent and not by_any_rank:
            return
        indented = text.rstrip().replace("\n", "\n    ")
        try:
            # A path that is not UTF-8 may be part of the text.
            log = open_regular(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{utc_now()} {indented}\n")
        except OSError as error:
            if not self._warned_of_log:
                self._warned_of_log = True
                message = f"cannot write to {self.log_path} ({error.strerror or error}); the run needs no log"
                warnings.warn(message, VoidrlWarning, stacklevel=2)

    def log_traceback(self, error: BaseException) -> None:
        """Append an error with its traceback to log.txt."""
        self.log("".join(traceback.format_exception(error)), by_any_rank=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder, so that two processes never train in it; refused while another one holds it."""
        descriptor = locks.acquire(self.lock_path)
        if descriptor is None:
            holder = locks.holder(self.lock_path)
            raise RunFolderError(
                f"{self.shown} is in use by process {holder}; wait until it ends or choose another folder"
            )
        locks.sign(descriptor)
        try:
            yield
        finally:
            self.status.close()
            locks.unlock(descriptor)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why, remedy = why_refused(error, self.path, "choose another path")
            raise RunFolderError(f"cannot make the run folder {self.shown} ({why}); {remedy}") from error

    def sweep(self) -> None:
        """Delete half-written files of killed processes; under the lock, all of them are dead."""
        for path in (self.config_path, self.environment_path, self.path / STATUS_FILE):
            remove_leftovers(path)

    def require_free(self, overwrite: bool) -> None:
        """Refuse a folder that holds something, except for a run that is to be replaced."""
        with self._usable():
            if self.path.exists() and not self.path.is_dir():
                raise RunFolderError(f"{self.shown} is a file, not a folder; choose another path for the run")
            if any((self.path / name).exists() for name in _EXPERIMENT_NAMES):
                raise RunFolderError(
                    f"{self.shown} holds an experiment, so no run can begin there; choose another path"
                )
            if self._is_unborn():
                return
            if not self._is_ours():
                raise RunFolderError(
                    f"{self.shown} is not empty and holds no voidrl run, so it is left untouched; choose "
                    "another path for the run"
                )
        if not overwrite:
            quoted = shlex.quote(str(self.shown))
            again = by_caller(f"voidrl.resume({str(self.shown)!r})", f"`voidrl resume {quoted}`")
            raise RunFolderError(
                f"{self.shown} already holds a run; continue it with {again}, replace it with "
                f"{overwriting()}, or choose another path"
            )

    def _is_unborn(self) -> bool:
        """Whether it has only files that a start writes before config.json makes the folder a run."""
        names = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        names = {name for name in names if name != locks.RUN_LOCK and not name.startswith(TEMPORARY)}
        if not self._is_ours():
            return not names and (self.path.is_dir() or not self.path.exists())
        own = names & {*_OWN_NAMES}
        return own <= _BEFORE_CONFIG and not list_steps(self.checkpoints_path)

    def _is_ours(self) -> bool:
        """Whether voidrl made this folder: its environment.json, written first and removed last, says so."""
        try:
            return "voidrl" in parse_json(read_text(self.environment_path, MAX_JSON_BYTES))["versions"]
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _remove_own_files(self) -> None:
        self.sweep()
        for name in _OWN_NAMES:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def default_run_path(env_id: str, method: str, seed: int, root: str | Path = "runs") -> Path:
    """Return a free path such as `runs/PixelMaze-v0-goal=far_apt_s1`, with `-02`, `-03`, … if it is taken."""
    env, _, options = env_id.removeprefix("__main__:").partition("?")
    env = "-".join(filter(None, [env.rsplit("/", 1)[-1], options[:_MAX_OPTIONS]]))
    name = re.sub(r"[^\w.=-]+", "-", f"{env}_{method}_s{seed}")
    if len(name.encode()) > _MAX_NAME_BYTES:  # of module:function, method and seed, the end says the most
        name = name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore").lstrip("-._")
    path, number = Path(root) / name, 1
    with RunFolder(path)._usable():
        while not RunFolder(path).is_free:
            number += 1
            path = Path(root) / f"{name}-{number:02}"
    return path


def environment_info() -> dict[str, Any]:
    """Describe a result's environment: versions, machine, git commit of the current folder, command line."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "gymnasium")}
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            model = found[1].strip()
    return {
        "date": utc_now(),
        "command": shlex.join(sys.argv),
        "versions": {"python": platform.python_version(), "voidrl": __version__, **versions},
        "platform": platform.platform(),
        "cpu": {"model": model, "count": os.cpu_count()},
        "memory_bytes": memory().total,
        "gpus": _gpus(),
        "git": _git(),
        "ranks": dist.current().size,
    }


def _git() -> dict[str, str | bool] | None:
    """The commit of the current folder, and in voidrl's own clone whether its files are `clean`.

    Another repository is not asked for changes: git would run the filters that it names.
    """
    git = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
    commit, _, root = _output(*git, "rev-parse", "HEAD", "--show-toplevel").partition("\n")
    if not commit:
        return None
    found: dict[str, str | bool] = {"commit": commit}
    if Path(root) == Path(__file__).resolve().parents[3]:
        # The branch is the first line, unless git failed.
        changes = _output(*git, "status", "--porcelain", "--branch", "--untracked-files=no")
        if changes:
            found["clean"] = "\n" not in changes
    return found


def _gpus() -> list[dict[str, str]]:
    """Ask nvidia-smi: asking torch would create a CUDA context, even for a run on the CPU."""
    table = _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    rows = [line.split(", ") for line in table.splitlines()]
    return [dict(zip(("name", "driver", "memory"), row, strict=True)) for row in rows if len(row) == 3]


def _output(*command: str) -> str:
    """Return the output of a command; empty where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def overwriting() -> str:
    """The caller's option for replacing a run."""
    return by_caller("overwrite=True", "--overwrite")
