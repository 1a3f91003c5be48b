"""Callbacks: code of the user that a run calls while it trains, and that may stop it.

Importing this module does not import torch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voidrl.config import require
from voidrl.errors import (
    CallbackFailedError,
    ConfigError,
    UnknownNameError,
    VoidrlError,
    VoidrlWarning,
    shown,
)

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.config import Config
    from voidrl.training.evaluation import Evaluation

STOP: Literal["stop"] = "stop"
"""Returned by a hook, it ends the run with a checkpoint."""
Mode = Literal["max", "min"]


@dataclass(frozen=True, repr=False)
class RunView:
    """A run as a callback sees it. The attributes cannot be set."""

    step: int
    """Environment steps taken."""
    updates: int
    """Updates of the agent."""
    config: Config
    """The config of the run; `config.steps` is the total number of steps."""
    folder: Path
    """The run folder."""
    agent: Agent
    """The agent in training, not a copy: evaluate or save it, but do not change it."""
    row: Mapping[str, Any]
    """The newest row of `metrics.jsonl` that is not an evaluation; empty before the first."""
    evaluation: Evaluation | None
    """The newest evaluation (`log.eval_every_steps`)."""
    checkpoint: Path | None
    """The newest checkpoint."""


class Callback:
    """Base class: override the hooks that you need. A hook that returns `voidrl.STOP` ends the run.

    All hooks of an event are called in the order of the callbacks, even if one of them has stopped the run.
    """

    def on_start(self, run: RunView) -> str | None:
        """Before the first step, also of a resumed run; a run that is stopped here takes that step."""

    def on_step(self, run: RunView) -> str | None:
        """After each step of the environments; N of them side by side add up to N to `run.step`."""

    def on_row(self, run: RunView) -> str | None:
        """After `run.row` was logged (`log.log_every_steps`, `log.probe_every_steps`)."""

    def on_evaluation(self, run: RunView) -> str | None:
        """After `run.evaluation` (`log.eval_every_steps`)."""

    def on_checkpoint(self, run: RunView) -> str | None:
        """After `run.checkpoint` was written, to be read by others."""

    def on_end(self, run: RunView) -> str | None:
        """After the last checkpoint of a run that is complete or was stopped, but not of one that failed."""

    def state(self) -> dict[str, Any] | None:
        """State of this callback for a resumed run, as JSON; saved with every checkpoint."""
        return None

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; called before `on_start`."""


Callbacks = Sequence[Callback]


class CallbackList:
    """The callbacks of a run. `stopped_by` is the name of the first that returned `STOP`."""

    def __init__(self, callbacks: Callbacks = ()) -> None:
        several = isinstance(callbacks, Iterable) and not isinstance(callbacks, str)
        require(several, "callbacks", callbacks, "a list of them, such as [StopOnPlateau()]")
        self._callbacks = [*callbacks]
        for each in self._callbacks:
            require(isinstance(each, Callback), "callback", each, "an instance of voidrl.Callback")
        self.stopped_by: str | None = None
        self.has_step_hooks = any(type(each).on_step is not Callback.on_step for each in self._callbacks)

    def call(self, event: str, run: RunView) -> None:
        """Call the hooks of an event."""
        for callback in self._callbacks:
            name, answer = type(callback).__name__, _guarded(callback, event, run.step, run)
            if answer is not None and not (isinstance(answer, str) and answer == STOP):
                raise CallbackFailedError(
                    f"callback {name} returned {shown(answer)} from {event} at step {run.step}: expected "
                    f"None, or voidrl.STOP to end the run"
                )
            if answer is not None and event != "on_end":
                self.stopped_by = self.stopped_by or name

    def state(self, step: int) -> list[dict[str, Any]]:
        """The states of all callbacks that have one, for a checkpoint."""
        found = []
        for callback in self._callbacks:
            state = _guarded(callback, "state", step)
            if not (state is None or _survives_json(state)):
                raise CallbackFailedError(
                    f"callback {type(callback).__name__} returned {shown(state)} from state at step {step}: "
                    f"expected a dictionary that survives a round trip through JSON"
                )
            if state is not None:
                found.append({"callback": _name_of(callback), "state": state})
        return found

    def load(self, states: Iterable[Mapping[str, Any]], step: int) -> list[str]:
        """Restore the states in a checkpoint, each into the next callback of its class.

        Returns a sentence for each state without a callback.
        """
        waiting, notes = [*self._callbacks], []
        for saved in states:
            callback = next((each for each in waiting if _name_of(each) == saved["callback"]), None)
            if callback is None:
                notes.append(f"the state of callback {saved['callback']} is dropped: it was not passed again")
                continue
            waiting.remove(callback)
            _guarded(callback, "load", step, saved["state"])
        return notes


def _name_of(callback: Callback) -> str:
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


def _guarded(callback: Callback, event: str, step: int, *arguments: Any) -> Any:
    try:
        return getattr(callback, event)(*arguments)
    except Exception as error:
        name = type(callback).__name__
        why = str(error) if isinstance(error, VoidrlError) else f"{type(error).__name__}: {error}"
        raise CallbackFailedError(f"callback {name} failed in {event} at step {step} ({why})") from error


def _survives_json(state: Any) -> bool:
    try:
        return isinstance(state, dict) and json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError):
        return False


# Callbacks that come with voidrl


class MetricCallback(Callback):
    """Base of callbacks that follow one metric of `metrics.jsonl`."""

    def __init__(self, metric: str) -> None:
        require(isinstance(metric, str), "metric", metric, "a name in metrics.jsonl, such as 'eval/return'")
        self.metric = metric
        self._found = False

    def on_value(self, run: RunView, value: float) -> str | None:
        """After a new value."""
        raise NotImplementedError

    def on_start(self, run: RunView) -> None:
        """Refuse a metric of evaluations in a run without evaluations."""
        if self.metric.startswith("eval/") and not run.config.log.eval_every_steps:
            raise ConfigError(
                f"metric {self.metric!r} is never measured with log.eval_every_steps = 0: set it, or choose "
                f"a metric of the rows, such as 'episode/return'"
            )

    def on_row(self, run: RunView) -> str | None:
        """Look for the metric in a row."""
        return self._look(run, run.row)

    def on_evaluation(self, run: RunView) -> str | None:
        """Look for the metric in an evaluation."""
        assert run.evaluation is not None
        return self._look(run, run.evaluation.metrics())

    def on_end(self, run: RunView) -> None:
        """Warn of a metric that was never there."""
        if not self._found and run.row:
            known = UnknownNameError("metric", self.metric, run.row)
            warnings.warn(f"callback {type(self).__name__}: {known}", VoidrlWarning, stacklevel=2)

    def _look(self, run: RunView, values: Mapping[str, Any]) -> str | None:
        value = values.get(self.metric)
        self._found |= value is not None
        return None if value is None else self.on_value(run, float(value))


class StopOnPlateau(MetricCallback):
    """Stop when a metric has not improved for some time.

    Args:
        metric: Its name in `metrics.jsonl`, such as `eval/return`, `episode/return` or `coverage/cells`.
        patience: Values without an improvement after which the run is stopped.
        min_delta: Smallest change that counts as an improvement.
        mode: Whether a larger (`max`) or a smaller (`min`) value is better.
        min_steps: Steps before which nothing is counted.
    """

    def __init__(
        self,
        metric: str = "eval/return",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: Mode = "max",
        min_steps: int = 0,
    ) -> None:
        super().__init__(metric)
        whole = isinstance(patience, int) and patience >= 1
        require(whole, "patience", patience, "a whole number, 1 or more")
        require(min_delta >= 0, "min_delta", min_delta, "a number, 0 or more")
        require(mode in ("max", "min"), "mode", mode, "max or min")
        self.patience, self.min_delta, self.mode, self.min_steps = patience, min_delta, mode, min_steps
        self.best: float | None = None
        self.waited = 0  # values since the best one

    def on_value(self, run: RunView, value: float) -> str | None:
        """Count the values without an improvement."""
        if run.step < self.min_steps:
            return None
        sign = 1 if self.mode == "max" else -1
        if self.best is None or sign * (value - self.best) > self.min_delta:
            self.best, self.waited = value, 0
            return None
        self.waited += 1
        return STOP if self.waited >= self.patience else None

    def state(self) -> dict[str, Any]:
        """The best value, and the number of values since."""
        return {"best": self.best, "waited": self.waited}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the best value, and the number of values since."""
        self.best, self.waited = state["best"], state["waited"]


class StopAtReturn(MetricCallback):
    """Stop as soon as a return is reached.

    Args:
        value: The mean return to reach.
        metric: `eval/return`, or `episode/return` for the episodes of training, which need no evaluation.
    """

    def __init__(self, value: float, metric: str = "eval/return") -> None:
        super().__init__(metric)
        require(isinstance(value, int | float), "value", value, "a number")
        self.value = value

    def on_value(self, run: RunView, value: float) -> str | None:
        """Stop if the return is reached."""
        return STOP if value >= self.value else None


class OptunaPruning(MetricCallback):
    """Report a metric to an Optuna trial, and stop the run if the study's pruner gives the trial up.

    The run ends normally, with a checkpoint; raise `optuna.TrialPruned` afterwards if `pruned` is true.

    Args:
        trial: The `optuna.Trial`.
        metric: Its name in `metrics.jsonl`.
    """

    def __init__(self, trial: Any, metric: str = "eval/return") -> None:
        super().__init__(metric)
        require(hasattr(trial, "should_prune"), "trial", trial, "an optuna.Trial")
        self.trial = trial
        self.pruned = False
        self.value: float | None = None  # the newest

    def on_value(self, run: RunView, value: float) -> str | None:
        """Report the value, and stop if the trial is pruned."""
        self.value = value
        self.trial.report(value, run.step)
        self.pruned = bool(self.trial.should_prune())
        return STOP if self.pruned else None
