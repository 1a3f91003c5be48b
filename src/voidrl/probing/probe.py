"""Probing an agent: what its representation and its intrinsic reward see of the true state."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl.agent import Agent
from voidrl.envs.variables import Variable
from voidrl.errors import ConfigError, NonFiniteError, UnknownNameError
from voidrl.methods.base import Latents, Method, Option
from voidrl.probing import features, linear, reward
from voidrl.probing.play import LABELS, Play
from voidrl.probing.result import ProbeResult, RarityScore, RewardScore, TaskRewardScore, VariableScore
from voidrl.representations.base import Representation
from voidrl.system.device import seeded
from voidrl.types import Batch

SPACES = (
    features.Z,
    features.CONVOLUTIONS,
    features.LEARNER,
    features.PIXELS,
    features.OBSERVATION,
    features.RANDOM,
)
LEAST_PROBE_STEPS = 100
HELD_OUT = 0.3
BATCHES = 4
"""Number of batches in which every state is scored, each time among other states."""
MAX_PROBED_STEPS = 20_000
"""Steps to which linear probes are fitted; of more, as many at even distances within episodes."""


@torch.no_grad()
def probe_play(
    agent: Agent,
    play: Play,
    *,
    spaces: Sequence[str] = SPACES,
    variables: Sequence[str] | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
) -> ProbeResult:
    """Measure an agent on labelled play. The agent, and all random numbers but its own, are left untouched.

    Args:
        agent: The agent.
        play: Play in an environment with the agent's spaces.
        spaces: Feature spaces to probe, of those that the agent has.
        variables: Names of variables; all by default.
        seed: Seed of held-out episodes, batches and the random encoder.
        settings: Settings to record in the result.
    """
    require_enough(len(play))
    with seeded(seed, agent.device):
        states = np.unique(np.concatenate([play.slots, play.next_slots]))
        before, after = (np.searchsorted(states, slots) for slots in (play.slots, play.next_slots))

        def observations(index: Tensor) -> Tensor:
            return play.replay.observations(torch.from_numpy(states[index.numpy()]))

        chosen = _chosen(play.variables, variables)
        encoded = features.encode_states(agent, observations, len(states), spaces, seed=seed)
        if features.Z in encoded and not encoded[features.Z].isfinite().all():
            raise NonFiniteError(
                f"f(s) is not finite at step {agent.steps} of training: there is nothing to probe; training "
                f"has diverged, use an older checkpoint"
            )
        names, state = [play.variables[i] for i in chosen], play.state[:, chosen]
        split, how = _split(play, seed)
        # For classification, with as many features as fit in seconds.
        narrow = {name: linear.principal(z, after[split.train]) for name, z in encoded.items()}
        scored, constant = _variable_scores(encoded, narrow, after, names, state, split)
        note = no_reward(agent)
        return ProbeResult(
            agent=describe(agent),
            settings=settings or {},
            steps=len(play),
            episodes=len(np.unique(play.episode)),
            split=how,
            spaces={name: z.shape[1] for name, z in encoded.items()},
            variables=scored,
            constant=constant,
            task_reward=_task_reward(narrow, before, after, play.reward, split),
            reward=None
            if note
            else _reward_score(agent, play, encoded[features.Z], before, after, names, chosen, seed),
            reward_note=note,
        )


def require_enough(steps: int) -> None:
    """Refuse play on which nothing can be held out."""
    if steps < LEAST_PROBE_STEPS:
        raise ConfigError(
            f"{steps} steps are too few for a probe: expected {LEAST_PROBE_STEPS} or more, and thousands for "
            f"numbers to rely on"
        )


def describe(agent: Agent) -> dict[str, Any]:
    """Fields that identify an agent in a result."""
    config = agent.config
    return {
        "env": config.env.id,
        "phase": config.phase,
        "method": config.method.name,
        "representation": config.representation.name,
        "learner": config.learner.name,
        "seed": config.seed,
        "steps": agent.steps,
    }


def no_reward(agent: Agent) -> str:
    """Why an agent has no intrinsic reward to measure; empty if it has one."""
    if not (agent.uses_method or agent.effective.may_adapt):
        return "it was trained from scratch on the task's reward"
    if not agent.method.learns:
        return f"method {agent.config.method.name!r} has none"
    return ""


def _chosen(known: Sequence[Variable], wanted: Sequence[str] | None) -> list[int]:
    names = [variable.name for variable in known]
    if wanted is None:
        return list(range(len(names)))
    for name in wanted:
        if name not in names:
            if not names:
                raise ConfigError(
                    f"variable {name!r} cannot be probed: this environment reports no true state"
                )
            raise UnknownNameError("variable", name, names)
    return [names.index(name) for name in dict.fromkeys(wanted)]


def _split(play: Play, seed: int) -> tuple[linear.Split, str]:
    """Training, validation and held-out steps, in equal shares of each policy; and how they were chosen.

    Otherwise chance would decide whether the few episodes that reached some part of the world are held out.
    """
    every = -(-len(play) // MAX_PROBED_STEPS)
    parts, notes = [], []
    for policy in np.unique(play.policy):
        rows = np.flatnonzero(play.policy == policy)
        own = dataclasses.replace(play, **{name: getattr(play, name)[rows] for name in ("slots", *LABELS)})
        train, test, note = own.split(HELD_OUT, seed)
        # Steps of all environments alternate in the play: in its order, every second or eighth step would
        # leave out whole environments.
        train, test = (part[np.argsort(own.episode[part], kind="stable")][::every] for part in (train, test))
        chosen = linear.with_validation(train, test, own.episode, seed=seed)
        parts.append([rows[part] for part in (chosen.fit, chosen.validation, chosen.test)])
        notes.append(note)
    fit, validation, held_out = (np.concatenate(part) for part in zip(*parts, strict=True))
    how = f"{len(np.unique(play.episode[held_out]))} of {len(np.unique(play.episode))} episodes held out"
    if blocks := [note for note in notes if "block" in note]:
        how = f"held out in {blocks[0]} of one policy"
    return linear.Split(fit, validation, held_out), how


# The representation


def _variable_scores(
    encoded: dict[str, Tensor],
    narrow: dict[str, Tensor],
    after: np.ndarray,
    variables: Sequence[Variable],
    state: np.ndarray,
    split: linear.Split,
) -> tuple[list[VariableScore], list[str]]:
    """The scores of each variable of the states reached, and the names of those that are constant."""
    kinds = [_kind(variable, state[:, i], split) for i, variable in enumerate(variables)]
    continuous = [i for i, kind in enumerate(kinds) if kind == "R²"]
    discrete = [i for i, kind in enumerate(kinds) if kind == "F1"]
    found: dict[int, dict[str, float]] = {i: {} for i, kind in enumerate(kinds) if kind}
    chance = dict.fromkeys(found, 0.0)
    for space, z in encoded.items():
        if continuous:
            values = linear.ridge_r2(z[after], state[:, continuous], split)
            for i, value in zip(continuous, values, strict=True):
                found[i][space] = float(value)
        for i in discrete:
            scores = linear.logistic_f1(narrow[space][after], state[:, i].astype(np.int64), split)
            found[i][space] = math.nan if scores is None else scores.mean
            chance[i] = chance[i] if scores is None else scores.mean_chance
    useful = {i for i, scores in found.items() if any(map(math.isfinite, scores.values()))}
    scored = [
        VariableScore(v.name, v.controllable, "R²" if kinds[i] == "R²" else "F1", found[i], chance[i])
        for i, v in enumerate(variables)
        if i in useful
    ]
    return scored, [v.name for i, v in enumerate(variables) if i not in useful]


def _kind(variable: Variable, values: np.ndarray, split: linear.Split) -> str:
    """`R²`, `F1`, or nothing for a variable that is constant in training or in the held-out steps."""
    if any(np.ptp(values[rows]) == 0 for rows in (split.train, split.test)):
        return ""
    few = len(np.unique(values)) <= linear.MAX_CLASSES
    return "F1" if variable.discrete and few and (values == values.astype(np.int64)).all() else "R²"


def _task_reward(
    encoded: dict[str, Tensor], before: np.ndarray, after: np.ndarray, task: np.ndarray, split: linear.Split
) -> TaskRewardScore | None:
    if np.ptp(np.sign(task)) == 0:
        return None
    found = {space: linear.reward_f1(z[before], z[after], task, split) for space, z in encoded.items()}
    known = {space: scores for space, scores in found.items() if scores is not None}
    if not known:
        return None
    counts = np.unique(np.sign(task), return_counts=True)[1]
    chance = float(np.mean(list(next(iter(known.values())).chance.values())))
    return TaskRewardScore(
        {space: known[space].mean if space in known else math.nan for space in found},
        chance,
        float(1 - counts.max() / len(task)),
    )


# The intrinsic reward


def _reward_score(
    agent: Agent,
    play: Play,
    z: Tensor,
    before: np.ndarray,
    after: np.ndarray,
    variables: Sequence[Variable],
    columns: Sequence[int],
    seed: int,
) -> RewardScore:
    scores = intrinsic_rewards(agent, play, z, before, after)  # (R, n)
    first = scores[0]
    scores_next = getattr(agent.config.method, "particle", "next") == "next"
    state = (play.state if scores_next else play.state_before)[:, columns]  # the rewarded states
    varying = [i for i in range(len(variables)) if np.ptp(state[:, i]) > 0]
    names = [variables[i].name for i in varying]
    own = reward.rarity_columns(names, [variables[i].controllable for i in varying])

    def rarity(which: Sequence[int]) -> RarityScore | None:
        if not which:
            return None
        where = reward.cells(state[:, [varying[i] for i in which]])
        found = reward.dependence(first, where, episode=play.episode, seed=seed)
        return RarityScore(tuple(names[i] for i in which), where.count, where.additive, **vars(found))

    discount, batch_size = agent.config.learner.discount, agent.config.learner.batch_size
    # Batches that share most of the play differ less than batches of a replay.
    noise = reward.noise_ratio(scores) if 2 * batch_size <= len(play) else math.nan
    return RewardScore(
        mean=float(first.mean()),
        deviation=float(first.std()),
        controllable=rarity(own),
        everything=rarity(range(len(varying))),
        survival_share=reward.survival_share(
            _as_learned(agent, first), play.terminated, play.episode, discount
        ),
        discount=discount,
        noise=noise,
        batch_size=batch_size,
    )


def _as_learned(agent: Agent, rewards: np.ndarray) -> np.ndarray:
    """Rewards as the learner gets them: a constant that is taken away rewards no survival."""
    found: Tensor = agent.normalizer(torch.from_numpy(rewards).float().to(agent.device))
    as_learned: np.ndarray = found.cpu().numpy()
    return as_learned


@torch.no_grad()
def intrinsic_rewards(
    agent: Agent, play: Play, z: Tensor, before: np.ndarray, after: np.ndarray, *, repeats: int = BATCHES
) -> np.ndarray:
    """(repeats, n): the method's reward of every step, each time in batches of other steps.

    Batches are as large as in training and drawn from the whole play, as they are from the replay; so are
    pools of particles. Skills are drawn for each episode, whichever policy acted.

    Args:
        agent: The agent, whose method is copied: running means must not move.
        play: n steps.
        z: (S, dim) latents of all states of the play.
        before: (n,) index of s in z.
        after: (n,) index of s' in z.
        repeats: How often every step is scored.
    """
    representation, device, n = agent.representation, agent.device, len(play)
    method = copy.deepcopy(agent.method).eval()
    z = z.to(device)
    size = min(agent.config.learner.batch_size, n)
    skills = _skills(method, play, device)
    notes = _notes(method, representation, play, skills)
    begin, end = _episode_ends(play)
    over = torch.from_numpy(end == np.arange(n)).float()
    discount = agent.config.learner.discount
    action = torch.from_numpy(play.action)
    ends = torch.from_numpy(play.terminated)
    found = np.zeros((repeats, n))
    for scores in found:
        order = torch.randperm(n)
        for rows in torch.cat([order, order[: -n % size]]).split(size):  # the last batch is filled up
            index = rows.numpy()
            now, then = (torch.from_numpy(states[index]).to(device) for states in (before, after))
            batch = Batch(
                obs=play.observations(index, before=True).to(device),
                action=action[rows].to(device),
                reward=torch.zeros(len(rows), device=device),
                discount=((~ends[rows]).float() * discount).to(device),
                next_obs=play.observations(index).to(device),
                skill=skills[rows.to(device)],
                weight=torch.ones(len(rows), device=device),
                ended=over[rows].to(device),
                note=notes[rows.to(device)],
            )
            option = _option(z, before[begin[index]], after[end[index]], play.episode_step[end[index]] + 1)
            with agent.precision():
                pool = _pool(z, after)
                latents = Latents(_reader(z, now), _reader(z, then), pool, option, representation)
                rewards: Tensor = method.scalar_reward(method.reward(batch, latents), batch.skill)
            scores[index] = rewards.float().cpu().numpy()
    return found


def _reader(z: Tensor, index: Tensor) -> Callable[[], Tensor]:
    return lambda: z[index]


def _pool(z: Tensor, states: np.ndarray) -> Callable[[int], Tensor]:
    """States drawn from the play, once for all uses in a batch."""
    drawn: dict[int, Tensor] = {}

    def pool(count: int) -> Tensor:
        if count not in drawn:
            rows = torch.randint(len(states), (count,))
            drawn[count] = z[torch.from_numpy(states)[rows].to(z.device)]
        return drawn[count]

    return pool


def _option(z: Tensor, first: np.ndarray, last: np.ndarray, steps: np.ndarray) -> Callable[[int], Option]:
    """Whole episodes as options, of any length: a skill is kept for one."""
    begin, end = (z[torch.from_numpy(index).to(z.device)] for index in (first, last))
    found = Option(begin, end, torch.from_numpy(steps).to(z.device), z.new_ones(len(steps)))
    return lambda longest: found


def _episode_ends(play: Play) -> tuple[np.ndarray, np.ndarray]:
    """(n,) each: the first and the last step of the episode that each step belongs to."""
    number = np.unique(play.episode, return_inverse=True)[1]
    order = np.lexsort((play.episode_step, number))
    edges = np.flatnonzero(np.diff(number[order], prepend=-1))
    first, last = order[edges], order[np.append(edges[1:], len(order)) - 1]
    return first[number], last[number]


def _notes(method: Method, representation: Representation, play: Play, skills: Tensor) -> Tensor:
    """(n, note_dim): the method's notes if each episode is played in a separate environment."""
    device = skills.device
    notes = torch.zeros(len(play), method.note_dim, device=device)
    if not method.note_dim:
        return notes
    number = np.unique(play.episode, return_inverse=True)[1]
    starts = np.unique(_episode_ends(play)[0])
    starts = starts[np.argsort(number[starts])]
    envs = torch.arange(len(starts), device=device)
    method.begin(play.observations(starts, before=True).to(device), envs, representation)
    for t in np.unique(play.episode_step):
        rows = np.flatnonzero(play.episode_step == t)
        at = torch.from_numpy(rows).to(device)
        env = torch.from_numpy(number[rows]).to(device)
        note = method.observe(play.observations(rows).to(device), skills[at], env, representation)
        assert note is not None
        notes[at] = note
    return notes


def _skills(method: Any, play: Play, device: torch.device) -> Tensor:
    """(n, skill_dim): one skill for each episode."""
    number = np.unique(play.episode, return_inverse=True)[1]
    starts = torch.zeros(int(number.max()) + 1, dtype=torch.int64, device=device)
    drawn: Tensor = method.sample_skill(starts)
    return drawn[torch.from_numpy(number).to(device)]
