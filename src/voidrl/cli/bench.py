"""bench."""

from __future__ import annotations

from voidrl.cli.options import make_parser


def bench(argv: list[str]) -> None:
    """Measure speed on this machine, against its limits: `voidrl bench {update,knn,sample,train,env}`."""
    from voidrl.cli.benchmarks import options

    given = options.parse(make_parser("bench", bench.__doc__), argv)  # before torch, which takes seconds
    from voidrl.cli.benchmarks.run import run

    run(given)
