"""The updates that are due: off-policy on samples of the replay, on-policy on full rollouts."""

from __future__ import annotations

from functools import partial

import torch

from voidrl.agent import diagnosis
from voidrl.agent.on_policy import representation_step, rollout_step
from voidrl.agent.renewal import reset
from voidrl.training import failures
from voidrl.training.adapting import Adapter
from voidrl.training.collecting import Collector
from voidrl.training.run import Run

SHOWN_VALUES = 10  # of a skill, in the sentence that names it
ROLLOUT = -1  # in place of a variant of the update, for the metrics of a rollout


class Trainer:
    """Updates the agent of a run, when that is due."""

    warmup_steps = 0
    """Steps before the first update, for the status."""
    acts_with_newest = False
    """Whether updates are run as soon as they are due, before the next actions are chosen."""

    def __init__(self, run: Run, adapter: Adapter, collector: Collector) -> None:
        self.run, self.adapter, self.collector = run, adapter, collector

    def update(self) -> None:
        """Run the updates that are due."""
        raise NotImplementedError

    def metrics(self, seconds: float) -> dict[str, float]:
        """More metrics for a row, which covers this many seconds."""
        return {}


class OffPolicyTrainer(Trainer):
    """Runs exactly `updates_per_step` updates for each step after the warm-up."""

    def __init__(self, run: Run, adapter: Adapter, collector: Collector) -> None:
        super().__init__(run, adapter, collector)
        self.warmup_steps = run.agent.effective.warmup_steps if run.agent.learns else 0

    def update(self) -> None:
        """Run the updates that are due."""
        run, state, adapter = self.run, self.run.state, self.adapter
        if not run.agent.learns:
            return
        adapter.advance()
        if state.learning_from is None:
            return
        due = int((state.steps - state.learning_from) * run.agent.effective.updates_per_step)
        if state.updates == 0 < due and not run.agent.effective.samples_skills:
            self._choose_task_skill()
        if adapter.is_due() and due:  # after the skill for the task is chosen
            outcome = adapter.adapt()
            if run.is_main:
                run.write(outcome.metrics())
        every = run.config.reset.every_updates
        run.replay.set_progress(state.steps / run.config.steps)
        while state.updates < due:
            reset_at = (state.updates // every + 1) * every if every else due
            stops = due, reset_at, state.critic_until
            count = min(stop for stop in stops if stop > state.updates) - state.updates
            run.engine.update(state.updates, count)
            state.updates += count
            adapter.release_actor()
            early = state.steps <= run.config.steps - run.config.reset.last_steps
            if every and state.updates % every == 0 and early:
                reset(run.agent)
                adapter.restart_exploration()

    def _choose_task_skill(self) -> None:
        agent, say = self.run.agent, self.run.engine.say
        if (trials := agent.trial_skills()) is not None:
            dealt = int(agent.trials_dealt)  # host synchronization, once in a run
            if dealt < len(trials):
                say(
                    f"only {dealt} of {len(trials)} skills were tried before one was chosen: raise "
                    f"finetune.warmup_steps, or set method.skill_every_steps so that each takes less time"
                )
        agent.choose_task_skill(self.run.replay)
        skill = agent.task_skill.tolist()  # host synchronization, once in a run
        if skill:
            say(f"skill {_skill_name(skill)} is used for the task, {agent.method.skill_choice}")
        if not torch.isfinite(agent.task_skill).all():  # host synchronization, once in a run
            culprit = diagnosis.diagnose(agent, "method", "a skill", "select_skill")
            raise failures.not_finite(self.run, culprit)
        self.collector.change_all_skills()


class OnPolicyTrainer(Trainer):
    """Updates the policy once a rollout is full, then the representation as often as has become due."""

    acts_with_newest = True

    def __init__(self, run: Run, adapter: Adapter, collector: Collector) -> None:
        super().__init__(run, adapter, collector)
        run.engine.replace_update(partial(representation_step, run.agent))
        self._logged_rollouts = run.state.rollouts

    def update(self) -> None:
        """Run the updates that are due."""
        run, state, agent = self.run, self.run.state, self.run.agent
        steps = state.steps - state.rollout_start
        if steps < agent.learner.rollout_steps * run.envs.num_envs:
            return
        # Always eagerly: how many gradient steps it takes depends on the data.
        run.engine.metrics.add(rollout_step(agent, run.replay, steps), ROLLOUT)
        state.rollout_start = state.steps
        state.rollouts += 1
        state.updates += 1
        if agent.trains_representation:
            done = state.updates - state.rollouts
            due = int((state.steps - agent.effective.warmup_steps) * agent.effective.updates_per_step)
            if due > done:
                run.engine.update(done, due - done)
                state.updates += due - done

    def metrics(self, seconds: float) -> dict[str, float]:
        """The number of rollouts and their rate."""
        new = self.run.state.rollouts - self._logged_rollouts
        self._logged_rollouts = self.run.state.rollouts
        return {"rollouts": self.run.state.rollouts, "time/rollouts_per_second": new / seconds}


def _skill_name(skill: list[float]) -> str:
    """A skill in a sentence: the number of a one-hot vector, else its first values."""
    if len(skill) > 1 and sorted(skill) == [0.0] * (len(skill) - 1) + [1.0]:
        return f"{skill.index(1.0) + 1} of {len(skill)}"
    shown = ", ".join(f"{w:.3g}" for w in skill[:SHOWN_VALUES])
    return f"({shown}{', …' * (len(skill) > SHOWN_VALUES)})"
