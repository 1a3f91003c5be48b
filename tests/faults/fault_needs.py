"""What a fault needs of the machine; each function returns why it is missing, or nothing."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache


@cache
def root():
    """Whether a small disk can be mounted."""
    if os.geteuid() or not shutil.which("mount"):
        return "mounting a small disk needs root"
    with tempfile.TemporaryDirectory() as folder:
        mounted = (
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode == 0
        )
        if mounted:
            subprocess.run(["umount", folder], check=True)
    return "" if mounted else "this machine does not allow mounting a small disk"


def package(name):
    """A need of a Python package."""
    return lambda: "" if importlib.util.find_spec(name) else f"{name} is not installed"


def nothing():
    """No need."""
    return ""
