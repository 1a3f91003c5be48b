"""CUDA's multi-process service: kernels of several runs execute concurrently on one GPU.

A control daemon is started with its own directories, so that it serves only the runs of one command. A
small shell process waits for this one to end, however it ends, and then asks the daemon to quit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

DAEMON = "nvidia-cuda-mps-control"
SYSTEM_PIPES = "/tmp/nvidia-mps"  # where CUDA looks for a daemon that the machine's owner has started
PATIENCE_SECONDS = 60.0
# Makes a context on every visible GPU, as a run would; exits with CUDA's error code, or 1 without a driver.
PROBE = """
import ctypes, sys
cuda, number, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name} returned CUDA error {code}")
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(number))
for i in range(number.value):
    call("cuDeviceGet", ctypes.byref(device), i)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
"""


class MpsError(Exception):
    """Why the service is unavailable, as part of a sentence."""


@contextmanager
def mps_daemon(gpus: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Run a daemon inside; yields the variables of the processes that use it.

    There are none if the user or the machine already has a daemon, which CUDA finds by itself.

    Args:
        gpus: The UUIDs of the GPUs that it serves; all visible ones if empty.

    Raises:
        MpsError: It is missing, was refused, or does not work; it is cleaned up then.
    """
    if Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", SYSTEM_PIPES), "control").exists():
        yield {}
        return
    daemon = shutil.which(DAEMON)
    if daemon is None:
        raise MpsError(f"{DAEMON} is not installed")
    folder = tempfile.mkdtemp(prefix="voidrl-mps-")
    places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    for directory in places.values():
        Path(directory).mkdir()
    served = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    environment = {**os.environ, **places, **served}
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", 'cat; echo quit | "$0"; rm -rf "$1"', daemon, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # a terminal's Ctrl-C is not for the daemon
    )
    try:
        _run([daemon, "-d"], environment)
        _run([sys.executable, "-c", PROBE], environment)
        yield places
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # the daemon waits for its clients
            keeper.wait(PATIENCE_SECONDS)


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    # Its output goes to a file: a daemon would keep a pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MpsError(f"it did not start: {error}") from None
        if done.returncode:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            raise MpsError(lines[-1] if lines else f"it ended with exit status {done.returncode}")
