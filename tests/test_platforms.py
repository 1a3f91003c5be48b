"""Where voidrl runs: other systems are refused, and extras are installed from the clone."""

import subprocess
import sys
from pathlib import Path

from voidrl.errors import MissingExtraError

ROOT = Path(__file__).parents[1]


def test_a_system_without_posix_is_refused():
    code = "import importlib, os; os.name = 'nt'; import voidrl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "voidrl does not run on" in done.stderr


def test_a_missing_package_is_answered_with_the_packages_to_install():
    """voidrl itself is on no index."""
    error = MissingExtraError("onnx", "onnx", "export to ONNX")
    assert str(error).startswith(
        "export to ONNX needs onnx, which is not installed: pip install 'onnx<2,>=1.17' '"
    )
