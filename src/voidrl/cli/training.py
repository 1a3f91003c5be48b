"""pretrain · train · finetune · config · resume."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from voidrl.cli.options import (
    HELP,
    HELP_ALL,
    RUN_HELP,
    Given,
    Parser,
    add_source_options,
    all_fields,
    common_fields,
    read_callbacks,
    read_changes,
    read_options,
    spelled,
    split_options,
)
from voidrl.errors import ConfigError
from voidrl.system.terminal.output import say
from voidrl.system.terminal.tables import print_table, wrap_text

if TYPE_CHECKING:
    from voidrl.config import Config
    from voidrl.training.build import ConfigLayer, Probed

DEFAULT_ENV = "voidrl/PixelMaze-v0"  # whose values a help without an environment shows
ENV_HELP = "atari/<game>, dmc/<domain>, a Gymnasium id such as voidrl/PixelMaze-v0, or module:factory"
CALLBACK_HELP = "StopOnPlateau, StopAtReturn?value=10, or module:Class?option=value; may be repeated"


class RunRequest(NamedTuple):
    """A parsed command line."""

    subject: Any
    """The environment, or the pre-trained agent."""
    options: argparse.Namespace
    probed: Probed
    config: Config
    layers: list[ConfigLayer]
    note: str = ""
    """Note to the user about the chosen preset."""


def pretrain(argv: list[str]) -> int:
    """Train without rewards: `voidrl pretrain voidrl/PixelMaze-v0 --steps 100k`."""
    return _start("pretrain", argv)


def train(argv: list[str]) -> int:
    """Train from scratch on the task's reward, for comparison: `voidrl train ENV`; or with `--bonus rnd`."""
    return _start("train", argv)


def finetune(argv: list[str]) -> int:
    """Adapt a pre-trained agent to a reward: `voidrl finetune RUN --env 'voidrl/PixelMaze-v0?goal=far'`."""
    return _start("finetune", argv)


PHASES: dict[str, Callable[[list[str]], int]] = {"pretrain": pretrain, "finetune": finetune, "train": train}


def start_parser(command: str, title: str | None = None) -> Parser:
    """The options of a command that starts a run, other than fields of the config."""
    parser = Parser(title or command, PHASES[command].__doc__)
    add, rare = parser.add_argument, parser.rare
    tunes = command == "finetune"
    add("subject", metavar="RUN" if tunes else "ENV", help=RUN_HELP if tunes else ENV_HELP)
    if tunes:
        add("--env", metavar="ENV", help="the task; by default the environment of pre-training")
    else:
        preset_help = "one of `voidrl list presets`, or none"
        add("--preset", metavar="NAME", help=preset_help)
        method_help = "the intrinsic reward, from `voidrl list methods`, or module:Class"
        add("--method", metavar="NAME", help=method_help)
        representation_help = "from `voidrl list representations`, or module:Class"
        add("--representation", metavar="NAME", help=representation_help)
    add("--learner", metavar="NAME", help="the RL algorithm, from `voidrl list learners`, or module:Class")
    if command == "train":
        bonus_help = "a method whose reward is added to the task's, weighted by --bonus.coefficient"
        add("--bonus", metavar="NAME", help=bonus_help)
    add("--out", metavar="DIR", help="the run folder; by default a new one under runs/")
    add("--overwrite", action="store_true", help="replace the run in it")
    if tunes:
        add_source_options(parser)
    else:
        data_help = "fill the replay from the Minari dataset of this id first"
        rare("--from-data", metavar="DATA", help=data_help)
    rare("--callback", action="append", default=[], metavar="NAME", help=CALLBACK_HELP)
    parser.more = common_fields
    return parser


def _start(command: str, argv: list[str]) -> int:
    if HELP_ALL in argv:
        words = [word for word in argv if word != HELP_ALL]
        if not words or words[0].startswith("-"):
            words = [DEFAULT_ENV, *words]
            command, told = ("train", "finetune") if command == "finetune" else (command, command)
        else:
            told = command
        print(start_parser(told).format_help(whole=True))
        print(all_fields(read_request(command, words).config))
        return 0
    _parsed(start_parser(command), argv)  # before torch is imported
    with _ranks():
        request = read_request(command, argv)
        from voidrl import api, dist
        from voidrl.training.build import require_fitting

        options = request.options
        require_fitting(request.probed, request.config, request.layers)
        if request.note and dist.current().is_main:
            say(request.note)
        where: dict[str, Any] = {"out": options.out, "overwrite": options.overwrite}
        where |= {"config": request.config, "callbacks": read_callbacks(options.callback)}
        if command == "finetune":
            api.finetune(request.subject, options.env, **where)
        else:
            getattr(api, command)(request.subject, **where)
    return 0


def _ranks() -> AbstractContextManager[Any]:
    """Join the processes of torchrun, if it has started this one."""
    if "WORLD_SIZE" in os.environ:  # when a rank is lost, torch would print its stack before our sentence
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from voidrl import dist

    return dist.process_group()


def config(argv: list[str]) -> None:
    """Show the config of a command and the source of each value: `voidrl config pretrain ENV …`."""
    parser = Parser("config", config.__doc__)
    parser.add_argument("command", metavar=f"{{{','.join(PHASES)}}} …", help="a command with its options")
    _add_config_options(parser)
    command, words = parser.read_first(argv, "command", PHASES)
    parser = start_parser(command, f"config {command}")
    _add_config_options(parser)
    request = read_request(command, words, parser)
    from voidrl.config import SET_BY_COMMAND, flat, to_json
    from voidrl.training.build import config_sources, require_fitting

    if request.note:
        say(request.note)
    require_fitting(request.probed, request.config, request.layers)
    sources = config_sources(request.config, request.layers)
    values = flat(to_json(request.config))
    if request.options.json:
        both = {field: {"value": value, "source": sources[field]} for field, value in values.items()}
        print(json.dumps(both, indent=2))
        return
    whole = request.options.all
    shown = [name for name in values if whole or sources[name] != "default" or name in SET_BY_COMMAND]
    shown.sort(key=lambda name: "." in name)  # fields of the run itself first
    print_table(("field", "value", "from"), [(name, spelled(values[name]), sources[name]) for name in shown])
    if len(shown) < len(values):
        print(wrap_text(f"\nand {len(values) - len(shown)} defaults; --all shows them"))


def _add_config_options(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="also show fields that have their default")
    parser.add_argument("--json", action="store_true", help="print every field as JSON")


def _parsed(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of a command, and the words that are fields of the config."""
    if not (argv and not argv[0].startswith("-")) and not any(word in HELP for word in argv):
        what = "RUN" if "finetune" in parser.prog else "ENV"
        meaning = RUN_HELP if what == "RUN" else ENV_HELP
        raise ConfigError(
            f"no {what} was given: expected `{parser.prog} {what} …`, where {what} is {meaning}"
        )
    options, words = parser.parse_known_args(argv)
    return options, words


def read_request(command: str, argv: Sequence[str], parser: Parser | None = None) -> RunRequest:
    """Resolve the config that a command line asks for; a parser may have more options."""
    parser = parser or start_parser(command)
    options, words = _parsed(parser, argv)
    given = split_options(words)
    if command == "finetune" and "--method" in dict(given):
        raise ConfigError(
            "a fine-tuned agent keeps the method of its pre-training: leave --method out, or add that "
            "method's reward to the task's with --bonus.coefficient 0.2"
        )
    read = _read_finetune if command == "finetune" else _read_start
    return read(command, parser, options, given)


def _read_start(command: str, parser: Parser, options: argparse.Namespace, given: Given) -> RunRequest:
    from voidrl.config import PIECES, Config, merge, update
    from voidrl.training import build
    from voidrl.training.build import layers_for

    env = options.subject
    pieces: dict[str, Any] = {kind: getattr(options, kind) for kind in PIECES if getattr(options, kind)}
    if options.from_data is not None:
        pieces["replay.data"] = options.from_data
    bonus = options.bonus if command == "train" else None
    of_env = [(name, text) for name, text in given if name.startswith("--env.")]

    def layers_with(changes: dict[str, Any], preset: str | None) -> list[ConfigLayer]:
        return layers_for(env, command, preset, changes, pieces, bonus=bonus)

    def resolve(preset: str | None) -> tuple[Probed, Config, list[ConfigLayer]]:
        # The environment decides which pieces there are, and pieces decide which options.
        layers = layers_with(read_options(Config(), of_env, parser), preset)
        probed = build.probe(env, layers)
        chosen = build.name_pieces(probed.spec, merge(*(layer.values for layer in layers)))
        fields = update(Config(), {kind: piece["name"] for kind, piece in chosen.items()})
        layers = layers_with(read_options(fields, given, parser), preset)
        return probed, build.config_for(probed, layers), layers

    probed, config, layers = resolve(options.preset)
    note = "" if options.preset else build.cpu_preset_note(env, probed.spec, config)
    if note:
        probed, config, layers = resolve(build.CPU_PRESET)
    return RunRequest(env, options, probed, config, layers, note)


def _read_finetune(command: str, parser: Parser, options: argparse.Namespace, given: Given) -> RunRequest:
    from voidrl import api
    from voidrl.config import update
    from voidrl.sharing import pretrained as share
    from voidrl.training import build
    from voidrl.training.build import finetune_layers, task_config

    agent = api.load(options.subject, device="cpu", trust_code=options.trust_code, best=options.best)
    pieces = {"learner": options.learner} if options.learner else {}
    fields = update(task_config(agent.config), pieces)
    layers = finetune_layers(agent.config, read_options(fields, given, parser), pieces)
    env = options.env or share.own_env(agent)
    probed = build.probe(env, layers)
    return RunRequest(agent, options, probed, build.config_for(probed, layers), layers)


def resume(argv: list[str]) -> None:
    """Resume a run that stopped: `voidrl resume RUN`."""
    parser = Parser("resume", resume.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="the run folder")
    add("--steps", help="a new total of environment steps")
    set_help = "change what does not define the run: log.keep_last=1 learner.learning_rate=1e-5"
    words: Any = {"nargs": "+", "action": "extend", "default": []}
    add("--set", dest="config", metavar="NAME=VALUE", help=set_help, **words)
    add("--env", help="module:function, for a run started by a script with its own function")
    add("--device", help="auto, cpu, cuda or cuda:N (default: as it was started)")
    add("--engine", help="auto, eager, graph or compile (default: as it was started)")
    callback_help = "as in `voidrl pretrain`; those of the run are not saved, only their states"
    add("--callback", dest="callbacks", action="append", default=[], metavar="NAME", help=callback_help)
    options = vars(parser.parse_args(argv))
    with _ranks():
        from voidrl import api

        callbacks = read_callbacks(options.pop("callbacks"))
        api.resume(**{**options, "config": read_changes(options["config"]), "callbacks": callbacks})
