"""Scales on which scores of different tasks are comparable: a human's on Atari, an expert's on URLB."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from voidrl.envs.ids import atari_game
from voidrl.envs.suites.atari import GAMES, baseline, find_game
from voidrl.envs.suites.dmcontrol import PREFIX, URLB, find_dmc_task
from voidrl.envs.suites.published import numbers
from voidrl.errors import VoidrlError


@dataclass(frozen=True, eq=False)
class Scale:
    """Scores of a set of tasks as fractions of a reference's."""

    reference: str
    """`human` or `expert`."""
    key: str
    """Key of the measure."""
    about: str
    ends: Mapping[str, tuple[float, float]]
    """The scores that become 0 and 1, by task."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tasks whose mean is shown as well, such as those of a body."""

    def normalize(self, task: str, score: float) -> float:
        """A score of a task as a fraction."""
        low, high = self.ends[task]
        return (score - low) / (high - low)


@cache
def scales() -> tuple[Scale, ...]:
    """Every scale."""
    human = {f"atari/{game}": baseline(game) for game in GAMES}
    [expert] = [row for row in numbers("urlb").rows if row.name == "expert"]
    bodies = {body: tuple(f"{PREFIX}{body}_{task}" for task in tasks) for body, tasks in URLB.items()}
    returns = {task: (0.0, value) for task, value in expert.values.items() if task.startswith(PREFIX)}
    return (
        Scale("human", "normalized", "0 % is a random policy, 100 % the human tester", human),
        Scale("expert", "expert_normalized", "100 % is the expert's return", returns, bodies),
    )


@cache
def find_scale(env: str) -> tuple[Scale, str] | None:
    """The scale of an environment, and the usual spelling of its task; None where there is no scale."""
    task = ""
    with suppress(VoidrlError):
        if (game := atari_game(env)) is not None:
            task = f"atari/{find_game(game)}"
        elif (found := find_dmc_task(env)) is not None:
            task = f"{PREFIX}{found.name}"
    return next(((scale, task) for scale in scales() if task in scale.ends), None)


def normalize(env: str, score: float) -> dict[str, float]:
    """A score by the key of its scale; empty where there is no scale."""
    found = find_scale(env)
    return {} if found is None else {found[0].key: found[0].normalize(found[1], score)}
