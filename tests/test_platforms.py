"""Elsewhere than on Linux: what a system does not have is taken away here, and training still works."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import voidrl
from voidrl.envs import memory
from voidrl.errors import ConfigError
from voidrl.runs import locks
from voidrl.system import machine, platforms

# Everything that Windows' `os` and `signal` do not have and voidrl uses elsewhere. Libraries are imported
# before, since those for Windows are other ones than those for Linux.
WITHOUT_POSIX = """
import asyncio, multiprocessing.popen_fork, os, select, signal, socket, subprocess, sys, tempfile, uuid
import gymnasium, numpy, rich.live, safetensors.torch, torch, torch._dynamo
torch.set_num_threads(1)
for name in ("fcntl", "resource", "termios", "pwd"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "memfd_create", "posix_fallocate", "sysconf", "statvfs", "geteuid",
             "sched_getaffinity", "killpg", "pread", "pwrite", "O_DIRECTORY", "O_CLOEXEC", "getloadavg"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGPIPE", "pthread_sigmask", "siginterrupt"):
    delattr(signal, name)
del select.poll
import types
locked = types.ModuleType("msvcrt")
locked.LK_NBLCK, locked.LK_UNLCK = 2, 0
locked.locking = lambda descriptor, mode, count: None
sys.modules["msvcrt"] = locked
import shutil
shutil.disk_usage = lambda folder: types.SimpleNamespace(total=10**12, free=10**12)
"""
TRAINS = """
import voidrl
from voidrl.cli import main
small = {"warmup_steps": 20, "learner": {"hidden_dim": 16, "batch_size": 16}, "updates_per_step": 0.25}
agent = voidrl.pretrain("CartPole-v1", steps=32, out="run", config={**small, "env.num_envs": 2})
voidrl.resume("run", steps=40)
voidrl.finetune("run", steps=8, out="task", config={"finetune.warmup_steps": 4})
voidrl.evaluate("task", episodes=1)
try:
    voidrl.pretrain("CartPole-v1", steps=8, out="forks", config={"env.backend": "async"})
except voidrl.errors.ConfigError as error:
    print("refused:", error)
print("status", main.main(["list", "methods"]))
"""


@pytest.mark.slow
def test_training_works_without_forks_locks_and_posix_signals(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(Path(voidrl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    code, options = WITHOUT_POSIX + TRAINS, {"capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, **options)
    assert done.returncode == 0, done.stderr
    assert "status 0" in done.stdout
    assert "has no fork(): use env.backend = 'sync'" in done.stdout
    assert "run: resumed at step 3" in done.stderr


def test_a_lock_of_windows_is_a_byte_that_nobody_reads(tmp_path, monkeypatch):
    calls = []

    def locking(descriptor, mode, count):
        calls.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, count))
        if calls.count(calls[-1]) == 3:
            raise OSError(13, "Permission denied")

    fake = types.SimpleNamespace(LK_NBLCK=2, LK_UNLCK=0, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setattr(platforms, "fcntl", None)
    held = locks.acquire(tmp_path / "lock")
    locks.sign(held)
    assert locks.holder(tmp_path / "lock").startswith(str(os.getpid()))
    other = os.open(tmp_path / "lock", os.O_RDWR)
    platforms.lock(other)
    with pytest.raises(BlockingIOError):
        platforms.lock(other)
    os.close(other)
    locks.unlock(held)
    assert calls == [(platforms.LOCKED_BYTE, 2, 1)] * 3 + [(platforms.LOCKED_BYTE, 0, 1)]


def test_memory_and_disk_are_known_or_said_to_be_unlimited(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "resource", None)
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.delattr(os, "statvfs")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: types.SimpleNamespace(total=1000, free=123))
    found = machine.memory(tmp_path)  # no /proc either
    assert found.total == found.available == sys.maxsize
    assert machine.largest_file() is None
    assert machine.free_disk(tmp_path) == 123
    assert machine.cores(tmp_path).usable == os.cpu_count()


def test_shared_memory_without_memfd_and_fallocate(monkeypatch):
    """As on macOS: an unnamed file in the temporary folder."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    with memory.shared_file() as file:
        shared = memory.allocate(file, 5000, "mine")
        shared[4999] = 7
        assert len(shared) == 5000
        assert file.seek(0) == 0
        assert file.read()[4999] == 7
        shared.close()


def test_workers_are_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(platforms, "can_fork", lambda: False)
    with pytest.raises(ConfigError, match=r"an experiment cannot be used on .*: start them one by one"):
        platforms.require_workers("an experiment", "start them one by one")


def test_dmcontrol_simulates_in_this_process_without_workers(monkeypatch):
    from voidrl.config import EnvConfig
    from voidrl.envs import dmc

    assert not dmc._simulates_here(EnvConfig())
    monkeypatch.setattr(dmc, "can_fork", lambda: False)
    assert dmc._simulates_here(EnvConfig())
    assert not dmc._simulates_here(EnvConfig(backend="async"))
