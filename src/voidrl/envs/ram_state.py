"""The true state of Atari games: their annotated RAM, and which of it the player controls. No torch.

Control is measured, not listed by hand. At states of exploratory play the emulator is copied and each action
is tried from that state. Without sticky actions the emulator is deterministic, so differences between the
actions are caused by them. Two criteria distinguish the player from objects that merely react to it:

- **At once.** A player moves within `DIRECT_FRAMES`; an opponent reacts to where the player has moved, one
  frame later or more (boxing: 60 % of states against 0 %), the score even later and rarely.
- **Lasting.** Bytes that hold the joystick differ too, but only as long as the action lasts. A difference
  counts if it is still there after `LASTING_FRAMES` of no-ops.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from voidrl.envs.ram import RAM_BYTES, annotations_of, rom_path
from voidrl.envs.ram_worker import FRAME_SKIP, FRESH, LOAD, STEP, DisagreementError, RamSettings, Shadow
from voidrl.envs.variables import Variable
from voidrl.errors import EnvironmentFailedError

DIRECT_FRAMES = 2  # consoles read the joystick once a frame, some games every other frame
LASTING_FRAMES = 4
TRIED_STATES = 96
TRIED_ACTIONS = 8  # in each state, drawn from the game's: with all 18, this would take twice as long
STATE_GAP_STEPS = 12  # mean steps between two of them
HOLD_STEPS = 8  # mean steps for which exploratory play holds an action
LEAST_STATES = 3  # fewer may be coincidences, such as a ghost that turns at this very frame
SHARE = 0.25
"""A byte is controllable if it differs in this share of the states in which the most controllable one does.

Relative to that byte, since games differ in how often they take actions at all: MsPacman in two thirds of the
states, Q*bert, whose player cannot turn in mid-air, in one of twenty. In MsPacman the player's position
differs in two thirds as many states as its direction, dots in a seventh, ghosts in 3 % or fewer. What follows
an action only later is missed, such as the position of a ship that first has to gain speed (asteroids).
"""
MEMORYLESS = 0.5
"""A byte that changes in one step by more than this share of how much it differs between any two steps holds
no state: a random number generator's has 0.9 to 1, a position 0.01 to 0.5."""
MAX_NAMES = 8  # a byte with no more values than this in play counts as discrete


class Trial(NamedTuple):
    """Observations from one stretch of exploratory play."""

    visited: np.ndarray  # (T, 128) uint8: the RAM after each step
    share: (
        np.ndarray
    )  # (128,): in which share of the tried states actions changed a byte at once and lastingly


def controllable_bytes(rom: str, seed: int = 0) -> tuple[int, ...]:
    """The RAM addresses that the player controls, measured once per process in one or two seconds.

    They are among the addresses of `ram_addresses`.
    """
    share = trial(rom, seed).share
    known = np.array([*ram_addresses(rom, seed).values()], np.intp)
    least = max(LEAST_STATES / TRIED_STATES, SHARE * share[known].max(initial=0))
    return tuple(known[share[known] >= least].tolist())


def ram_addresses(rom: str, seed: int = 0) -> dict[str, int]:
    """The annotated addresses of a game, or without annotations all bytes that hold state, as `ram_33`.

    A byte does if it varies in play and does not jump about.
    """
    if found := annotations_of(rom):
        return found
    visited = trial(rom, seed).visited.astype(np.float64)
    change = np.abs(np.diff(visited, axis=0)).mean(0)  # (128,)
    elsewhere = np.abs(np.diff(np.random.default_rng(seed).permutation(visited), axis=0)).mean(0)
    holds = (elsewhere > 0) & (change <= MEMORYLESS * elsewhere)
    return {f"ram_{address}": address for address in np.flatnonzero(holds).tolist()}


def ram_variables(rom: str, seed: int = 0) -> dict[Variable, int]:
    """The variables of a game with their addresses; discrete are those with at most 8 values in play."""
    visited, controlled = trial(rom, seed).visited, set(controllable_bytes(rom, seed))
    return {
        Variable(name, address in controlled, len(np.unique(visited[:, address])) <= MAX_NAMES): address
        for name, address in ram_addresses(rom, seed).items()
    }


@cache
def trial(rom: str, seed: int) -> Trial:
    """Play a game and try all actions on the way."""
    ale_py = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner on stderr
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(rom_path(rom))
    ale.reset_game()
    actions, noop, rng = ale.getMinimalActionSet(), ale_py.Action.NOOP, np.random.default_rng(seed)
    visited: list[np.ndarray] = []
    changed = np.zeros(RAM_BYTES)
    held, action = 0, noop
    for _ in range(TRIED_STATES):
        for _ in range(rng.geometric(1 / STATE_GAP_STEPS)):
            if held == 0:
                action, held = actions[rng.integers(len(actions))], rng.geometric(1 / HOLD_STEPS)
            held -= 1
            _act(ale, action, FRAME_SKIP)
            visited.append(ale.getRAM())
            if ale.game_over():
                ale.reset_game()
        here = ale.cloneState(include_rng=True)
        tried = rng.permutation(len(actions))[:TRIED_ACTIONS]
        after = np.zeros((len(tried), 2, RAM_BYTES), np.uint8)
        for i, (at_once, later) in zip(tried, after, strict=True):
            ale.restoreState(here)
            _act(ale, actions[i], DIRECT_FRAMES)
            at_once[:] = ale.getRAM()
            _act(ale, noop, LASTING_FRAMES)
            later[:] = ale.getRAM()
        ale.restoreState(here)
        changed += (after != after[0]).any(0).all(0)
    return Trial(np.array(visited), changed / TRIED_STATES)


def _act(ale: Any, action: Any, frames: int) -> None:
    for _ in range(frames):
        ale.act(action)


class RamState:
    """The true state of N games of ALE's vector environment, read from emulators that repeat them.

    They run in this process, so a step of all games takes as long as it takes to emulate them one by one.

    Args:
        rom: ALE's name of the game's ROM.
        num_envs: N.
        full_actions: Whether actions index all 18 actions or the game's minimal set.
        sticky: Probability of repeating the last action. Emulators with equal seeds repeat in the same steps.
    """

    def __init__(self, rom: str, num_envs: int, *, full_actions: bool = False, sticky: float = 0.0) -> None:
        self.rom = rom
        variables = ram_variables(rom)
        self.variables, addresses = tuple(variables), list(variables.values())
        self._addresses = np.array(addresses, np.intp)
        settings: RamSettings = {
            "rom_path": rom_path(rom),
            "full_actions": full_actions,
            "first_env": 0,
            "num_envs": num_envs,
            "measures": [],
        }
        ale_py = importlib.import_module("ale_py")
        self._shadows = [Shadow(ale_py, settings, env) for env in range(num_envs)]
        for shadow in self._shadows:
            shadow.ale.setFloat("repeat_action_probability", sticky)

    def reset(self, seed: int, frame_numbers: np.ndarray) -> None:
        """Follow `reset(seed=…)` of all games; the other arguments are as in `ram.StateCounter`."""
        n = len(self._shadows)
        for i, shadow in enumerate(self._shadows):
            shadow.ale.setInt("random_seed", seed + i)  # taken when the ROM is loaded
        self._repeat(np.full(n, LOAD), np.zeros(n, int), frame_numbers, np.full(n, -1), np.zeros(n))

    def step(
        self,
        actions: np.ndarray,
        fresh: np.ndarray,
        frame_numbers: np.ndarray,
        lives: np.ndarray,
        score: np.ndarray,
    ) -> None:
        """Follow one step of all games; arguments as in `ram.StateCounter`."""
        self._repeat(np.where(fresh, FRESH, STEP), actions, frame_numbers, lives, score)

    def read(self) -> np.ndarray:
        """The present state, (N, V) float64."""
        ram = np.stack([shadow.ale.getRAM() for shadow in self._shadows])  # (N, 128)
        return ram[:, self._addresses].astype(np.float64)

    def _repeat(self, *columns: np.ndarray) -> None:
        steps = zip(*(column.tolist() for column in columns), strict=True)
        for shadow, step in zip(self._shadows, steps, strict=True):
            try:
                shadow.repeat(*step)
            except DisagreementError as error:
                raise EnvironmentFailedError(
                    f"the true state of {self.rom!r} cannot be read: {error}"
                ) from None
