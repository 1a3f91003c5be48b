"""Lists of seeds: `1..8`, `1,3,5`, or several of these."""

from __future__ import annotations

import argparse
from typing import Any

from voidrl.errors import ConfigError

MAX_SEEDS = 256  # in a range; a longer one is a slip of the finger


def read_seeds(text: str, option: str) -> list[int]:
    """The seeds in `1..8` or `1,3,5`."""
    ends = text.split("..")
    words = ends if len(ends) == 2 else text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ConfigError(
            f"{option} {text!r} cannot be used: expected whole numbers from 0 on, such as 1..8 or 1,3,5"
        )
    numbers = [int(word) for word in words]
    if len(ends) == 2 and numbers[1] - numbers[0] >= MAX_SEEDS:
        raise ConfigError(f"{option} {text} cannot be used: expected at most {MAX_SEEDS} seeds")
    seeds = [*range(numbers[0], numbers[1] + 1)] if len(ends) == 2 else numbers
    if not seeds:
        raise ConfigError(f"{option} {text} cannot be used: expected the smaller number first, as in 1..8")
    if len({*seeds}) < len(seeds):
        raise ConfigError(f"{option} {text} cannot be used: expected each seed once")
    return seeds


class ReadSeeds(argparse.Action):
    """Action for options of several words, each a list of seeds: `--seeds 1..4 7`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        """Put the seeds of all words together."""
        option = self.option_strings[0]
        setattr(namespace, self.dest, [seed for word in values for seed in read_seeds(word, option)])
