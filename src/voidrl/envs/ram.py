"""The memory of Atari games, and counts of the distinct states visited. Imports neither torch nor ALE.

ALE's vector environment does not expose the RAM, so for each game a second emulator, its *shadow*, repeats
all no-ops and actions in a worker process. Emulators with equal seeds and actions do the same, and at every
step both must agree on the frame number, the lives and the score, which soon differ between diverging games.
"""

from __future__ import annotations

import importlib
import importlib.resources
import json
from functools import partial
from hashlib import blake2b
from typing import Any

import gymnasium as gym
import numpy as np

from voidrl.envs.parallel import ParallelVector
from voidrl.envs.spaces import read_spaces
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
