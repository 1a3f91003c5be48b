"""Bytecode of packages is kept in the user's cache where Python itself would not keep it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import voidrl
from voidrl import bytecode

# The beginning of a command, up to the import of torch.
START = """
import json, os
from importlib.util import cache_from_source
from voidrl import bytecode
bytecode.keep()
import torch
file = cache_from_source(torch.__file__)
variables = [os.environ.get(name) for name in (bytecode.NEVER, bytecode.PLACE)]
print(json.dumps([file, os.path.exists(file), variables]))
"""


@pytest.fixture
def python(tmp_path):
    """Another process, which has an empty package `torch` without bytecode."""
    (tmp_path / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(voidrl.__file__).parents[1])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*arguments, **variables):
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=True
        )
        return done.stdout

    return run


@pytest.fixture
def unwritable(monkeypatch, tmp_path):
    """This process as one whose packages have no bytecode and are read-only."""
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bytecode, "cache_from_source", lambda source: f"{source}c")
    monkeypatch.setattr(os, "access", lambda path, mode: False)


def test_where_python_keeps_bytecode_nothing_changes(python, tmp_path):
    file, exists, variables = json.loads(python("-c", START))
    assert exists
    assert file.startswith(str(tmp_path / "site"))
    assert variables == [None, None]
    assert not (tmp_path / "cache").exists()
    later = python("-c", START, PYTHONDONTWRITEBYTECODE="1")  # it is there: nothing is to be written
    assert json.loads(later) == [file, True, ["1", None]]


def test_bytecode_that_python_never_writes_is_kept_in_the_cache(python, tmp_path):
    file, exists, variables = json.loads(python("-c", START, PYTHONDONTWRITEBYTECODE="1"))
    folder = str(tmp_path / "cache" / "voidrl" / "bytecode")
    assert exists
    assert file.startswith(folder)
    assert variables == [None, folder]  # for the processes that it starts
    assert not (tmp_path / "site" / "torch" / "__pycache__").exists()


def test_the_command_keeps_bytecode(python, tmp_path):
    python("-m", "voidrl", "--version", PYTHONDONTWRITEBYTECODE="1")
    assert (tmp_path / "cache" / "voidrl" / "bytecode").is_dir()


def test_bytecode_of_read_only_packages_is_kept_in_the_cache(unwritable, tmp_path):
    assert bytecode.obstacles() == ["PYTHONPYCACHEPREFIX"]
    bytecode.keep()
    assert sys.pycache_prefix == os.environ["PYTHONPYCACHEPREFIX"] == str(tmp_path / "voidrl" / "bytecode")


def test_a_place_that_the_user_has_chosen_stays(unwritable, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", "/mine")
    bytecode.keep()
    assert sys.pycache_prefix == "/mine"


def test_without_a_cache_python_goes_on_as_it_was(unwritable, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    bytecode.keep()
    assert sys.pycache_prefix is None
    assert "PYTHONPYCACHEPREFIX" not in os.environ
