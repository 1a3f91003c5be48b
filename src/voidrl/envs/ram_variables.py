"""The variables in the memory of Atari games, and which of them the player controls. Does not import torch.

Control is measured, not listed by hand. At states of exploratory play the emulator is copied and each action
is tried from that state. Without sticky actions the emulator is deterministic, so differences between the
actions are caused by them. Two criteria distinguish the player from objects that merely react to it:

- **At once.** A player moves within `DIRECT_FRAMES`; an opponent reacts to where the player has moved, one
  frame later or more (boxing: 60 % of states against 0 %), the score even later and rarely.
- **Lasting.** Bytes that hold the joystick differ too, but only as long as the action lasts. A difference
  counts if it is still there after `LASTING_FRAMES` of no-ops.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from voidrl.envs.ram import FRAME_SKIP, NOOP, RAM_BYTES, annotations_of, new_emulator, rom_path
from voidrl.envs.variables import Variable

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


@cache
def ram_variables(rom: str, seed: int = 0) -> dict[Variable, int]:
    """The variables of a game with their RAM addresses, measured in one or two seconds.

    Without annotations they are all bytes that hold state, as `ram_33`: those that vary in play and do not
    jump about. Discrete are those with at most 8 values in play.
    """
    visited, share = _explore(rom, seed)
    found = annotations_of(rom)
    if not found:
        values = visited.astype(np.float64)
        change = np.abs(np.diff(values, axis=0)).mean(0)  # (128,)
        elsewhere = np.abs(np.diff(np.random.default_rng(seed).permutation(values), axis=0)).mean(0)
        holds = (elsewhere > 0) & (change <= MEMORYLESS * elsewhere)
        found = {f"ram_{address}": address for address in np.flatnonzero(holds).tolist()}
    addresses = np.array([*found.values()], np.intp)
    least = max(LEAST_STATES / TRIED_STATES, SHARE * share[addresses].max(initial=0))
    return {
        Variable(name, bool(share[at] >= least), len(np.unique(visited[:, at])) <= MAX_NAMES): at
        for name, at in found.items()
    }


def _explore(rom: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Play a game and try actions on the way.

    Returns the RAM after each step, (T, 128), and the share of the tried states in which actions changed
    each byte at once and lastingly, (128,).
    """
    ale = new_emulator()
    ale.loadROM(rom_path(rom))
    ale.reset_game()
    actions, rng = ale.getMinimalActionSet(), np.random.default_rng(seed)
    visited: list[np.ndarray] = []
    changed = np.zeros(RAM_BYTES)
    held, action = 0, NOOP
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
            _act(ale, NOOP, LASTING_FRAMES)
            later[:] = ale.getRAM()
        ale.restoreState(here)
        changed += (after != after[0]).any(0).all(0)
    return np.array(visited), changed / TRIED_STATES


def _act(ale: Any, action: Any, frames: int) -> None:
    for _ in range(frames):
        ale.act(action)
