"""Elsewhere than on Linux: macOS lacks some functions, and other systems are refused."""

from __future__ import annotations

import subprocess
import sys


def test_a_system_without_posix_is_refused():
    code = "import importlib, os; os.name = 'nt'; import voidrl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "voidrl does not run on" in done.stderr
