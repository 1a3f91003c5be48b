"""status."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from voidrl.cli.options import make_parser
from voidrl.config import require
from voidrl.errors import StoppedBySignal
from voidrl.system.terminal.screen import is_log, is_terminal, width_of
from voidrl.system.terminal.tables import make_console, print_table, writable
from voidrl.system.units import human_count, human_seconds

if TYPE_CHECKING:
    from rich.text import Text

    from voidrl.report.live import LiveRun, LiveTable

COLUMNS = ("run", "state", "steps", "rate", "eta", "score", "node", "beat")
# Columns that are left out first where a terminal is too narrow, after the devices.
LEAST_NEEDED = ("rate", "beat", "node", "score")
MIN_NAME = 18
MAX_NOTES = 6  # sentences below a table that is redrawn
STYLES = {"running": "cyan", "done": "green", "failed": "red", "stopped": "yellow", "waiting": "dim"}
SHORT = {"eval/return": "eval", "eval/success": "success", "episode/return": "return"}


def status(argv: list[str]) -> None:
    """Show the state of runs, here and on other machines: `voidrl status RUNS`."""
    parser = make_parser("status", status.__doc__)
    add = parser.add_argument
    add(
        "paths", nargs="+", metavar="PATH", help="an experiment's folder, a run, or folders with runs in them"
    )
    interval_help = "seconds between two looks, on a terminal (default: 2)"
    add("--interval", type=float, default=2.0, metavar="SECONDS", help=interval_help)
    add("--once", action="store_true", help="print one table and end; a pipe or a file gets no more anyway")
    add("--json", action="store_true", help="print it as JSON, once")
    options = parser.parse_args(argv)
    require(options.interval > 0, "--interval", options.interval, "a number of seconds above 0")
    from voidrl.report.live import Watch

    watch = Watch(options.paths)
    snapshot = watch.look()
    if options.json:
        print(json.dumps(snapshot.to_json(), indent=2))
    elif options.once or snapshot.is_over or not is_terminal(sys.stdout):
        print_status(snapshot, sys.stdout, detailed=watch.is_of_one_run)
    else:
        from rich.console import Group
        from rich.live import Live

        try:
            with Live(console=make_console(sys.stdout), auto_refresh=False) as live:
                while True:
                    live.console.width = width = width_of(sys.stdout)  # the window may have changed
                    lines = detail_lines(snapshot.runs[0], width) if watch.is_of_one_run else None
                    live.update(Group(*(lines or table_lines(snapshot, width, _height()))), refresh=True)
                    if snapshot.is_over:
                        return
                    time.sleep(options.interval)
                    snapshot = watch.look()
        except StoppedBySignal as stop:
            if stop.number != signal.SIGINT:
                raise
            raise SystemExit(0) from None  # this is how one leaves it


def print_status(snapshot: LiveTable, stream: TextIO, *, detailed: bool) -> None:
    """Print the whole table, or the details of one run."""
    if is_log(stream):
        if detailed:
            for name, value in _details(snapshot.runs[0]).items():
                print(f"{name:<10}  {writable(value, stream)}", file=stream)
            return
        print_table(COLUMNS, [[*_cells(run).values()] for run in snapshot.runs], file=stream)
        for line in ("", *_notes(snapshot), _sums(snapshot)):
            print(writable(line, stream), file=stream)
        return
    console, width = make_console(stream), width_of(stream)
    lines = detail_lines(snapshot.runs[0], width) if detailed else table_lines(snapshot, width, None)
    for each in lines:
        console.print(each)


def table_lines(snapshot: LiveTable, width: int, height: int | None) -> list[Text]:
    """The table, each line at most `width` wide: columns are left out, then names are cut.

    Within a height, runs that are active or went wrong come first, and others are counted.
    """
    from rich.text import Text

    runs, more = snapshot.runs, ""
    notes = _notes(snapshot)
    if height is not None:
        notes = notes[:MAX_NOTES]
        room = max(1, height - len(notes) - 4)  # a header, a count of the rest, the sums, the cursor's line
        if len(runs) > room:
            order = ("running", "failed", "stopped", "waiting", "pruned", "done")
            first = sorted(range(len(runs)), key=lambda i: order.index(runs[i].group))[:room]
            more = f"… and {len(runs) - room} more"
            runs = [runs[i] for i in sorted(first)]
    table, left_out = _fit([_cells(run) for run in runs], width)
    nodes = {run.host for run in runs if run.host}
    lines = [Text("  ".join(table[0]).rstrip(), "dim", no_wrap=True, overflow="crop")]
    for run, cells in zip(runs, table[1:], strict=True):
        line = Text(no_wrap=True, overflow="crop")
        for i, cell in enumerate(cells):
            line.append("  " if i else "").append(cell, STYLES.get(run.group, "") if i == 1 else "")
        lines.append(line)
    if more:
        lines.append(Text(more, "dim"))
    for note in notes:
        line = Text(note if height is not None else _wrapped(note, width, 2))
        if height is not None:
            line.truncate(width, overflow="ellipsis")
        lines.append(line)
    sums = _sums(snapshot)
    if "node" in left_out and len(nodes) == 1:
        sums += f", on {_short(next(iter(nodes)))}"
    lines.append(Text(_wrapped(sums, width, 2), "bold"))
    return lines


def _wrapped(text: str, width: int, indent: int) -> str:
    return textwrap.fill(
        text, max(width, 20), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def detail_lines(run: LiveRun, width: int) -> list[Text]:
    """The details of one run."""
    from rich.text import Text

    found = _details(run)
    pad = max(map(len, found)) + 2
    lines = []
    for name, value in found.items():
        style = STYLES.get(run.group, "") if name == "state" else ""
        text = _wrapped(" " * pad + value, width, pad)[pad:]
        lines.append(Text.assemble((f"{name:<{pad}}", "dim"), (text, style), overflow="fold"))
    return lines


def _fit(rows: Sequence[dict[str, str]], width: int) -> tuple[list[list[str]], list[str]]:
    """Aligned cells under their names, with as many columns as fit; also the columns that do not."""
    names = [row["run"] for row in rows]
    longest = max(map(len, names))
    columns = [column for column in COLUMNS[1:] if any(row[column] for row in rows) or column == "state"]
    left_out: list[str] = []

    def widths() -> dict[str, int]:
        return {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}

    def room() -> int:
        return width - sum(w + 2 for w in widths().values())

    def lacks_room() -> bool:
        least, left = min(longest, MIN_NAME), room()
        return left < least or len({_cut(name, left) for name in names}) < len({*names})

    if lacks_room() and "node" in columns:
        rows = [{**row, "node": row["node"].partition(" ")[0]} for row in rows]
    for column in LEAST_NEEDED:
        if lacks_room() and column in columns:
            columns.remove(column)
            left_out.append(column)
    sizes = widths()
    size = max(4, min(max(longest, 3), room()))
    table = [["run".ljust(size), *(_aligned(column, column, w) for column, w in sizes.items())]]
    for row, name in zip(rows, names, strict=True):
        shown = _cut(name, size).ljust(size)
        table.append([shown, *(_aligned(row[column], column, w) for column, w in sizes.items())])
    return table, left_out


def _cut(name: str, room: int) -> str:
    """A name with its beginning, such as the task, and its end, such as the seed."""
    if len(name) <= room:
        return name
    head = max(0, room - 1) // 3
    return f"{name[:head]}…{name[len(name) - max(0, room - 1 - head) :]}"


def _aligned(text: str, column: str, width: int) -> str:
    return text.ljust(width) if column in ("state", "node", "score") else text.rjust(width)


def _cells(run: LiveRun) -> dict[str, str]:
    """The cells of a row as text."""
    steps = f"{human_count(run.steps)}/{human_count(run.total_steps)}" if run.total_steps else ""
    alive = run.group == "running"
    if run.state == "waiting" and not run.steps:
        steps = f"0/{human_count(run.total_steps)}"
    where = (_short(run.host), run.device, f"×{run.ranks}" if run.ranks > 1 else "")
    return {
        "run": run.name,
        "state": run.state,
        "steps": steps,
        "rate": f"{human_count(run.rate)}/s" if run.rate is not None and run.state != "evaluating" else "",
        "eta": "" if run.seconds_left is None else human_seconds(run.seconds_left),
        "score": _score(run),
        "node": " ".join(filter(None, where)),
        "beat": human_seconds(run.heartbeat_age) if alive and run.heartbeat_age is not None else "",
    }


def _details(run: LiveRun) -> dict[str, str]:
    percent = 100 * run.steps // max(1, run.total_steps)
    cells = _cells(run)
    step = "" if run.score_step is None else f" at step {run.score_step}"
    remedy = f"voidrl resume {shlex.quote(str(run.path))}"
    found = {
        "run": str(run.path),
        "state": run.state,
        "error": run.note if run.state == "failed" else "",
        "because": run.note if run.state != "failed" else "",
        "steps": f"{run.steps} of {run.total_steps} ({min(100, percent)} %)",
        "rate": "" if run.rate is None else f"{human_count(run.rate)} steps/s",
        "eta": cells["eta"],
        "score": "" if run.score is None else f"{run.score_name} {run.score:.6g}{step}",
        "checkpoint": "none yet" if run.checkpoint is None else f"step {run.checkpoint}",
        "node": cells["node"],
        "process": str(run.pid or ""),
        "started": run.started,
        "heartbeat": "" if run.heartbeat_age is None else f"{human_seconds(run.heartbeat_age)} ago",
        "log": str(run.log or ""),
        "resume": remedy if run.state in ("stopped", "interrupted", "failed") and run.steps else "",
    }
    return {name: value for name, value in found.items() if value}


def _score(run: LiveRun) -> str:
    if run.score is None:
        return ""
    return f"{SHORT.get(run.score_name, run.score_name.rpartition('/')[2])} {human_count(run.score)}"


def _short(host: str) -> str:
    return host.partition(".")[0]


def _notes(snapshot: LiveTable) -> list[str]:
    """Why runs failed, in their order."""
    return [f"failed: {run.name}: {run.note}" for run in snapshot.runs if run.state == "failed" and run.note]


def _sums(snapshot: LiveTable) -> str:
    counts = [
        f"{n} {name}"
        for name, n in snapshot.counts.items()
        if n or name not in ("stopped", "failed", "pruned")
    ]
    left = snapshot.seconds_left
    eta = "" if left is None else f"; eta of all {human_seconds(left)}"
    return f"{len(snapshot.runs)} {'run' if len(snapshot.runs) == 1 else 'runs'}: {', '.join(counts)}{eta}"


def _height() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except (OSError, ValueError):
        return 24
