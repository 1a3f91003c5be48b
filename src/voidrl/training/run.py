"""A run in training: the objects and counters that the loop, its trainer and its hooks share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from voidrl import dist
from voidrl.engine.engine import Engine
from voidrl.envs.vector import Envs
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import score_name
from voidrl.system.terminal.progress import Progress
from voidrl.system.terminal.signals import StopSignals
from voidrl.training.best import BestAgent
from voidrl.training.callbacks import CallbackList, RunView
from voidrl.training.evaluation import Evaluation
from voidrl.training.metrics import MetricsWriter
from voidrl.training.saved_run import LoopState
from voidrl.training.split import RankMetrics


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
        self.unlogged = RankMetrics()  # since the last row
        self.logged_updates = state.updates  # at the last row
        self.row: Mapping[str, Any] = MappingProxyType({})
        self.evaluation: Evaluation | None = None
        self.checkpoint: Path | None = None
        self.best: BestAgent | None = None
        """Keeps the best agent of a fine-tuning, on the first rank."""

    @property
    def is_new(self) -> bool:
        """Whether there is no checkpoint yet."""
        return self.state.metrics_bytes is None

    @property
    def stops(self) -> bool:
        """Whether this process is to stop."""
        return bool(self.stop.requested or self.callbacks.stopped_by)

    def any_stops(self) -> bool:
        """Whether any rank is to stop."""
        return dist.total(self.stops)[0] > 0

    def call(self, event: str) -> None:
        """Call the user's callbacks for an event, which only the first rank has."""
        state, path, agent = self.state, self.folder.path, self.agent
        seen = state.steps, state.updates, self.config, path, agent, self.row, self.evaluation
        with dist.alone():
            self.callbacks.call(event, RunView(*seen, self.checkpoint))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Write a row that callbacks do not see."""
        self.writer.write(self.state.steps, {"phase": self.config.phase, **metrics})

    def write_row(self, row: dict[str, Any]) -> None:
        """Write a row, and show it to the callbacks."""
        self.writer.write(self.state.steps, row)
        self.row = MappingProxyType(row)
        self.call("on_row")

    def keep_score(self, row: Mapping[str, Any]) -> None:
        """Put the score of a row into the status."""
        if name := score_name(row, self.config.phase):
            self.folder.status.score(name, row[name], self.state.steps)
