"""How `voidrl` reads its options, many of them fields of the config. Imports no torch itself."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, NoReturn

from voidrl.config import SET_BY_COMMAND, Config, field_docs, field_types
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.terminal.tables import described, wrap_text
from voidrl.units import parse_count

HELP = ["-h", "--help"]
FLAGS = ("--overwrite", "--trust-code", "--json", "--all")
TRUST_HELP = "let an agent from the Hub name Python code (module:name), which is then run here"
REPEATED = "--callback"  # the one option that may be given several times
WORDS = {"true": True, "false": False, "none": None}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def make_parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """For a command whose options are not fields of the config."""
    return _Parser(prog=f"voidrl {command}", description=(about or "").replace("`", ""), allow_abbrev=False)


def add_player_options(parser: argparse.ArgumentParser) -> None:
    """Add how a trained agent plays: its environment, randomness and device."""
    add = parser.add_argument
    add("--env", help="by default the one each was trained in")
    add("--seed", type=int, default=0, help="seed of environments and random actions (default: 0)")
    add("--stochastic", action="store_true", help="act with exploration noise")
    add("--epsilon", type=float, help="probability of a random action (default: the run's log.eval_epsilon)")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--trust-code", action="store_true", help=TRUST_HELP)


def split_words(argv: list[str], command: str, what: str, meaning: str) -> tuple[str, dict[str, str], bool]:
    """The first argument, the options after it, and whether help is asked for, which needs no argument."""
    words = [word for word in argv if word not in HELP]
    wants_help = len(words) < len(argv)
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
    return {name: given.pop(name) for name in names if name in given}


def _pairs(words: list[str]) -> dict[str, str]:
    """`--name value` and `--name=value`, with hyphens in names as in the help."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} was not expected here: options look like --name value")
        if name in FLAGS and equals:
            raise ConfigError(f"option {name} takes no value, got {value!r}: give it, or leave it out")
        if not equals and name not in FLAGS:
            value = next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"option {name} has no value: expected `{name} VALUE`")
        found[name] = f"{found[name]}\n{value}" if name == REPEATED and name in found else value
    return found


def read_callbacks(text: str) -> list[Any]:
    """Build the callbacks of `--callback Class?option=value`, one on each line."""
    from voidrl import callbacks, registry
    from voidrl.envs.ids import parse_id

    found = []
    for line in text.splitlines():
        name, options = parse_id(line)
        path = name if ":" in name else f"voidrl.callbacks:{name}"
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
        """What the help says about it."""
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
    for name in given:
        if name not in options:
            known = [*options, *(usage.partition(" ")[0] for usage in own)]
            raise UnknownNameError("option", name, known, f"See `voidrl {command} --help`.")
    return {options[name].field: read_as(text, options[name].type) for name, text in given.items()}


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


def print_help(config: Config, usage: str, about: str | None, own: Mapping[str, str]) -> None:
    """The options of a command, then every field of the config with its value here and its docstring."""
    print(wrap_text(f"usage: {usage} [OPTION …]", indent=7))
    print(f"\n{wrap_text(about or '')}\n\n{described(own)}\n")
    print(wrap_text("Fields of the config, with the values that they have here:"))
    sections: dict[str, dict[str, str]] = {}
    for name, option in config_options(config):
        shown = ",".join(map(str, option.value)) or "[]" if isinstance(option.value, tuple) else option.value
        choices = typing.get_args(option.type) if typing.get_origin(option.type) is Literal else ()
        text = f"{option.doc} One of {', '.join(choices)}." if choices else option.doc
        sections.setdefault(option.section, {})[f"{name} {shown}"] = text
    for section, rows in sections.items():
        print(f"\n{section or 'run'}\n{described(rows)}")
