"""Elsewhere than on Linux: macOS lacks some functions, and other systems are refused."""

from __future__ import annotations

import os
import subprocess
import sys

from voidrl.envs import workers


def test_shared_memory_without_memfd_and_fallocate(monkeypatch):
    """As on macOS: an unnamed file in the temporary folder."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    with workers.shared_file() as file:
        shared = workers.allocate(file, 5000, "mine")
        shared[4999] = 7
        assert len(shared) == 5000
        assert file.seek(0) == 0
        assert file.read()[4999] == 7
        shared.close()


def test_a_system_without_posix_is_refused():
    code = "import importlib, os; os.name = 'nt'; import voidrl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "voidrl does not run on" in done.stderr
