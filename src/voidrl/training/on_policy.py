"""On-policy training: the policy improves on each full rollout, and the representation between rollouts."""

from __future__ import annotations

from functools import partial

from voidrl.agent.adapter import Adapter
from voidrl.agent.on_policy import representation_step, rollout_step
from voidrl.training.collecting import Collector
from voidrl.training.run import Run
from voidrl.training.trainer import Trainer

ROLLOUT = -1  # in place of a variant of the update, for the metrics of a rollout


class OnPolicyTrainer(Trainer):
    """Updates the policy once a rollout is full, then the representation as often as has become due."""

    def __init__(self, run: Run, adapter: Adapter, collector: Collector) -> None:
        super().__init__(run, adapter, collector)
        run.engine.replace_update(partial(representation_step, run.agent))
        self._logged_rollouts = run.state.rollouts

    def before_acting(self) -> None:
        """Update before the new policy acts, and never while the old one does."""
        self.update()

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
