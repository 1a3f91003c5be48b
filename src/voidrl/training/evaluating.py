"""Evaluates and probes the agent of a run while it trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from voidrl import dist
from voidrl.agent import Agent
from voidrl.envs.vector import Envs
from voidrl.errors import NonFiniteError
from voidrl.system.device import seeded
from voidrl.system.units import crossed
from voidrl.training import failures
from voidrl.training.best import on_task
from voidrl.training.evaluation import EVALUATION_STREAM, Evaluation, evaluate_agent, run_seed
from voidrl.training.hooks import Hook
from voidrl.training.run import Run

MAX_EPISODES = 10
"""Episodes of the evaluations at the start and the end of fine-tuning, if `log.eval_episodes` is larger."""
MAX_EPISODE_STEPS = 27_000
"""Steps after which evaluations of fine-tuning cut an episode, at most those of the run: tasks may have no
end. This is Atari's time limit, the longest of all suites."""

OpenEnvs = Callable[[], AbstractContextManager[Envs]]
"""Opens the evaluation environments, for one evaluation or for the whole run."""


class Evaluating(Hook):
    """Evaluates the agent every `log.eval_every_steps`, and fine-tuning also at its start and its end.

    Args:
        open_envs: None in a run without evaluations, and on other ranks than the first.
        pretrained: The agent that a new run fine-tunes.
    """

    def __init__(self, open_envs: OpenEnvs | None, pretrained: Agent | None) -> None:
        self.open_envs, self.pretrained = open_envs, pretrained

    def start(self, run: Run) -> None:
        """Evaluate the pre-trained agent on the task; its row has step 0, and it is the first best agent."""
        if self.open_envs is None or run.best is None or self.pretrained is None:
            return
        # Initial weights draw random numbers before they are replaced, and other ranks have no such agent.
        with seeded(run.config.seed, run.agent.device), dist.alone():
            agent = on_task(self.pretrained, run.config.env, run.agent.device)
        self._evaluate(run, agent, min(MAX_EPISODES, run.config.log.eval_episodes))
        run.best.zero_shot = run.best.last

    def report(self, run: Run, before: int) -> bool:
        """Evaluate the agent if that is due."""
        is_due = crossed(before, run.state.steps, run.config.log.eval_every_steps)
        if is_due and self.open_envs is not None:
            run.evaluation = result = self._evaluate(run, run.agent, run.config.log.eval_episodes)
            run.keep_score(result.metrics())
            run.call("on_evaluation")
            rate = result.success_rate
            shown = {"evaluated": result.mean_return} if rate is None else {"success": rate}
            run.progress.update(run.state.steps, shown)
        return is_due

    def at_checkpoint(self, run: Run) -> None:
        """Evaluate the last agent of a fine-tuning, unless that was just done.

        Its row comes after `metrics_bytes`: a run that is extended drops it, as if it had been longer from
        the start.
        """
        best, steps = run.best, run.state.steps
        if self.open_envs is None or best is None or steps < run.config.steps:
            return
        if best.last is None or best.last.step != steps:
            self._evaluate(run, run.agent, min(MAX_EPISODES, run.config.log.eval_episodes))
        best.write_evaluation(run.agent, steps)

    def _evaluate(self, run: Run, agent: Agent, episodes: int) -> Evaluation:
        """Evaluate an agent, write a row, and keep the agent if it is the best."""
        assert self.open_envs is not None
        log, seed = run.config.log, run_seed(run.config.seed, EVALUATION_STREAM, run.state.steps)
        longest = None if run.best is None else min(MAX_EPISODE_STEPS, run.config.steps)
        try:
            with dist.alone(), seeded(seed, agent.device), self.open_envs() as envs:
                result = evaluate_agent(
                    agent, envs, episodes, seed, epsilon=log.eval_epsilon, max_episode_steps=longest
                )
        except NonFiniteError as error:
            run.engine.metrics.flush()  # the losses tell more than an action
            if culprit := failures.first_culprit(run):
                raise failures.not_finite(run, culprit) from error
            raise
        run.write(result.metrics())
        if run.best is not None:
            failures.require_finite_weights(run)
            run.best.see(agent, run.state.steps, result)
        return result


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
