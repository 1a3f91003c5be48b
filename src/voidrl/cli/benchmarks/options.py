"""The options of `voidrl bench`. Does not import torch, so that `--help` is instant."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from voidrl.cli.benchmarks.workloads import AGENT_WORKLOADS, WORKLOADS, find_workload, find_workloads
from voidrl.config import registry, require
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.presets.presets import default_preset, protocol_for
from voidrl.system.terminal.tables import described, wrap_text
from voidrl.system.units import parse_count

ENGINES = ("auto", "eager", "graph", "compile")
UNIFORM = "uniform"
PRECISIONS = ("auto", "fp32", "bf16")
DEFAULT_ENV = "voidrl/PixelMaze-v0"
MAX_SECONDS = 3600
LOG_ROWS = 20  # of a run in `bench train`; more rows would mean more host reads than a real run has
ABOUT = {
    "update": "updates per second of named workloads, and where their time goes",
    "knn": "the k-nearest-neighbor search",
    "sample": "reading a learner's batch of images: gather, stack, shift, scale; or drawing it",
    "train": "a whole run: environments, replay and updates together",
    "env": "environments alone, with random actions",
}


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse and check a command line."""
    if argv and not argv[0].startswith("-") and argv[0] not in ABOUT:
        raise UnknownNameError("benchmark", argv[0], ABOUT, "See `voidrl bench --help`.")
    subparsers = parser.add_subparsers(dest="what", required=True, metavar="{" + ",".join(ABOUT) + "}")
    style: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    for name, about in ABOUT.items():
        description = wrap_text(f"Measure {about}.", indent=0)
        _add_options(name, subparsers.add_parser(name, help=about, description=description, **style))
    options = parser.parse_args(argv)
    options.argv = argv
    _check(options)
    return options


def _add_options(name: str, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    if name == "update":
        about = {name: w.about for name, w in WORKLOADS.items()}
        about["agents"] = f"agents trained from scratch, or some of them: {', '.join(AGENT_WORKLOADS)}"
        parser.epilog = f"workloads:\n{described(about)}"
        help_text = "workloads, from the list below (default: all on CUDA, maze on a CPU)"
        add("workloads", nargs="*", metavar="WORKLOAD", help=help_text)
        help_text = "methods in place of the workload's own, each compared with the first; `all` of them"
        add("--methods", nargs="+", metavar="NAME", default=[], help=help_text)
        add("--profile", type=Path, metavar="FILE", help="write a Chrome trace of one workload")
    elif name == "knn":
        help_text = "queries, particles, dimension and neighbors, such as 512,1M,15,10 (default: five sizes)"
        add("sizes", nargs="*", metavar="N,M,D,K", help=help_text)
    elif name == "sample":
        add("--batch-size", type=int, default=512, help="observations per batch (default: 512)")
        help_text = "compare prioritized with uniform sampling instead of reading images"
        add("--prioritized", action="store_true", help=help_text)
        add("--entries", default="1M", help="transitions to sample from with --prioritized (default: 1M)")
    else:
        add("env", nargs="?", default=DEFAULT_ENV, metavar="ENV", help=f"(default: {DEFAULT_ENV})")
    if name == "train":
        add("--preset", help="(default: the environment's, else maze-demo)")
        add("--steps", default="8k", help="of all environments together (default: 8k)")
        add("--num-envs", type=int, help="(default: the preset's)")
        add("--updates-per-step", type=float, help="(default: the preset's)")
    if name == "env":
        add("--num-envs", type=int, nargs="+", default=[1, 16, 64], help="(default: 1 16 64)")
        add("--backend", choices=("auto", "native", "sync", "async", "tensor"), default="auto")
        add("--preset", help="take the environment's options from this preset (default: its own)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    if name != "train":
        add("--seconds", type=float, default=2.0, help="per measurement (default: 2)")
    if name in ("update", "train"):
        add("--engine", choices=ENGINES, default="auto", help="how updates run (default: auto)")
        uniform = (UNIFORM,) if name == "update" else ()
        help_text = f"compare with another engine{', or with uniform replay' if uniform else ''}"
        add("--against", choices=(*ENGINES[1:], *uniform), help=help_text)
    if name in ("knn", "sample"):
        add("--against", choices=("torch",), help="compare with plain PyTorch")
    if name in ("update", "train", "sample"):
        add("--precision", choices=PRECISIONS, default="auto", help="(default: auto)")


def _check(options: argparse.Namespace) -> None:
    """Check the values, and replace sizes and counts by numbers."""
    if not 0 < getattr(options, "seconds", 1) <= MAX_SECONDS:
        raise ConfigError(
            f"--seconds {options.seconds} cannot be used: expected more than 0 and at most {MAX_SECONDS}"
        )
    for name in ("json", "profile"):
        path = getattr(options, name, None)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(f"--{name} {path} cannot be written: expected a file in an existing folder")
    if options.what == "update":
        options.workloads = [found for name in options.workloads for found in find_workloads(name)]
        options.methods = _find_methods(options.workloads, options.methods)
        traces = len(options.workloads) * max(1, len(options.methods))
        if options.profile is not None and traces != 1:
            raise ConfigError(
                f"--profile {options.profile} holds the trace of one workload with one method, got {traces}: "
                f"expected `voidrl bench update WORKLOAD --profile FILE`"
            )
    elif options.what == "knn":
        options.sizes = [_parse_size(text) for text in options.sizes]
    elif options.what == "sample":
        require(options.batch_size > 0, "batch_size", options.batch_size, "1 or more")
        options.entries = parse_count(options.entries, "entries")
        if options.prioritized and options.against:
            raise ConfigError(
                f"--against {options.against} cannot be used with --prioritized, which compares with uniform "
                f"sampling: leave one of them out"
            )
    elif options.what == "env":
        require(min(options.num_envs) > 0, "num_envs", min(options.num_envs), "1 or more")
    else:
        options.preset = options.preset or default_preset(options.env) or "maze-demo"
        env = protocol_for(options.env, options.preset).get("env", {})
        options.num_envs = env.get("num_envs", 1) if options.num_envs is None else options.num_envs
        options.steps = parse_count(options.steps)
        least = 2 * LOG_ROWS * options.num_envs
        if options.steps < least:
            raise ConfigError(
                f"--steps {options.steps} cannot be used with {options.num_envs} environments: expected at "
                f"least {least}, since the first ones do not count"
            )


def _find_methods(workloads: list[str], methods: list[str]) -> list[str]:
    """The methods to measure, `all` replaced by their names."""
    if not methods:
        return []
    known = [name for name in registry.names("method") if name != "random"]  # which has no updates
    for name in methods:
        if name not in (*known, "all"):
            raise UnknownNameError("method", name, (*known, "all"))
    own = [name for name in workloads if find_workload(name).preset is None]
    if own or not workloads:
        presets = ", ".join(name for name, workload in WORKLOADS.items() if workload.preset)
        given = f"workload {own[0]}" if own else "no workload"
        raise ConfigError(
            f"--methods {' '.join(methods)} cannot be used with {given}: expected one of the workloads that "
            f"are presets, for which methods have recipes: {presets}"
        )
    every = ["apt", *(name for name in known if name != "apt")]  # APT is the baseline
    return list(dict.fromkeys(found for name in methods for found in (every if name == "all" else [name])))


def _parse_size(text: str) -> tuple[int, ...]:
    """Parse `512,1M,15,10` into n, m, d, k."""
    words = text.split(",")
    if len(words) != 4:
        raise ConfigError(f"size {text!r} cannot be read: expected N,M,D,K, such as 512,1M,15,10")
    n, m, d, k = (parse_count(word, name) for word, name in zip(words, "nmdk", strict=True))
    if k > m - (n == m):
        raise ConfigError(f"size {text!r} cannot be used: {m} particles have no {k} neighbors; lower K")
    return n, m, d, k
