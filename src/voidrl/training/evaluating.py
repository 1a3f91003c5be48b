"""Evaluates and probes the agent of a run while it trains.

Fine-tuning is also evaluated at its start and its end. Its best evaluated agent is kept in RUN/best, with the
row of its evaluation. That folder is the only state, with which a resumed run compares.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from voidrl import dist
from voidrl.agent import Agent
from voidrl.config import EnvConfig
from voidrl.envs.vector import Envs
from voidrl.errors import NonFiniteError, by_caller
from voidrl.runs import checkpoint
from voidrl.runs.evaluations import EvaluationSummary, best_agent, zero_shot
from voidrl.system.device import seeded
from voidrl.system.units import human_count
from voidrl.training import failures
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
    """Evaluates the agent every `log.eval_every_steps`."""

    longest: int | None = None
    """Steps after which an episode is cut; None for the environment's own limit."""

    def __init__(self, open_envs: OpenEnvs) -> None:
        self.open_envs = open_envs

    def after_step(self, run: Run) -> None:
        """Evaluate the agent if that is due."""
        if not run.passed(run.config.log.eval_every_steps):
            return
        run.evaluation = result = self.evaluate(run, run.agent, run.config.log.eval_episodes)
        run.keep_score(result.metrics())
        run.call("on_evaluation")
        rate = result.success_rate
        shown = {"evaluated": result.mean_return} if rate is None else {"success": rate}
        run.progress.update(run.state.steps, shown)

    def evaluate(self, run: Run, agent: Agent, episodes: int) -> Evaluation:
        """Evaluate an agent, and write a row."""
        log, seed = run.config.log, run_seed(run.config.seed, EVALUATION_STREAM, run.state.steps)
        try:
            with dist.alone(), seeded(seed, agent.device), self.open_envs() as envs:
                result = evaluate_agent(
                    agent, envs, episodes, seed, epsilon=log.eval_epsilon, max_episode_steps=self.longest
                )
        except NonFiniteError as error:
            run.engine.metrics.flush()  # the losses tell more than an action
            if culprit := failures.first_culprit(run):
                raise failures.not_finite(run, culprit) from error
            raise
        run.write(result.metrics())
        return result


class EvaluatingTask(Evaluating):
    """Evaluates fine-tuning also at its start and its end, and keeps the best evaluated agent."""

    def __init__(self, run: Run, open_envs: OpenEnvs, pretrained: Agent | None) -> None:
        """`pretrained` is the agent that a new run fine-tunes; a resumed one has its state in its folder."""
        super().__init__(open_envs)
        self.pretrained = pretrained
        self.longest = min(MAX_EPISODE_STEPS, run.config.steps)
        self.episodes = min(MAX_EPISODES, run.config.log.eval_episodes)  # at the start and at the end
        self.zero_shot = zero_shot(run.folder.path)
        kept = best_agent(run.folder.path)
        self.best = None if kept is None else kept[0]
        self.last: EvaluationSummary | None = None

    def start(self, run: Run) -> None:
        """Evaluate the pre-trained agent on the task; its row has step 0, and it is the first best agent."""
        if self.pretrained is None:
            return
        # Initial weights draw random numbers before they are replaced, and other ranks have no such agent.
        with seeded(run.config.seed, run.agent.device), dist.alone():
            agent = on_task(self.pretrained, run.config.env, run.agent.device)
        self.evaluate(run, agent, self.episodes)
        self.zero_shot = self.last

    def before_checkpoint(self, run: Run) -> None:
        """Evaluate the last agent, unless that was just done.

        Its row comes after `metrics_bytes`: a run that is extended drops it, as if it had been longer from
        the start.
        """
        steps = run.state.steps
        if steps >= run.config.steps and (self.last is None or self.last.step != steps):
            run.keep_score(self.evaluate(run, run.agent, self.episodes).metrics())

    def evaluate(self, run: Run, agent: Agent, episodes: int) -> Evaluation:
        """Keep the agent if no evaluation so far was better; of equals, the later one is kept."""
        result = super().evaluate(run, agent, episodes)
        failures.require_finite_weights(run)
        row = {"step": run.state.steps, **result.metrics()}
        self.last = EvaluationSummary.from_row(row)
        if self.last is not None and (self.best is None or self.last.quality >= self.best.quality):
            self.best, root = self.last, run.folder.best_path
            agent.save_checkpoint(root, keep_last=1, evaluation=row)
            for steps in {*checkpoint.list_steps(root)} - {agent.steps}:  # of a lost part of a resumed run
                checkpoint.discard(root, steps)
        return result

    def end(self, run: Run) -> None:
        """Compare the first, the best and the last agent of a complete run."""
        best, last = self.best, self.last
        if best is None or last is None or last.step != run.state.steps:
            return
        parts = [] if self.zero_shot is None else [f"zero-shot {_shown(self.zero_shot)}"]
        parts += [f"best {_shown(best)} (step {best.step:,})", f"last {_shown(last)}"]
        run.closing_lines.append(" → ".join(parts))
        if last.quality < best.quality:
            path = str(run.folder.shown)
            command = f"--best, as in `voidrl evaluate {shlex.quote(path)} --best`"
            use = by_caller(f"voidrl.load({path!r}, best=True)", command)
            run.closing_lines.append(f"the last agent is behind the best one: use the best with {use}")


class Probing(Hook):
    """Measures the representation every `log.probe_every_steps`."""

    def __init__(self, probe: Callable[[], dict[str, float]]) -> None:
        self.probe = probe

    def after_step(self, run: Run) -> None:
        """Write a row of what was measured, if that is due."""
        if run.passed(run.config.log.probe_every_steps):
            with dist.alone():
                run.write_row(self.probe())


def on_task(pretrained: Agent, env: EnvConfig, device: torch.device) -> Agent:
    """Copy a pre-trained agent, with the environment of the task in its config."""
    # A method or a learner may depend on the number of environments.
    env = dataclasses.replace(env, num_envs=pretrained.config.env.num_envs)
    agent = Agent(pretrained.spec, dataclasses.replace(pretrained.config, env=env), device)
    agent.load_tensors(pretrained.tensors())
    agent.steps = pretrained.steps
    return agent


def _shown(found: EvaluationSummary) -> str:
    """The success rate if the environment reports it, else the mean return."""
    return human_count(found.mean_return) if found.success_rate is None else f"{found.success_rate:.0%}"
