"""`status.json` says what a run is doing, and the lock on its folder whether that is still true."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tiny_runs import Fickle, Walk, tiny

import voidrl
from voidrl import checkpoint
from voidrl.errors import (
    CheckpointError,
    EnvironmentFailedError,
    RunFolderError,
    RunInterrupted,
    VoidrlWarning,
)
from voidrl.runs import status as module
from voidrl.runs.folder import RunFolder
from voidrl.runs.status import RunStatus, read_status


def states_written(monkeypatch):
    """Every state that is written from now on, with its step."""
    written = []
    write = module.write_json_atomic
    monkeypatch.setattr(
        module,
        "write_json_atomic",
        lambda path, data: write(path, data) or written.append((data["state"], data["steps"])),
    )
    return written


def test_a_run_starts_runs_and_is_done(tmp_path, monkeypatch):
    written = states_written(monkeypatch)
    config = tiny(log__checkpoint_every_steps=10, log__log_every_steps=2)
    voidrl.pretrain(Walk, steps=20, out=tmp_path / "run", config=config)
    # Heartbeats between checkpoints are at least ten seconds apart.
    assert written == [("starting", 0), ("running", 2), ("running", 10), ("running", 20), ("done", 20)]
    status = read_status(tmp_path / "run")
    assert (status.state, status.steps, status.total_steps, status.checkpoint) == ("done", 20, 20, 20)
    assert (status.pid, status.host) == (os.getpid(), socket.gethostname())
    assert status.started <= status.heartbeat
    assert not status.is_alive


def test_heartbeats_are_spaced(tmp_path, monkeypatch):
    written, now = states_written(monkeypatch), 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    writer = RunFolder(tmp_path).status
    writer.start(100)
    for now in range(100, 131):
        writer.beat(now)
    assert written == [("starting", 0), ("running", 100), ("running", 111), ("running", 122)]


def test_a_stopped_run_names_its_signal_and_is_resumed(tmp_path, monkeypatch):
    step = Walk.step

    def step_and_stop(env, action):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(env, action)

    monkeypatch.setattr(Walk, "step", step_and_stop)
    with pytest.raises(RunInterrupted):
        voidrl.pretrain(Walk, steps=100, out=tmp_path / "run", config=tiny())
    monkeypatch.undo()
    stopped = read_status(tmp_path / "run")
    assert (stopped.state, stopped.signal) == ("stopped", "SIGTERM")
    assert stopped.steps == stopped.checkpoint == checkpoint.list_steps(tmp_path / "run/checkpoints")[-1]
    written = states_written(monkeypatch)
    voidrl.resume(tmp_path / "run", steps=stopped.steps + 5)
    assert written[0] == ("starting", stopped.steps)
    status = read_status(tmp_path / "run")
    assert (status.state, status.signal, status.total_steps) == ("done", None, stopped.steps + 5)


def test_a_failed_run_has_its_sentence(tmp_path):
    with pytest.raises(EnvironmentFailedError) as error:
        voidrl.pretrain(lambda: Fickle("raise", at=12), steps=100, out=tmp_path / "run", config=tiny())
    status = read_status(tmp_path / "run")
    assert (status.state, status.error, status.checkpoint) == ("failed", str(error.value), None)
    assert 0 < status.steps < 100


def test_an_error_of_a_library_is_a_sentence_too(tmp_path, monkeypatch):
    monkeypatch.setattr("voidrl.loop.Loop._log", lambda loop: {}["lost"])
    with pytest.raises(KeyError):
        voidrl.pretrain(Walk, steps=100, out=tmp_path / "run", config=tiny())
    assert read_status(tmp_path / "run").error == "KeyError: 'lost'"
    assert "Traceback" in (tmp_path / "run/log.txt").read_text()


def test_killed_without_a_word_it_reads_as_interrupted(tmp_path):
    code = f"""
import voidrl
from tiny_runs import Walk, tiny
voidrl.pretrain(Walk, steps=10**6, out={str(tmp_path / "run")!r}, config=tiny())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=environment)
    try:
        end = time.monotonic() + 60
        while (status := read_status(tmp_path / "run")) is None or status.state != "running":
            assert time.monotonic() < end
            time.sleep(0.01)
        assert (status.pid, status.is_alive) == (process.pid, True)
    finally:
        process.kill()
        process.wait()
    status = read_status(tmp_path / "run")
    assert (status.state, status.total_steps, status.is_alive) == ("interrupted", 10**6, False)
    with RunFolder(tmp_path / "run").lock():  # whoever holds it now is about to resume it
        assert read_status(tmp_path / "run").is_alive


def write(folder, **status):
    folder.mkdir(exist_ok=True)
    (folder / "status.json").write_text(json.dumps(status))


def test_the_lock_decides_and_not_the_process_number(tmp_path):
    old = "2026-01-01T00:00:00.000000+00:00"
    write(tmp_path, state="running", steps=5, pid=os.getpid(), host=socket.gethostname(), heartbeat=old)
    assert read_status(tmp_path).state == "interrupted"  # this number is alive, and not that process
    with RunFolder(tmp_path).lock():
        assert read_status(tmp_path).state == "running"
        write(tmp_path, state="failed", error="x", heartbeat=old)
        assert read_status(tmp_path).state == "starting"  # being resumed
        write(tmp_path, state="done", heartbeat=old)
        assert read_status(tmp_path).state == "done"


def test_a_run_that_starts_while_its_status_is_read_is_alive(tmp_path):
    RunFolder(tmp_path).status.start(10)
    write(
        tmp_path,
        **{**json.loads((tmp_path / "status.json").read_text()), "heartbeat": "2999-01-01T00:00:00+00:00"},
    )
    assert read_status(tmp_path).state == "starting"  # its heartbeat is newer than the look at the lock


def test_without_locks_the_heartbeat_decides(tmp_path, monkeypatch):
    RunFolder(tmp_path).status.start(10)
    monkeypatch.setattr(module.locks, "is_held", lambda path: None)
    assert read_status(tmp_path).state == "starting"
    monkeypatch.setattr(module, "STALE_SECONDS", 0.0)
    assert read_status(tmp_path).state == "interrupted"


def test_nothing_and_damage(tmp_path):
    assert read_status(tmp_path) is None
    with RunFolder(tmp_path).lock():
        assert read_status(tmp_path) == RunStatus("starting")
    for text in ("{torn", "[]", '{"state": "dreaming", "heartbeat": "x"}', '{"state": "done", "mood": 1}'):
        (tmp_path / "status.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"status\.json is damaged: remove it"):
            read_status(tmp_path)


def test_readers_see_the_old_file_or_the_new_one(tmp_path):
    writer, stopped = RunFolder(tmp_path).status, threading.Event()
    writer.start(10)

    def keep_writing():
        while not stopped.is_set():
            writer.saved(3)

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        with RunFolder(tmp_path).lock():
            assert {read_status(tmp_path).state for _ in range(200)} <= {"starting", "running"}
    finally:
        stopped.set()
        thread.join()
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


def test_a_status_that_cannot_be_written_stops_no_run_that_has_begun(tmp_path):
    writer = RunFolder(tmp_path).status
    writer.start(10)
    (tmp_path / "status.json").unlink()
    (tmp_path / "status.json").mkdir()
    with pytest.warns(VoidrlWarning, match=r"cannot write .*status\.json: Is a directory") as caught:
        writer.saved(5)
    writer.finish(10)
    assert len(caught) == 1
    with pytest.raises(CheckpointError, match="cannot write"):
        RunFolder(tmp_path).status.start(10)
