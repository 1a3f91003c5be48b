"""Parsing of `voidrl`'s options, many of them fields of the config. Imports no torch itself."""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from voidrl.config import SET_BY_COMMAND, Config, field_docs, field_types, similar_fields
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.system.terminal.tables import described, wrap_text
from voidrl.system.units import parse_count

if TYPE_CHECKING:
    from voidrl.agent import Agent

HELP = ["-h", "--help"]
HELP_ALL = "--help-all"
FLAGS = ("--overwrite", "--trust-code", "--best", "--json", "--all")
TRUST_HELP = "let an agent from the Hub name Python code (module:name), which is then run here"
BEST_HELP = "the best evaluated agent of a fine-tuning run, instead of its last"
CALLBACKS = (
    "StopOnPlateau",
    "StopAtReturn",
)  # of `voidrl.training.callbacks`, those whose arguments a text can spell
EXPERIMENT_SET = "--set"  # an option of `voidrl experiment` only
REPEATED = "--callback"  # the one option that may be given several times
NO_VALUE = "\0"  # of an option given without one, which only flags may be
NEGATED = "--no-"  # before the name of a flag that is turned off
# The fields that most users change; `--help` shows these, `--help-all` every field.
COMMON_FIELDS = (
    *("steps", "seed", "device", "env.num_envs", "env.frame_stack", "env.keys", "env.wrappers"),
    *("warmup_steps", "updates_per_step", "learner.learning_rate", "learner.batch_size", "learner.discount"),
    *("learner.n_step", "representation.encoder.feature_dim", "replay.capacity_steps", "finetune.steps"),
    *("finetune.heads", "log.log_every_steps", "log.eval_every_steps", "log.checkpoint_every_steps"),
)
FIELD = re.compile(r"(?<![\w.`-])([a-z_]+(?:\.[a-z_]+)+) = ('[^']*'|[^\s:;,()]+)")  # in a message
WORDS = {"true": True, "false": False, "none": None}


class _Parser(argparse.ArgumentParser):
    """argparse that raises our errors."""

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments: -"):
            known = [*self._option_string_actions]
            raise UnknownNameError("option", words[0].partition("=")[0], known, f"See `{self.prog} --help`.")
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def make_parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a command whose options are not fields of the config."""
    return _Parser(prog=f"voidrl {command}", description=(about or "").replace("`", ""), allow_abbrev=False)


def add_player_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a trained agent's play: environment, randomness and device."""
    add = parser.add_argument
    add("--env", help="by default the one each was trained in")
    add("--seed", type=int, default=0, help="seed of environments and random actions (default: 0)")
    add("--stochastic", action="store_true", help="act with exploration noise")
    add("--epsilon", type=float, help="probability of a random action (default: the run's log.eval_epsilon)")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add_source_options(parser)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add `--best` and `--trust-code`, for commands that load an agent."""
    parser.add_argument("--best", action="store_true", help=BEST_HELP)
    parser.add_argument("--trust-code", action="store_true", help=TRUST_HELP)


def load_agent(options: argparse.Namespace, run: str, device: str = "cpu") -> Agent:
    """Load an agent with the options of `add_source_options`."""
    from voidrl import api

    return api.load(run, device=device, trust_code=options.trust_code, best=options.best)


def split_words(argv: list[str], command: str, what: str, meaning: str) -> tuple[str, dict[str, str], str]:
    """The first argument, the options after it, and the help asked for, which needs no argument.

    That is `--help`, `--help-all` or the empty text.
    """
    words = [word for word in argv if word not in HELP and word != HELP_ALL]
    wants_help = HELP_ALL if HELP_ALL in argv else "--help" if len(words) < len(argv) else ""
    if words and not words[0].startswith("-"):
        return words[0], _pairs(words[1:]), wants_help
    if not wants_help:
        raise ConfigError(
            f"no {what} was given: expected `voidrl {command} {what} …`, where {what} is {meaning}"
        )
    return "", _pairs(words), wants_help


def pop_own(given: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Take out the options that are not fields of the config."""
    names = [usage.partition(" ")[0] for usage in own]
    found = {name: given.pop(name) for name in names if name in given}
    for name, value in found.items():
        if value == NO_VALUE and name not in FLAGS:
            raise _no_value(name)
    return found


def _pairs(words: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value`, and a bare `--name`, with hyphens in names as in the help."""
    found: dict[str, str] = {}
    rest = [*words]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} was not expected here: options look like --name value")
        if name == EXPERIMENT_SET:
            raise _no_set(value if equals else rest[0] if rest else "")
        if name in FLAGS and equals:
            raise ConfigError(f"option {name} takes no value, got {value!r}: give it, or leave it out")
        if not equals and name not in FLAGS:
            alone = not rest or rest[0].startswith("--")
            value = NO_VALUE if alone or name.startswith(NEGATED) else rest.pop(0)
        found[name] = f"{found[name]}\n{value}" if name == REPEATED and name in found else value
    return found


def _no_set(change: str) -> ConfigError:
    field, equals, value = change.partition("=")
    if not equals or not field:
        field, value = "learner.n_step", "5"
    return ConfigError(
        f"{EXPERIMENT_SET} is for `voidrl experiment`: here every field of the config is an option, so use "
        f"`--{field.replace('_', '-')} {value}`"
    )


def read_callbacks(text: str) -> list[Any]:
    """Build the callbacks of `--callback Class?option=value`, one on each line."""
    from voidrl.config import registry
    from voidrl.envs.ids import parse_id
    from voidrl.training import callbacks

    found = []
    for line in text.splitlines():
        name, options = parse_id(line)
        if ":" not in name and name not in CALLBACKS:
            raise UnknownNameError("callback", name, CALLBACKS, "A custom one is 'module:Class'.")
        path = name if ":" in name else f"voidrl.training.callbacks:{name}"
        cls = registry.import_path("callback", path)
        if not (isinstance(cls, type) and issubclass(cls, callbacks.Callback)):
            raise ConfigError(f"callback {name!r} cannot be used: expected a subclass of voidrl.Callback")
        try:
            found.append(cls(**options))
        except TypeError as error:
            raise ConfigError(
                f"callback {line!r} cannot be built ({error}): expected module:Class?option=value&…"
            ) from error
    return found


def _no_value(name: str) -> ConfigError:
    return ConfigError(f"option {name} has no value: expected `{name} VALUE`")


class Option(typing.NamedTuple):
    """A field of the config on the command line."""

    field: str
    """Its dotted name."""
    section: str
    value: Any
    type: Any
    owner: Any
    """The class of the config that has the field."""

    @property
    def doc(self) -> str:
        """Its help text."""
        return field_docs(self.owner).get(self.field.rpartition(".")[2], "")


def config_options(config: Any, path: str = "") -> Iterator[tuple[str, Option]]:
    """Every field as (`--name`, option), except for those that the command sets."""
    hints = field_types(type(config))
    nested = []
    for field in dataclasses.fields(config):
        value, here = getattr(config, field.name), path + field.name
        if dataclasses.is_dataclass(value):
            nested.append((value, f"{here}."))
        elif here not in SET_BY_COMMAND:
            option = Option(here, path.rstrip("."), value, hints[field.name], type(config))
            yield f"--{here.replace('_', '-')}", option
    for value, here in nested:
        yield from config_options(value, here)


def read_options(
    config: Config, given: Mapping[str, str], command: str, own: Mapping[str, str]
) -> dict[str, Any]:
    """The values of options for the fields of `config`, by dotted names."""
    options = dict(config_options(config))
    values = {}
    for name, text in given.items():
        positive = name.replace(NEGATED, "--", 1) if name.startswith(NEGATED) else name
        if name not in options and positive in options and options[positive].type is bool:
            if text != NO_VALUE:
                raise ConfigError(f"option {name} takes no value, got {text!r}: give it, or leave it out")
            values[options[positive].field] = False
            continue
        if name not in options and positive in FLAGS:
            raise ConfigError(f"unknown option {name!r}; did you mean to leave out {positive}?")
        if name not in options:
            known = [*options, *(usage.partition(" ")[0] for usage in own)]
            fields = {option.field: spelled for spelled, option in options.items()}
            wanted = positive.removeprefix("--").replace("-", "_")
            near = [fields[field] for field in similar_fields(wanted, fields)]
            raise UnknownNameError("option", name, known, f"See `voidrl {command} --help-all`.", near)
        option = options[name]
        if text == NO_VALUE and option.type is not bool:
            raise _no_value(name)
        values[option.field] = True if text == NO_VALUE else read_as(text, option.type)
    return values


def read_as(text: str, hint: Any) -> Any:
    """The value that a text spells for a field of this type; the text itself if it spells none."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            return tuple(read_as(word, typing.get_args(kind)[0]) for word in split_list(text))
        if kind in (bool, types.NoneType) and isinstance(value := WORDS.get(text.lower(), text), kind):
            return value
        if kind in (int, float):
            for read in (parse_count, kind):
                with suppress(ValueError):
                    return read(text)
    return text


def split_list(text: str) -> list[str]:
    """The entries of `a,b` or `[a, b]`; commas within brackets, as in `a?size=[3,4]`, split nothing."""
    text = text.strip()
    if text[:1] in ("[", "(") and text[-1:] in ("]", ")"):
        text = text[1:-1]
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth <= 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]


def read_changes(words: list[str]) -> dict[str, Any]:
    """`--set NAME=VALUE …` as dotted names and values."""
    changes = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {word} cannot be used: expected NAME=VALUE, such as learner.n_step=5")
        parts = split_list(text)
        several = len(parts) > 1 or text.endswith(",")
        changes[name.replace("-", "_")] = tuple(map(_read_value, parts)) if several else _read_value(text)
    return changes


def _read_value(text: str) -> Any:
    """The number, truth value or None that a text spells; which fields runs have is not known yet."""
    for read in (lambda text: WORDS[text.lower()], parse_count, int, float):
        with suppress(KeyError, ValueError):
            return read(text)
    return text


def as_options(message: str) -> str:
    """An error's remedies as options: `env.backend = 'sync'` becomes `--env.backend sync`."""
    found, colon, remedy = message.partition(": ")
    sections = {field.name for field in dataclasses.fields(Config)}

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2].strip("'")
        spelled = f"--{name.replace('_', '-')} {value}"
        return spelled if name.partition(".")[0] in sections else match[0]

    return found + colon + FIELD.sub(option, remedy)


def print_help(config: Config, usage: str, about: str | None, own: Mapping[str, str], wanted: str) -> None:
    """The options of a command, then fields of the config with their values here and their docstrings.

    `--help` has the fields that most users change, `--help-all` every one.
    """
    print(wrap_text(f"usage: {usage} [OPTION …]", indent=7))
    print(f"\n{wrap_text(about or '')}\n\n{described(own)}\n")
    options = dict(config_options(config))
    chosen = {
        name: option
        for name, option in options.items()
        if wanted == HELP_ALL or option.field in COMMON_FIELDS or option.field == "method.k"
    }
    which = "Fields of the config" if wanted == HELP_ALL else "Some fields of the config"
    print(wrap_text(f"{which}, with the values that they have here (a flag as --name or --no-name):"))
    sections: dict[str, dict[str, str]] = {}
    for name, option in chosen.items():
        shown = ",".join(map(str, option.value)) or "[]" if isinstance(option.value, tuple) else option.value
        choices = typing.get_args(option.type) if typing.get_origin(option.type) is Literal else ()
        text = f"{option.doc} One of {', '.join(choices)}." if choices else option.doc
        sections.setdefault(option.section, {})[f"{name} {shown}"] = text
    for section, rows in sections.items():
        print(f"\n{section or 'run'}\n{described(rows)}")
    if len(chosen) < len(options):
        print(f"\n{HELP_ALL} shows {len(options) - len(chosen)} more fields.")
