"""Options of the commands, many of them fields of the config, and their help. Imports no torch itself."""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from voidrl.config import SET_BY_COMMAND, Config, field_docs, field_types, similar_fields
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.system.terminal.tables import described, wrap_text
from voidrl.system.units import parse_count, plural

if TYPE_CHECKING:
    from voidrl.agent import Agent

HELP = ("-h", "--help")
HELP_ALL = "--help-all"
BEST_HELP = "the best evaluated agent of a fine-tuning run, instead of its last"
TRUST_HELP = "let an agent from the Hub name Python code (module:name), which is then run here"
RUN_HELP = "the folder of a run, a checkpoint or a saved agent, or user/name on the Hub"
DEVICE_HELP = "auto, cpu or cuda (default: auto)"
CALLBACKS = ("StopOnPlateau", "StopAtReturn")  # those of voidrl whose arguments a text can spell
# The fields that most users change; `--help` shows these, `--help-all` every field.
COMMON_FIELDS = (
    *("steps", "seed", "device", "env.num_envs", "updates_per_step", "warmup_steps", "learner.batch_size"),
    *("learner.learning_rate", "learner.n_step", "replay.capacity_steps", "finetune.heads"),
    *("log.eval_every_steps", "log.checkpoint_every_steps"),
)
FIELD = re.compile(r"(?<![\w.`-])([a-z_]+(?:\.[a-z_]+)+) = ('[^']*'|[^\s:;,()]+)")  # in a message
OPTION_NAME = re.compile("^--[^=]*")
WORDS = {"true": True, "false": False, "none": None}
MAX_SEEDS = 256  # in a range; a longer one is a slip of the finger
UNKNOWN = bool | int | float | None  # the type of a field that is not known yet


class Parser(argparse.ArgumentParser):
    """argparse with our errors, a short help of one screen, and `--help-all`."""

    def __init__(self, command: str, about: str | None) -> None:
        self.shorten: list[argparse.Action] = []  # left out of the short help
        self.more: Callable[[], str] | None = None  # text below the options of the short help
        about = (about or "").replace("`", "")
        super().__init__(prog=f"voidrl {command}", description=about, allow_abbrev=False, add_help=False)
        hidden = argparse.SUPPRESS
        self.add_argument(*HELP, HELP_ALL, action=_Help, nargs=0, default=hidden, help=hidden)

    def rare(self, *names: str, **settings: Any) -> None:
        """Add an option that only `--help-all` shows."""
        self.shorten.append(self.add_argument(*names, **settings))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Underscores in names of options are hyphens."""
        words = [OPTION_NAME.sub(lambda name: name[0].replace("_", "-"), word) for word in args or ()]
        return super().parse_known_args(words, namespace)

    def read_first(self, argv: list[str], kind: str, known: Iterable[str]) -> tuple[str, list[str]]:
        """The first word, which chooses the parser of the others; without one, the help is shown."""
        word, *words = argv or HELP
        if word in (*HELP, HELP_ALL):
            self.parse_args([word])
        if word not in known:
            raise UnknownNameError(kind, word, known, f"See `{self.prog} --help`.")
        return word, words

    def error(self, message: str) -> NoReturn:
        """Raise our error in place of printing the usage."""
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments: -"):
            known = [*self._option_string_actions]
            raise UnknownNameError("option", words[0].partition("=")[0], known, f"See `{self.prog} --help`.")
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def format_help(self, *, whole: bool = False) -> str:
        """Usage, description and options; all of them, or those that most users need."""
        shown = [each for each in self._actions if each.help != argparse.SUPPRESS]
        shown = [each for each in shown if whole or each not in self.shorten]
        positionals = " ".join(usage_of(each) for each in shown if not each.option_strings)
        options = " [OPTION …]" if any(each.option_strings for each in shown) else ""
        parts = [f"usage: {self.prog} {positionals}".rstrip() + options, wrap_text(self.description or "")]
        if shown:
            parts.append(described({usage_of(each): each.help or "" for each in shown}))
        if not whole and self.more:
            parts.append(self.more())
        elif not whole and self.shorten:
            parts.append(f"{HELP_ALL} shows {plural(len(self.shorten), 'more option')}.")
        return "\n\n".join(parts) + "\n"


class _Help(argparse.Action):
    """`--help` and `--help-all`."""

    def __call__(self, parser: Any, namespace: object, values: object, option: str | None = None) -> None:
        print(parser.format_help(whole=option == HELP_ALL), end="")
        parser.exit()


def usage_of(action: argparse.Action) -> str:
    """The names of an option with its values, or the name of an argument."""
    choices = "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
    name = action.metavar or choices or (action.dest.upper() if action.option_strings else action.dest)
    values = {"+": f"{name} …", "*": f"[{name} …]", "?": f"[{name}]", "0": ""}
    return f"{', '.join(action.option_strings)} {values.get(str(action.nargs), name)}".strip()


def add_source_options(parser: Parser) -> None:
    """Add `--best` and `--trust-code`, for commands that load an agent."""
    parser.add_argument("--best", action="store_true", help=BEST_HELP)
    parser.rare("--trust-code", action="store_true", help=TRUST_HELP)


def load_agent(options: argparse.Namespace, run: str, device: str = "cpu") -> Agent:
    """Load an agent with the options of `add_source_options`."""
    from voidrl import api

    return api.load(run, device=device, trust_code=options.trust_code, best=options.best)


def read_seeds(text: str, option: str) -> list[int]:
    """The seeds in `1..8` or `1,3,5`."""
    first, dots, last = text.partition("..")
    with suppress(ValueError):
        seeds = range(int(first), int(last) + 1) if dots else [int(word) for word in text.split(",")]
        found = [*seeds[: MAX_SEEDS + 1]]
        if 0 < len({*found}) == len(found) <= MAX_SEEDS and min(found) >= 0:
            return found
    raise ConfigError(
        f"{option} {text!r} cannot be used: expected whole numbers from 0 on, such as 1..8 or 1,3,5, each of "
        f"them once and at most {MAX_SEEDS}"
    )


class ReadSeeds(argparse.Action):
    """Action for options of several words, each a list of seeds: `--seeds 1..4 7`."""

    def __call__(self, parser: object, namespace: object, values: Any, *_: Any) -> None:
        """Put the seeds of all words together."""
        option = self.option_strings[0]
        setattr(namespace, self.dest, [seed for word in values for seed in read_seeds(word, option)])


def read_callbacks(texts: Sequence[str]) -> list[Any]:
    """Build the callbacks of `--callback Class?option=value`."""
    from voidrl.config import registry
    from voidrl.envs.ids import parse_id
    from voidrl.training import callbacks

    found = []
    for text in texts:
        name, options = parse_id(text)
        if name not in CALLBACKS and ":" not in name:
            near, remedy = registry.with_colon(name), "A custom one is 'module:Class'."
            raise UnknownNameError("callback", name, CALLBACKS, remedy, near)
        own = name in CALLBACKS
        cls: Any = getattr(callbacks, name) if own else registry.import_path("callback", name)
        if not (isinstance(cls, type) and issubclass(cls, callbacks.Callback)):
            raise ConfigError(f"callback {name!r} cannot be used: expected a subclass of voidrl.Callback")
        try:
            found.append(cls(**options))
        except TypeError as error:
            raise ConfigError(
                f"callback {text!r} cannot be built ({error}): expected module:Class?option=value&…"
            ) from error
    return found


# Fields of the config


class Option(typing.NamedTuple):
    """A field of the config on the command line."""

    field: str
    """Its dotted name."""
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
            yield f"--{here.replace('_', '-')}", Option(here, value, hints[field.name], type(config))
    for value, here in nested:
        yield from config_options(value, here)


Given = Sequence[tuple[str, str | None]]
"""Names of options with the text of their values, None for a flag."""


def read_options(config: Config, given: Given, parser: Parser) -> dict[str, Any]:
    """The values of fields of `config`, by dotted names."""
    options = dict(config_options(config))
    values = {}
    for name, text in given:
        if name not in options:
            known = [*options, *parser._option_string_actions]
            fields = {option.field: spelled for spelled, option in options.items()}
            near = [fields[field] for field in similar_fields(name[2:].replace("-", "_"), fields)]
            raise UnknownNameError("option", name, known, f"See `{parser.prog} {HELP_ALL}`.", near)
        option = options[name]
        if text is None and option.type is not bool:
            raise ConfigError(f"option {name} has no value: expected `{name} VALUE`")
        values[option.field] = True if text is None else read_as(text, option.type)
    return values


def split_options(words: Sequence[str]) -> Given:
    """The options in `--name value`, `--name=value` and `--flag`."""
    given: list[tuple[str, str | None]] = []
    rest = [*words]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} was not expected here: options look like --name value")
        if not equals and rest and not rest[0].startswith("--"):
            equals, value = "=", rest.pop(0)
        given.append((name, value if equals else None))
    return given


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


def spelled(value: Any) -> str:
    """A value as an option takes it."""
    return ",".join(map(str, value)) or "[]" if isinstance(value, list | tuple) else str(value)


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


def read_changes(words: Sequence[str]) -> dict[str, Any]:
    """`--set NAME=VALUE …` as dotted names and values."""
    changes = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {word} cannot be used: expected NAME=VALUE, such as learner.n_step=5")
        several = len(split_list(text)) > 1 or text.endswith(",")
        changes[name.replace("-", "_")] = read_as(text, tuple[UNKNOWN, ...] if several else UNKNOWN)
    return changes


def as_options(message: str) -> str:
    """An error's remedies as options: `env.backend = 'sync'` becomes `--env.backend sync`."""
    found, colon, remedy = message.partition(": ")
    sections = {field.name for field in dataclasses.fields(Config)}

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2].strip("'")
        spelled = f"--{name.replace('_', '-')} {value}"
        return spelled if name.partition(".")[0] in sections else match[0]

    return found + colon + FIELD.sub(option, remedy)


def common_fields() -> str:
    """The fields that most users change, each with the first sentence about it."""
    options = {option.field: (name, option) for name, option in config_options(Config())}
    rows = {}
    for field in COMMON_FIELDS:
        name, option = options[field]
        value = {int: "N", float: "X"}.get(type(option.value), "NAME")
        rows[f"{name} {value}"] = option.doc.partition(".")[0]
    more = f"{HELP_ALL} shows every option, `voidrl config` every value"
    return f"{wrap_text(f'Some fields of the config; {more}:', indent=0)}\n{described(rows)}"


def all_fields(config: Config) -> str:
    """Every field with its value in `config` and its docstring."""
    sections: dict[str, dict[str, str]] = {}
    for name, option in config_options(config):
        choices = typing.get_args(option.type) if typing.get_origin(option.type) is Literal else ()
        text = f"{option.doc} One of {', '.join(choices)}." if choices else option.doc
        section = option.field.rpartition(".")[0]
        sections.setdefault(section, {})[f"{name} {spelled(option.value)}"] = text
    about = "Fields of the config, with the values that they have here (a flag as --name, or --name false):"
    parts = [f"{section or 'run'}\n{described(rows)}" for section, rows in sections.items()]
    return "\n\n".join([wrap_text(about), *parts])
