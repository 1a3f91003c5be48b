"""The options of `voidrl bench`. Does not import torch, so that the help is there at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from voidrl.bench.workloads import WORKS
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.terminal.tables import described, fit

ENGINES = ("auto", "eager", "graph", "compile")
PRECISIONS = ("auto", "fp32", "bf16")
DEFAULT_ENV = "voidrl/PixelMaze-v0"
MAX_SECONDS = 3600  # of a measurement
ABOUT = {
    "update": "updates per second of named workloads, and where their time goes",
    "knn": "the search for nearest neighbors",
    "sample": "reading a learner's batch of images: gather, stack, shift, scale",
    "train": "a whole run: environments, replay and updates together",
    "env": "environments alone, with random actions",
}


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Read a command line into options, checked as far as that is possible without torch."""
    if argv and not argv[0].startswith("-") and argv[0] not in ABOUT:
        raise UnknownNameError("benchmark", argv[0], ABOUT, "See `voidrl bench --help`.")
    kinds = parser.add_subparsers(dest="what", required=True, metavar="{" + ",".join(ABOUT) + "}")
    for name, add in ADDERS.items():
        add(_benchmark(kinds, name))
    options = parser.parse_args(argv)
    options.argv = argv
    if not 0 < getattr(options, "seconds", 1) <= MAX_SECONDS:
        raise ConfigError(
            f"--seconds {options.seconds} cannot be used: expected more than 0 and at most {MAX_SECONDS}"
        )
    for name in ("json", "profile"):
        path = getattr(options, name, None)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(f"--{name} {path} cannot be written: expected a file in a folder that is there")
    return options


def _benchmark(kinds: argparse._SubParsersAction, name: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=ABOUT[name],
        description=fit(f"Measure {ABOUT[name]}.", indent=0),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    return parser


def _add_seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: 2)")


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="how updates run (default: auto)")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="of products (default: auto)")
    parser.add_argument("--against", choices=ENGINES[1:], help="an engine measured beside it")


def _add_update(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"workloads:\n{described({name: work.about for name, work in WORKS.items()})}"
    parser.add_argument(
        "works",
        nargs="*",
        metavar="WORK",
        help="workloads, from the list below (default: all on CUDA, maze on a CPU)",
    )
    _add_device(parser)
    _add_seconds(parser)
    _add_engine(parser)
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="write a Chrome trace of some updates of one workload"
    )


def _add_knn(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sizes",
        nargs="*",
        metavar="N,M,D,K",
        help="queries, particles, width and neighbors, such as 512,1M,15,10 (default: some)",
    )
    _add_device(parser)
    _add_seconds(parser)
    parser.add_argument("--against", choices=("torch",), help="torch.cdist and topk, measured beside it")


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, default=512, help="observations at once (default: 512)")
    _add_device(parser)
    _add_seconds(parser)
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="auto", help="of the images (default: auto)"
    )
    parser.add_argument("--against", choices=("torch",), help="plain PyTorch, measured beside it")


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "env", nargs="?", default=DEFAULT_ENV, metavar="ENV", help=f"(default: {DEFAULT_ENV})"
    )
    parser.add_argument("--preset", help="(default: the environment's own, else maze-demo)")
    parser.add_argument("--steps", default="8k", help="of all environments together (default: 8k)")
    parser.add_argument("--num-envs", type=int, help="stepped together (default: the preset's)")
    parser.add_argument("--updates-per-step", type=float, help="(default: the preset's)")
    _add_device(parser)
    _add_engine(parser)


def _add_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "env", nargs="?", default=DEFAULT_ENV, metavar="ENV", help=f"(default: {DEFAULT_ENV})"
    )
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 16, 64], help="(default: 1 16 64)")
    parser.add_argument("--backend", choices=("auto", "native", "sync", "async"), default="auto")
    parser.add_argument("--preset", help="whose options of environments are taken (default: its own)")
    _add_seconds(parser)


ADDERS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "update": _add_update,
    "knn": _add_knn,
    "sample": _add_sample,
    "train": _add_train,
    "env": _add_env,
}
