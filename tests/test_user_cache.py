"""Folders of the user's cache hold code that is executed: nobody else may be able to put some there."""

import os

import pytest

from voidrl.system import user_cache

needs_root = pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs root for chown")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_is_made_is_for_the_user_alone(home):
    before = os.umask(0)
    try:
        user_cache.open_folder(home / "voidrl" / "code" / "this")
    finally:
        os.umask(before)
    assert {folder.stat().st_mode & 0o777 for folder in [home, *home.rglob("*")]} == {0o700}


@pytest.mark.parametrize("folder", [".", "voidrl", "voidrl/code", "voidrl/code/this"])
def test_folders_that_others_can_write_are_refused(folder, home):
    code = home / "voidrl" / "code" / "this"
    user_cache.open_folder(code)
    (home / folder).chmod(0o755)
    user_cache.open_folder(code)  # which others can read
    (home / folder).chmod(0o702)
    with pytest.raises(PermissionError, match=f"other users can write to {home / folder}$"):
        user_cache.open_folder(code)


@needs_root
def test_folders_that_a_group_can_write_are_refused_unless_it_is_the_user_s_own(home):
    user_cache.open_folder(home / "voidrl")
    home.chmod(0o770)
    user_cache.open_folder(home / "voidrl")
    os.chown(home, 0, 1234)
    with pytest.raises(PermissionError, match="other users can write to"):
        user_cache.open_folder(home / "voidrl")


@needs_root
def test_in_a_shared_folder_everything_below_is_the_user_s_own(home):
    code = home / "voidrl" / "code"
    user_cache.open_folder(code)
    home.chmod(0o1777)  # as that of /tmp
    user_cache.open_folder(code)
    (home / "voidrl").chmod(0o1777)  # others could add code
    with pytest.raises(PermissionError, match=f"other users can write to {home / 'voidrl'}"):
        user_cache.open_folder(code)
    os.chown(home / "voidrl", 1234, 1234)  # somebody was first
    with pytest.raises(PermissionError, match=f"{home / 'voidrl'} belongs to another user"):
        user_cache.open_folder(code)


def test_without_a_home_there_is_no_cache(monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(user_cache.Path, "home", fail)
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(OSError, match="no home"):
        user_cache.root()


def test_the_size_is_that_of_all_files(tmp_path):
    assert user_cache.stored_bytes(tmp_path / "missing") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "two").write_bytes(b"67")
    assert user_cache.stored_bytes(tmp_path) == 7
