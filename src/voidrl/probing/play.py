"""Labelled play: frames together with the true state behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import chdir, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from voidrl.agent import Agent
from voidrl.config import EnvConfig, require
from voidrl.envs.make import EnvFactory, make_envs
from voidrl.envs.vector import Envs, Variable
from voidrl.errors import ConfigError, NonFiniteError
from voidrl.nets.observations import action_mask
from voidrl.replay import Replay
from voidrl.replay.make import free_bytes
from voidrl.replay.ring import frame_bytes
from voidrl.system.device import seeded
from voidrl.training.assembly import require_same_spaces
from voidrl.types import EnvSpec

HOLD_STEPS = 8  # mean of the geometric number of steps for which sticky play holds an action
CPU = torch.device("cpu")

Policy = str | Agent
"""`random` (uniform actions), `sticky` (each held for 8 steps on average) or an agent."""


@dataclass(frozen=True)
class Play:
    """n steps of play in N environments, in order of time. Each frame is stored once, in `replay`."""

    variables: tuple[Variable, ...]
    """The true state's V variables; none if the environment does not report its state."""
    replay: Replay
    """The frames, in main memory."""
    slot_states: np.ndarray
    """(slots, V) float64: the true state behind every frame in `replay`."""
    slots: np.ndarray
    """(n,) int64: the slot in `replay` of the state s in which each step was taken."""
    reward: np.ndarray
    """(n,) float32 rewards as in training: clipped on Atari."""
    episode: np.ndarray
    """(n,) int64: a number for each episode, on Atari for each game; a lost life ends none."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def state(self) -> np.ndarray:
        """(n, V) float64: the true state after each step."""
        return np.asarray(self.slot_states[self.next_slots])

    @property
    def next_slots(self) -> np.ndarray:
        """(n,) int64: the slot in `replay` of the state after each step."""
        return self.slots + self.replay.num_envs


@torch.no_grad()
def collect(
    env: EnvConfig,
    steps: int,
    players: Sequence[Policy],
    seed: int = 0,
    *,
    num_envs: int,
    factory: EnvFactory | None = None,
) -> Play:
    """Play, and label every frame with the true state.

    Args:
        env: The environment.
        steps: Number of steps, rounded up to whole steps of all environments.
        players: Policies among which the environments are divided; agents explore as in training.
        seed: Seed of the environments and of all random numbers.
        num_envs: Environments played side by side.
        factory: Makes one environment, for a config whose id cannot be imported.
    """
    if len(players) > num_envs:
        raise ConfigError(
            f"{len(players)} policies cannot play in {num_envs} environments: expected num_envs of "
            f"{len(players)} or more, since each environment has one"
        )
    config = dataclasses.replace(env, count_states=False)
    agents = [player for player in players if isinstance(player, Agent)]
    with (
        chdir(Path.cwd()),
        closing(make_envs(config, factory, num_envs, pretraining=True, true_state=True)) as envs,
        seeded(seed, agents[0].device if agents else CPU),
    ):
        for agent in agents:
            require_same_spaces(agent.spec, agent.config.env.id, envs.spec, envs.name)
        return _play(envs, steps, players, seed)


def _play(envs: Envs, steps: int, players: Sequence[Policy], seed: int) -> Play:
    n = envs.num_envs
    # An episode may end with every step, and every reset takes a step of all environments.
    size = 2 * (steps + n)
    needed, free = size * frame_bytes(envs.spec), free_bytes(CPU)
    require(
        needed < free, "steps", steps, f"{int(steps * free / needed)} or fewer, whose frames fit into memory"
    )
    replay = Replay(envs.spec, n, size, 0, CPU, CPU)
    frames, _ = envs.reset(seed)
    replay.reset(frames)
    variables, states = envs.variables, [envs.true_state()]
    drivers = [
        _Driver(player, np.arange(i, n, len(players)), envs.spec, np.random.default_rng([seed, i]))
        for i, player in enumerate(players)
    ]
    discrete = envs.spec.discrete
    action = np.zeros(n if discrete else (n, envs.spec.action_dim), np.int64 if discrete else np.float32)
    episode, ended = np.arange(n), np.zeros(n, bool)
    slots, rewards, episodes = [], [], []
    row = taken = 0
    while taken < steps:
        observed = replay.latest()
        for driver in drivers:
            action[driver.envs] = driver.act(observed, ended)
        result = envs.step(action)
        states.append(envs.true_state())
        real = ~ended  # where an episode had ended, this step was its reset
        ends = result.terminated, result.truncated
        taken += replay.add(action, result.reward, *ends, result.frames, torch.zeros(n, 0), result.ended)
        slots.append(row * n + np.flatnonzero(real))
        rewards.append(result.reward[real])
        episodes.append(episode[real])
        episode = np.where(ended, episode.max() + np.cumsum(ended), episode)
        ended = result.ended & real
        row += 1
    return Play(variables, replay, *map(np.concatenate, (states, slots, rewards, episodes)))


class _Driver:
    """Chooses the actions of one policy in its environments."""

    def __init__(self, player: Policy, envs: np.ndarray, spec: EnvSpec, rng: np.random.Generator) -> None:
        self.player, self.envs, self._spec, self._rng = player, envs, spec, rng
        self._held, self._action = np.zeros(len(envs), np.int64), self._random(None)
        if isinstance(player, Agent):
            player.learner.set_progress(player.steps)  # ε as at this point of its training
            self._start = torch.zeros(len(envs), dtype=torch.int64, device=player.device)
            self._skill = player.new_skills(self._start)

    def act(self, observed: Tensor, ended: np.ndarray) -> np.ndarray:
        """Actions in its environments; `observed` and `ended` cover all environments."""
        if isinstance(self.player, Agent):
            return self._agent_action(self.player, observed, ended)
        mask = action_mask(observed, self._spec)
        allowed = None if mask is None else mask.cpu().numpy()[self.envs]  # (n, num_actions) bool
        fresh = self._random(allowed)
        if self.player == "random":
            return fresh
        over = self._held == 0
        if allowed is not None:
            over |= ~np.take_along_axis(allowed, self._action[:, None], 1)[:, 0]
        self._action = np.where(over if self._spec.discrete else over[:, None], fresh, self._action)
        self._held = np.where(over, self._rng.geometric(1 / HOLD_STEPS, len(over)), self._held) - 1
        return self._action

    def _agent_action(self, agent: Agent, observed: Tensor, ended: np.ndarray) -> np.ndarray:
        if ended[self.envs].any():  # the action is ignored, and the skill is drawn for the episode after it
            fresh = torch.from_numpy(ended[self.envs]).to(agent.device)
            self._skill = torch.where(fresh[:, None], agent.new_skills(self._start), self._skill)
        obs = observed[torch.from_numpy(self.envs)].to(agent.device)
        action: np.ndarray = agent.choose(obs, self._skill, deterministic=False).cpu().numpy()
        if not np.isfinite(action).all():
            raise NonFiniteError(
                f"the policy's action is not finite at step {agent.steps} of its training: training has "
                f"diverged, use an older checkpoint"
            )
        return action

    def _random(self, allowed: np.ndarray | None) -> np.ndarray:
        n = len(self.envs)
        if allowed is not None:
            return np.asarray(np.where(allowed, self._rng.random(allowed.shape), -1.0).argmax(1))
        if self._spec.discrete:
            return self._rng.integers(self._spec.num_actions, size=n)
        return self._rng.uniform(-1, 1, (n, self._spec.action_dim)).astype(np.float32)
