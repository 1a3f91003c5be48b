"""The schedule of updates of an on-policy learner: its policy on each full rollout, then f."""

from __future__ import annotations

from voidrl.agent.adapter import Adapter
from voidrl.training.acting import Actors
from voidrl.training.run import Run
from voidrl.training.trainer import Trainer


class RolloutSchedule(Schedule):
    """Updates the policy once a rollout is full, and then f as often as has become due."""

    def __init__(self, run: Run, adapter: Adapter, actors: Actors) -> None:
        super().__init__(run, adapter, actors)
        self.warmup_steps = 0
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
        run.engine.update_on_rollout(steps)
        state.rollout_start = state.steps
        state.rollouts += 1
        state.updates += 1
        if agent.trains_representation:
            done = state.updates - state.rollouts
            due = int((state.steps - self.adapter.warmup_steps) * self.adapter.updates_per_step)
            if due > done:
                run.engine.update(done, due - done)
                state.updates += due - done

    def metrics(self, seconds: float) -> dict[str, float]:
        """The number of rollouts and their rate."""
        new = self.run.state.rollouts - self._logged_rollouts
        self._logged_rollouts = self.run.state.rollouts
        return {"rollouts": self.run.state.rollouts, "time/rollouts_per_second": new / seconds}
