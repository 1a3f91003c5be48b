"""Runs `voidrl` commands in forks of one process, so that a command costs no import of torch.

Reads one JSON request per line: argv or a bash script, cwd, environ, paths for stdout and stderr, and a hook
of `fault_hooks`. Answers with the id of the new process, and with its exit code when it has ended. A fork has
a session of its own, as a job has, and ends as an interpreter does that ran the command: at the end of this
file.
"""

import json
import os
import select
import signal
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - two seconds, which torch takes when the first optimizer is made

import voidrl.api  # noqa: F401
from voidrl.cli.main import main


def serve():
    """Fork for every request; only forks return."""
    answer({"ready": True})
    buffer = b""
    while True:
        if select.select([0], [], [], 0.02)[0]:
            received = os.read(0, 1 << 16)
            if not received:
                os._exit(0)
            buffer += received
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                return request
            answer({"pid": pid})
        reap()


def reap():
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    if pid:
        answer({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def answer(data):
    os.write(1, json.dumps(data).encode() + b"\n")


def become(request):
    """Turn this fork into the process that was asked for."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["environ"])
    for number, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["script"]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp("bash", ["bash", "-c", request["script"]])
    # As the interpreter makes them: the server's own remember what kind of file they were on.
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["voidrl", *request["argv"]]
    sys.path[0] = ""
    if request["hook"]:
        import fault_hooks

        fault_hooks.install(request["hook"])


if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).parent))
    become(serve())
    sys.exit(main(sys.argv[1:]))
