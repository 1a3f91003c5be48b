"""Who explores in a run, when learning starts and with what, and the adaptation of a pre-trained agent."""

from __future__ import annotations

import math
from fractions import Fraction

from torch import Tensor

from voidrl.agent.adaptation import Outcome, adapt, rewards_differ
from voidrl.agent.exploration import DETOUR_STEPS, Detours
from voidrl.engine.engine import Engine
from voidrl.training.saved_run import LoopState

CRITIC_SHARE = Fraction(1, 10)  # of the updates, in which a new critic learns to judge the kept actor
DETOURS = 0.05  # probability per step of a detour, until the agent is adapted
DETOURS_END = 0.5  # of the steps after the warm-up, from which on there are no detours


class Adapter:
    """A run's warm-up and exploration, and in fine-tuning the adaptation that follows the warm-up.

    All that changes is in `state` and in the agent's weights, so that resuming is exact; a checkpoint cuts
    detours and stretches of the pre-trained policy.
    """

    def __init__(self, engine: Engine, state: LoopState) -> None:
        self.engine, self.agent, self.replay, self.state = engine, engine.agent, engine.replay, state
        self.effective = self.agent.effective
        self.detours = Detours(self.agent, self.replay.num_envs)
        self._looked_at, self._differ = -1, False
        self.agent.learner.trains_actor = not self._actor_waits

    # Exploration

    def begin(self) -> None:
        """All environments start over."""
        self.detours.begin()
        if self.engine.explorer is not None:
            self.engine.explorer.begin(self.replay.num_envs)

    def choose(self, skill: Tensor) -> Tensor:
        """(N,) or (N, A): actions for the newest observations."""
        self.advance()
        if self.in_warmup and self.effective.warmup_is_random:
            return self.agent.random_actions(self.replay.latest())
        self.agent.learner.set_progress(self.noise_steps)
        actions = self.engine.choose(skill, explore=self._explores())
        if probability := self.detour_probability:
            actions = self.detours.replace(actions, self.replay.latest(), probability, self.detour_steps)
        return actions

    def _explores(self) -> bool:
        """Whether the pre-trained policy may act now; it is released once it never will again.

        Stretches that adaptation has asked for become rarer to the end of the run.
        """
        explorer, state = self.engine.explorer, self.state
        if explorer is None:
            return False
        everywhere = self.in_warmup and self.effective.explorer_warms_up
        is_asked = state.kept == "policy" and not self.in_warmup
        share = max(0.0, 1 - state.steps / self.agent.config.steps) if is_asked else 0.0
        explorer.set_progress(everywhere=everywhere, share=share)
        if not (self.in_warmup or share > 0):
            self.engine.explorer = None
        return everywhere or share > 0

    @property
    def noise_steps(self) -> float:
        """Steps that the schedule of exploration noise has run; infinite at its end."""
        state, noise = self.state, self.effective.noise
        if noise == "end" or (noise == "auto" and state.kept != "policy"):
            return math.inf
        if state.adapted_from is None or not self.effective.waits_for_reward:
            return state.steps
        return state.steps - max(0, state.adapted_from - self.effective.warmup_steps)

    @property
    def detour_probability(self) -> float:
        """Probability that an environment begins a detour; 0 while skills are tried, which it would blur."""
        state = self.state
        if self.effective.adaptation != "full" or (self.in_warmup and self.agent.method.skill_dim):
            return 0.0
        if state.adapted_from is None:
            return DETOURS
        steps = self.agent.config.steps - state.adapted_from
        done = (state.steps - state.adapted_from) / max(DETOURS_END * steps, 1)
        return DETOURS * max(0.0, 1 - done)

    @property
    def detour_steps(self) -> float:
        """Mean length of detours, which grows while learning waits, to reach states farther away."""
        waited = self.state.steps / max(self.effective.warmup_steps, 1) if self.in_warmup else 1.0
        return DETOUR_STEPS * max(1.0, waited)

    # Warm-up and adaptation

    @property
    def in_warmup(self) -> bool:
        """Whether nothing is learned yet."""
        return self.state.learning_from is None

    def advance(self) -> None:
        """End the warm-up when it is over.

        With constant rewards an actor would forget what it can do, so it waits until they vary, and so does
        a skill, which is chosen once. Values without an actor do not wait: optimistic values fall along
        visited paths, which drives exploration until the first reward is found.
        """
        agent, state, warmup_steps = self.agent, self.state, self.effective.warmup_steps
        if not self.in_warmup or state.steps < warmup_steps:
            return
        learns_last = hasattr(agent.learner, "actor") or agent.method.skill_dim > 0
        if learns_last and self.effective.waits_for_reward and not self.is_due():
            return
        is_late = state.steps >= warmup_steps + agent.config.env.num_envs
        state.learning_from = state.steps if is_late else warmup_steps
        if agent.config.finetune.heads == "actor":
            self._begin_with_critic(state.learning_from)

    def is_due(self) -> bool:
        """Whether to adapt the agent now: once, as soon as rewards differ. The host reads the new ones."""
        state, phase = self.state, self.effective
        if phase.adaptation == "none" or state.adapted_from is not None:
            return False
        if state.steps < phase.warmup_steps or not len(self.replay):
            return False
        if state.steps > self._looked_at and not self._differ:
            # Rewards were equal at the last look, so it is enough to compare the new ones with some of those.
            is_first, new = self._looked_at < 0, state.steps - self._looked_at + 2 * self.replay.num_envs
            self._differ = rewards_differ(self.replay, len(self.replay) if is_first else new)
            self._looked_at = state.steps
            if is_first and phase.waits_for_reward and not self._differ:
                self.engine.say(
                    f"the task's rewards were all equal in {state.steps} steps, so there is nothing to adapt "
                    f"to yet: the agent keeps exploring until one differs"
                )
        return self._differ

    def adapt(self) -> Outcome:
        """Adapt the agent to the task, and say how."""
        state = self.state
        outcome = adapt(self.agent, self.replay, has_learned=state.updates > 0)
        state.kept, state.return_range = outcome.kept, outcome.return_range
        state.adapted_from = state.steps if state.updates else state.learning_from or 0
        if outcome.kept == "actor" and not state.updates:
            self._begin_with_critic(state.adapted_from)
        if outcome.explorer is not None:
            self.engine.explorer = outcome.explorer
            self.agent.generation += 1  # a captured step may hold another explorer
        self.engine.say(outcome.sentence())
        return outcome

    def restart_exploration(self) -> None:
        """Set SAC's temperature in proportion to the task, after anything that has moved it elsewhere."""
        if self.state.return_range and self.effective.adaptation == "full":
            scaled = self.state.return_range * float(self.agent.task_scale)
            self.agent.learner.restart_exploration(scaled)

    # Critic before actor

    def _begin_with_critic(self, start: int) -> None:
        """Let only the critic learn, for its share of the updates after `start` steps."""
        if self.effective.adaptation == "full":
            left = (self.agent.config.steps - start) * self.effective.updates_per_step
            self.state.critic_until = self.state.updates + int(CRITIC_SHARE * left)
            self.agent.learner.trains_actor = not self._actor_waits

    @property
    def _actor_waits(self) -> bool:
        return self.state.updates < self.state.critic_until

    def release_actor(self) -> None:
        """Let the actor learn once the critic has had its updates."""
        agent = self.agent
        if not agent.learner.trains_actor and not self._actor_waits:
            agent.learner.trains_actor = True
            agent.generation += 1  # captured updates have no actor
