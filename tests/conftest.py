"""Settings of every test."""

import os
import shlex
import signal
import sys

import pytest
import torch

torch.set_num_threads(1)  # the networks here are too small to share between threads

if not torch.cuda.is_available():  # without a GPU Triton's kernels are run by its interpreter, on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under `nohup`
    # A handler, unlike SIG_IGN, is not inherited by the processes of tests, and does not end this one.
    signal.signal(signal.SIGHUP, lambda number, frame: None)

os.environ.pop("CI", None)  # terminals of tests are no logs of a CI job

os.fsync = lambda descriptor: None  # tests kill processes but never the power: nothing waits for the disk


@pytest.fixture(scope="session", autouse=True)
def known_machine():
    """Asks git, nvidia-smi and pip's metadata about this machine once, not in each of a thousand runs."""
    from voidrl.runs import folder

    machine = folder.environment_info()

    def describe():
        return {**machine, "date": folder.utc_now(), "command": shlex.join(sys.argv)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "environment_info", describe)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_emulators():
    """Starts an emulator or a simulation for its spaces once, not in each test that plans a run."""
    from voidrl.envs.make import probe_env
    from voidrl.training import build

    known = {}

    def probe_once(config, factory=None):
        if factory is not None or not config.id.startswith(("atari/", "dmc/")):
            return probe_env(config, factory)
        key = repr(config)
        if key not in known:
            known[key] = probe_env(config)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "probe_env", probe_once)
        yield


@pytest.fixture(autouse=True)
def no_heartbeats_left():
    """Ends the heartbeats of runs that a test leaves open, which would write in the middle of later tests."""
    from voidrl.runs.status import StatusWriter

    started, start = [], StatusWriter._start_heartbeats

    def start_heartbeats(writer):
        started.append(writer)
        start(writer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StatusWriter, "_start_heartbeats", start_heartbeats)
        yield
    for writer in started:
        writer.close()


@pytest.fixture(scope="session")
def opengl():
    """An OpenGL that renders here; without one the test is skipped."""
    from voidrl.envs import gl
    from voidrl.errors import ConfigError

    try:
        return gl.find_gl("a test", "skip it")
    except ConfigError:
        pytest.skip("no OpenGL renders here")


@pytest.fixture
def plain_terminal(monkeypatch):
    """No variable changes how a terminal is written to."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "CI"):
        monkeypatch.delenv(name, raising=False)
