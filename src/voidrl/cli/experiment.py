"""demo · experiment."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from voidrl.cli.options import Parser, ReadSeeds, read_changes
from voidrl.errors import ConfigError


def demo(argv: list[str]) -> int:
    """See it work in minutes: APT against random, then fine-tuned against scratch, in a pixel maze."""
    parser = Parser("demo", demo.__doc__)
    add = parser.add_argument
    out_help = "where runs, picture and report go; existing runs are kept (default: runs/demo)"
    add("--out", default="runs/demo", help=out_help)
    add("--seeds", action=ReadSeeds, nargs="+", default=[2], help="one or more, such as 1..4 (default: 2)")
    add("--scale", type=float, default=1.0, help="multiplies the number of steps (default: 1)")
    add("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--no-report", dest="report", action="store_false", help="make no report.html")
    options = parser.parse_args(argv)
    _positive("--scale", options.scale)
    _positive("--jobs", options.jobs)
    from voidrl.experiments.demo import run_demo

    return run_demo(**vars(options), command=["voidrl", "demo", *argv])


def experiment(argv: list[str]) -> int:
    """Run an experiment of the paper, or a custom one: `voidrl experiment demo --jobs 2`."""
    from voidrl.experiments.executors import EXECUTORS, flag, option_fields
    from voidrl.experiments.format import shipped

    parser = Parser("experiment", experiment.__doc__)
    add, rare = parser.add_argument, parser.rare
    name_help = "a custom experiment (docs/experiments.md), or one of: "
    add("name", metavar="NAME|FILE.toml", nargs="?", help=f"{name_help}{', '.join(shipped())}")
    words: Any = {"nargs": "+", "action": "extend", "default": []}
    tasks_help = "only these, by name, or others by id (default: the experiment's)"
    add("--tasks", "--games", metavar="TASK", help=tasks_help, **words)
    add("--methods", metavar="NAME", help="only these (default: all)", **words)
    seeds_help = "seeds of the runs, such as 1..4 or 1 3 5 (default: the experiment's)"
    add("--seeds", action=ReadSeeds, nargs="+", default=[], help=seeds_help)
    pretrain_help = "seeds of pre-trainings, where each has several fine-tunings (default: the experiment's)"
    rare("--pretrain-seeds", action=ReadSeeds, nargs="+", default=[], metavar="SEEDS", help=pretrain_help)
    scale_help = "multiplies the steps of all runs, and shortens what goes with them: 0.01 (default: 1)"
    rare("--steps-scale", type=float, default=1.0, metavar="X", help=scale_help)
    add("--preset", help="from `voidrl list presets` (default: the experiment's)")
    set_help = "change the config of all runs: learner.n_step=5 pretrain.steps=2M evaluation.episodes=5"
    add("--set", dest="changes", metavar="NAME=VALUE", help=set_help, **words)
    tune_help = "let Optuna choose so many points of the grid (extra `tune`)"
    add("--tune", type=int, metavar="N", help=tune_help)
    on_help = f"where runs are started: {', '.join(EXECUTORS)} (default: local)"
    add("--on", default="local", metavar="EXECUTOR", help=on_help)
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    rare("--engine", default="auto", choices=["auto", "eager", "graph", "compile"], help="(default: auto)")
    add("--out", help="where runs and report go; existing runs are kept (default: runs/NAME)")
    add("--dry-run", action="store_true", help="print the runs and what they would take")
    rare("--no-report", dest="report", action="store_false", help="make no report.html")
    for name, (field, owners) in option_fields().items():
        add_option = add if name == "jobs" else rare
        about = f"{field.metadata['help']} (with --on {' or '.join(owners)})"
        settings = {**field.metadata, "help": about, "default": argparse.SUPPRESS}
        add_option(flag(name), dest=name, **settings)
    options = parser.parse_args(argv)
    if options.name is None:
        parser.print_help()
        return 0
    _positive("--steps-scale", options.steps_scale)
    given = {**vars(options), "changes": read_changes(options.changes)}
    from voidrl.experiments.experiment import run_experiment
    from voidrl.experiments.request import ExperimentRequest

    asked = [field.name for field in dataclasses.fields(ExperimentRequest) if field.name in given]
    request = ExperimentRequest(**{name: given.pop(name) for name in asked})
    return run_experiment(request=request, command=["voidrl", "experiment", *argv], **given)


def _positive(option: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{option} {value} cannot be used: expected a number above 0")
