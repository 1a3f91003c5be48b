"""Tables of plain text within 100 columns, and JSON."""

from __future__ import annotations

import importlib.metadata
import platform
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch

from voidrl import __version__
from voidrl.runs.folder import git_state

Row = dict[str, Any]
WIDTH = 100
MISSING = "–"


class Column(NamedTuple):
    """A column of a table; the first of them is set to the left, the others to the right."""

    title: str
    width: int
    text: Callable[[Row], str]


def header(columns: Sequence[Column]) -> str:
    """The titles, underlined."""
    titles = _line(columns, [column.title for column in columns])
    return f"{titles}\n{'─' * len(titles)}"


def line(columns: Sequence[Column], row: Row) -> str:
    """One row."""
    return _line(columns, [column.text(row) for column in columns])


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    aligned = [
        f"{cell:{'>' if i else '<'}{column.width}}"
        for i, (column, cell) in enumerate(zip(columns, cells, strict=True))
    ]
    return " ".join(aligned)


def details(text: str) -> str:
    """What does not fit into a column, below its row."""
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def number(value: float | None, unit: str = "") -> str:
    """Four significant digits, or a dash for what is not known."""
    if value is None:
        return MISSING
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}{unit}"


def percent(share: float | None) -> str:
    """Whole per cents, or a dash."""
    return MISSING if share is None else f"{share:.0%}"


def ratio(row: Row) -> str:
    """How many times as fast as what it is compared with."""
    return f"{row['ratio']:.2f}×" if row.get("ratio") is not None else MISSING


def spread(row: Row, prefix: str) -> str:
    """Slowest and fastest repeat."""
    return f"{number(row[f'{prefix}_min'])}–{number(row[f'{prefix}_max'])}"


def shown(key: str, unit: str = "") -> Callable[[Row], str]:
    """A number of a row, for a column."""
    return lambda row: number(row.get(key), unit)


def versions() -> dict[str, str]:
    """What the figures depend on besides the hardware."""
    found = {"voidrl": __version__, "python": platform.python_version(), "torch": torch.__version__}
    with suppress(importlib.metadata.PackageNotFoundError):
        found["triton"] = importlib.metadata.version("triton")
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """The processor, and the GPU where it is used."""
    found: dict[str, Any] = {"cpu": cpu_model(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpu_memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1)
    return found


def cpu_model() -> str:
    """As the system names it."""
    with suppress(OSError), open("/proc/cpuinfo") as file:  # noqa: PTH123
        for text in file:
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def document(
    command: Sequence[str], device: torch.device, extra: Mapping[str, Any], rows: Sequence[Row]
) -> Row:
    """What `--json` writes."""
    return {
        "command": " ".join(["voidrl", "bench", *command]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(),
        "hardware": hardware(device),
        "device": str(device),
        **extra,
        "rows": list(rows),
    }


def summary(device: torch.device) -> str:
    """One line above a table."""
    has, uses = hardware(device), versions()
    place = has.get("gpu") or f"{has['cpu']}, {has['threads']} threads"
    return f"{place}; " + ", ".join(f"{name} {version}" for name, version in uses.items())
