"""Ctrl-C, SIGTERM and SIGHUP: the first one is never lost, the second one always ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from tiny_runs import QUICK, Walk, is_running, newest, tiny, until

import voidrl
from voidrl.cli import main as cli
from voidrl.errors import StoppedBySignal
from voidrl.runs.status import read_status
from voidrl.system.terminal import signals
from voidrl.system.terminal.signals import STOP_SIGNALS, StopSignals


def handlers():
    return {number: signal.getsignal(number) for number in STOP_SIGNALS}


def test_a_signal_asks_for_a_stop_and_all_is_restored():
    before = handlers()
    for number in STOP_SIGNALS:
        with suppress(LookupError), StopSignals() as stop:
            assert not stop.requested
            signal.raise_signal(number)
            assert stop.requested == number.name
            raise LookupError  # otherwise the signal would be raised
        assert handlers() == before


def test_a_signal_that_was_swallowed_reaches_the_next_loop():
    seen = []

    def swallow_and_train():
        with StopSignals(raises=True):
            with suppress(BaseException):  # as in user code
                signal.raise_signal(signal.SIGHUP)
                seen.append("not raised")
            with StopSignals() as inner:
                seen.append(inner.requested)

    with pytest.raises(StoppedBySignal, match="stopped by SIGHUP") as raised:  # nobody saw it
        swallow_and_train()
    assert raised.value.number == signal.SIGHUP
    assert seen == ["SIGHUP"]


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone():
    before, inside = handlers(), []

    def work():
        with StopSignals(raises=True):
            inside.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


def test_a_fork_has_the_handlers_from_before_and_does_not_count_for_its_parent():
    before = handlers()
    with StopSignals() as stop:
        child = os.fork()
        if child == 0:
            os._exit(handlers() == before and not signals._entered)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert not stop.requested


# The second signal, in processes of their own

START = """
import multiprocessing, os, signal, subprocess, sys, time
from voidrl.system.terminal.signals import StopSignals, end_with_process
def ready(*pids):
    print(*pids, flush=True)
"""
SWALLOWS = """
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
worker.start()
shell = ["sh", "-c", "sleep 600 & echo $!; wait"]
run = subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True)
end_with_process(run, group=True)
children = [(worker.pid, run.pid, int(run.stdout.readline()))]
with StopSignals(raises=True):
    while True:
        try:
            if children:
                ready(*children.pop())
            time.sleep(600)
        except BaseException:
            pass
"""
WAITS = """
with StopSignals() as stop:
    ready()
    time.sleep(0.8)
    sys.exit(75 if stop.requested else 0)
"""
CELL = """
with StopSignals(raises=True, ends_at_once=False):
    with StopSignals() as stop:
        ready()
        time.sleep(0.8)
        sys.exit(75 if stop.requested else 0)
"""
INTERACTIVE = """
sys.ps1 = ">>> "
with StopSignals() as stop:
    ready()
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(33)
"""


def start(body):
    process = subprocess.Popen(
        [sys.executable, "-c", START + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


def send(process, *numbers, pause=0.3):
    for number in numbers:
        process.send_signal(number)
        time.sleep(pause)
    _, said = process.communicate(timeout=20)
    return process.returncode, said


def test_a_second_signal_ends_a_process_that_swallows_exceptions_and_its_children():
    process, children = start(SWALLOWS)
    assert len(children) == 3
    assert all(map(is_running, children))
    code, said = send(process, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert said == "voidrl: stopped at once by a second signal (SIGINT); older checkpoints are untouched\n"
    until(lambda: not any(map(is_running, children)), 10)


TWICE = signal.SIGTERM, signal.SIGTERM


@pytest.mark.parametrize(
    ("body", "numbers", "pause"),
    [
        pytest.param(WAITS, TWICE, 0.01, id="timeout"),
        pytest.param(WAITS, (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM), 0.15, id="closed terminal"),
        pytest.param(CELL, TWICE, 0.3, id="a parent that passes signals on"),
    ],
)
def test_one_event_that_sends_several_signals_is_one(body, numbers, pause):
    process, _ = start(body)
    assert send(process, *numbers, pause=pause)[0] == 75


def test_an_interactive_session_is_interrupted_and_not_ended():
    process, _ = start(INTERACTIVE)
    assert send(process, signal.SIGINT, signal.SIGINT)[0] == 33


# What a command does, by phase


class Signalled(Walk):
    """Sends its process a signal at a given moment."""

    when = ""
    number = signal.SIGTERM

    def __init__(self):
        super().__init__()
        self.reach("built")

    def step(self, action):
        self.reach("step")
        return super().step(action)

    def reach(self, moment):
        if moment == self.when:
            type(self).when = ""
            signal.raise_signal(self.number)


def command(*words):
    return cli.main([str(word) for word in words])


def begin(out, steps=20):
    return command("pretrain", "test_signals:Signalled", "--steps", steps, "--out", out, *QUICK)


@pytest.fixture
def moment(monkeypatch):
    def choose(when, number=signal.SIGTERM):
        monkeypatch.setattr(Signalled, "when", when)
        monkeypatch.setattr(Signalled, "number", number)

    return choose


def test_a_signal_before_training_ends_the_command_and_leaves_nothing(tmp_path, capsys, moment):
    moment("built", signal.SIGINT)
    assert begin(tmp_path / "run") == 130
    assert capsys.readouterr().err.startswith(
        "voidrl: stopped by SIGINT outside of training; what was saved before is untouched"
    )
    assert not (tmp_path / "run").exists()


def test_sighup_while_training_writes_a_checkpoint_and_so_does_a_stopped_resume(tmp_path, capsys, moment):
    run = tmp_path / "run"
    moment("step", signal.SIGHUP)
    assert begin(run) == 75
    assert f"resume with `voidrl resume {run}`" in capsys.readouterr().err
    stopped = read_status(run)
    assert (stopped.state, stopped.signal, stopped.steps) == ("stopped", "SIGHUP", newest(run)[1]["steps"])
    moment("built")
    assert command("resume", run) == 75
    assert "stopped by SIGTERM before training; the run is as it was" in capsys.readouterr().err
    assert read_status(run) == stopped
    assert command("resume", run) == 0
    assert read_status(run).state == "done"


def test_a_signal_at_the_last_step_is_not_lost(tmp_path, monkeypatch):
    step, taken = Walk.step, []

    def and_stop(env, action):
        taken.append(action)
        if len(taken) == 12:
            signal.raise_signal(signal.SIGINT)
        return step(env, action)

    monkeypatch.setattr(Walk, "step", and_stop)
    with pytest.raises(voidrl.RunInterrupted, match="after the last of 12 steps; the run is complete"):
        voidrl.pretrain(Walk, steps=12, out=tmp_path / "run", config=tiny())
    assert read_status(tmp_path / "run").state == "done"
