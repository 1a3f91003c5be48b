"""report."""

from __future__ import annotations

from voidrl.cli.options import make_parser


def report(argv: list[str]) -> None:
    """Write the results of runs to one page: `voidrl report RUNS -o report.html`."""
    parser = make_parser("report", report.__doc__)
    parser.add_argument(
        "paths", nargs="+", metavar="PATH",
        help="run folders, or folders that hold some at any depth, such as an experiment's",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", metavar="FILE",
        help="what to write: .html, .md for text or .csv with a row for each run (default: report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=["html", "md", "csv"], help="if the file name does not say (default: html)"
    )
    parser.add_argument("--title", help="title of the page (default: the experiment's)")
    parser.add_argument(
        "--no-media", action="store_true", help="leave out videos and maps, which take most of the time"
    )
    parser.add_argument(
        "--figures", metavar="DIR", help="also draw curves and heat maps for papers (extra plot)"
    )
    parser.add_argument(
        "--figure-format", nargs="+", metavar="NAME", default=["png", "pdf"],
        help="of the figures: png, pdf, svg … (default: png pdf)",
    )  # fmt: skip
    options = parser.parse_args(argv)
    from voidrl.report.page import write_report

    path = write_report(
        options.paths,
        options.out or f"report.{options.format or 'html'}",
        title=options.title,
        media=not options.no_media,
        form=options.format,
        figures=options.figures,
        figure_formats=options.figure_format,
    )
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
