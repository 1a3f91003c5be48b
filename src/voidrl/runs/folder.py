"""The folder of a run: config, environment, status, metrics, checkpoints, snapshots and a text log."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from voidrl.checkpoint import write_json_atomic
from voidrl.errors import RunFolderError
from voidrl.runs import locks
from voidrl.runs.status import StatusWriter, utc_now

# All that voidrl writes into a run folder: an overwrite removes these and nothing else.
_OWN_NAMES = (
    *("config.json", "metrics.jsonl", "tb", "wandb", "checkpoints", "log.txt", "environment.json"),
    *("status.json", "snapshots", "evaluation.json", "videos", "report"),
)


class RunFolder:
    """The folder of one run; `create` makes a new one, `open` finds an existing one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.environment_path = self.path / "environment.json"  # machine, versions, command line
        self.checkpoints_path = self.path / "checkpoints"
        self.snapshots_path = self.path / "snapshots"  # agents that are never deleted
        self.log_path = self.path / "log.txt"  # for humans; voidrl never reads it
        self.lock_path = self.path / locks.RUN_LOCK  # held by the process that trains
        self.status = StatusWriter(self.path)

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> Self:
        """Make a folder for a new run; with `overwrite`, the run that is there is removed first.

        Only files that voidrl writes are ever removed, and a folder that holds something else is refused.
        """
        folder = cls(Path(path).expanduser())
        if folder.path.exists() and not folder.path.is_dir():
            raise RunFolderError(f"{folder.path} is a file, not a folder; choose another path for the run")
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"cannot make the run folder {folder.path} ({error.strerror or error}); choose another path"
            ) from error
        if any(entry.name != locks.RUN_LOCK for entry in folder.path.iterdir()):
            if not folder._is_ours():
                raise RunFolderError(
                    f"{folder.path} is not empty and holds no voidrl run, so it is left untouched; choose "
                    "another path for the run"
                )
            if not overwrite:
                raise RunFolderError(
                    f"{folder.path} already holds a run; continue it with `voidrl resume {folder.path}`, "
                    "replace it with --overwrite, or choose another path"
                )
            with folder.lock():  # never under a process that still trains in it
                folder._remove_own_files()
        write_json_atomic(folder.environment_path, environment_info())
        folder.checkpoints_path.mkdir(exist_ok=True)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Find a run by its folder, by a file in it, or by one of its checkpoints."""
        given = Path(path).expanduser()
        if not given.exists():
            raise RunFolderError(f"there is no run at {given}: the path does not exist")
        # Checkpoints first: they may hold a config.json of their own.
        absolute = given.absolute()
        for parent in (absolute, *absolute.parents):
            if parent.name == "checkpoints" and (parent.parent / "config.json").is_file():
                return cls(parent.parent)
        folder = cls(given.parent if given.is_file() else given)
        if not folder.config_path.is_file():
            inside = sorted(found.parent for found in folder.path.glob("*/config.json"))
            hint = f"; did you mean a run in it, such as {inside[0]}?" if inside else ""
            raise RunFolderError(f"{given} is no run: it holds no config.json{hint}")
        return folder

    def log(self, text: str) -> None:
        """Append a line to log.txt, with the time in UTC; further lines of `text` are indented."""
        indented = text.rstrip().replace("\n", "\n    ")
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(f"{utc_now()} {indented}\n")

    def log_traceback(self, error: BaseException) -> Path:
        """Append an error with its traceback to log.txt, whose path is returned."""
        self.log("".join(traceback.format_exception(error)))
        return self.log_path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder, so that two processes never train in it; refused while another one holds it."""
        descriptor = locks.acquire(self.lock_path)
        if descriptor is None:
            holder = locks.holder(self.lock_path)
            raise RunFolderError(
                f"{self.path} is in use by process {holder}; wait until it ends or choose another folder"
            )
        locks.sign(descriptor)
        try:
            yield
        finally:
            locks.unlock(descriptor)

    def _is_ours(self) -> bool:
        """Whether voidrl made this folder: its environment.json, written first and removed last, says so."""
        try:
            return "voidrl" in json.loads(self.environment_path.read_text(encoding="utf-8"))["versions"]
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _remove_own_files(self) -> None:
        for name in _OWN_NAMES:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def log_failed_start(path: str | Path, error: BaseException) -> Path | None:
    """Write an error to log.txt in the folder that a run would have had; None where something else is there.

    A folder with nothing but a log holds no run: the next start may take it.
    """
    folder = RunFolder(Path(path).expanduser())
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        if {entry.name for entry in folder.path.iterdir()} <= {folder.log_path.name, locks.RUN_LOCK}:
            return folder.log_traceback(error)
    except OSError:  # it cannot be written, which the start itself would have refused
        pass
    return None


def default_run_path(env_id: str, method: str, seed: int, root: str | Path = "runs") -> Path:
    """Return a free path such as `runs/PixelMaze-v0_apt_s1`, with `-2`, `-3`, … appended if it is taken."""
    name = re.sub(r"[^\w.-]+", "-", f"{env_id.rsplit('/', 1)[-1]}_{method}_s{seed}")
    path, number = Path(root) / name, 1
    while path.exists():
        number += 1
        path = Path(root) / f"{name}-{number}"
    return path


def environment_info() -> dict[str, Any]:
    """Describe what a result depends on: versions, machine, git state of the current folder, command line."""
    packages = ("voidrl", "torch", "numpy", "gymnasium")
    return {
        "date": utc_now(),
        "command": shlex.join(sys.argv),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "platform": platform.platform(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count()},
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "git": git_state(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _gpus() -> list[dict[str, str]]:
    """Ask nvidia-smi: asking torch would create a CUDA context, even for a run on the CPU."""
    table = _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    rows = [line.split(", ") for line in (table or "").splitlines()]
    return [dict(zip(("name", "driver", "memory"), row, strict=True)) for row in rows if len(row) == 3]


def git_state() -> dict[str, Any] | None:
    """Return the commit and whether tracked files differ from it, or None outside a git checkout."""
    commit = _output("git", "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_output("git", "status", "--porcelain", "--untracked-files=no"))}


def _output(*command: str) -> str | None:
    """Return what a command prints, or None where it is missing, fails or takes too long."""
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # `git status` must not touch the user's index
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=quiet, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
