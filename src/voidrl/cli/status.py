"""status · report."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from voidrl.cli.options import Parser
from voidrl.config import require
from voidrl.errors import StoppedBySignal, printable
from voidrl.system.terminal.tables import is_terminal, make_console, print_table, width_of, wrap_text
from voidrl.system.units import human_count, human_seconds, plural

if TYPE_CHECKING:
    from rich.console import Group

    from voidrl.report.live import LiveRun, LiveTable

# The width of a terminal from which a column is shown; elsewhere all are.
COLUMNS = {"run": 0, "state": 0, "steps": 0, "rate": 90, "eta": 0, "score": 75, "node": 110, "beat": 120}
ORDER = ("failed", "running", "stopped", "waiting", "pruned", "done")  # what is redrawn may be cut at its end
STYLES = {"running": "cyan", "done": "green", "failed": "red", "stopped": "yellow", "waiting": "dim"}
SHORT = {"eval/return": "eval", "eval/success": "success", "episode/return": "return"}


def status(argv: list[str]) -> None:
    """Show the state of runs, here and on other machines: `voidrl status`."""
    parser = Parser("status", status.__doc__)
    add = parser.add_argument
    paths_help = "an experiment's folder, a run, or folders with runs in them (default: runs)"
    add("paths", nargs="*", default=["runs"], metavar="PATH", help=paths_help)
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
    elif is_terminal(sys.stdout) and not (options.once or snapshot.is_over):
        _follow(watch, snapshot, options.interval)
    elif watch.is_of_one_run:
        for name, value in _details(snapshot.runs[0]).items():
            print(wrap_text(f"{name:<10}  {value}", indent=12))
    else:
        print_status(snapshot)


def _follow(watch: Any, snapshot: LiveTable, interval: float) -> None:
    """Redraw the table until all runs are over, or Ctrl-C."""
    from rich.live import Live

    with _until_ctrl_c(), Live(console=make_console(sys.stdout), auto_refresh=False) as live:
        while True:
            live.console.width = width_of(sys.stdout)  # the window may have changed
            live.update(drawn(snapshot, live.console.width, active_first=True), refresh=True)
            if snapshot.is_over:
                return
            time.sleep(interval)
            snapshot = watch.look()


@contextmanager
def _until_ctrl_c() -> Iterator[None]:
    """Ctrl-C is the usual way to end what watches runs."""
    try:
        yield
    except StoppedBySignal as stop:
        if stop.number != signal.SIGINT:
            raise
        raise SystemExit(0) from None


def print_status(snapshot: LiveTable) -> None:
    """Print the whole table, and why runs failed."""
    if is_terminal(sys.stdout):
        make_console(sys.stdout).print(drawn(snapshot, width_of(sys.stdout)))
        return
    print_table([*COLUMNS], [[*_cells(run).values()] for run in snapshot.runs])
    print("", *_failures(snapshot), _sums(snapshot), sep="\n")


def drawn(snapshot: LiveTable, width: int, *, active_first: bool = False) -> Group:
    """The sums, the table in the given width, and why runs failed."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    runs = snapshot.runs
    if active_first:
        runs = sorted(runs, key=lambda run: ORDER.index(run.group))
    columns = [name for name, least in COLUMNS.items() if width >= least]
    rows = [_cells(run) for run in runs]
    taken = sum(2 + max(len(name), *(len(row[name]) for row in rows)) for name in columns[1:])
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in ("run", "state", "node") else "right")
    for run, row in zip(runs, rows, strict=True):
        row["run"] = _cut(row["run"], width - taken - 2)
        styles = {"state": STYLES.get(run.group, "")}
        table.add_row(*(Text(row[name], styles.get(name, "")) for name in columns))
    return Group(Text(_sums(snapshot), "bold"), table, *map(Text, _failures(snapshot)))


def _cut(name: str, room: int) -> str:
    """A name with its beginning, such as the task, and its end, such as the seed."""
    if len(name) <= room:
        return name
    head = max(0, room - 1) // 3
    return f"{name[:head]}…{name[len(name) - max(0, room - 1 - head) :]}"


def _cells(run: LiveRun) -> dict[str, str]:
    """The cells of a row as text."""
    shows_steps = run.total_steps or run.state == "waiting"
    steps = f"{human_count(run.steps)}/{human_count(run.total_steps)}" if shows_steps else ""
    where = (run.host.partition(".")[0], run.device, f"×{run.ranks}" if run.ranks > 1 else "")
    beat = run.heartbeat_age if run.group == "running" else None
    name = SHORT.get(run.score_name, run.score_name.rpartition("/")[2])
    found = {
        "run": run.name,
        "state": run.state,
        "steps": steps,
        "rate": f"{human_count(run.rate)}/s" if run.rate is not None and run.state != "evaluating" else "",
        "eta": "" if run.seconds_left is None else human_seconds(run.seconds_left),
        "score": "" if run.score is None else f"{name} {human_count(run.score)}",
        "node": " ".join(filter(None, where)),
        "beat": "" if beat is None else human_seconds(beat),
    }
    return {column: printable(text) for column, text in found.items()}


def _details(run: LiveRun) -> dict[str, str]:
    """One run in full."""
    percent = 100 * run.steps // max(1, run.total_steps)
    cells = _cells(run)
    step = "" if run.score_step is None else f" at step {run.score_step}"
    remedy = f"voidrl resume {shlex.quote(str(run.path))}"
    found = {
        "run": str(run.path),
        "state": run.state,
        "error" if run.state == "failed" else "because": run.note,
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


def _failures(snapshot: LiveTable) -> list[str]:
    """Why runs failed, in their order."""
    failed = [run for run in snapshot.runs if run.state == "failed" and run.note]
    return [printable(f"failed: {run.name}: {run.note}") for run in failed]


def _sums(snapshot: LiveTable) -> str:
    rare = ("stopped", "failed", "pruned")
    counts = [f"{n} {name}" for name, n in snapshot.counts.items() if n or name not in rare]
    left = snapshot.seconds_left
    eta = "" if left is None else f"; eta of all {human_seconds(left)}"
    return f"{plural(len(snapshot.runs), 'run')}: {', '.join(counts)}{eta}"


def report(argv: list[str]) -> None:
    """Show the results of runs, and write them to one page: `voidrl report RUNS -o report.html`."""
    parser = Parser("report", report.__doc__)
    add = parser.add_argument
    paths_help = "run folders, or folders that hold some at any depth, such as an experiment's"
    add("paths", nargs="+", metavar="PATH", help=paths_help)
    out_help = "what to write: .html, or .json with a record of each run (default: report.html)"
    add("-o", "--out", metavar="FILE", default="report.html", help=out_help)
    add("--title", help="title of the page (default: the experiment's)")
    media_help = "leave out videos, which take most of the time"
    add("--no-media", dest="media", action="store_false", help=media_help)
    watch_help = "write the page again whenever runs have changed, until all are done; it reloads itself"
    add("--watch", action="store_true", help=watch_help)
    options = vars(parser.parse_args(argv))
    from voidrl.report.page import watch_report, write_report

    if not options.pop("watch"):
        path = write_report(**options)
        print(f"report: {printable(path)} ({path.stat().st_size / 1e6:.1f} MB)")
        return
    with _until_ctrl_c():
        watch_report(**options)
