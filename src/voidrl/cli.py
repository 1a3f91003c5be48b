"""The `voidrl` command. Options are made from the config dataclasses; `voidrl --help` imports no torch."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from voidrl.cli_options import (
    HELP,
    default_config,
    pop_own,
    print_help,
    read_value,
    split_words,
    with_options,
)
from voidrl.errors import ConfigError, RunInterrupted, UnknownNameError, VoidrlError

INTERRUPTED = 75  # sysexits' EX_TEMPFAIL: stopped with a checkpoint, run `voidrl resume`
BAD_INPUT = 2
OUTPUT = {
    "--out DIR": "the run folder; by default a new one under runs/",
    "--overwrite": "replace the run that is there",
}
STATES = {
    "ram": "whole RAM vectors (they hold timers and saturate)",
    "variables": "values of the annotated variables",
    "positions": "positions of the player",
    "bins": "bins of height, angle and velocity",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; a user's mistake is one sentence on stderr, without a traceback."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if args[0] == "--version":
        from voidrl import __version__

        print(__version__)
        return 0
    if "" not in sys.path:  # the installed command does not look for module:factory where it is called
        sys.path.insert(0, "")
    try:
        if args[0] not in COMMANDS:
            raise UnknownNameError("command", args[0], COMMANDS, "See `voidrl --help`.")
        COMMANDS[args[0]](args[1:])
    except VoidrlError as error:
        print(f"voidrl: {error}", file=sys.stderr)
        return BAD_INPUT
    except RunInterrupted as stop:
        print(f"voidrl: {stop}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    except KeyboardInterrupt:
        print("voidrl: stopped at once; older checkpoints are untouched", file=sys.stderr)
        return 130
    return 0


def pretrain(argv: list[str]) -> None:
    """Train without rewards: `voidrl pretrain voidrl/PixelMaze-v0 --steps 100k`."""
    _start("pretrain", argv)


def train(argv: list[str]) -> None:
    """Train from scratch on the task's reward, for comparison: `voidrl train ENV`."""
    _start("train", argv)


def _start(command: str, argv: list[str]) -> None:
    meaning = "atari/<game>, dmc/<domain>, a Gymnasium id such as voidrl/PixelMaze-v0, or module:factory"
    env, given, wants_help = split_words(argv, command, "ENV", meaning)
    own = {
        "--preset NAME": "values for a purpose, from `voidrl list presets`",
        "--method NAME": "what is rewarded, from `voidrl list methods`, or module:Class",
        "--representation NAME": "from `voidrl list representations`, or module:Class",
        "--learner NAME": "from `voidrl list learners`, or module:Class",
        **OUTPUT,
    }
    options = pop_own(given, own)
    config = with_options(default_config(env, options, command), given, command, own)
    if wants_help:
        print_help(config, f"voidrl {command} ENV", COMMANDS[command].__doc__, own)
        return
    from voidrl import api

    start = api.pretrain if command == "pretrain" else api.train
    start(env, config=config, out=options.get("--out"), overwrite="--overwrite" in options)


def finetune(argv: list[str]) -> None:
    """Adapt a pre-trained agent to a reward: `voidrl finetune RUN --env 'voidrl/PixelMaze-v0?goal=far'`."""
    run, given, wants_help = split_words(argv, "finetune", "RUN", "the folder of a pre-training run")
    own = {"--env ENV": "the task; by default the environment of pre-training", **OUTPUT}
    options = pop_own(given, own)
    if not run:
        print_help(default_config("", {}, "finetune"), "voidrl finetune RUN", finetune.__doc__, own)
        return
    from voidrl import api

    agent = api.load(run, device="cpu")
    config = with_options(api.task_config(agent.config), given, "finetune", own)
    if wants_help:
        print_help(config, "voidrl finetune RUN", finetune.__doc__, own)
        return
    out, overwrite = options.get("--out"), "--overwrite" in options
    api.finetune(agent, options.get("--env"), config=config, out=out, overwrite=overwrite)


def resume(argv: list[str]) -> None:
    """Go on with a run that stopped: `voidrl resume RUN`."""
    parser = _parser("resume")
    parser.add_argument("run", help="the run folder")
    parser.add_argument("--steps", help="a new total of environment steps")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N (default: as it was started)")
    parser.add_argument("--engine", help="auto, eager, graph or compile (default: as it was started)")
    options = parser.parse_args(argv)
    from voidrl import api

    api.resume(options.run, steps=options.steps, device=options.device, engine=options.engine)


def evaluate(argv: list[str]) -> None:
    """Play whole episodes with a trained agent: `voidrl evaluate RUN --episodes 20`."""
    parser = _parser("evaluate")
    parser.add_argument("run", help="the folder of a run, a checkpoint or a saved agent")
    parser.add_argument("--env", help="by default the one it was trained in")
    parser.add_argument("--episodes", help="how many (default: 10)")
    parser.add_argument("--steps", help="in place of episodes, how many steps (the paper on Atari: 125k)")
    parser.add_argument("--seed", type=int, default=0, help="of environments and random actions (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="act with exploration noise")
    parser.add_argument(
        "--epsilon", type=float, help="share of random actions (default: log.eval_epsilon of the run)"
    )
    parser.add_argument("--num-envs", type=int, help="played side by side (default: as fits)")
    parser.add_argument(
        "--count-states", action="store_true", help="count the distinct states visited (Atari, DMControl)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--json", action="store_true", help="print every episode as JSON")
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.progress import parse_count
    from voidrl.score import record

    steps = None if options.steps is None else parse_count(options.steps)
    if steps is not None and options.episodes is not None:
        raise ConfigError(
            f"--episodes {options.episodes} cannot be used with --steps {options.steps}: give one of the two"
        )
    episodes = parse_count(options.episodes or 10, "episodes")
    agent = api.load(options.run, device=options.device)
    settings = {
        "env": options.env or agent.config.env.id,
        "episodes": episodes if steps is None else None,
        "steps": steps,
        "seed": options.seed,
        "deterministic": not options.stochastic,
        "epsilon": agent.config.log.eval_epsilon if options.epsilon is None else options.epsilon,
        "num_envs": options.num_envs,
        "count_states": options.count_states,
    }
    result = api.evaluate(agent, **{**settings, "episodes": episodes})
    if options.json:
        print(json.dumps(record(agent, options.run, result, settings)))
        return
    row = result.metrics()
    different = len(set(zip(result.returns, result.lengths, strict=True)))
    over = f"over {len(result.returns)} episodes, {different} of them different"
    print(f"return   {result.mean_return:.3f} ± {row['eval/return_std']:.3f} {over}")
    print(f"length   {row['eval/length']:.1f}")
    share = result.human_normalised
    if share is not None and result.game is not None:
        from voidrl.games import baseline

        random, human = baseline(result.game)
        scale = f"0% is random play ({random:g}) and 100% a human ({human:g})"
        print(f"human    {round(share, 3) + 0.0:.1%}, where {scale}")
    if result.success_rate is not None:
        print(f"success  {result.success_rate:.0%}")
    for name, count in result.counts.items():
        if name == "entropy":
            print(f"entropy  {count:.1f} nats of the physics states in {result.counted_steps} steps")
        else:
            print(f"states   {count} distinct {STATES.get(name, name)} in {result.counted_steps} steps")


def list_(argv: list[str]) -> None:
    """What there is: `voidrl list {methods,representations,learners,envs,games,tasks,presets}`."""
    kinds: dict[str, Callable[[], Mapping[str, str]]] = {
        "methods": lambda: _files("methods"),
        "representations": lambda: _files("representations"),
        "learners": lambda: _files("learners"),
        "envs": _environments,
        "games": _games,
        "tasks": _tasks,
        "presets": _presets,
    }
    if not argv or argv[0] in HELP:
        print("usage: voidrl list {" + ",".join(kinds) + "}")
        return
    if argv[0] not in kinds:
        raise UnknownNameError("kind", argv[0], kinds)
    rows = kinds[argv[0]]()
    width = max(map(len, rows))
    for name, about in rows.items():
        print(f"{name:<{width}}  {about}")


def demo(argv: list[str]) -> None:
    """See it work in minutes: APT against random, then fine-tuned against scratch, in a pixel maze."""
    parser = _parser("demo")
    parser.add_argument(
        "--out",
        default="runs/demo",
        help="where runs and picture go; an older demo there is replaced (default: runs/demo)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[2], help="one or more (default: 2)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the number of steps (default: 1)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    options = parser.parse_args(argv)
    if options.scale <= 0:
        raise ConfigError(f"--scale {options.scale} cannot be used: expected a number above 0")
    from voidrl.demo import run_demo

    run_demo(options.out, seeds=options.seeds, scale=options.scale, device=options.device)


def explore(argv: list[str]) -> None:
    """States seen and score reached without reward, APT against its controls: `voidrl explore atari/pong`."""
    parser = _parser("explore")
    parser.add_argument("env", help="atari/<game>")
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", default=["apt", "positive", "random"],
        help="from `voidrl list methods` (default: apt positive random)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one or more (default: 1)")
    parser.add_argument(
        "--preset",
        default="atari-demo",
        help="from `voidrl list presets` (default: atari-demo, minutes on a CPU)",
    )
    parser.add_argument("--steps", help="of pre-training (default: the preset's)")
    parser.add_argument(
        "--eval-steps",
        help="played for score afterwards (default: 125k as in the paper; 10k with atari-demo)",
    )
    parser.add_argument(
        "--finetune-steps", help="also fine-tune APT's agent and train one from scratch (default: neither)"
    )
    parser.add_argument(
        "--set", nargs="+", metavar="NAME=VALUE", default=[], action="extend",
        help="change the preset for all runs: updates_per_step=0.1 learner.n_step=5",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument(
        "--out", help="where runs, table and picture go; what is there is kept (default: runs/explore-<game>)"
    )
    options = parser.parse_args(argv)
    for word in options.set:
        if not word.partition("=")[1]:
            raise ConfigError(f"--set {word} cannot be used: expected NAME=VALUE, such as learner.n_step=5")
    changes = {
        name.replace("-", "_"): read_value(text) for name, _, text in (w.partition("=") for w in options.set)
    }
    from voidrl.explore import run_explore

    run_explore(
        options.env,
        options.out,
        methods=options.methods,
        seeds=options.seeds,
        preset=options.preset,
        steps=options.steps,
        eval_steps=options.eval_steps,
        finetune_steps=options.finetune_steps,
        config=changes,
        device=options.device,
    )


def score(argv: list[str]) -> None:
    """One table of many Atari runs, human-normalised, with intervals: `voidrl score RUN …`."""
    parser = _parser("score")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, or files that `voidrl evaluate --json` printed"
    )
    parser.add_argument(
        "--over", choices=["seeds", "games", "both"], default="seeds",
        help="what intervals would draw anew (default: seeds)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(argv)
    from voidrl.score import by_game, read_scores
    from voidrl.stats import summarise

    scores = read_scores(options.runs)
    summary = summarise(by_game(scores), over=options.over)
    if options.json:
        print(json.dumps({"runs": [dataclasses.asdict(one) for one in scores], **summary.to_json()}))
        return
    print(summary.table())
    steps = sorted({one.steps for one in scores})
    between = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else f"{steps[0]}"
    print(f"{len(scores)} runs of {scores[0].what!r}, evaluated after {between} steps.")


def bench(argv: list[str]) -> None:
    """How fast it is here, and how fast it could be: `voidrl bench {update,knn,sample,train,env}`."""
    from voidrl.bench import options

    given = options.parse(_parser("bench"), argv)  # before torch is imported, which takes seconds
    from voidrl.bench.run import run

    run(given)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "train": train,
    "evaluate": evaluate,
    "resume": resume,
    "list": list_,
    "demo": demo,
    "explore": explore,
    "score": score,
    "bench": bench,
}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def _parser(command: str) -> _Parser:
    about = (COMMANDS[command].__doc__ or "").replace("`", "")
    return _Parser(prog=f"voidrl {command}", description=about, allow_abbrev=False)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(
        f"  {name:<{width}}  {about.__doc__}".replace("`", "") for name, about in COMMANDS.items()
    )
    return f"""voidrl: pre-train agents without rewards, then adapt them to a task in a few steps.

usage: voidrl COMMAND …

{rows}

`voidrl COMMAND --help` shows its options."""


def _files(package: str) -> dict[str, str]:
    """Name and first line of each file, without importing it."""
    home = importlib.import_module(f"voidrl.{package}")
    found = {}
    for module in pkgutil.iter_modules(home.__path__):
        if module.name != "base":
            source = importlib.util.find_spec(f"voidrl.{package}.{module.name}")
            assert source is not None
            assert source.origin is not None
            text = Path(source.origin).read_text("utf-8")
            found[module.name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def _environments() -> dict[str, str]:
    return {
        "atari/<game>": "Atari (extra `atari`), 57 games and more, for instance atari/ms_pacman?sticky=true",
        "dmc/<domain>": "DMControl (extra `dmc`) without a task, to pre-train, for instance dmc/walker",
        "dmc/<domain>_<task>": "The same with a reward, for instance dmc/walker_run; see `voidrl list tasks`",
        "voidrl/PixelMaze-v0": "A maze seen as an image; options as a query: ?size=13&goal=far",
        "any Gymnasium id": "Box, image or vector observations; Discrete or Box actions.",
        "module:factory": "Your own function that returns a gymnasium.Env.",
    }


def _games() -> dict[str, str]:
    from voidrl.games import GAMES, baseline

    scores = {f"atari/{game}": baseline(game) for game in GAMES}
    return {name: f"random play {random:g}, a human {human:g}" for name, (random, human) in scores.items()}


def _tasks() -> dict[str, str]:
    from voidrl.dmcontrol import TASKS

    return {
        f"dmc/{domain}": " ".join(f"{domain}_{task}" for task in tasks) for domain, tasks in TASKS.items()
    }


def _presets() -> dict[str, str]:
    from voidrl.presets import PRESETS

    return {name: preset.about for name, preset in PRESETS.items()}


if __name__ == "__main__":
    sys.exit(main())
