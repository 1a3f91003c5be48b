"""Labelled play: frames together with the true state behind them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from voidrl.agent import Agent
from voidrl.config import Config, EnvConfig, require
from voidrl.envs.make import EnvFactory, make_envs
from voidrl.envs.spaces import spec_from_json
from voidrl.envs.variables import Variable
from voidrl.envs.vector import Envs
from voidrl.errors import CheckpointError, ConfigError, NonFiniteError, UnknownNameError
from voidrl.nets.observations import action_mask
from voidrl.replay import Replay
from voidrl.runs.tensor_files import read_tensors, write_tensors
from voidrl.system.device import seeded
from voidrl.system.files import parse_json, user_path
from voidrl.training.build import probe, require_same_spaces
from voidrl.training.layers import layers_for
from voidrl.types import EnvSpec

HOLD_STEPS = 8  # mean of the geometric number of steps for which sticky play holds an action
LEAST_EPISODES = 4  # with fewer, one episode would be a quarter of the data or more
BLOCKS = 10  # into which each episode is cut where there are fewer
GAP_STEPS = 32  # left out between blocks: states a few steps apart are almost equal
FORMAT = 1
LABELS = ("reward", "score", "episode", "episode_step", "terminated", "ended", "policy")
CPU = torch.device("cpu")

Policy = str | Agent
"""`random` (uniform actions), `sticky` (each held for 8 steps on average) or an agent."""
POLICIES = ("random", "sticky", "mixed")
Place = Config | EnvConfig | str | EnvFactory


class Split(NamedTuple):
    """Steps to train on and held-out ones, as indices into the arrays of a `Play`."""

    train: np.ndarray  # (m,) int64
    held_out: np.ndarray  # (k,) int64
    note: str
    """Method of the split, as a phrase."""


@dataclass(frozen=True)
class Play:
    """n steps of play in N environments, in order of time. Each frame is stored once, in `replay`."""

    env: str
    """The environment's id."""
    variables: tuple[Variable, ...]
    """The true state's V variables; none if the environment does not report its state."""
    policies: tuple[str, ...]
    """Names of the policies that played."""
    replay: Replay
    """The frames, in main memory; also a data set to train representations on."""
    slot_states: np.ndarray
    """(slots, V) float64: the true state behind every frame in `replay`."""
    slots: np.ndarray
    """(n,) int64: the slot in `replay` of the state s in which each step was taken."""
    reward: np.ndarray
    """(n,) float32 rewards as in training: clipped on Atari."""
    score: np.ndarray
    """(n,) float32 unclipped rewards."""
    episode: np.ndarray
    """(n,) int64: a number for each episode, on Atari for each game; a lost life ends none."""
    episode_step: np.ndarray
    """(n,) int64: steps taken earlier in the episode."""
    terminated: np.ndarray
    """(n,) bool: the value after this step is 0. On Atari in training also where a life is lost."""
    ended: np.ndarray
    """(n,) bool: the episode is over."""
    policy: np.ndarray
    """(n,) int64: which of `policies` acted."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def spec(self) -> EnvSpec:
        """The environment's spaces."""
        return self.replay.spec

    @property
    def action(self) -> np.ndarray:
        """(n,) int64 or (n, action_dim) float32 in [−1, 1]."""
        taken: np.ndarray = self.replay.action.numpy()[self.slots]
        return taken

    @property
    def state(self) -> np.ndarray:
        """(n, V) float64: the true state after each step."""
        after: np.ndarray = self.slot_states[self.next_slots]
        return after

    @property
    def state_before(self) -> np.ndarray:
        """(n, V) float64: the true state in which each step was taken."""
        before: np.ndarray = self.slot_states[self.slots]
        return before

    @property
    def next_slots(self) -> np.ndarray:
        """(n,) int64: the slot in `replay` of the state after each step."""
        return self.slots + self.replay.num_envs

    def observations(self, index: np.ndarray | Tensor, *, before: bool = False) -> Tensor:
        """(B, *obs_shape) stacked frames after the steps at `index`, (B,), or `before` them, as stored."""
        slots = self.slots if before else self.next_slots
        return self.replay.observations(torch.from_numpy(slots[np.asarray(index)]))

    def replay_of(self, index: np.ndarray) -> Replay:
        """The same frames as a replay from which only the steps at `index` are sampled."""
        return self.replay.restricted(torch.from_numpy(self.slots[index]))

    def split(self, share: float = 0.2, seed: int = 0) -> Split:
        """Hold out about a `share` of the steps, in whole episodes drawn at random.

        Neighboring frames are nearly equal, so steps drawn one by one would be known from training. With
        fewer than 4 episodes, each is cut into 10 blocks, of which some are held out, with gaps in between.
        """
        require(0 < share < 1, "share", share, "a number between 0 and 1")
        rng = np.random.default_rng(seed)
        groups, kept = self.episode, np.ones(len(self), bool)
        count = len(np.unique(groups))
        note = f"whole episodes, {count} in all"
        if count < LEAST_EPISODES:
            length = np.bincount(groups)[groups]  # (n,) of each step's episode
            block = self.episode_step * BLOCKS // length
            size = length / BLOCKS
            gap = min(GAP_STEPS, int(size.min()) // 4)
            into = self.episode_step - np.ceil(block * size)  # steps into the block
            kept = (into >= gap) | (block == 0)
            groups = groups * BLOCKS + block
            note = f"blocks of consecutive steps, since there are fewer than {LEAST_EPISODES} episodes"
        held = np.zeros(len(self), bool)
        names, sizes = np.unique(groups[kept], return_counts=True)
        require(
            len(names) > 1, "the play", f"{len(self)} steps", "enough steps to hold some out; collect more"
        )
        for i in rng.permutation(len(names))[:-1]:  # never all of them
            if held[kept].mean() >= share:
                break
            # An episode much longer than the missing share is left for training, unless nothing is held out.
            missing = share * kept.sum() - held[kept].sum()
            if not held.any() or sizes[i] <= 2 * missing:
                held |= groups == names[i]
        train, test = np.flatnonzero(kept & ~held), np.flatnonzero(kept & held)
        return Split(train, test, note)

    def save(self, path: str | Path) -> None:
        """Write everything to one file in the format safetensors."""
        meta = {
            "format": FORMAT,
            "env": self.env,
            "variables": self.variables,
            "policies": self.policies,
            "spec": self.spec.to_json(),
            "num_envs": self.replay.num_envs,
            "rows": self.replay.rows,
        }
        tensors = {"meta": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}
        for name in ("slot_states", "slots", *LABELS):
            tensors[name] = torch.from_numpy(np.ascontiguousarray(getattr(self, name)))
        tensors |= {f"replay/{name}": tensor for name, tensor in self.replay.state().items()}
        for name, _, part in self.replay.chunks():
            tensors |= {f"chunk/{name}/{key}": tensor for key, tensor in part().items()}
        write_tensors(user_path(path), tensors)

    @classmethod
    def load(cls, path: str | Path) -> Play:
        """Read what `save` wrote."""
        tensors = read_tensors(user_path(path))
        try:
            meta = parse_json(tensors["meta"].numpy().tobytes().decode())
            if meta["format"] != FORMAT:
                raise ValueError(f"it has format {meta['format']}, not {FORMAT}")
            n, spec = meta["num_envs"], spec_from_json(meta["spec"])
            replay = Replay(spec, n, (meta["rows"] - spec.frame_stack) * n, 0, CPU, CPU)
            chunks: dict[str, dict[str, Tensor]] = {}
            for name, tensor in tensors.items():
                if name.startswith("chunk/"):
                    _, chunk, key = name.split("/")
                    chunks.setdefault(chunk, {})[key] = tensor
            state = {k.removeprefix("replay/"): v for k, v in tensors.items() if k.startswith("replay/")}
            replay.load(state, ((name, "", part) for name, part in chunks.items()))
            return cls(
                env=meta["env"],
                variables=tuple(Variable(*variable) for variable in meta["variables"]),
                policies=tuple(meta["policies"]),
                replay=replay,
                **{name: tensors[name].numpy() for name in ("slot_states", "slots", *LABELS)},
            )
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} cannot be read as play ({error}): expected a file that Play.save wrote; "
                f"collect it again"
            ) from error


@torch.no_grad()
def collect(
    env: Place,
    steps: int,
    policy: Policy | Sequence[Policy] = "random",
    seed: int = 0,
    *,
    num_envs: int = 8,
    factory: EnvFactory | None = None,
    deterministic: bool = False,
    epsilon: float = 0.0,
) -> Play:
    """Play, and label every frame with the true state.

    Args:
        env: A run's config, or an environment's; an id or a factory is set up as in its default preset.
        steps: Number of steps, rounded up to whole steps of all environments.
        policy: `random`, `sticky`, `mixed` (half of both), an agent, or several of them, among which the
            environments are divided.
        seed: Seed of the environments and of all random numbers.
        num_envs: Environments played side by side.
        factory: Makes one environment, for a config whose id cannot be imported.
        deterministic: Agents take their best action; otherwise they explore as in training.
        epsilon: Probability of a uniformly random action in place of an agent's.
    """
    require(isinstance(steps, int) and steps > 0, "steps", steps, "a whole number above 0")
    require(num_envs > 0, "num_envs", num_envs, "1 or more")
    require(0 <= epsilon <= 1, "epsilon", epsilon, "a probability")
    players = _players(policy)
    if len(players) > num_envs:
        raise ConfigError(
            f"{len(players)} policies cannot play in {num_envs} environments: expected num_envs of "
            f"{len(players)} or more, since each environment has one"
        )
    with _envs(env, factory, num_envs) as envs, _seeded(players, seed):
        for player in players:
            if isinstance(player, Agent):
                require_same_spaces(player.spec, player.config.env.id, envs.spec, envs.name)
        return _play(envs, steps, players, seed, deterministic=deterministic, epsilon=epsilon)


def _play(
    envs: Envs, steps: int, players: list[Policy], seed: int, *, deterministic: bool, epsilon: float
) -> Play:
    n = envs.num_envs
    # An episode may end with every step, and every reset takes a step of all environments.
    replay = Replay(envs.spec, n, 2 * (steps + n), 0, CPU, CPU)
    frames, _ = envs.reset(seed)
    replay.reset(frames)
    variables, states = envs.variables, [envs.true_state()]
    acts = np.arange(n) % len(players)  # (N,)
    drivers = [
        _Driver(player, np.flatnonzero(acts == i), envs.spec, np.random.default_rng([seed, i]))
        for i, player in enumerate(players)
    ]
    episode, step, ended = np.arange(n), np.zeros(n, np.int64), np.zeros(n, bool)
    slots: list[np.ndarray] = []
    labels: dict[str, list[np.ndarray]] = {name: [] for name in LABELS}
    row = taken = 0
    while taken < steps:
        observed = replay.latest()
        chosen = [driver.act(observed, ended, deterministic, epsilon) for driver in drivers]
        action = np.zeros((n, *chosen[0].shape[1:]), chosen[0].dtype)
        for driver, part in zip(drivers, chosen, strict=True):
            action[driver.envs] = part
        envs.send(action)
        result = envs.recv()
        states.append(envs.true_state())
        real = ~ended  # where an episode had ended, this step was its reset
        taken += replay.add(
            action,
            result.reward,
            result.terminated,
            result.truncated,
            result.frames,
            torch.zeros(n, 0),
            result.ended,
        )
        slots.append(row * n + np.flatnonzero(real))
        values = {
            "reward": result.reward,
            "score": result.score,
            "episode": episode,
            "episode_step": step,
            "terminated": result.terminated,
            "ended": result.ended,
            "policy": acts,
        }
        for name, value in values.items():
            labels[name].append(value[real])
        fresh = ~real
        episode = np.where(fresh, episode.max() + np.cumsum(fresh), episode)
        step = np.where(fresh, 0, step + 1)
        ended = result.ended & real
        row += 1
    # An environment that is reset in the last row has a number for an episode without steps, which is no gap:
    # numbers are only names.
    return Play(
        env=envs.name,
        variables=variables,
        policies=tuple(player if isinstance(player, str) else "agent" for player in players),
        replay=replay,
        slot_states=np.concatenate(states),
        slots=np.concatenate(slots),
        **{name: np.concatenate(parts) for name, parts in labels.items()},
    )


class _Driver:
    """Chooses the actions of one policy in its environments."""

    def __init__(self, player: Policy, envs: np.ndarray, spec: EnvSpec, rng: np.random.Generator) -> None:
        self.player, self.envs, self._spec, self._rng = player, envs, spec, rng
        self._held, self._action = np.zeros(len(envs), np.int64), self._random(None)
        if isinstance(player, Agent):
            player.learner.set_progress(player.steps)  # ε as at this point of its training
            self._start = torch.zeros(len(envs), dtype=torch.int64, device=player.device)
            self._skill = player.new_skills(self._start)

    def act(self, observed: Tensor, ended: np.ndarray, deterministic: bool, epsilon: float) -> np.ndarray:
        """Actions in its environments; `observed` and `ended` cover all environments."""
        allowed = self._allowed(observed)
        if isinstance(self.player, Agent):
            return self._agent_action(self.player, observed, ended, deterministic, epsilon)
        if self.player == "random":
            return self._random(allowed)
        over = self._held == 0
        if allowed is not None:
            over |= ~np.take_along_axis(allowed, self._action[:, None], 1)[:, 0]
        self._action = np.where(self._per_env(over), self._random(allowed), self._action)
        self._held = np.where(over, self._rng.geometric(1 / HOLD_STEPS, len(over)), self._held) - 1
        return self._action

    def _agent_action(
        self, agent: Agent, observed: Tensor, ended: np.ndarray, deterministic: bool, epsilon: float
    ) -> np.ndarray:
        fresh = torch.from_numpy(ended[self.envs]).to(agent.device)
        if ended[self.envs].any():  # the action is ignored, and the skill is drawn for the episode after it
            self._skill = torch.where(fresh[:, None], agent.new_skills(self._start), self._skill)
        obs = observed[torch.from_numpy(self.envs)].to(agent.device)
        action = agent.choose(obs, self._skill, deterministic=deterministic).cpu().numpy()
        if not np.isfinite(action).all():
            raise NonFiniteError(
                f"the policy's action is not finite at step {agent.steps} of its training: expected numbers "
                f"in [-1, 1]; training has diverged, use an older checkpoint"
            )
        explores = self._rng.random(len(self.envs)) < epsilon
        drawn = self._random(self._allowed(observed))
        return np.where(self._per_env(explores), drawn, action).astype(action.dtype)

    def _allowed(self, observed: Tensor) -> np.ndarray | None:
        """(n, num_actions) bool: the actions allowed in its environments; None without masks."""
        mask = action_mask(observed, self._spec)
        return None if mask is None else mask.cpu().numpy()[self.envs]

    def _random(self, allowed: np.ndarray | None) -> np.ndarray:
        n = len(self.envs)
        if allowed is not None:
            drawn: np.ndarray = np.where(allowed, self._rng.random(allowed.shape), -1.0).argmax(1)
            return drawn
        if self._spec.discrete:
            return self._rng.integers(self._spec.num_actions, size=n)
        return self._rng.uniform(-1, 1, (n, self._spec.action_dim)).astype(np.float32)

    def _per_env(self, flags: np.ndarray) -> np.ndarray:
        return flags if self._spec.discrete else flags[:, None]


def _players(policy: Policy | Sequence[Policy]) -> list[Policy]:
    given = [policy] if isinstance(policy, str | Agent) else list(policy)
    players: list[Policy] = []
    for player in given:
        if isinstance(player, str) and player not in POLICIES:
            raise UnknownNameError("policy", player, POLICIES, "An agent can play too.")
        require(isinstance(player, str | Agent), "policy", player, f"{', '.join(POLICIES)} or an agent")
        players += ["random", "sticky"] if player == "mixed" else [player]
    require(bool(players), "policy", policy, "one policy or more")
    return players


def _seeded(players: list[Policy], seed: int) -> AbstractContextManager[None]:
    agents = [player for player in players if isinstance(player, Agent)]
    return seeded(seed, agents[0].device if agents else CPU)


@contextmanager
def _envs(env: Place, factory: EnvFactory | None, num_envs: int) -> Iterator[Envs]:
    if isinstance(env, Config | EnvConfig):
        config = env.env if isinstance(env, Config) else env
    else:
        probed = probe(env, layers_for(env, "pretrain"))
        config, factory = probed.env, probed.factory
    config = dataclasses.replace(config, count_states=False)
    pretraining = not isinstance(env, Config) or env.phase == "pretrain"  # which rewards are measured
    with closing(make_envs(config, factory, num_envs, pretraining=pretraining, true_state=True)) as envs:
        yield envs
