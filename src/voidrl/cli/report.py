"""report."""

from __future__ import annotations

import signal

from voidrl.cli.options import Parser
from voidrl.errors import StoppedBySignal


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
        print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
        return
    try:
        watch_report(**options)
    except StoppedBySignal as stop:
        if stop.number != signal.SIGINT:
            raise
        raise SystemExit(0) from None  # the usual way to end it
