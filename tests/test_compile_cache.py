"""The cache of compiled code: where it is, who else may use it, and that it never stops a run."""

import os

import pytest
import torch
from helpers import CPU
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

from voidrl.engine import cache
from voidrl.engine.cache import VARIABLE, open_cache, root
from voidrl.system.user_cache import UNUSED_DAYS


@pytest.fixture(autouse=True)
def cache_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(VARIABLE, default_cache_dir())  # as torch sets it
    return tmp_path / "cache"


def say_nothing(text):
    raise AssertionError(text)


def test_torch_compiles_into_the_cache_folder_of_the_user(cache_home):
    cache = open_cache(CPU, say_nothing)
    assert cache.parent == root() == cache_home / "voidrl" / "compiled"
    assert cache.name.startswith(f"torch-{torch.__version__}-cpu-")
    assert cache_dir() == str(cache)
    assert cache.stat().st_mode & 0o777 == 0o700  # it holds code that is executed


def test_the_folder_that_a_user_has_chosen_is_used_and_is_not_ours(monkeypatch, tmp_path, cache_home):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert open_cache(CPU, say_nothing) is None
    assert os.environ[VARIABLE] == str(tmp_path / "mine")
    assert not cache_home.exists()


def test_another_version_of_our_operators_has_another_folder(monkeypatch, tmp_path):
    before = open_cache(CPU, say_nothing)
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(cache, "PACKAGE", package)
    (package / "plain.py").write_text("x = 1")
    plain = open_cache(CPU, say_nothing)
    (package / "plain.py").write_text("x = 2")
    assert open_cache(CPU, say_nothing) == plain
    (package / "kernel.py").write_text('@torch.library.custom_op("voidrl::f")')
    assert len({before, plain, open_cache(CPU, say_nothing)}) == 3


def test_a_folder_that_cannot_be_written_is_said_and_torch_takes_its_own(cache_home):
    cache_home.write_text("a file")
    said = []
    assert open_cache(CPU, said.append) is None
    assert len(said) == 1
    assert "not kept" in said[0]
    assert "XDG_CACHE_HOME" in said[0]
    assert VARIABLE not in os.environ


def test_folders_that_nobody_has_used_for_long_are_deleted():
    used = root() / "torch-1"
    unused = root() / "torch-2"
    for folder in (used, unused):
        folder.mkdir(parents=True)
    long_ago = unused.stat().st_mtime - (UNUSED_DAYS + 1) * 24 * 3600
    os.utime(unused, (long_ago, long_ago))
    current = open_cache(CPU, say_nothing)
    os.utime(current, (long_ago, long_ago))
    assert open_cache(CPU, say_nothing).exists()
    assert sorted(root().iterdir()) == sorted([used, current])
