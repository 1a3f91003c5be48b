"""The memory of Atari games, and the variables in it. Imports neither torch nor ALE.

ALE's vector environment does not expose the RAM, so for each game a second emulator, its *shadow*, repeats
all no-ops and actions in a worker process. Emulators with equal seeds and actions do the same, and at every
step both must agree on the frame number, the lives and the score, which soon differ between diverging games.
"""

from __future__ import annotations

import importlib
import importlib.resources
import json
from functools import cache, partial
from hashlib import blake2b
from typing import Any

import gymnasium as gym
import numpy as np

from voidrl.envs.parallel import ParallelVector
from voidrl.envs.spaces import read_spaces
from voidrl.envs.vector import Variable
from voidrl.envs.workers import count_workers
from voidrl.errors import EnvironmentFailedError

MEASURES = ("ram", "variables", "positions")
"""The kinds of state that are counted, from fine to coarse.

`ram`: all 128 bytes. It saturates: they include timers, so nearly every step reaches a new state.
`variables`: the annotated variables, in the 24 games with annotations.
`positions`: the player's position, `player_x` and `player_y` as far as they are annotated, and the room.
"""

FRAME_SKIP = 4
RAM_BYTES = 128
POSITION = ("player_x", "player_y", "room_number", "current_room")
NOOP = 0  # of ALE's actions
STEP, FRESH, LOAD = 0, 1, 2  # a step, the start of the next game, the first start after loading the ROM

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


def annotations_of(rom: str) -> dict[str, int]:
    """The annotated variables of a game with their RAM addresses; empty for most games."""
    file = importlib.resources.files("voidrl.envs.suites").joinpath("data", "atari_ram_variables.json")
    found: dict[str, int] = json.loads(file.read_text("utf-8"))["games"].get(rom, {})
    return found


def addresses_of(rom: str) -> dict[str, list[int]]:
    """The measures of a game, each with the RAM addresses that identify a state."""
    variables = annotations_of(rom)
    found = {
        "ram": list(range(RAM_BYTES)),
        "variables": list(variables.values()),
        "positions": [variables[name] for name in POSITION if name in variables],
    }
    return {measure: found[measure] for measure in MEASURES if found[measure]}


def rom_path(rom: str) -> str:
    """The file of a ROM that ale-py installs."""
    return str(importlib.import_module("ale_py.roms").get_rom_path(rom))


def new_emulator(sticky: float = 0.0) -> Any:
    """An emulator of ALE, without its banner on stderr."""
    ale_py = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", sticky)
    return emulator


class Shadow(gym.Env[np.ndarray, np.ndarray]):
    """One emulator that repeats what one game of ALE's vector environment did, and returns its RAM.

    It must live as long as the game's emulator: `reset_game` draws the console's timer from a generator that
    is not reset between games and does not clear the RAM, so in some games (berzerk, frostbite, …) the third
    game starts in another state than the first. Loading a ROM resets the generator.

    An action is a record of the game's step: its kind, the action, and frame number, lives and score after
    it; lives below 0 are unknown. ALE's seed is for sticky actions only.
    """

    def __init__(self, path: str, full_actions: bool, sticky: float, number: int) -> None:
        self.ale = new_emulator(sticky)
        self._path, self._full, self._number = path, full_actions, number
        self._actions: list[Any] = []
        self._steps, self._ended = 0, False
        self.observation_space = gym.spaces.Box(0, 255, (RAM_BYTES,), np.uint8)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64)
        self.reading = read_spaces(self.observation_space, gym.spaces.Discrete(1), 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Set the seed of the next `LOAD`."""
        if seed is not None:
            self.ale.setInt("random_seed", seed)
        return np.zeros(RAM_BYTES, np.uint8), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat a step or reset, and check that the results agree."""
        kind, choice, frame, lives = action[:4].astype(int).tolist()
        score = float(action[4])
        if kind == LOAD:
            ale = self.ale
            ale.loadROM(self._path)
            self._actions = ale.getLegalActionSet() if self._full else ale.getMinimalActionSet()
            self._steps = 0
        else:
            self._steps += 1
        own = self._play(choice, frame) if kind == STEP else self._start(frame)
        here = (self.ale.getEpisodeFrameNumber(), self.ale.lives() if lives >= 0 else lives, own)
        if here != (frame, lives, score):
            self._fail(
                f"frame {here[0]}, lives {here[1]} and score {here[2]} in the shadow, "
                f"frame {frame}, lives {lives} and score {score:g} in the game"
            )
        return self.ale.getRAM(), 0.0, False, False, {}

    def _start(self, frame: int) -> int:
        """Start a new game with as many no-ops. Some games count the frames of their menu before them."""
        self.ale.reset_game()
        for _ in range(frame - self.ale.getEpisodeFrameNumber()):
            self.ale.act(NOOP)
        self._ended = False
        return 0

    def _play(self, choice: int, frame: int) -> int:
        """Take one action and return its score.

        ALE stops skipping frames when the game is over, and at the maximum length of an episode, which shows
        in the frame number. It does not stop at a lost life.
        """
        if self._ended:
            self._fail("the game continued after its end")
        score, before = 0, self.ale.getEpisodeFrameNumber()
        for _ in range(min(FRAME_SKIP, frame - before)):
            score += self.ale.act(self._actions[choice])
            if self.ale.game_over():
                break
        self._ended = self.ale.game_over() or frame - before < FRAME_SKIP
        return score

    def _fail(self, what: str) -> None:
        raise EnvironmentFailedError(
            f"the memory of game {self._number} cannot be read at its step {self._steps}: {what}; leave "
            f"env.count_states out"
        )


class Shadows:
    """The RAM of N games of ALE's `AtariVectorEnv`, from shadows that run while the caller goes on.

    The vector environment must use `frameskip=4`, no fire at resets, no `episodic_life`, no reward clipping,
    and autoreset on the next step. Shadows need about as much CPU time as the games.
    """

    def __init__(
        self, rom: str, num_envs: int, timeout_s: float, *, full_actions: bool = False, sticky: float = 0.0
    ) -> None:
        make, processes = partial(Shadow, rom_path(rom), full_actions, sticky), count_workers(num_envs, 2)
        name = f"a copy of {rom}, for its memory"
        self._vector = ParallelVector(make, num_envs, name, timeout_s, processes=processes, variables={})
        self._running = False
        self._ram = np.zeros((num_envs, RAM_BYTES), np.uint8)

    def reset(self, seed: int, frame_numbers: np.ndarray) -> None:
        """Follow `reset(seed=…)` of all games, which reloads the ROM.

        Args:
            seed: Seed of game 0.
            frame_numbers: (N,) `episode_frame_number`, from which the number of no-ops follows.
        """
        self.ram()
        self._vector.reset(seed=seed)
        self._send(LOAD, 0, frame_numbers, -1, 0)

    def step(
        self,
        actions: np.ndarray,
        fresh: np.ndarray,
        frame_numbers: np.ndarray,
        lives: np.ndarray,
        score: np.ndarray,
    ) -> None:
        """Follow one step of all games.

        Args:
            actions: (N,) actions taken.
            fresh: (N,) whether this step started a new game, so that the action was ignored.
            frame_numbers: (N,) `episode_frame_number` after the step.
            lives: (N,) after the step.
            score: (N,) unclipped reward of the step.
        """
        self.ram()
        self._send(np.where(fresh, FRESH, STEP), actions, frame_numbers, lives, score)

    def ram(self) -> np.ndarray:
        """(N, 128) uint8 after the last step; waits for the shadows."""
        if self._running:
            self._running = False
            self._ram = self._vector.recv()[0]
        return self._ram

    def _send(self, *columns: Any) -> None:
        n = len(self._ram)
        self._vector.send(np.stack([np.broadcast_to(column, n) for column in columns], axis=1))
        self._running = True

    def close(self) -> None:
        """End the workers."""
        self._vector.close()


def digests(memories: np.ndarray) -> set[int]:
    """Digests of memories (n, bytes): among ten million, two are equal with a probability of 3e-6."""
    rows = (blake2b(row.tobytes(), digest_size=8).digest() for row in memories)
    return {int.from_bytes(row, "little", signed=True) for row in rows}


@cache
def ram_variables(rom: str, seed: int = 0) -> dict[Variable, int]:
    """The variables of a game with their RAM addresses, measured in one or two seconds.

    Control is measured, not listed by hand. At states of exploratory play the emulator is copied and each
    action is tried from that state. Without sticky actions the emulator is deterministic, so differences
    between the actions are caused by them. Two criteria distinguish the player from objects that merely react
    to it:

    - **At once.** A player moves within `DIRECT_FRAMES`; an opponent reacts to where the player has moved,
      one frame later or more (boxing: 60 % of states against 0 %), the score even later and rarely.
    - **Lasting.** Bytes that hold the joystick differ too, but only as long as the action lasts. A difference
      counts if it is still there after `LASTING_FRAMES` of no-ops.

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
