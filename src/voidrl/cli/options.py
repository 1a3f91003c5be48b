"""How `voidrl` reads its options, many of them made from the config dataclasses. Imports no torch itself."""

from __future__ import annotations

import argparse
import dataclasses
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from voidrl.errors import ConfigError, UnknownNameError
from voidrl.terminal.screen import has_color
from voidrl.terminal.tables import described, wrap_text

if TYPE_CHECKING:
    from voidrl.config import Config

HELP = ["-h", "--help"]
TRUST_HELP = "let an agent from the Hub name Python code (module:name), which is then run here"


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def make_parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """For a command whose options are not fields of the config."""
    return _Parser(prog=f"voidrl {command}", description=(about or "").replace("`", ""), allow_abbrev=False)


def split_words(argv: list[str], command: str, what: str, meaning: str) -> tuple[str, dict[str, str], bool]:
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


def pop_own(given: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
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
        if name in ("--overwrite", "--trust-code") and not equals:
            value = "True"
        elif not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"option {name} has no value: expected `{name} VALUE`")
        found[name] = value
    return found


def default_config(env: str, options: Mapping[str, str], phase: str) -> Config:
    """The config before the options for its fields: it depends on the environment and the pieces chosen."""
    from voidrl.api import build_config
    from voidrl.config import EnvConfig, merge, to_json, update
    from voidrl.envs.make import probe_env
    from voidrl.protocols.presets import preset_for

    pieces = {
        kind: options[f"--{kind}"]
        for kind in ("method", "representation", "learner")
        if f"--{kind}" in options
    }
    values = preset_for(env, options.get("--preset"), phase)
    layers: list[Mapping[str, Any]] = [values, pieces, {"phase": phase}]
    env_config = update(EnvConfig(), {**merge(*layers).get("env", {}), "id": env or "voidrl/PixelMaze-v0"})
    looked_at = dataclasses.replace(env_config, count_states=False)  # which an option may still turn off
    return build_config(probe_env(looked_at)[0], [*layers, {"env": to_json(env_config)}])


def with_options(config: Config, given: Mapping[str, str], command: str, own: Mapping[str, str]) -> Config:
    """The config with what stands on the command line."""
    from voidrl.config import update

    fields = dict(config_fields(config))
    for name, text in given.items():
        if name not in fields:
            known = [*fields, *(usage.partition(" ")[0] for usage in own)]
            raise UnknownNameError("option", name, known, f"See `voidrl {command} --help`.")
        if isinstance(operator.attrgetter(fields[name])(config), tuple):
            config = update(config, {fields[name]: _read_list(text)})
            continue
        try:
            config = update(config, {fields[name]: read_value(text)})
        except ConfigError as error:
            try:  # what looks like a number can also be meant as it stands
                config = update(config, {fields[name]: text})
            except ConfigError:
                raise error from None
    return config


def _read_list(text: str) -> tuple[Any, ...]:
    """Words between commas, perhaps in brackets."""
    return tuple(read_value(word.strip()) for word in text.strip("[]").split(",") if word.strip())


def read_value(text: str) -> Any:
    """A word as the number, truth value or None that it spells."""
    from voidrl.units import parse_count

    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (parse_count, int, float):
        with suppress(ValueError):
            return read(text)
    return text


def config_fields(config: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(option, dotted field) of everything that is not set by the command itself."""
    for field in dataclasses.fields(config):
        value, here = getattr(config, field.name), path + field.name
        if dataclasses.is_dataclass(value):
            yield from config_fields(value, f"{here}.")
        elif here not in ("phase", "env.id") and not here.endswith(".name"):
            yield f"--{here.replace('_', '-')}", here


def print_help(config: Config, prog: str, about: str | None, own: Mapping[str, str]) -> None:
    """Every field with its docstring, as tyro lays them out."""
    import tyro

    # tyro breaks no line of a description, and joins those that begin with a letter: hence the indents.
    fields = wrap_text("Fields of the config, with the values they have here:")
    about = f"{wrap_text(about or '')}\n\n{described(own)}\n\n{fields}"
    tyro._experimental_options["ansi_codes"] = has_color(sys.stdout)
    with suppress(SystemExit):
        tyro.cli(
            type(config),
            prog=prog,
            description=about,
            args=["--help"],
            default=config,
            config=(tyro.conf.FlagConversionOff,),
        )
