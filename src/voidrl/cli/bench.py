"""bench."""

from __future__ import annotations

from voidrl.cli.options import make_parser


def bench(argv: list[str]) -> None:
    """How fast it is here, and how fast it could be: `voidrl bench {update,knn,sample,train,env}`."""
    from voidrl.bench import options

    given = options.parse(
        make_parser("bench", bench.__doc__), argv
    )  # before torch is imported, which takes seconds
    from voidrl.bench.run import run

    run(given)
