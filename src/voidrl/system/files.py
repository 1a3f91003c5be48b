"""Paths as users write them, and strict readers of untrusted JSON and TOML.

Whatever is wrong with the content of a file is an OSError or a ValueError, never another exception. Files
that are too large, nested too deeply, not regular or not UTF-8 are refused, and so are JSON with repeated
keys, NaN or infinity, and absurdly long numbers.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import ConfigError, shown, similar_names
from voidrl.system.machine import existing
from voidrl.system.units import human_bytes

MAX_JSON_BYTES = 64 << 20  # evaluations and manifests have a few megabytes at most
MAX_TOML_BYTES = 1 << 20
MAX_BITS = 1000  # of an integer, which stays within the range of floats
OPEN_FILES_REMEDY = "raise `ulimit -n`"
FEW_INODES = 100  # some are free again once a half-written checkpoint has been removed
MAX_DEPTH = 32  # tables within tables; a config has four


def user_path(given: str | Path) -> Path:
    """Expand `~`, and refuse paths that no system call would accept, existing or not."""
    path = Path(given)
    try:
        str(given).encode()  # safetensors opens no other paths
        path = path.expanduser()
        os.stat(path)  # noqa: PTH116 - `Path.exists` raises some of its errors and hides others
    except (FileNotFoundError, NotADirectoryError):
        pass  # whether something has to be there is the caller's question
    except (OSError, ValueError, RuntimeError) as error:  # too long, a loop of links, no permission, …
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, UnicodeEncodeError):
            why = "it is not UTF-8"
        elif isinstance(error, RuntimeError):  # of `expanduser`
            why = f"there is no user {str(given).partition('/')[0][1:]!r}"
        raise ConfigError(
            f"the path {shown(str(given))} cannot be used: {why[0].lower()}{why[1:]}; choose another"
        ) from None
    return path


def similar_paths(path: Path) -> list[str]:
    """Existing paths that may have been meant: in the same folder, or of the same name in a similar one."""
    if path.parent.is_dir():
        names = [entry.name for entry in path.parent.iterdir()]
        return [str(path.parent / name) for name in similar_names(path.name, names)]
    found = [Path(near, path.name) for near in similar_paths(path.parent)]
    return [str(each) for each in found if each.exists()]


def path_hint(path: Path) -> str:
    """`; did you mean …?` with similar paths, or an empty text."""
    near = similar_paths(path)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def why_refused(error: OSError, folder: Path, remedy: str) -> tuple[str, str]:
    """Why the system refused to open or write a file in a folder, and what to do about it."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files", OPEN_FILES_REMEDY
    if error.errno == errno.EFBIG:
        return "the file would be too large", "raise `ulimit -f`, or choose another disk"
    if error.errno == errno.ENOSPC:
        with suppress(OSError):
            found = os.statvfs(existing(folder))
            if found.f_files and found.f_favail < FEW_INODES:  # the space may be there
                return "no inodes left", "delete files there, however small"
    return error.strerror or str(error), remedy


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file, for writing into folders that a stranger may have filled.

    A pipe would be waited for, a link be followed elsewhere.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
    return descriptor


def read_text(path: Path, max_bytes: int) -> str:
    """The text of a regular file of limited size."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for without end
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {human_bytes(max_bytes)}")
    return data.decode("utf-8-sig")  # as some editors save it


def parse_json(text: str) -> Any:
    """The value of a JSON text, without the extensions that Python accepts."""
    hooks = {"parse_constant": _refuse_constant, "parse_float": _finite, "object_pairs_hook": _unique}
    return _parse(json.loads, text, **hooks)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text."""
    table: dict[str, Any] = _parse(tomllib.loads, text)
    return table


def _parse(loads: Callable[..., Any], text: str, **hooks: Any) -> Any:
    try:
        data = loads(text, **hooks)
        _require_plain(data)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:40]!r} appears twice")
        found[name] = value
    return found


def _require_plain(data: Any, depth: int = MAX_DEPTH) -> None:
    """Refuse nesting on which recursive code would fail, and integers that cannot be printed."""
    if isinstance(data, dict | list):
        if not depth:
            raise RecursionError
        for each in data.values() if isinstance(data, dict) else data:
            _require_plain(each, depth - 1)
    elif isinstance(data, int) and data.bit_length() > MAX_BITS:  # 0xfff… of any length is valid TOML
        raise ValueError(f"a number has more than {MAX_BITS} bits")
