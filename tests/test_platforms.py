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


def test_a_missing_package_is_installed_from_the_clone(monkeypatch):
    """The package is not on an index."""
    error = MissingExtraError("onnx", "onnx", "export to ONNX")
    assert str(error).endswith(f"needs onnx, which is not installed: pip install '{ROOT}[onnx]'")
    assert (ROOT / "pyproject.toml").is_file()
    monkeypatch.setattr(errors, "__file__", "/usr/lib/python3/site-packages/voidrl/errors.py")
    assert errors.install_command("onnx") == "pip install 'voidrl[onnx]'"
