"""A run in training: the objects and counters that the loop, its trainer and its hooks share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from voidrl import dist
from voidrl.engine.engine import Engine
from voidrl.envs.vector import Envs
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import score_name
from voidrl.system.terminal.progress import Progress
from voidrl.system.terminal.signals import StopSignals
from voidrl.training.callbacks import CallbackList, RunView
from voidrl.training.evaluation import Evaluation
from voidrl.training.metrics import MetricsWriter
from voidrl.training.saved_run import LoopState


@dataclass
class Experience:
    """The experience of a rank's environments since the last row of metrics."""

    rewards: list[float] = field(default_factory=list)
    """One for each real step."""
    finished: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of episodes."""
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Visits of each cell since the run began."""
    trained: dict[str, float] = field(default_factory=dict)
    """Metrics of updates."""
    states: list[dict[str, np.ndarray]] = field(default_factory=list)
    """Counts of `env.count_states` in ranks other than the first."""

    def of_all_ranks(self) -> Experience:
        """The experience of all ranks together; metrics of updates are averaged."""
        parts: list[Experience] = dist.all_gather_object(self)
        longest = max(len(part.visits) for part in parts)
        return Experience(
            rewards=[reward for part in parts for reward in part.rewards],
            finished=[episode for part in parts for episode in part.finished],
            visits=np.sum([np.pad(each.visits, (0, longest - len(each.visits))) for each in parts], axis=0),
            trained={
                name: float(np.mean([part.trained[name] for part in parts if name in part.trained]))
                for name in self.trained
            },
            states=[states for part in parts for states in part.states],
        )


class Run:
    """The agent, environments, folder and progress of one run. Hooks read it and report through it."""

    writer: MetricsWriter
    """Writes rows of metrics; only the first rank has one."""
    progress: Progress
    """The line in the terminal; only the first rank has one."""
    stop: StopSignals
    resources: ExitStack
    """Closes what hooks have opened, also after a failure."""

    def __init__(
        self,
        engine: Engine,
        envs: Envs,
        folder: RunFolder,
        state: LoopState,
        callbacks: CallbackList | None = None,
    ) -> None:
        self.engine, self.agent, self.replay = engine, engine.agent, engine.replay
        self.envs, self.folder, self.state = envs, folder, state
        self.callbacks = callbacks or CallbackList()
        self.config = self.agent.config
        self.group = dist.current()  # kept: it is another one within `dist.alone`, also for other threads
        self.is_main = self.group.is_main  # the rank that logs, saves and evaluates
        self.initial_agent_steps = self.agent.steps - state.steps
        self.steps_before = state.steps
        """Steps of the run before its newest one."""
        self.is_cut = True
        """Whether the next step begins new episodes, as the first one and those after checkpoints do."""
        self.is_stopped = False
        """Whether a signal or a callback of any rank stops the run."""
        self.unlogged = Experience()  # since the last row
        self.logged_updates = state.updates  # at the last row
        self.row: Mapping[str, Any] = MappingProxyType({})
        self.evaluation: Evaluation | None = None
        self.checkpoint: Path | None = None
        self.closing_lines: list[str] = []
        """Sentences for the user once the run has ended."""

    # Progress

    @property
    def is_over(self) -> bool:
        """Whether there is no other step."""
        return self.is_stopped or self.state.steps >= self.config.steps

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint follows the newest step."""
        return self.is_over or self.passed(self.config.log.checkpoint_every_steps)

    def passed(self, every: int) -> bool:
        """Whether the newest step has reached a multiple of `every`; never for 0."""
        return every > 0 and self.state.steps // every > self.steps_before // every

    def count(self, steps: int, episodes: int) -> None:
        """Count a step of all environments, and agree on whether the run is to stop."""
        state = self.state
        steps_of_all, episodes_of_all, stops = dist.total(steps, episodes, self._is_asked_to_stop)
        self.steps_before = state.steps
        state.steps += int(steps_of_all)
        state.episodes += int(episodes_of_all)
        self.agent.steps = self.initial_agent_steps + state.steps
        self.is_stopped = stops > 0

    def agree_to_stop(self) -> None:
        """Stop all ranks if one is asked to."""
        self.is_stopped = dist.total(self._is_asked_to_stop)[0] > 0

    @property
    def _is_asked_to_stop(self) -> bool:
        return bool(self.stop.requested or self.callbacks.stopped_by)

    # Reports

    def call(self, event: str) -> None:
        """Call the user's callbacks for an event, which only the first rank has."""
        seen = self.state.steps, self.state.updates, self.config, self.folder.path, self.agent
        with dist.alone():
            self.callbacks.call(event, RunView(*seen, self.row, self.evaluation, self.checkpoint))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Write a row that callbacks do not see."""
        self.writer.write(self.state.steps, {"phase": self.config.phase, **metrics})

    def write_row(self, metrics: Mapping[str, Any]) -> None:
        """Write a row, and show it to the callbacks."""
        row = {"phase": self.config.phase, **metrics}
        self.writer.write(self.state.steps, row)
        self.row = MappingProxyType(row)
        self.call("on_row")

    def keep_score(self, row: Mapping[str, Any]) -> None:
        """Put the score of a row into the status."""
        if name := score_name(row, self.config.phase):
            self.folder.status.score(name, row[name], self.state.steps)
