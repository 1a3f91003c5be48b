"""Faults at exact moments: an audit hook sees every file that a command opens, renames, links or removes.

A hook is a dict with `do`: the name of a signal (with `-group` behind it for the whole process group), or
`remove NAME` for a file next to the one of the event, or for the whole folder without a name.
"""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

CHANGES = ("os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(hook):
    """At the `nth` event (first by default; none for 0) that `match` fits, do it; `log` lists all of them.

    Events are what changes files under `match`, a regular expression of the whole path; with `reads`, what
    opens them for reading.
    """
    pattern, nth = re.compile(hook["match"]), hook.get("nth", 1)
    seen = 0

    def on_event(event, args):
        nonlocal seen
        path = path_of(event, args, hook.get("reads", False))
        if path is None or not pattern.search(path):
            return
        seen += 1
        if "log" in hook:
            descriptor = os.open(hook["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(descriptor, f"{event} {path}\n".encode())
            os.close(descriptor)
        if seen == nth:
            strike(hook["do"], path)

    sync = os.fsync

    def fsync(descriptor):  # it has no audit event of its own
        try:
            on_event("os.fsync", (str(Path(f"/proc/self/fd/{descriptor}").readlink()),))
        except FileNotFoundError:
            on_event("os.fsync", ("",))
        sync(descriptor)

    os.fsync = fsync
    sys.addaudithook(on_event)


def path_of(event, args, reads):
    """The absolute path of a file that an event changes or, with `reads`, opens for reading."""
    if event == "open":
        path, mode, flags = args
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        writes = bool(flags & WRITES) if mode is None else any(letter in mode for letter in "wax+")
        if writes == reads:
            return None
    elif (event in CHANGES or event == "os.fsync") and not reads and not isinstance(args[0], int):
        path = args[0]
    else:
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - pathlib would raise events of its own


def strike(what, path):
    """Do to this process, or to the file, what the hook says."""
    if what.startswith("SIG"):
        name, _, group = what.partition("-")
        send, target = (os.killpg, os.getpgrp()) if group else (os.kill, os.getpid())
        send(target, getattr(signal, name))
    elif name := what.removeprefix("remove").strip():
        Path(path).with_name(name).unlink()
    else:
        shutil.rmtree(Path(path).parent)
