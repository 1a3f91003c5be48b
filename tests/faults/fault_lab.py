"""Where faults are injected: runs `voidrl`, watches it, and counts what it leaves behind."""

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fault_digest import content

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
LIMIT_S = 120  # of a command that takes seconds; only a hang reaches it
# The options of a run that takes a second. `$TINY` in a command stands for them.
TINY = (
    "--device cpu --warmup-steps 8 --updates-per-step 1 --learner.batch-size 16 --learner.hidden-dim 8 "
    "--learner.encoder.feature-dim 4 --representation.batch-size 8 --representation.encoder.feature-dim 3 "
    "--replay.capacity-steps 40 --log.tensorboard false --log.log-every-steps 5 "
    "--log.checkpoint-every-steps 20"
)


def environ():
    """The environment variables of a command that imports this checkout and the worlds beside this file."""
    path = os.pathsep.join([str(SRC), str(HERE), str(HERE.parent)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@dataclass
class Done:
    """How a command ended."""

    code: int | None
    """Its exit code, negative for a signal; None if it had to be killed at the limit."""
    err: str
    out: str
    leftovers: list[str] = field(default_factory=list)
    """Processes and shared memory that it left behind."""

    @property
    def text(self):
        return self.err + self.out

    @property
    def last_line(self):
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no word"


class Lab:
    """A server that forks, and a folder for everything; `bench` is a new place for one fault."""

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="voidrl-faults-"))
        (self.root / "home").mkdir()
        env = {**environ(), "HOME": str(self.root / "home"), "TINY": TINY}
        env.pop("COLUMNS", None)
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": env, "cwd": self.root}
        command = [sys.executable, HERE / "fault_server.py"]
        self.server = subprocess.Popen(command, **how, start_new_session=True)
        self.unread, self.codes, self.straight_runs, self.number = b"", {}, {}, 0
        assert "ready" in self._read()

    def _read(self):
        """The next answer of the server."""
        while b"\n" not in self.unread:
            received = os.read(self.server.stdout.fileno(), 1 << 16)
            assert received, "the server has ended"
            self.unread += received
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def fork(self, request):
        """Start a command; returns the id of its process."""
        self.server.stdin.write(json.dumps(request).encode() + b"\n")
        self.server.stdin.flush()
        while "pid" not in (answer := self._read()):
            self.codes[answer["ended"]] = answer["code"]
        return answer["pid"]

    def poll(self, pid):
        """Its exit code, or None while it runs."""
        while pid not in self.codes:
            if b"\n" not in self.unread and not select.select([self.server.stdout], [], [], 0)[0]:
                return None
            answer = self._read()
            self.codes[answer["ended"]] = answer["code"]
        return self.codes[pid]

    @contextmanager
    def bench(self):
        """A fresh folder; whatever was mounted or started in it is gone afterwards."""
        self.number += 1
        bench = Bench(self, self.root / f"{self.number:03d}")
        try:
            yield bench
        finally:
            bench.clean()

    def close(self):
        self.server.stdin.close()
        self.server.wait(10)
        shutil.rmtree(self.root, ignore_errors=True)


class Bench:
    """The place where one fault is injected."""

    def __init__(self, lab, folder):
        folder.mkdir()
        self.lab, self.folder, self.marks = lab, folder, folder / "marks"
        self.mounts, self.started = [], []

    # Running commands

    def start(self, command, *, script=None, hook=None, stderr=None, **environ):
        """`voidrl …`, with `$TINY` for the options above; what stands behind `  #` or ` &` is for readers."""
        words = shlex.split(command.partition("  #")[0].partition(" & ")[0].replace("$TINY", TINY))
        assert script or words[0] == "voidrl", command
        number = len(self.started)
        out, err = self.folder / f"out.{number}", self.folder / f"err.{number}"
        request = {
            "argv": words[1:],
            "script": script,
            "cwd": str(self.folder),
            "environ": {"FAULT_MARKS": str(self.marks), "FAULT_ID": str(out), **environ},
            "stdout": str(out),
            "stderr": str(stderr or err),
            "hook": hook,
        }
        before = shared_memory()
        self.started.append(Running(self, self.lab.fork(request), out, err, before))
        return self.started[-1]

    def voidrl(self, command, *, limit=LIMIT_S, **options):
        """Run a command to its end."""
        return self.start(command, **options).wait(limit)

    def shell(self, script, *, limit=LIMIT_S):
        """Run a line of bash in which `voidrl` is the command; its exit code is that of `voidrl`."""
        function = f'voidrl() {{ {shlex.quote(sys.executable)} -m voidrl.cli.main "$@"; echo $? > code; }}\n'
        done = self.start("", script=function + script).wait(limit)
        if done.code is not None and (self.folder / "code").exists():
            done.code = int((self.folder / "code").read_text())
        return done

    # Looking

    def wait_for(self, ready, running=None, seconds=LIMIT_S):
        """Wait until something is so; False if the command ended before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if ready():
                return True
            if running is not None and running.poll() is not None:
                return False
            time.sleep(0.005)
        return False

    def steps(self):
        """How many steps `fault_worlds` have taken here."""
        return self.marks.read_text().count(".") if self.marks.exists() else 0

    def checkpoints(self, run="run"):
        """The steps of the checkpoints of a run."""
        found = (self.folder / run / "checkpoints").glob("step_*")
        return sorted(int(path.name[5:].partition(".")[0]) for path in found)

    def rows(self, run="run"):
        """The rows of its metrics that are whole."""
        path = self.folder / run / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def same(self, run, other):
        """Whether two runs are equal bit for bit: their newest checkpoints, and metrics but for the clock."""
        return content(self.folder / run) == content(other)

    def straight(self, command):
        """The folder of the same run without a fault; made once."""
        known = self.lab.straight_runs
        if command not in known:
            with self.lab.bench() as bench:
                done = bench.voidrl(command)
                assert done.code == 0, done.err
                known[command] = self.lab.root / f"straight-{len(known)}"
                (bench.folder / "run").rename(known[command])
        return known[command]

    # Preparing

    def disk(self, kilobytes, name="disk"):
        """A disk of this size."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", path], check=True)
        self.mounts.append(path)
        return path

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def clean(self):
        for running in self.started:
            running.kill()
        for running in self.started:
            self.wait_for(lambda running=running: running.poll() is not None, seconds=5)
        for path in self.mounts:
            subprocess.run(["umount", "-l", path], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Running:
    """A command that has been started."""

    def __init__(self, bench, pid, out, err, shared):
        self.bench, self.pid, self.out, self.err, self.shared = bench, pid, out, err, shared

    def poll(self):
        return self.bench.lab.poll(self.pid)

    def send(self, name, *, group=False):
        """Send a signal to the process, or to its process group as a terminal or `scancel` does."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, getattr(signal, name))

    def wait(self, limit=LIMIT_S):
        """How it ended; at the limit it is killed."""
        ended = self.bench.wait_for(lambda: self.poll() is not None, seconds=limit)
        leftovers = []
        if ended:  # what it started may need a moment to notice
            self.bench.wait_for(lambda: not self.processes() and not self._left_shared(), seconds=20)
            leftovers = [describe(pid) for pid in self.processes()] + self._left_shared()
        self.kill()
        there = (path if path.exists() else Path(os.devnull) for path in (self.err, self.out))
        err, out = (path.read_text(errors="replace") for path in there)
        return Done(self.poll() if ended else None, err, out, leftovers)

    def processes(self):
        """Everything alive in its session, and whatever inherited its environment."""
        mark = f"FAULT_ID={self.out}\0".encode()
        return [pid for pid, session in sessions() if session == self.pid or mark in environ_of(pid)]

    def kill(self):
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left_shared(self):
        mapped = {name for pid, _ in sessions() for name in shared_maps(pid)}
        return sorted(shared_memory() - self.shared - mapped)


# /proc


def sessions():
    """Process and session ids of all processes but zombies that init has yet to reap."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            state, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if not (state == "Z" and parent == "1"):
                found.append((int(path.parent.name), int(session)))
    return found


def environ_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def describe(pid):
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"process {words[:60] or 'zombie'}"
    return "process"


def shared_memory():
    shm = Path("/dev/shm")
    return {str(path) for path in shm.iterdir()} if shm.is_dir() else set()


def shared_maps(pid):
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        return {line.split()[-1] for line in lines if "/dev/shm/" in line}
    return set()
