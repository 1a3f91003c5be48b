"""`status.json` says what a run is doing, and the lock on its folder whether that is still true."""

import json
import os
import signal
import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest
from tiny_runs import Fickle, Walk, tiny, until

import voidrl
from voidrl.errors import CheckpointError, EnvironmentFailedError, RunFolderError, VoidrlWarning
from voidrl.runs import status as module
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import RunStatus, StatusWriter, load_status, read_status


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
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 1000.0)
    config = tiny(log__checkpoint_every_steps=10, log__log_every_steps=2)
    voidrl.pretrain(Walk, steps=20, out=tmp_path / "run", config=config)
    assert written == [("starting", 0), ("running", 2), ("running", 10), ("running", 20), ("done", 20)]
    status = read_status(tmp_path / "run")
    assert (status.state, status.steps, status.total_steps, status.checkpoint) == ("done", 20, 20, 20)
    assert (status.pid, status.host) == (os.getpid(), socket.gethostname())
    assert status.started <= status.heartbeat
    assert not status.is_alive


def test_a_run_that_logs_nothing_for_long_has_heartbeats_with_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)
    folder, steps = RunFolder(tmp_path), 0
    with folder.lock():
        folder.status.start(100)
        first = read_status(tmp_path)
        until(lambda: read_status(tmp_path).heartbeat > first.heartbeat)  # while it is being built
        folder.status.track(lambda: steps, "cpu")
        assert read_status(tmp_path).state == "starting"
        steps = 40
        status = until(lambda: (now := read_status(tmp_path)).steps == 40 and now)
        assert (status.state, status.device, status.ranks) == ("running", "cpu", 1)
        assert status.rate > 0
        assert status.seconds_left == 60 / status.rate
    left = load_status(tmp_path / "status.json")  # given up without a final state: nothing beats any more
    until(lambda: not heartbeats())
    StatusWriter(tmp_path, is_silent=True).start(9)  # that of another rank, which writes nothing
    assert not heartbeats()
    assert load_status(tmp_path / "status.json") == left
    assert read_status(tmp_path).state == "interrupted"


def heartbeats():
    return [thread for thread in threading.enumerate() if thread.name == "voidrl-status"]


def test_nothing_overwrites_the_final_state(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.001)
    writer, now = RunFolder(tmp_path).status, 100.0
    writer.start(8)
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    writer.track(lambda: 6, "cpu")
    now = 104.0
    writer.end("done", 8)
    for thread in heartbeats():
        thread.join(10)
    status = read_status(tmp_path)
    assert (status.state, status.steps, status.rate, status.seconds_left) == ("done", 8, 0.5, None)


def test_the_last_score_is_an_evaluation_if_there_was_one(tmp_path):
    config = tiny(log__checkpoint_every_steps=10, log__eval_every_steps=10, log__eval_episodes=1)
    voidrl.train(Walk, steps=20, out=tmp_path / "run", config=config)
    status = read_status(tmp_path / "run")
    evaluated = [row["eval/return"] for row in read_metrics(tmp_path / "run") if "eval/return" in row]
    assert (status.score_name, status.score, status.score_step) == ("eval/return", evaluated[-1], 20)
    voidrl.resume(tmp_path / "run", steps=25)  # which evaluates nothing
    assert read_status(tmp_path / "run").score_step == 20
    writer = RunFolder(tmp_path).status
    writer.score("coverage/cells", 7.0, 5)
    writer.score("coverage/cells", float("nan"), 6)
    writer.start(10)
    writer.close()
    assert (read_status(tmp_path).score, read_status(tmp_path).score_step) == (7.0, 5)


@pytest.mark.parametrize(
    ("device", "visible", "shown"),
    [
        ("cpu", "1", "cpu"),
        ("cuda:1", "", "cuda:1"),
        ("cuda:0", "3", "cuda:3"),
        ("cuda:0", "GPU-7f", "cuda:0"),
    ],
)
def test_a_gpu_has_its_number_on_the_machine(monkeypatch, device, visible, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert module.physical_device(device) == shown


def test_on_another_machine_the_heartbeat_decides_unless_the_lock_can_be_seen(tmp_path, monkeypatch):
    looked = []
    is_held = module.locks.is_held
    monkeypatch.setattr(module.locks, "is_held", lambda path: looked.append(path) or is_held(path))
    ages = {"fresh": module.STALE_SECONDS - 60, "stale": module.STALE_SECONDS + 60, "ahead": -300}
    beats = {name: (datetime.now(UTC) - timedelta(seconds=age)).isoformat() for name, age in ages.items()}
    remote = {"state": "running", "steps": 5, "host": "elsewhere", "pid": os.getpid()}
    write(tmp_path, **remote, heartbeat=beats["fresh"])
    assert read_status(tmp_path).state == "running"
    write(tmp_path, **remote, heartbeat=beats["ahead"])  # by its clock, which is not ours
    status = read_status(tmp_path)
    assert (status.state, status.age(datetime.now(UTC))) == ("running", 0)
    assert looked == []  # its lock was left alone
    write(tmp_path, **remote, heartbeat=beats["stale"])
    assert read_status(tmp_path).state == "interrupted"
    with RunFolder(tmp_path).lock():
        assert read_status(tmp_path).state == "running"
    write(tmp_path, **{**remote, "state": "stopped"}, heartbeat=beats["fresh"])
    assert read_status(tmp_path).state == "stopped"
    write(tmp_path, **{**remote, "host": socket.gethostname()}, heartbeat=beats["fresh"])
    assert read_status(tmp_path).state == "interrupted"  # here, where its lock would be seen


def test_killed_without_a_word_it_reads_as_interrupted(tmp_path):
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            voidrl.pretrain(Walk, steps=10**6, out=tmp_path / "run", config=tiny())
        finally:
            os._exit(1)
    try:
        status = until(lambda: (s := read_status(tmp_path / "run")) and s.state == "running" and s)
        assert (status.pid, status.is_alive) == (child, True)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
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
    beat = '"state": "done", "heartbeat": "2026-01-01T00:00:00+00:00"'
    wrong = (f'{{{beat}, "steps": "7"}}', f'{{{beat}, "rate": "fast"}}', f'{{{beat}, "host": null}}')
    for text in (
        *wrong,
        "{torn",
        "[]",
        '{"state": "dreaming", "heartbeat": "x"}',
        '{"state": "done", "mood": 1}',
    ):
        (tmp_path / "status.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"status\.json is damaged: remove it"):
            read_status(tmp_path)


def test_a_status_that_cannot_be_written_stops_no_run_that_has_begun(tmp_path):
    writer = RunFolder(tmp_path).status
    writer.start(10)
    (tmp_path / "status.json").unlink()
    (tmp_path / "status.json").mkdir()
    with pytest.warns(VoidrlWarning, match=r"cannot write .*status\.json: Is a directory") as caught:
        writer.saved(5)
    writer.end("done", 10)
    assert len(caught) == 1
    with pytest.raises(CheckpointError, match="cannot write"):
        RunFolder(tmp_path).status.start(10)


def test_a_failed_run_has_its_sentence(tmp_path, monkeypatch):
    with pytest.raises(EnvironmentFailedError) as error:
        voidrl.pretrain(lambda: Fickle("raise", at=12), steps=100, out=tmp_path / "run", config=tiny())
    status = read_status(tmp_path / "run")
    assert (status.state, status.error, status.checkpoint) == ("failed", str(error.value), None)
    assert 0 < status.steps < 100
    monkeypatch.setattr("voidrl.training.hooks.Logging.log", lambda hook, run: {}["lost"])
    with pytest.raises(KeyError):
        voidrl.pretrain(Walk, steps=100, out=tmp_path / "library", config=tiny())
    assert read_status(tmp_path / "library").error == "KeyError: 'lost'"
    assert "Traceback" in (tmp_path / "library/log.txt").read_text()


def test_the_rate_is_that_of_the_last_minute_and_without_the_warm_up(tmp_path, monkeypatch):
    clock = {"now": 0.0, "steps": 0}
    monkeypatch.setattr(module.time, "monotonic", lambda: clock["now"])

    def rates(writer, moments):
        for clock["now"], clock["steps"] in moments:
            writer.saved(clock["steps"])
            yield read_status(tmp_path).rate

    writer = RunFolder(tmp_path).status
    writer.start(10_000)
    writer.track(lambda: clock["steps"], "cpu")
    found = rates(writer, ((30, 3000), (60, 3300), (90, 3600), (120, 3600), (200, 3600)))
    assert list(found) == [100, 55, 10, 5, 0]  # at last it hangs
    writer.close()
    clock.update(now=0.0, steps=0)
    writer = RunFolder(tmp_path).status
    writer.start(10_000)
    writer.track(lambda: clock["steps"], "cpu", warmup_steps=1000)
    found = rates(writer, ((10, 900), (20, 1050), (30, 1100), (40, 1170)))
    assert list(found) == [None, None, 5, 6]
    assert read_status(tmp_path).seconds_left is None  # nothing holds its lock
    clock["now"] = 50
    writer.end("stopped", 1200, signal="SIGTERM")
    assert read_status(tmp_path).rate == 24  # of the whole process
