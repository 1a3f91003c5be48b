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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from voidrl.errors import ConfigError, RunInterrupted, UnknownNameError, VoidrlError

if TYPE_CHECKING:
    from voidrl.config import Config

INTERRUPTED = 75  # sysexits' EX_TEMPFAIL: stopped with a checkpoint, run `voidrl resume`
BAD_INPUT = 2
OUTPUT = {
    "--out DIR": "the run folder; by default a new one under runs/",
    "--overwrite": "replace the run that is there",
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
    meaning = "atari/<game>, a Gymnasium id such as voidrl/PixelMaze-v0, or module:factory"
    env, given, wants_help = _first(argv, command, "ENV", meaning)
    own = {
        "--preset NAME": "values for a purpose, from `voidrl list presets`",
        "--method NAME": "what is rewarded, from `voidrl list methods`, or module:Class",
        "--representation NAME": "from `voidrl list representations`, or module:Class",
        "--learner NAME": "from `voidrl list learners`, or module:Class",
        **OUTPUT,
    }
    options = _pop_own(given, own)
    config = _with_options(_defaults(env, options, command), given, command, own)
    if wants_help:
        _print_help(config, command, "ENV", own)
        return
    from voidrl import api

    start = api.pretrain if command == "pretrain" else api.train
    start(env, config=config, out=options.get("--out"), overwrite="--overwrite" in options)


def finetune(argv: list[str]) -> None:
    """Adapt a pre-trained agent to a reward: `voidrl finetune RUN --env 'voidrl/PixelMaze-v0?goal=far'`."""
    run, given, wants_help = _first(argv, "finetune", "RUN", "the folder of a pre-training run")
    own = {"--env ENV": "the task; by default the environment of pre-training", **OUTPUT}
    options = _pop_own(given, own)
    if not run:
        _print_help(_defaults("", {}, "finetune"), "finetune", "RUN", own)
        return
    from voidrl import api

    agent = api.load(run, device="cpu")
    config = _with_options(api.task_config(agent.config), given, "finetune", own)
    if wants_help:
        _print_help(config, "finetune", "RUN", own)
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
    parser.add_argument("--episodes", default="10", help="how many (default: 10)")
    parser.add_argument("--steps", help="in place of episodes, how many steps (the paper on Atari: 125k)")
    parser.add_argument("--seed", type=int, default=0, help="of environments and random actions (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="act with exploration noise")
    parser.add_argument(
        "--epsilon", type=float, help="share of random actions (default: log.eval_epsilon of the run)"
    )
    parser.add_argument("--num-envs", type=int, help="played side by side (default: as fits)")
    parser.add_argument(
        "--count-states", action="store_true", help="count the distinct states of the game's memory (Atari)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--json", action="store_true", help="print every episode as JSON")
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.progress import parse_count

    result = api.evaluate(
        options.run,
        options.env,
        episodes=parse_count(options.episodes, "episodes"),
        steps=options.steps,
        num_envs=options.num_envs,
        count_states=options.count_states,
        seed=options.seed,
        deterministic=not options.stochastic,
        epsilon=options.epsilon,
        device=options.device,
    )
    if options.json:
        print(json.dumps(dataclasses.asdict(result)))
        return
    row = result.metrics()
    spread = f"± {row['eval/return_std']:.3f} over {len(result.returns)} episodes"
    print(f"return   {result.mean_return:.3f} {spread}")
    print(f"length   {row['eval/length']:.1f}")
    if result.human_normalised is not None:
        print(f"human    {result.human_normalised:.1%} of the way from random play to a human's")
    if result.success_rate is not None:
        print(f"success  {result.success_rate:.0%}")
    for name, count in result.counts.items():
        print(f"states   {count} distinct {name} in {result.counted_steps} steps")


def list_(argv: list[str]) -> None:
    """What there is: `voidrl list {methods,representations,learners,envs,presets}`."""
    kinds: dict[str, Callable[[], Mapping[str, str]]] = {
        "methods": lambda: _files("methods"),
        "representations": lambda: _files("representations"),
        "learners": lambda: _files("learners"),
        "envs": _environments,
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
    "bench": bench,
}
HELP = ["-h", "--help"]


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


# Options made from the config


def _first(argv: list[str], command: str, what: str, meaning: str) -> tuple[str, dict[str, str], bool]:
    """What stands first, the options after it, and whether help is asked for: then none need be first."""
    words = [word for word in argv if word not in HELP]
    wants_help = len(words) < len(argv)
    if words and not words[0].startswith("-"):
        return words[0], _pairs(words[1:]), wants_help
    if not wants_help:
        raise ConfigError(
            f"no {what} was given: expected `voidrl {command} {what} …`, where {what} is {meaning}"
        )
    return "", _pairs(words), wants_help


def _pop_own(given: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Take out the options that are not fields of the config."""
    names = [usage.partition(" ")[0] for usage in own]
    return {name: given.pop(name) for name in names if name in given}


def _pairs(words: list[str]) -> dict[str, str]:
    """`--name value` and `--name=value`, names as they are listed: with hyphens."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} was not expected here: options look like --name value")
        if name == "--overwrite" and not equals:
            value = "True"
        elif not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"option {name} has no value: expected `{name} VALUE`")
        found[name] = value
    return found


def _defaults(env: str, options: Mapping[str, str], phase: str) -> Config:
    """The config before the options for its fields: it depends on the environment and the pieces chosen."""
    from voidrl.api import build_config
    from voidrl.config import EnvConfig, merge, to_json, update
    from voidrl.envs import make_envs
    from voidrl.presets import default_preset, preset

    pieces = {
        kind: options[f"--{kind}"]
        for kind in ("method", "representation", "learner")
        if f"--{kind}" in options
    }
    chosen = options.get("--preset") or default_preset(env)
    layers: list[Mapping[str, Any]] = [preset(chosen), pieces, {"phase": phase}]
    env_config = update(EnvConfig(), {**merge(*layers).get("env", {}), "id": env or "voidrl/PixelMaze-v0"})
    with closing(make_envs(env_config, num_envs=1)) as envs:
        return build_config(envs.spec, [*layers, {"env": to_json(env_config)}])


def _with_options(config: Config, given: Mapping[str, str], command: str, own: Mapping[str, str]) -> Config:
    """The config with what stands on the command line."""
    from voidrl.config import update

    fields = dict(_fields(config))
    for name, text in given.items():
        if name not in fields:
            known = [*fields, *(usage.partition(" ")[0] for usage in own)]
            raise UnknownNameError("option", name, known, f"See `voidrl {command} --help`.")
        problems = []
        for value in (_value(text), text):  # what looks like a number can also be meant as it stands
            try:
                config = update(config, {fields[name]: value})
                break
            except ConfigError as error:
                problems.append(error)
        else:
            raise problems[0]
    return config


def _value(text: str) -> Any:
    """A word as the number, truth value or None that it spells."""
    from voidrl.progress import parse_count

    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (parse_count, int, float):
        with suppress(ValueError):
            return read(text)
    return text


def _fields(config: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(option, dotted field) of everything that is not set by the command itself."""
    for field in dataclasses.fields(config):
        value, here = getattr(config, field.name), path + field.name
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{here}.")
        elif here not in ("phase", "env.id") and not here.endswith(".name"):
            yield f"--{here.replace('_', '-')}", here


def _print_help(config: Config, command: str, what: str, own: Mapping[str, str]) -> None:
    """Every field with its docstring, as tyro lays them out."""
    import tyro

    width = max(map(len, own))
    rows = "\n".join(f"  {usage:<{width}}  {meaning}" for usage, meaning in own.items())
    about = f"{COMMANDS[command].__doc__}\n\n{rows}\n\nFields of the config, with the values they have here:"
    with suppress(SystemExit):
        tyro.cli(
            type(config),
            prog=f"voidrl {command} {what}",
            description=about,
            args=["--help"],
            default=config,
            config=(tyro.conf.FlagConversionOff,),
        )


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
        "voidrl/PixelMaze-v0": "A maze seen as an image; options as a query: ?size=13&goal=far",
        "any Gymnasium id": "Box, image or vector observations; Discrete or Box actions.",
        "module:factory": "Your own function that returns a gymnasium.Env.",
    }


def _presets() -> dict[str, str]:
    from voidrl.presets import PRESETS

    return {name: preset.about for name, preset in PRESETS.items()}


if __name__ == "__main__":
    sys.exit(main())
