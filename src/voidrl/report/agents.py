"""Names of the agents that runs train, found by comparing configs with presets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from voidrl.config import flat, merge
from voidrl.errors import ConfigError
from voidrl.presets.presets import AGENTS, PRESETS, preset_for
from voidrl.report.read import Run

# Settings in which a run may differ from its preset and still be of that agent.
_FREE = ("steps", "env.id", "env.num_envs", "env.backend", "replay.device")


def find_agent(run: Run, presets: Iterable[str] = AGENTS) -> str | None:
    """The most specific of these presets that matches a run's values."""
    settings = flat(run.config)
    matches = {
        name: len(fixed)
        for name in presets
        if name in PRESETS
        and (fixed := _fixed_values(run.env, name))
        and all(value in ("auto", settings.get(key)) for key, value in fixed.items())
    }
    return max(matches, key=lambda name: matches[name]) if matches else None


@cache
def _fixed_values(env: str, name: str) -> dict[str, Any]:
    """The values of a preset that define its agent, by dotted name; {} if it is not made for an environment.

    `auto` leaves a value to the environment.
    """
    try:
        values = flat(merge(preset_for(env, name)))
    except ConfigError:
        return {}
    return {
        key: value
        for key, value in values.items()
        if key not in _FREE
        and not key.startswith(("finetune.", "method."))
        and (not key.startswith("log.") or key == "log.eval_epsilon")
    }
