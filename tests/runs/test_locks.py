"""Locks end with their process, are not kept by its forks, and looking at one disturbs nobody."""

import os
import subprocess
import sys
import threading
import time

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


def test_a_lock_of_another_machine_counts_while_it_is_touched(tmp_path):
    path = tmp_path / "x.lock"
    assert not locks.has_owner(path)
    path.write_text("17 on elsewhere")
    assert locks.has_owner(path)
    old = time.time() - locks.STALE_SECONDS - 60
    os.utime(path, (old, old))
    assert not locks.has_owner(path)
    lock = locks.acquire(path)  # one that is visible decides
    assert locks.has_owner(path)
    locks.sign(lock)
    locks.release(lock)
    assert not locks.has_owner(path)  # signed here, just now, and free


def test_an_adopted_lock_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "TOUCH_SECONDS", 0.01)
    path = tmp_path / "x.lock"
    locks.adopt(locks.acquire(path))  # to the end of this process
    os.utime(path, (0, 0))
    end = time.monotonic() + 10
    while path.stat().st_mtime == 0:
        assert time.monotonic() < end
        time.sleep(0.005)
