"""report."""

from __future__ import annotations

from voidrl.cli.options import make_parser


def report(argv: list[str]) -> None:
    """Write the results of runs to one page: `voidrl report RUNS -o report.html`."""
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
    parser.set_defaults(figure_formats=["png", "pdf"])
    options = parser.parse_args(argv)
    from voidrl.report.page import write_report

    options.out = options.out or f"report.{options.form or 'html'}"
    path = write_report(**vars(options))
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
