"""Probing an agent: what its representation sees of the true state and of the task's reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.agent import Agent
from voidrl.agent.cost import acting_threads
from voidrl.config import EnvConfig
from voidrl.envs.make import EnvFactory
from voidrl.envs.vector import Variable
from voidrl.errors import ConfigError, NonFiniteError, UnknownNameError
from voidrl.nets import Encoder
from voidrl.nets.augment import network_spec
from voidrl.nets.observations import unpack, visible
from voidrl.probing import linear
from voidrl.probing.play import Play, Policy, collect
from voidrl.probing.result import Measure, ProbeResult, TaskRewardScore, VariableScore
from voidrl.replay import Replay
from voidrl.system.device import seeded
from voidrl.training.evaluation import run_seed

NUM_ENVS = 24
Z = "z"
PIXEL_SIDE = 21
CHUNK = 256  # states that are encoded at a time
LEAST_PROBE_STEPS = 100
MAX_PROBED_STEPS = 20_000
"""Steps to which linear probes are fitted; of more, as many at even distances within episodes."""
PROBE_STREAM, RANDOM_STREAM = 2, 3  # separate the seeds of probes from training and evaluation
PROBE_STEPS = 5000  # on which all probes of a training run are made


def probe_agent(
    agent: Agent,
    env: EnvConfig,
    factory: EnvFactory | None,
    steps: int,
    *,
    policy: str = "mixed",
    seed: int = 0,
    num_envs: int | None = None,
) -> ProbeResult:
    """Let `policy` play in separate environments, and probe the agent on that."""
    players: dict[str, list[Policy]] = {"agent": [agent], "random": ["random"], "sticky": ["sticky"]}
    players["mixed"] = [agent, "random", "sticky"]
    if policy not in players:
        raise UnknownNameError("policy", policy, players)
    if steps < LEAST_PROBE_STEPS:
        raise ConfigError(
            f"{steps} steps are too few for a probe: expected {LEAST_PROBE_STEPS} or more, and thousands for "
            f"numbers to rely on"
        )
    count = NUM_ENVS if num_envs is None else num_envs
    settings = {"env": env.id, "steps": steps, "policy": policy, "seed": seed, "num_envs": count}
    with acting_threads(agent, CHUNK):
        play = collect(env, steps, players[policy], seed, num_envs=count, factory=factory)
        return probe_play(agent, play, seed=seed, settings=settings)


class RunProbe:
    """Measures an agent while it trains, always on one fixed play of random and sticky actions.

    The play follows from the run's seed, so that a resumed run replays it. Neither playing nor measuring
    moves the run's random numbers or anything in the agent.
    """

    def __init__(self, agent: Agent, factory: EnvFactory | None) -> None:
        self.agent, self.seed = agent, run_seed(agent.config.seed, PROBE_STREAM)
        with seeded(self.seed, agent.device):
            env, players = agent.config.env, ("random", "sticky")
            self.play = collect(env, PROBE_STEPS, players, self.seed, num_envs=NUM_ENVS, factory=factory)

    def __call__(self) -> dict[str, float]:
        """One row for the log."""
        return probe_play(self.agent, self.play, spaces=(Z,), seed=self.seed).metrics()


@torch.no_grad()
def probe_play(
    agent: Agent,
    play: Play,
    *,
    spaces: Sequence[str] | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
) -> ProbeResult:
    """Measure an agent on labelled play. The agent, and all random numbers but its own, are left untouched.

    Args:
        agent: The agent.
        play: Play in an environment with the agent's spaces.
        spaces: Feature spaces to probe; by default all that the agent has.
        seed: Seed of held-out episodes and of the random encoder.
        settings: Settings to record in the result.
    """
    with seeded(seed, agent.device):
        states = np.unique(np.concatenate([play.slots, play.next_slots]))
        before, after = (np.searchsorted(states, slots) for slots in (play.slots, play.next_slots))
        encoded = encode_states(agent, play.replay, torch.from_numpy(states), spaces, seed=seed)
        if not encoded[Z].isfinite().all():
            raise NonFiniteError(
                f"f(s) is not finite at step {agent.steps} of training: there is nothing to probe; training "
                f"has diverged, use an older checkpoint"
            )
        split, how = _split(play, seed)
        # For classification, with as many features as fit in seconds.
        narrow = {name: linear.principal(z, after[split.train]) for name, z in encoded.items()}
        scored = _variable_scores(encoded, narrow, after, play, split)
        known = {each.name for each in scored}
        return ProbeResult(
            agent=describe(agent),
            settings=settings or {},
            steps=len(play),
            split=how,
            spaces={name: z.shape[1] for name, z in encoded.items()},
            variables=scored,
            constant=[variable.name for variable in play.variables if variable.name not in known],
            task_reward=_task_reward(narrow, before, after, play.reward, split),
        )


def describe(agent: Agent) -> dict[str, Any]:
    """Fields that identify an agent in a result."""
    config = agent.config
    names = {kind: getattr(config, kind).name for kind in ("method", "representation", "learner")}
    return {
        "env": config.env.id,
        "phase": config.phase,
        **names,
        "seed": config.seed,
        "steps": agent.steps,
    }


def _split(play: Play, seed: int) -> tuple[linear.Split, str]:
    """Training, validation and held-out steps, and how they were chosen."""
    split = linear.split_rows(play.episode, seed=seed)
    every = -(-len(play) // MAX_PROBED_STEPS)
    held_out, whole = (len(np.unique(episodes)) for episodes in (play.episode[split.test], play.episode))
    how = f"{held_out} of {whole} episodes held out"
    if split.by == "blocks":
        how = f"blocks of steps held out, since there are fewer than {linear.MIN_EPISODES} episodes"
    # Steps of all environments alternate in the play: every second step would leave out environments.
    parts = (rows[np.argsort(play.episode[rows], kind="stable")][::every] for rows in split[:3])
    fit, validation, test = parts
    return linear.Split(fit, validation, test, split.by), how


def _variable_scores(
    encoded: dict[str, Tensor],
    narrow: dict[str, Tensor],
    after: np.ndarray,
    play: Play,
    split: linear.Split,
) -> list[VariableScore]:
    """The scores of each variable of the states reached, without those that are constant."""
    state = play.state
    kinds = [_kind(variable, state[:, i], split) for i, variable in enumerate(play.variables)]
    continuous = [i for i, kind in enumerate(kinds) if kind == "R²"]
    found: list[dict[str, float]] = [{} for _ in kinds]
    for space, z in encoded.items():
        if continuous:
            values = linear.ridge_r2(z[after], state[:, continuous], split)
            for i, value in zip(continuous, values, strict=True):
                found[i][space] = float(value)
        for i in (i for i, kind in enumerate(kinds) if kind == "F1"):
            scores = linear.logistic_f1(narrow[space][after], state[:, i].astype(np.int64), split)
            found[i][space] = math.nan if scores is None else scores.mean
    return [
        VariableScore(variable.name, variable.controllable, kind, scores)
        for variable, kind, scores in zip(play.variables, kinds, found, strict=True)
        if kind and any(map(math.isfinite, scores.values()))
    ]


def _kind(variable: Variable, values: np.ndarray, split: linear.Split) -> Measure | None:
    """The measure of a variable; None for one that is constant in training or in the held-out steps."""
    if any(np.ptp(values[rows]) == 0 for rows in (split.train, split.test)):
        return None
    few = len(np.unique(values)) <= linear.MAX_CLASSES
    return "F1" if variable.discrete and few and (values == values.astype(np.int64)).all() else "R²"


def _task_reward(
    encoded: dict[str, Tensor], before: np.ndarray, after: np.ndarray, task: np.ndarray, split: linear.Split
) -> TaskRewardScore | None:
    found = {space: linear.reward_f1(z[before], z[after], task, split) for space, z in encoded.items()}
    known = [scores for scores in found.values() if scores is not None]
    if not known:
        return None
    counts = np.unique(np.sign(task), return_counts=True)[1]
    means = {space: math.nan if scores is None else scores.mean for space, scores in found.items()}
    return TaskRewardScore(means, known[0].chance, float(1 - counts.max() / len(task)))


# The spaces in which variables are looked for: z, earlier layers, and baselines


def space_functions(agent: Agent, *, seed: int = 0) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions from observations (B, *obs_shape) to features (B, …), by the name of the space.

    `learner`, the features that policy and values read, is left out where they are z. The last ones are
    untrained, for comparison: `pixels` of images, `observation` of vectors, and `random`, a new encoder with
    the shape of f.
    """
    f, acts, spec = agent.representation.encoder, agent.learner.encoder, agent.spec
    found: dict[str, Callable[[Tensor], Tensor]] = {Z: agent.representation.encode}
    if spec.pixels and isinstance(f, Encoder):
        found["convolutions"] = f.latent
    if acts is not f and any(True for _ in acts.parameters()):
        found["learner"] = acts
    if spec.pixels:
        found["pixels"] = lambda obs: small_pixels(unpack(obs, spec)[0] if spec.num_values else obs)
    elif f is not None:
        found["observation"] = lambda obs: visible(obs, spec)
    if f is not None:
        found["random"] = _random_encoder(agent, seed)
    return found


def small_pixels(obs: Tensor) -> Tensor:
    """(B, C · 21 · 21): the means of blocks of stacked images (B, C, H, W)."""
    height, width = (min(PIXEL_SIDE, side) for side in obs.shape[2:])
    return F.adaptive_avg_pool2d(obs.float() / 255, (height, width))


def _random_encoder(agent: Agent, seed: int) -> Encoder:
    """An encoder as f was before training, with other weights."""
    config, kind = agent.config, type(agent.representation)
    seen = network_spec(agent.spec, config.augment)
    # A hash of the seed: the run's own encoder may have an equal seed.
    with seeded(run_seed(seed, RANDOM_STREAM), agent.device):
        fresh = None if kind.uses_learner_encoder else kind.make_encoder(seen, config.representation)
        return (fresh or Encoder(seen, config.learner.encoder)).to(agent.device).eval()


@torch.no_grad()
def encode_states(
    agent: Agent, replay: Replay, slots: Tensor, names: Sequence[str] | None, *, seed: int = 0
) -> dict[str, Tensor]:
    """(n, d) float32 on the CPU: the features of the states in (n,) slots, in each of the named spaces.

    Without names, in all that the agent has. `seed` is that of the random encoder.
    """
    spaces = space_functions(agent, seed=seed)
    parts: dict[str, list[Tensor]] = {name: [] for name in spaces if names is None or name in names}
    for chunk in slots.split(CHUNK):
        obs = replay.observations(chunk).to(agent.device)
        for name, found in parts.items():
            with agent.precision():
                features = spaces[name](obs)
            found.append(features.flatten(1).float().cpu())
    return {name: torch.cat(found) for name, found in parts.items()}
