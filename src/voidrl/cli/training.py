"""pretrain · train · finetune · resume · config."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from voidrl.cli.launch import OPTIONS, launch, split_off
from voidrl.cli.options import (
    BEST_HELP,
    HELP,
    HELP_ALL,
    TRUST_HELP,
    make_parser,
    pop_own,
    print_help,
    read_callbacks,
    read_changes,
    read_options,
    split_words,
)
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.system.terminal.output import say
from voidrl.system.terminal.tables import described, print_table, wrap_text

if TYPE_CHECKING:
    from voidrl.config import Config
    from voidrl.training.build import Probed
    from voidrl.training.layers import ConfigLayer

DEFAULT_ENV = "voidrl/PixelMaze-v0"  # whose values a help without an environment shows
OUTPUT = {
    "--out DIR": "the run folder; by default a new one under runs/",
    "--overwrite": "replace the run in it",
    **OPTIONS,
    "--callback NAME": "StopOnPlateau, StopAtReturn?value=10, or module:Class?option=value; may be repeated",
}
START = {
    "--preset NAME": "a protocol or an agent, from `voidrl list presets`, or none",
    "--method NAME": "the intrinsic reward, from `voidrl list methods`, or module:Class",
    "--representation NAME": "from `voidrl list representations`, or module:Class",
    "--learner NAME": "the RL algorithm, from `voidrl list learners`, or module:Class",
    "--from-data DATA": "fill the replay from the Minari dataset of this id first",
    **OUTPUT,
}
TRAIN = {
    **START,
    "--bonus NAME": "a method whose intrinsic reward is added to the task's, weighted by --bonus.coefficient",
}
FINETUNE = {
    "--env ENV": "the task; by default the environment of pre-training",
    "--learner NAME": "another RL algorithm than in pre-training, which keeps the encoder alone",
    **OUTPUT,
    "--best": BEST_HELP,
    "--trust-code": TRUST_HELP,
}
CONFIG = {"--all": "also show fields that have their default", "--json": "print every field as JSON"}


class RunRequest(NamedTuple):
    """A parsed command line."""

    subject: Any
    """The environment, or the pre-trained agent."""
    options: dict[str, str]
    probed: Probed
    config: Config
    layers: list[ConfigLayer]
    wants_help: str
    """`--help`, `--help-all` or nothing."""
    note: str = ""
    """Note to the user about the chosen preset."""


def pretrain(argv: list[str]) -> int:
    """Train without rewards: `voidrl pretrain voidrl/PixelMaze-v0 --steps 100k`."""
    return _on_ranks("pretrain", argv, _start, _require_startable)


def train(argv: list[str]) -> int:
    """Train from scratch on the task's reward, for comparison: `voidrl train ENV`; or with `--bonus rnd`."""
    return _on_ranks("train", argv, _start, _require_startable)


def finetune(argv: list[str]) -> int:
    """Adapt a pre-trained agent to a reward: `voidrl finetune RUN --env 'voidrl/PixelMaze-v0?goal=far'`."""
    return _on_ranks("finetune", argv, _start, _require_startable)


def _on_ranks(
    command: str,
    argv: list[str],
    run: Callable[[str, list[str]], None],
    check: Callable[[str, list[str], int], None],
) -> int:
    """Run a command here, as one of the processes of torchrun, or as several that are started here.

    `check` refuses bad input once, before they are started.
    """
    number, rest = split_off(argv)
    if number > 1 and not any(word in (*HELP, HELP_ALL) for word in argv):
        check(command, rest, number)
        return launch(number, command, rest)
    if "WORLD_SIZE" not in os.environ:
        run(command, rest)
        return 0
    # When a rank is lost, torch would print its own stack trace before our sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from voidrl import dist

    with dist.process_group():
        run(command, rest)
    return 0


def _require_startable(command: str, argv: list[str], size: int) -> None:
    """Refuse a run that cannot be started on `size` ranks."""
    request = read_request(command, argv)
    from voidrl.runs.folder import RunFolder
    from voidrl.system.files import user_path
    from voidrl.training.build import require_fitting

    require_fitting(request.probed, request.config, size)
    if "--out" in request.options:
        RunFolder(user_path(request.options["--out"])).require_free("--overwrite" in request.options)


def _start(command: str, argv: list[str]) -> None:
    request = read_request(command, argv)
    if request.wants_help:
        own, what = (FINETUNE, "RUN") if command == "finetune" else (_own_options(command), "ENV")
        usage = f"voidrl {command} {what}"
        print_help(request.config, usage, PHASES[command].__doc__, own, request.wants_help)
        return
    from voidrl import api, dist

    if dist.current().is_main:
        for note in _notes(command, request):
            say(note)
    options, config = request.options, request.config
    where: dict[str, Any] = {"out": options.get("--out"), "overwrite": "--overwrite" in options}
    where["callbacks"] = read_callbacks(options.get("--callback", ""))
    if command == "finetune":
        api.finetune(request.subject, options.get("--env"), config=config, **where)
    else:
        start = api.pretrain if command == "pretrain" else api.train
        start(request.subject, config=config, **where)


def _notes(command: str, request: RunRequest) -> Iterator[str]:
    """Notes to the user about a command line before it is run."""
    options, config = request.options, request.config
    if request.note:
        yield request.note
    if command == "train" and "--method" in options and not config.effective.has_bonus:
        name = options["--method"]
        yield f"method {name} is not used: the reward is the task's alone; --bonus {name} adds its own to it"
    if command == "pretrain" and "--representation" in options and _ignores_representation(config):
        yield (
            f"representation {config.representation.name} is not used: the reward of {config.method.name} "
            f"does not read it; leave it out, or take a method that does, such as --method apt"
        )


def config(argv: list[str]) -> None:
    """Show the config of a command and the source of each value: `voidrl config pretrain ENV …`."""
    command = argv[0] if argv else "--help"
    usage = f"voidrl config {{{','.join(PHASES)}}} …"
    if command in HELP:
        more = described({**CONFIG, "…": "the arguments and options of that command"})
        print(f"{wrap_text(f'usage: {usage}', indent=7)}\n\n{wrap_text(config.__doc__ or '')}\n\n{more}")
        return
    if command not in PHASES:
        raise UnknownNameError("command", command, PHASES, f"Expected `{usage}`.")
    if any(word in (*HELP, HELP_ALL) for word in argv):
        PHASES[command](argv[1:])
        return
    request = read_request(command, argv[1:], CONFIG)
    from voidrl.training.build import require_fitting
    from voidrl.training.layers import config_sources

    if request.note:
        say(request.note)
    require_fitting(request.probed, request.config)
    from voidrl.config import SET_BY_COMMAND, flat, to_json

    sources = config_sources(request.config, request.layers)
    values = flat(to_json(request.config))
    if "--json" in request.options:
        both = {field: {"value": value, "source": sources[field]} for field, value in values.items()}
        print(json.dumps(both, indent=2))
        return
    whole = "--all" in request.options
    shown = [name for name in values if whole or sources[name] != "default" or name in SET_BY_COMMAND]
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for field in sorted(shown, key=lambda field: field.count(".") > 0):  # fields of the run itself first
        section, _, name = field.partition(".") if "." in field else ("run", "", field)
        value = values[field]
        text = ",".join(map(str, value)) or "[]" if isinstance(value, list) else str(value)
        sections.setdefault(section, []).append((name, text, sources[field]))
    for section, rows in sections.items():
        print_table((section, "value", "from"), rows)
        print()
    if len(shown) < len(values):
        print(f"and {len(values) - len(shown)} defaults; --all shows them")


def read_request(command: str, argv: list[str], more: dict[str, str] | None = None) -> RunRequest:
    """Resolve the config that a command line asks for; `more` are further options of the command."""
    if command == "finetune":
        return _read_finetune(argv, more)
    meaning = "atari/<game>, dmc/<domain>, a Gymnasium id such as voidrl/PixelMaze-v0, or module:factory"
    env, given, wants_help = split_words(argv, command, "ENV", meaning)
    own = {**_own_options(command), **(more or {})}
    options = pop_own(given, own)
    _refuse_bonus(command, given)
    from voidrl.config import PIECES, Config, merge, update
    from voidrl.training import build
    from voidrl.training.layers import layers_for
    from voidrl.training.starting import logged_start

    pieces: dict[str, Any] = {kind: options[f"--{kind}"] for kind in PIECES if f"--{kind}" in options}
    if "--from-data" in options:
        pieces["replay.data"] = options["--from-data"]

    def layers_with(changes: dict[str, Any]) -> list[ConfigLayer]:
        preset, bonus = options.get("--preset"), options.get("--bonus")
        return layers_for(env, command, preset, changes, pieces, bonus=bonus)

    # The environment decides which pieces there are, and pieces decide which options.
    env_options = {name: text for name, text in given.items() if name.startswith("--env.")}
    layers = layers_with(read_options(Config(), env_options, command, own))
    starts = more is None and not wants_help
    with logged_start(env, layers, options.get("--out")) if starts else nullcontext():
        probed = build.probe(env or DEFAULT_ENV, layers)
    chosen = build.name_pieces(probed.spec, merge(*(layer.values for layer in layers)))
    fields = update(Config(), {kind: piece["name"] for kind, piece in chosen.items()})
    layers = layers_with(read_options(fields, given, command, own))
    config = build.config_for(probed, layers)
    if env and "--preset" not in options and (note := build.cpu_preset_note(env, probed.spec, config)):
        return read_request(command, [*argv, "--preset", build.CPU_PRESET], more)._replace(note=note)
    return RunRequest(env, options, probed, config, layers, wants_help)


def _ignores_representation(config: Config) -> bool:
    """Whether a representation with its own loss is neither trained nor read in pre-training."""
    from voidrl.agent.encoder_training import Pieces, decide

    pieces = Pieces.of(config)
    return pieces.representation.has_loss and not decide(config, pieces).trains_representation


def _own_options(command: str) -> dict[str, str]:
    """Options of a command that starts from scratch, other than fields of the config."""
    return TRAIN if command == "train" else START


def _refuse_bonus(command: str, given: dict[str, str]) -> None:
    """Name the alternative to `--bonus` in commands other than `train`."""
    if "--bonus" not in given:
        return
    instead = "pre-training has no other reward than the method's: use --method NAME"
    if command == "finetune":
        instead = "fine-tuning adds the reward of the agent's own method: use --bonus.coefficient 0.2"
    raise ConfigError(f"option --bonus is for `voidrl train`; {instead}")


def _read_finetune(argv: list[str], more: dict[str, str] | None) -> RunRequest:
    run, given, wants_help = split_words(
        argv, "finetune", "RUN", "the folder of a run or a saved agent, or user/name on the Hugging Face Hub"
    )
    own = {**FINETUNE, **(more or {})}
    options = pop_own(given, own)
    _refuse_bonus("finetune", given)
    if "--method" in given:
        raise ConfigError(
            f"option --method {given['--method']} cannot be used: a fine-tuned agent keeps the method of its "
            "pre-training; leave it out, or add that method's reward to the task's with "
            "--bonus.coefficient 0.2"
        )
    if not run:
        return read_request("train", [DEFAULT_ENV, "--preset", "none", wants_help])
    from voidrl import api
    from voidrl.config import update
    from voidrl.sharing import pretrained as share
    from voidrl.training import build
    from voidrl.training.layers import finetune_layers, task_config
    from voidrl.training.starting import logged_start

    agent = api.load(run, device="cpu", trust_code="--trust-code" in options, best="--best" in options)
    pieces = {"learner": options["--learner"]} if "--learner" in options else {}
    fields = update(task_config(agent.config), pieces)
    changes = read_options(fields, given, "finetune", own)
    layers = finetune_layers(agent.config, changes, pieces)
    env = options.get("--env") or share.own_env(agent)
    starts = more is None and not wants_help
    with logged_start(env, layers, options.get("--out")) if starts else nullcontext():
        probed = build.probe(env, layers)
    return RunRequest(agent, options, probed, build.config_for(probed, layers), layers, wants_help)


def resume(argv: list[str]) -> int:
    """Resume a run that stopped: `voidrl resume RUN`."""
    return _on_ranks("resume", argv, _resume, _require_resumable)


def _require_resumable(command: str, argv: list[str], size: int) -> None:
    """Refuse a run that cannot be resumed on `size` ranks."""
    options = _read_resume(argv)
    from voidrl import api
    from voidrl.config import update
    from voidrl.runs.status import read_status
    from voidrl.training.layers import as_changes
    from voidrl.training.saved_run import require_as_many_ranks
    from voidrl.training.split import require_ranks

    folder, written = api.open_run(options.run)
    status = read_status(folder.path)
    if status is not None and status.checkpoint is not None:
        require_as_many_ranks(folder.path, status.ranks, size)
    require_ranks(update(written, as_changes(read_changes(options.config))), None, size)


def _resume(command: str, argv: list[str]) -> None:
    options = _read_resume(argv)
    from voidrl import api

    callbacks = read_callbacks("\n".join(options.callbacks))
    api.resume(**{**vars(options), "config": read_changes(options.config), "callbacks": callbacks})


def _read_resume(argv: list[str]) -> argparse.Namespace:
    parser = make_parser("resume", resume.__doc__)
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument("--steps", help="a new total of environment steps")
    set_help = "change what does not define the run: log.keep_last=1 learner.learning_rate=1e-5"
    words: Any = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--set", dest="config", metavar="NAME=VALUE", help=set_help, **words)
    parser.add_argument("--env", help="module:function, for a run started by a script with its own function")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N (default: as it was started)")
    parser.add_argument("--engine", help="auto, eager, graph or compile (default: as it was started)")
    callback_help = "as in `voidrl pretrain`; those of the run are not saved, only their states"
    parser.add_argument(
        "--callback", dest="callbacks", action="append", default=[], metavar="NAME", help=callback_help
    )
    for usage, meaning in OPTIONS.items():  # taken out before
        parser.add_argument(*usage.split()[:1], metavar="N", help=meaning, default=argparse.SUPPRESS)
    return parser.parse_args(argv)


PHASES: dict[str, Callable[[list[str]], int]] = {"pretrain": pretrain, "finetune": finetune, "train": train}
