"""Locks end with their process, are not kept by its forks, and looking at one disturbs nobody."""

import os
import subprocess
import sys
import threading
import time

import pytest

from voidrl.errors import RunFolderError
from voidrl.runs import locks


def test_a_lock_ends_with_its_process_and_is_not_kept_by_forks(tmp_path):
    path = tmp_path / "x.lock"
    code = (
        "import os, sys, signal, time; from voidrl.runs import locks; from pathlib import Path\n"
        f"locks.adopt(locks.acquire(Path({str(path)!r})))\n"
        "if os.fork() == 0: time.sleep(60)\n"  # a worker that outlives it
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pid = process.stdout.readline().strip()
        assert locks.acquire(path) is None
        assert locks.is_held(path)
        assert locks.holder(path).startswith(f"{pid} on ")
        process.kill()
        process.wait()
        end = time.monotonic() + 10
        while (lock := locks.acquire(path)) is None:  # until the fork has had its first moment
            assert time.monotonic() < end
        locks.release(lock)
        assert not locks.is_held(path)
    finally:
        os.killpg(process.pid, 9)


def test_looking_at_a_lock_refuses_nobody(tmp_path):
    path, stopped = tmp_path / "x.lock", threading.Event()
    path.touch()

    def keep_looking():
        while not stopped.is_set():
            locks.is_held(path)

    lookers = [threading.Thread(target=keep_looking) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            lock = locks.acquire(path)
            assert lock is not None
            locks.unlock(lock)
    finally:
        stopped.set()
        for looker in lookers:
            looker.join()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_neither_waited_for_nor_written_to(tmp_path, kind):
    path, elsewhere = tmp_path / "x.lock", tmp_path / "mine"
    elsewhere.write_text("mine")
    {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(elsewhere), "folder": os.mkdir}[kind](path)
    assert not locks.is_held(path)
    assert locks.holder(path) == "unknown"
    with pytest.raises(RunFolderError, match="cannot write to"):
        locks.acquire(path)
    assert elsewhere.read_text() == "mine"
