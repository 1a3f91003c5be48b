"""Bytecode of packages is kept in the user's cache where Python itself would not keep it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import voidrl
from voidrl import bytecode, user_cache

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
        return subprocess.check_output([sys.executable, *arguments], env=environment | variables, text=True)

    return run


@pytest.fixture
def cached(tmp_path):
    return tmp_path / "cache" / "voidrl" / "bytecode"


@pytest.fixture
def read_only(monkeypatch, tmp_path):
    """This process as one whose packages have no bytecode and are read-only."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # these tests may run so: that is not `python -B`
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")  # so that it is restored
    monkeypatch.delenv("PYTHONPYCACHEPREFIX")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(bytecode, "cache_from_source", lambda source: f"{source}c")
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK and Path(path).exists())


def test_where_python_keeps_bytecode_nothing_changes(python, tmp_path, cached):
    file, exists, variables = json.loads(python("-c", START))
    assert exists
    assert file.startswith(str(tmp_path / "site"))
    assert variables == [None, None]
    later = python("-c", START, PYTHONDONTWRITEBYTECODE="1")
    assert json.loads(later) == [file, True, ["1", None]]
    assert not cached.exists()


def test_bytecode_that_is_kept_out_of_an_image_is_kept_in_the_cache(python, tmp_path, cached):
    file, exists, (never, place) = json.loads(python("-c", START, PYTHONDONTWRITEBYTECODE="1"))
    assert exists
    assert file.startswith(place)
    assert Path(place).parent == cached
    assert never is None  # processes that are started write theirs
    assert not (tmp_path / "site" / "torch" / "__pycache__").exists()


def test_the_command_keeps_bytecode(python, cached):
    python("-m", "voidrl", "--version", PYTHONDONTWRITEBYTECODE="1")
    assert [*cached.iterdir()]


def test_what_the_user_asks_of_python_is_respected(python, tmp_path, cached):
    assert json.loads(python("-B", "-c", START))[1:] == [False, [None, None]]
    place = str(tmp_path / "mine")
    file, exists, variables = json.loads(python("-c", START, PYTHONPYCACHEPREFIX=place))
    assert exists
    assert file.startswith(place)
    assert variables == [None, place]
    both = python("-c", START, PYTHONPYCACHEPREFIX=f"{place}2", PYTHONDONTWRITEBYTECODE="1")
    assert json.loads(both)[1:] == [False, ["1", f"{place}2"]]
    assert not cached.exists()


def test_bytecode_of_read_only_packages_is_kept_in_the_cache(read_only, cached):
    assert bytecode.obstacles() == ["PYTHONPYCACHEPREFIX"]
    bytecode.keep()
    assert sys.pycache_prefix == os.environ["PYTHONPYCACHEPREFIX"]
    assert Path(sys.pycache_prefix).parent == cached


@pytest.mark.parametrize("why", ["a file", "writable by others", "full"])
def test_a_cache_that_cannot_be_used_changes_nothing(why, read_only, monkeypatch, tmp_path, cached):
    if why == "a file":
        (tmp_path / "cache").touch()
    elif why == "writable by others":
        cached.mkdir(parents=True)
        cached.chmod(0o777)
    else:
        monkeypatch.setattr(user_cache, "free_disk", lambda path: 1000)
    bytecode.keep()
    assert sys.pycache_prefix is None
    assert "PYTHONPYCACHEPREFIX" not in os.environ


@pytest.mark.parametrize("error", [ValueError, NotImplementedError])
def test_where_python_has_no_bytecode_at_all_nothing_changes(error, read_only, monkeypatch):
    def fail(source):
        raise error

    monkeypatch.setattr(bytecode, "cache_from_source", fail)
    bytecode.keep()
    assert sys.pycache_prefix is None
