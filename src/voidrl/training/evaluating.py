"""Evaluates and probes the agent of a run while it trains, and keeps the best agent of a fine-tuning."""

from __future__ import annotations

from collections.abc import Callable

from voidrl import dist
from voidrl.agent import Agent
from voidrl.errors import NonFiniteError
from voidrl.system.units import crossed
from voidrl.training import failures
from voidrl.training.best import BestAgent, OpenEnvs
from voidrl.training.evaluation import EVALUATION_STREAM, Evaluation, evaluate_agent, run_seed
from voidrl.training.hooks import Hook
from voidrl.training.run import Run


class Evaluating(Hook):
    """Evaluates the agent every `log.eval_every_steps`.

    Args:
        open_envs: Opens the evaluation environments.
        best: Keeps the best agent of a fine-tuning, and evaluates its first and its last.
        pretrained: The agent that a new run fine-tunes.
    """

    def __init__(self, open_envs: OpenEnvs | None, best: BestAgent | None, pretrained: Agent | None) -> None:
        self.open_envs, self.best, self.pretrained = open_envs, best, pretrained

    def start(self, run: Run) -> None:
        """Evaluate the pre-trained agent."""
        if self.best is not None and self.pretrained is not None:
            self.best.start(self.pretrained, run.agent.device, run.writer)

    def report(self, run: Run, before: int) -> bool:
        """Evaluate the agent if that is due."""
        is_due = crossed(before, run.state.steps, run.config.log.eval_every_steps)
        if is_due and run.is_main:
            with dist.alone():
                self._evaluate(run)
        return is_due

    def at_checkpoint(self, run: Run) -> None:
        """Evaluate the last agent.

        Its row comes after `metrics_bytes`: a run that is extended drops it, as if it had been longer from
        the start.
        """
        if self.best is not None and run.state.steps >= run.config.steps:
            self.best.finish(run.agent, run.state.steps, run.writer)

    def _evaluate(self, run: Run) -> None:
        try:
            result = self._play(run)
        except NonFiniteError as error:
            run.engine.metrics.flush()  # the losses tell more than an action
            if culprit := failures.first_culprit(run):
                raise failures.not_finite(run, culprit) from error
            raise
        run.write(result.metrics())
        if self.best is not None:
            failures.require_finite_weights(run)
            self.best.see(run.agent, run.state.steps, result)
        run.keep_score(result.metrics())
        run.evaluation = result
        run.call("on_evaluation")
        rate = result.success_rate
        shown = {"evaluated": result.mean_return} if rate is None else {"success": rate}
        run.progress.update(run.state.steps, shown)

    def _play(self, run: Run) -> Evaluation:
        assert self.open_envs is not None
        log = run.config.log
        with self.open_envs() as envs:
            return evaluate_agent(
                run.agent,
                envs,
                log.eval_episodes,
                run_seed(run.config.seed, EVALUATION_STREAM, run.state.steps),
                epsilon=log.eval_epsilon,
                max_episode_steps=None if self.best is None else self.best.max_episode_steps,
            )


class Probing(Hook):
    """Measures the representation every `log.probe_every_steps`."""

    def __init__(self, probe: Callable[[], dict[str, float]] | None) -> None:
        self.probe = probe

    def report(self, run: Run, before: int) -> bool:
        """Write a row of what was measured, if that is due."""
        is_due = crossed(before, run.state.steps, run.config.log.probe_every_steps)
        if is_due and self.probe is not None:
            with dist.alone():
                run.write_row({"phase": run.config.phase, **self.probe()})
        return is_due
