"""Worker processes: they leave signals to the run, are named when they die or hang, and never outlive it."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from tiny_runs import is_running, until

from voidrl.config import EnvConfig
from voidrl.envs import workers
from voidrl.envs.make import make_envs
from voidrl.errors import EnvironmentFailedError, VoidrlWarning

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Trouble(gym.Env):
    """Does `what` at `where`: when it is created, in its reset, or at its second step."""

    def __init__(self, what="nothing", where="step", seed=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.what, self.where, self.seed, self.steps = what, where, seed, 0
        self.trouble("created")

    def trouble(self, where):
        if where == self.where and self.what == "exit":
            os._exit(3)
        while where == self.where and self.what == "hang":
            time.sleep(60)

    def reset(self, *, seed=None, options=None):
        if seed is not None and self.seed not in (None, seed):
            self.what = "nothing"
        self.trouble("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            self.trouble("step")
        return np.full(2, self.steps, np.float32), 0.0, False, False, {}

    def close(self):
        self.trouble("close")


@pytest.fixture
def make():
    made = []

    def make_async(factory=Trouble, num_envs=1, timeout_s=30.0):
        made.append(make_envs(EnvConfig("mine", num_envs, "async", timeout_s=timeout_s), factory))
        return made[-1]

    yield make_async
    for envs in made:
        envs.close()


def play(envs, steps=3):
    envs.reset(0)
    for _ in range(steps):
        result = envs.step(np.zeros(envs.num_envs, np.int64))
    return result.frames[:, 0].tolist()


def processes_of(envs):
    return [worker.process for worker in envs.vector._workers]


# --- signals ----------------------------------------------------------------------------------------------


def test_signals_to_the_group_are_left_to_the_run(make):
    before = [signal.getsignal(number) for number in GROUP_SIGNALS]
    envs = make(num_envs=2)
    for process in processes_of(envs):
        for number in GROUP_SIGNALS:
            os.kill(process.pid, number)
    assert play(envs) == [3, 3]
    assert [signal.getsignal(number) for number in GROUP_SIGNALS] == before  # theirs alone were changed
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(GROUP_SIGNALS)


def test_signals_while_a_worker_starts(make, monkeypatch):
    """None of them finds a worker between the fork and the moment at which it ignores them."""
    starts = workers._run_fork

    def signalled(*arguments):
        for number in GROUP_SIGNALS:
            os.kill(os.getpid(), number)
        starts(*arguments)

    monkeypatch.setattr(workers, "_run_fork", signalled)
    assert play(make()) == [3]


def test_an_environment_can_end_a_simulator_that_it_started(make):
    class Simulated(Trouble):
        def __init__(self):
            super().__init__()
            self.simulator = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

        def step(self, action):
            self.simulator.terminate()
            obs, *rest = super().step(action)
            return np.full_like(obs, self.simulator.wait(20)), *rest

    assert play(make(Simulated), 1) == [-signal.SIGTERM]


# --- death and hanging ------------------------------------------------------------------------------------


WHEN = {"created": "when it was created", "reset": "in reset after 0 steps", "step": "at its own step 2"}


@pytest.mark.parametrize("where", WHEN)
def test_a_worker_that_exits_is_named(make, where):
    which = 0 if where == "created" else 1
    sentence = rf"worker process \d+ ended with exit status 3, while it ran environment {which} \('mine'\) "
    with pytest.raises(EnvironmentFailedError, match=f"^{sentence}{WHEN[where]}$"):
        play(make(lambda: Trouble("exit", where, seed=1), num_envs=3))


@pytest.mark.parametrize("when", ["sent", "received"])
def test_a_worker_that_is_killed_is_named(make, when):
    envs = make(num_envs=3)
    play(envs)
    victim = processes_of(envs)[2]
    if when == "received":
        os.kill(victim.pid, signal.SIGSTOP)  # so that it cannot answer before it dies
        envs.send(np.zeros(3, np.int64))
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: not is_running(victim.pid))
    died = rf"{victim.pid} ended by signal SIGKILL, while it ran environment 2 \('mine'\) at its own step 4"
    with pytest.raises(EnvironmentFailedError, match=died):
        envs.recv() if when == "received" else envs.step(np.zeros(3, np.int64))
    assert not any(Path(f"/proc/{process.pid}").exists() for process in processes_of(envs))  # no zombies


@pytest.mark.parametrize("where", WHEN)
def test_a_worker_that_hangs_is_named_and_killed(make, where):
    which = 0 if where == "created" else 1
    begin = time.monotonic()
    sentence = (
        r"^worker process (\d+) has given no answer for 0.3 s \(raise env.timeout_s if it needs longer\)"
    )
    with pytest.raises(EnvironmentFailedError, match=sentence) as caught:
        play(make(lambda: Trouble("hang", where, seed=1), num_envs=2, timeout_s=0.3))
    assert str(caught.value).endswith(f"while it ran environment {which} ('mine') {WHEN[where]}")
    assert time.monotonic() - begin < 20
    assert not Path(f"/proc/{str(caught.value).split()[2]}").exists()


def test_an_environment_that_hangs_when_it_is_closed(make):
    envs = make(lambda: Trouble("hang", "close"), timeout_s=0.3)
    play(envs)
    with pytest.warns(
        VoidrlWarning, match=r"no answer for 0.3 s .* environment 0 \('mine'\) when it was closed"
    ):
        envs.close()
    assert not is_running(processes_of(envs)[0].pid)


def test_environments_are_closed_in_their_workers(make, tmp_path):
    class Kept(Trouble):
        def close(self):
            (tmp_path / str(os.getpid())).touch()

    envs = make(Kept, num_envs=2)
    play(envs)
    envs.close()
    assert {path.name for path in tmp_path.iterdir()} == {str(p.pid) for p in processes_of(envs)}


def test_an_environment_in_the_middle_of_a_step_does_not_delay_the_end(make):
    envs = make(lambda: Trouble("hang"), timeout_s=100)
    play(envs, 1)
    envs.send(np.zeros(1, np.int64))
    begin = time.monotonic()
    envs.close()
    assert time.monotonic() - begin < 20
    assert not is_running(processes_of(envs)[0].pid)


def test_an_environment_may_keep_the_actions_that_it_gets(make):
    class Keeping(Trouble):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,), np.float32)
            self.actions = []

        def step(self, action):
            self.actions.append(action)
            obs, *rest = super().step(action)
            return np.full_like(obs, self.actions[0][0]), *rest

    envs = make(Keeping)
    envs.reset(0)
    first = [envs.step(np.full((1, 2), value, np.float32)).frames[0, 0] for value in (0.5, -0.5)]
    assert first == [0.5, 0.5]


def test_workers_outlive_the_thread_that_started_them(make):
    made = []
    thread = threading.Thread(target=lambda: made.append(make(num_envs=2)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert play(made[0]) == [3, 3]


# --- the end of the run -----------------------------------------------------------------------------------


SCRIPT = """
import os, signal, sys, time
sys.path[:0] = {folders!r}
import numpy as np
from test_workers import Trouble
from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs

envs = make_envs(EnvConfig("mine", 2, "async"), lambda: Trouble("hang"))
envs.reset(0)
envs.step(np.zeros(2, np.int64))
envs.send(np.zeros(2, np.int64))  # in which both hang
time.sleep(0.2)
print(*(worker.process.pid for worker in envs.vector._workers), flush=True)
if sys.argv[1] == "killed":
    if os.fork() == 0:
        os.close(1)
        os.read(0, 1)  # a fork that lives on holds the pipes open
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_hanging_workers_end_with_a_run_that_closes_nothing(how, tmp_path):
    folders = [str(path) for path in Path(__file__).parents[:2]]
    (tmp_path / "script.py").write_text(SCRIPT.format(folders=folders))
    command = [sys.executable, str(tmp_path / "script.py"), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.wait(20)
        assert len(pids) == 2
        until(lambda: not any(is_running(pid) for pid in pids))
        process.stdin.close()


@pytest.mark.parametrize("factory", [Trouble, lambda: Trouble("exit")])
def test_nothing_is_left_open(factory):
    def opened():
        gc.collect()
        return len([*Path("/proc/self/fd").iterdir()])

    def make_and_close():
        with (
            closing(make_envs(EnvConfig("mine", 2, "async"), factory)) as envs,
            suppress(EnvironmentFailedError),
        ):
            play(envs)

    make_and_close()  # whatever the first one opens for good
    before = opened()
    for _ in range(3):
        make_and_close()
    assert opened() <= before


# --- shared memory ----------------------------------------------------------------------------------------


def test_shared_memory_that_cannot_be_had_is_a_sentence(make, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EnvironmentFailedError) as caught:
        make()
    assert str(caught.value) == (
        "environment 'mine' cannot be run in worker processes: 0.0 MB of shared memory cannot be allocated "
        "(No space left on device); free some memory, or use fewer environments"
    )
