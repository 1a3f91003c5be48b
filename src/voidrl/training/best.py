"""The zero-shot, best and last agent of a fine-tuning run.

The best evaluated agent is kept in RUN/best, with the row of its evaluation. That folder is the only state,
with which a resumed run compares.
"""

from __future__ import annotations

import dataclasses
import math
import shlex

import torch

from voidrl.agent import Agent
from voidrl.config import Config, EnvConfig
from voidrl.errors import by_caller
from voidrl.runs import checkpoint
from voidrl.runs.evaluations import BY_RUN, FILE_NAME, EvaluationSummary, best_agent, zero_shot
from voidrl.runs.folder import RunFolder
from voidrl.training.evaluation import EVALUATION_STREAM, Evaluation, evaluation_record, run_seed


class BestAgent:
    """Keeps the best evaluated agent of a fine-tuning run, and says how it compares with first and last."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        """Read the state of a resumed run from its folder."""
        self.folder, self.config = folder, config
        self.zero_shot = zero_shot(folder.path)
        kept = best_agent(folder.path)
        self.best = None if kept is None else kept[0]
        self.last: EvaluationSummary | None = None

    def see(self, agent: Agent, step: int, evaluation: Evaluation) -> None:
        """Keep the agent if no evaluation so far was better; of equals, the later one is kept."""
        row = {"step": step, **evaluation.metrics()}
        self.last, self._last_evaluation = EvaluationSummary.from_row(row), evaluation
        if self.last is None or (self.best is not None and self.last.quality < self.best.quality):
            return
        root = self.folder.best_path
        agent.save_checkpoint(root, keep_last=1, evaluation=row)
        for steps in checkpoint.list_steps(root):  # from a lost part of a run that was resumed differently
            if steps != agent.steps:
                checkpoint.discard(root, steps)
        self.best = self.last

    def write_evaluation(self, agent: Agent, step: int) -> None:
        """Write `evaluation.json` of the last agent, unless its returns are not finite."""
        if self.last is None:
            return
        settings = {"env": self.config.env.id, "episodes": len(self._last_evaluation.returns), "steps": None}
        settings |= {"seed": run_seed(self.config.seed, EVALUATION_STREAM, step), "deterministic": True}
        settings |= {"epsilon": self.config.log.eval_epsilon, "num_envs": None, "count_states": False}
        saved = evaluation_record(agent, self.folder.path, self._last_evaluation, settings)
        saved["agent"]["steps"] = step  # the checkpoint of this step is not written yet
        path = self.folder.path / FILE_NAME
        checkpoint.remove_leftovers(path)
        checkpoint.write_json_atomic(path, {**saved, **BY_RUN})

    def summary(self, step: int) -> list[str]:
        """The closing line of a complete run, and a recommendation if its last agent is not the best."""
        zero, best, last = self.zero_shot, self.best, self.last
        if best is None or last is None or last.step != step:
            return []
        found = [best, last] if zero is None else [zero, best, last]
        rates, returns = {each.success_rate for each in found}, {each.mean_return for each in found}
        of_success = rates != {None} and (len(rates) > 1 or len(returns) == 1)
        parts = [] if zero is None else [f"zero-shot {_shown(zero, of_success)}"]
        parts.append(f"best {_shown(best, of_success)} (step {best.step:,})")
        lines = [" → ".join([*parts, f"last {_shown(last, of_success)}"])]
        if is_behind(last, best):
            path = str(self.folder.shown)
            command = f"--best, as in `voidrl evaluate {shlex.quote(path)} --best`"
            use = by_caller(f"voidrl.load({path!r}, best=True)", command)
            lines.append(f"the last agent is behind the best one: use the best with {use}")
        return lines


def on_task(pretrained: Agent, env: EnvConfig, device: torch.device) -> Agent:
    """Copy a pre-trained agent, with the environment of the task in its config."""
    own = pretrained.config.env
    # A method or a learner may depend on the number of environments.
    env = dataclasses.replace(env, num_envs=own.num_envs)
    config = dataclasses.replace(pretrained.config, env=env)
    agent = Agent(pretrained.spec, config, device)
    agent.load_tensors(pretrained.tensors())
    agent.steps = pretrained.steps
    return agent


def is_behind(last: EvaluationSummary, best: EvaluationSummary) -> bool:
    """Whether the last agent is worse by more than the standard error of the difference.

    Success rates are compared first, and returns where those are equal.
    """
    of_success = (last.success_rate or 0.0) != (best.success_rate or 0.0)
    (behind, one), (ahead, other) = _score(last, of_success), _score(best, of_success)
    return ahead - behind > math.hypot(one, other)


def _score(found: EvaluationSummary, of_success: bool) -> tuple[float, float]:
    """The success rate or the mean return, with its standard error."""
    value, spread = found.mean_return, found.std_return
    if of_success:
        value = found.success_rate or 0.0
        spread = math.sqrt(value * (1 - value))
    return value, spread / math.sqrt(found.episodes)


def _shown(found: EvaluationSummary, of_success: bool) -> str:
    value = _score(found, of_success)[0]
    if of_success:
        return f"{value:.0%}"
    size = abs(value)
    digits = ",.0f" if size >= 100 else ".1f" if size >= 10 else ".2f" if size >= 0.1 or not size else ".2g"
    return format(value, digits)
