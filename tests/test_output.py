"""A broken stream never stops a run, and never loses the result of a command in silence."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import Walk, newest

from voidrl.cli import main as cli
from voidrl.errors import OutputError, PipeClosedError
from voidrl.runs.status import read_status
from voidrl.system.terminal.output import command_output, durable_output, say
from voidrl.system.terminal.progress import Progress

FULL = Path("/dev/full")
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}


class Broken(io.StringIO):
    """A stream that fails."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


def closed_stream():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("stream", "why"),
    [(Broken(errno.EPIPE), "Broken pipe"), (closed_stream(), "closed file")],
    ids=["broken pipe", "closed stream"],
)
def test_what_cannot_be_printed_is_dropped_with_one_note(monkeypatch, name, stream, why):
    notes = []
    monkeypatch.setattr(sys, name, stream)
    with durable_output(notes.append):
        for _ in range(3):
            print("a line", file=getattr(sys, name), flush=True)
        with Progress(10) as progress:
            progress.update(10)
        say("a message")
    assert len(notes) == 1
    assert why in notes[0]
    assert notes[0].endswith("the run continues")
    assert getattr(sys, name) is stream
    say("a message after the run")


def test_an_error_of_the_text_is_not_hidden(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    with durable_output(), pytest.raises(UnicodeEncodeError):
        print("…")


def test_a_command_fails_if_its_result_cannot_be_written(monkeypatch):
    with FULL.open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with command_output():
            print("the result")
            with pytest.raises(OutputError, match=r"incomplete.*No space left on device"):
                sys.stdout.flush()
    monkeypatch.setattr(sys, "stdout", Broken(errno.EPIPE))
    with command_output(), pytest.raises(PipeClosedError):
        print("the result")


# Whole commands


class Talkative(Walk):
    """Prints in every step."""

    def step(self, action):
        print("a step", flush=True)
        return super().step(action)


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_run_whose_reader_is_gone_trains_to_its_end(tmp_path, monkeypatch):
    run = tmp_path / "run"
    words = ["pretrain", "test_output:Talkative", "--steps", "20", "--out", str(run), "--warmup-steps", "8"]
    words += ["--device", "cpu", "--log.tensorboard", "False", "--learner.batch-size", "8"]
    with os.fdopen(closed_pipe(), "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", pipe)
        assert cli.main(words) == 0
        monkeypatch.undo()
    assert read_status(run).state == "done"
    assert newest(run)[1]["steps"] == 20
    lost = [line for line in (run / "log.txt").read_text().splitlines() if "output was lost" in line]
    assert len(lost) == 1
    assert "(Broken pipe); the run continues" in lost[0]


@pytest.mark.parametrize(("fails", "status"), [(False, 0), (True, 1)])
def test_a_thread_that_is_left_does_not_keep_a_command_alive(fails, status):
    code = "import atexit, sys, threading, time; from voidrl.cli import main\n"
    code += "sys.stdout.reconfigure(line_buffering=False)\n"
    code += "atexit.register(print, 'cleaned up')\n"
    code += "def last(words):\n"
    code += "    threading.Thread(target=time.sleep, args=[1000]).start(); print('its last line')\n"
    code += f"    return 1 // {int(not fails)} - 1\n"
    code += "main.COMMANDS['list'] = last; sys.argv[1:] = ['list']; sys.exit(main.main())"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (status, "its last line\ncleaned up\n")
    assert ("ZeroDivisionError" in done.stderr) == fails


def test_the_exit_status_is_that_of_the_script_and_not_120():
    """Python flushes both streams when it exits, and a failure there changes the status."""
    code = "import sys; from voidrl.system.terminal.output import durable_output\n"
    code += "with durable_output(): print('held back'); print('lost', file=sys.stderr)\n"
    code += "sys.exit(3)"
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=full, timeout=60, env=BUFFERED
        )
    assert done.returncode == 3


def command(*words, **streams):
    """`voidrl` in a process of its own."""
    line = [sys.executable, "-m", "voidrl.cli.main", *words]
    return subprocess.run(line, timeout=60, text=True, env=BUFFERED, **streams)


def test_a_list_whose_reader_has_enough_ends_quietly_as_if_by_sigpipe():
    pipe = closed_pipe()
    done = command("list", "methods", stdout=pipe, stderr=subprocess.PIPE)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_descriptor_is_not_given_to_the_next_file(tmp_path):
    code = "import os; from voidrl.system.terminal.output import open_missing_streams as fill; "
    code += "os.close(2); fill(); "
    code += "print(os.open('.', os.O_RDONLY) > 2, os.get_inheritable(2))"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, text=True, stdout=subprocess.PIPE)
    assert done.stdout.split() == ["True", "True"]
