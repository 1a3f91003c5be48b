"""report."""

from __future__ import annotations

import argparse
import signal

from voidrl.cli.options import make_parser
from voidrl.errors import ConfigError, StoppedBySignal


def report(argv: list[str]) -> None:
    """Write the results of runs to one page: `voidrl report RUNS -o report.html`, or `--watch` them."""
    parser = make_parser("report", report.__doc__)
    add = parser.add_argument
    paths_help = "run folders, or folders that hold some at any depth, such as an experiment's"
    add("paths", nargs="+", metavar="PATH", help=paths_help)
    out_help = "what to write: .html, .md for text or .csv with a row for each run (default: report.html)"
    add("-o", "--out", metavar="FILE", help=out_help)
    forms = ["html", "md", "csv"]
    add("--format", dest="form", choices=forms, help="if the file name does not say (default: html)")
    add("--title", help="title of the page (default: the experiment's)")
    media_help = "leave out videos and maps, which take most of the time"
    add("--no-media", dest="media", action="store_false", help=media_help)
    add("--figures", metavar="DIR", help="also draw curves and heat maps for papers (extra plot)")
    formats_help = "of the figures: png, pdf, svg … (default: png pdf)"
    add("--figure-format", dest="figure_formats", nargs="+", metavar="NAME", help=formats_help)
    watch_help = "serve a live table of the runs, their reports and logs to browsers on this machine instead"
    add("--watch", action="store_true", help=watch_help)
    add("--port", type=int, help="for --watch, 0 for any that is free (default: 8765)")
    parser.set_defaults(figure_formats=["png", "pdf"])
    options = parser.parse_args(argv)
    port, watches = options.port, options.watch
    del options.port, options.watch
    if watches:
        _watch(parser, options, port)
        return
    if port is not None:
        raise ConfigError(f"--port {port} cannot be used: it is for --watch; add that, or leave it out")
    from voidrl.report.page import write_report

    options.out = options.out or f"report.{options.form or 'html'}"
    path = write_report(**vars(options))
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _watch(parser: argparse.ArgumentParser, options: argparse.Namespace, port: int | None) -> None:
    for name, value in vars(options).items():
        if name != "paths" and value != parser.get_default(name):
            given = {"form": "format", "media": "no-media", "figure_formats": "figure-format"}.get(name, name)
            raise ConfigError(f"--{given} cannot be used with --watch, which writes no file: leave one out")
    from voidrl.report.serve import PORT, serve
    from voidrl.system.terminal.output import say

    try:
        serve(options.paths, PORT if port is None else port, say)
    except StoppedBySignal as stop:
        if stop.number != signal.SIGINT:
            raise
        raise SystemExit(0) from None  # this is how one leaves it
