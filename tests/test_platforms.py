"""Where voidrl runs: other systems are refused, and extras are installed from the clone."""

import subprocess
import sys
from pathlib import Path

from voidrl import errors
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


def test_a_package_that_does_not_exist_for_this_python_is_answered_with_another_python(monkeypatch):
    """dm-control needs labmaze, which has no wheel for Python 3.13."""
    lines = ['dm-control; python_version < "3.13" and extra == "dmc"', 'mujoco; extra == "dmc"']
    monkeypatch.setattr(errors.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(errors, "PYTHON", "3.13")
    error = MissingExtraError("dm-control", "dmc", "environment 'dmc/walker'")
    assert str(error) == (
        "environment 'dmc/walker' needs dm-control, which cannot be installed on Python 3.13: "
        "use Python 3.11 or 3.12"
    )
