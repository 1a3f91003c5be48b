"""How long a run will take, said once after its first updates, and what to lower if that is hours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from voidrl.config import Config
from voidrl.system.units import human_count, human_seconds

SETTLE_SECONDS = 2.0  # after the first update, which also allocates, compiles and captures
LOOK_SECONDS = 4.0
SHORT_SECONDS = 60.0  # what is left of a run that needs no announcement
LONG_SECONDS = 2 * 3600.0
# What makes an update cheaper, and a value that is small without being useless.
CHEAPER = {
    "updates_per_step": 0.25,
    "learner.batch_size": 64,
    "learner.hidden_dim": 256,
    "representation.batch_size": 64,
}


class _Mark(NamedTuple):
    seconds: float
    steps: int
    idle: float


class Projection:
    """Watches a run and projects its time from the rate of a few seconds.

    Args:
        config: The run's.
        learns: Whether there will be updates, before which nothing is measured.
        on_cpu: Whether the networks are on a CPU.
        clock: Seconds; tests pass their own.
    """

    def __init__(
        self, config: Config, *, learns: bool, on_cpu: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config, self._learns, self._on_cpu, self._clock = config, learns, on_cpu, clock
        self._first: float | None = None
        self._mark: _Mark | None = None
        self._done = False

    def look(self, steps: int, updates: int, idle: float | None) -> str | None:
        """The sentence, once it is time for it.

        Args:
            steps: Steps of the run so far.
            updates: Updates of the run in this process.
            idle: Seconds for which the learner has waited for environments; None if that is not known.
        """
        if self._done or (self._learns and not updates):
            return None
        now = self._clock()
        if self._first is None:
            self._first = now
        elif self._mark is None and now - self._first >= SETTLE_SECONDS:
            self._mark = _Mark(now, steps, idle or 0.0)
        elif self._mark is not None and now - self._mark.seconds >= LOOK_SECONDS and steps > self._mark.steps:
            self._done = True
            passed = now - self._mark.seconds
            waits = None if idle is None else (idle - self._mark.idle) / passed
            return self._sentence((steps - self._mark.steps) / passed, steps, waits)
        return None

    def _sentence(self, rate: float, steps: int, waits: float | None) -> str | None:
        left = (self.config.steps - steps) / rate
        if left < SHORT_SECONDS:
            return None
        sentence = f"about {human_seconds(left)} more, at {human_count(rate)} steps/s"
        if left < LONG_SECONDS:
            return sentence
        if not self._learns:
            return sentence  # only its environments take time
        return f"{sentence}; {cheaper(self.config, waits, on_cpu=self._on_cpu)}"


def cheaper(config: Config, waits: float | None, *, on_cpu: bool) -> str:
    """What would make a run take less time: names, values, and what they are now."""
    if waits is not None and waits > 0.5:
        ways = [f"env.num_envs above {config.env.num_envs}", "env.backend async where it is sync"]
        return f"environments take {waits:.0%} of it, so try {' and '.join(ways)}, or fewer steps"
    ways = []
    for name, value in CHEAPER.items():
        now: object = config
        for part in name.split("."):
            now = getattr(now, part)
        trains_f = config.effective.uses_method or config.representation.auxiliary
        kept = config.phase == "finetune" and name == "learner.hidden_dim"  # as it was pre-trained
        if isinstance(now, int | float) and now > value and not kept:
            if name.startswith("representation") and not trains_f:
                continue
            ways.append(f"{name} {value:g} (now {now:g})")
    if on_cpu and config.phase != "finetune" and ways:
        ways.append("preset cpu")
    return f"less takes {', '.join([*ways, 'or fewer steps'] if ways else ['fewer steps'])}"
