"""Exact counts of the distinct emulator states visited on Atari. Imports neither torch nor ALE.

ALE's vector environment does not expose the RAM, so for each game a second emulator, its *shadow*, repeats
all no-ops and actions and reads the 128 bytes. Without sticky actions the emulator is deterministic. At
every step both must agree on the frame number, the lives and the score, which soon differ between diverging
games.

The shadows run in worker processes, because ALE holds Python's GIL while it emulates.
"""

from __future__ import annotations

import importlib
import importlib.resources
import json
import warnings
from typing import Any, NoReturn

import numpy as np

from voidrl.config import EnvConfig
from voidrl.envs import ram_worker
from voidrl.envs.ram_worker import FRESH, KEY_BYTES, LOAD, RECORD, STEP, RamSettings, key_bytes
from voidrl.envs.workers import ScriptWorker, WorkerLostError, kill_with
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailedError,
    MissingExtraError,
    UnknownNameError,
)
from voidrl.system.machine import whole_cores

MEASURES = ("ram", "variables", "positions")
"""The kinds of state that are counted, from fine to coarse.

`ram`: all 128 bytes. It saturates: they include timers, so nearly every step reaches a new state.
`variables`: the annotated variables, in the 24 games with annotations.
`positions`: the player's position, `player_x` and `player_y` as far as they are annotated, and the room.
"""

RECENT = "positions_recent"
"""The positions since the last row of metrics."""

RAM_BYTES = 128
POSITION = ("player_x", "player_y", "room_number", "current_room")
MESSAGE_STEPS = 256  # game steps per message: about 0.1 s of work, which `counts` waits for
MESSAGES_AHEAD = 32  # how far a worker may lag before `step` waits
MERGE_BYTES = 1 << 18  # keys are collected up to this size, then inserted together
PART_ROWS = 1 << 20  # rows of a table copied at a time, to keep temporaries small


def _annotations() -> dict[str, dict[str, int]]:
    text = (
        importlib.resources.files("voidrl.envs.suites")
        .joinpath("data", "atari_ram_variables.json")
        .read_text("utf-8")
    )
    games: dict[str, dict[str, int]] = json.loads(text)["games"]
    return games


def annotations_of(rom: str) -> dict[str, int]:
    """The annotated variables of a game with their RAM addresses; empty for most games."""
    return _annotations().get(rom, {})


def addresses_of(rom: str) -> dict[str, list[int]]:
    """The measures of a game, each with the RAM addresses that identify a state."""
    variables = annotations_of(rom)
    found = {
        "ram": list(range(RAM_BYTES)),
        "variables": list(variables.values()),
        "positions": [variables[name] for name in POSITION if name in variables],
    }
    return {measure: found[measure] for measure in MEASURES if found[measure]}


class KeySet:
    """A set of byte strings of one width: a hash table with linear probing and batched inserts.

    A Python set would need 100 bytes per key, too much for millions of states.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._new: list[bytes] = []
        self._new_bytes = 0
        self.clear()

    def clear(self) -> None:
        """Remove all keys."""
        self._table = np.zeros((1 << 12, 2), np.uint64)  # zeros mark an empty cell
        self._size = 0
        self._new, self._new_bytes = [], 0

    def add(self, keys: bytes) -> None:
        """Add the concatenated `keys`; duplicates are fine."""
        self._new.append(keys)
        self._new_bytes += len(keys)
        if self._new_bytes >= MERGE_BYTES:
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return self._size

    def array(self) -> np.ndarray:
        """All keys, (n, width) uint8, in no order."""
        self._merge()
        filled = self._table[self._table.any(axis=1)]
        return filled.view(np.uint8).reshape(-1, KEY_BYTES)[:, : self.width].copy()

    def _merge(self) -> None:
        rows = np.frombuffer(b"".join(self._new), np.uint8).reshape(-1, self.width)
        self._new, self._new_bytes = [], 0
        padded = np.zeros((len(rows), KEY_BYTES), np.uint8)
        padded[:, : self.width] = rows
        if self.width < KEY_BYTES:
            padded[:, -1] = 1  # so that no key looks like an empty cell
        # A power of two, at most half full, so that a few probes find a key.
        cells = 1 << (2 * (self._size + len(rows)) - 1).bit_length()
        if cells > len(self._table):
            old = self._table
            self._table, self._size = np.zeros((cells, 2), np.uint64), 0
            for part in np.array_split(old, len(old) // PART_ROWS + 1):
                self._insert(part[part.any(axis=1)])
        self._insert(padded.view(np.uint64))

    def _insert(self, keys: np.ndarray) -> None:
        bits = len(self._table).bit_length() - 1
        mixed = (keys[:, 0] ^ (keys[:, 1] * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
        cell = (mixed >> np.uint64(64 - bits)).astype(np.int64)  # (n,)
        while len(keys):
            empty = np.flatnonzero(~self._table[cell].any(axis=1))
            _, first = np.unique(cell[empty], return_index=True)  # one key per cell
            winners = empty[first]
            self._table[cell[winners]] = keys[winners]
            self._size += len(winners)
            elsewhere = (self._table[cell] != keys).any(axis=1)  # the cell holds another key
            keys, cell = keys[elsewhere], (cell[elsewhere] + 1) & (len(self._table) - 1)


class StateCounter:
    """Counts the distinct states that N games of ALE's `AtariVectorEnv` visit.

    The vector environment must use `frameskip=4`, no sticky actions, no fire at resets, no `episodic_life`,
    no reward clipping, and autoreset on the next step. A state counts when a counted step reaches it; the
    start state of a game does not, so there are never more states than steps.

    Keys of up to 15 bytes are stored whole, longer ones as digests of 16 bytes: the count is exact unless two
    states share a digest, which among 10⁹ states has a probability below 10⁻²⁰. A million distinct states
    need 32 to 64 MB in each of `ram` and `variables`. A counter is not thread-safe.

    Args:
        rom: ALE's name of the game's ROM.
        num_envs: N.
        full_actions: Whether actions index all 18 actions or the game's minimal set.
        workers: Processes that run the shadows, by default half of the cores. They need about as much CPU
            time as the games.
        timeout_s: Seconds without an answer after which a worker counts as hung.
    """

    def __init__(
        self,
        rom: str,
        num_envs: int,
        *,
        full_actions: bool = False,
        workers: int | None = None,
        timeout_s: float = EnvConfig.timeout_s,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"states of {num_envs} games cannot be counted: expected 1 or more")
        if workers is not None and workers < 1:
            raise ConfigError(f"states cannot be counted by {workers} workers: expected 1 or more")
        self.rom, self.num_envs, self._timeout_s = rom, num_envs, timeout_s
        count = min(num_envs, workers or max(1, whole_cores() // 2))
        path, addresses = rom_path(rom), addresses_of(rom)
        self._sets = {measure: KeySet(key_bytes(len(found))) for measure, found in addresses.items()}
        self._recent = KeySet(self._sets["positions"].width) if "positions" in addresses else None
        self._failure = ""
        self._workers: list[_ShadowWorker] = []
        self._end = kill_with(self, self._workers)
        for envs in np.array_split(np.arange(num_envs), count):
            settings: RamSettings = {
                "rom_path": path,
                "full_actions": full_actions,
                "first_env": int(envs[0]),
                "num_envs": len(envs),
                "measures": list(addresses.values()),
            }
            self._workers.append(_ShadowWorker(settings))
        self._rows = np.zeros((max(1, MESSAGE_STEPS * count // num_envs), num_envs), RECORD)
        self._filled, self._loaded = 0, False

    def reset(self, frame_numbers: np.ndarray) -> None:
        """Follow `reset(seed=…)` of all games, which reloads the ROM.

        Args:
            frame_numbers: (N,) `episode_frame_number`, from which the number of no-ops follows.
        """
        self._loaded = True
        self._add(LOAD, False, 0, frame_numbers, -1, 0)

    def step(
        self,
        actions: np.ndarray,
        fresh: np.ndarray,
        counted: np.ndarray,
        frame_numbers: np.ndarray,
        lives: np.ndarray,
        score: np.ndarray,
    ) -> None:
        """Follow one step of all games; returns immediately unless the workers lag far behind.

        Args:
            actions: (N,) actions taken.
            fresh: (N,) whether this step started a new game, so that the action was ignored.
            counted: (N,) which of the other steps count.
            frame_numbers: (N,) `episode_frame_number` after the step.
            lives: (N,) after the step.
            score: (N,) unclipped reward of the step.
        """
        assert self._loaded, "call reset before step"
        self._add(np.where(fresh, FRESH, STEP), counted, actions, frame_numbers, lives, score)

    def counts(self) -> dict[str, int]:
        """The number of distinct states by measure over all steps so far; waits for the workers."""
        self._drain()
        return {measure: len(keys) for measure, keys in self._sets.items()}

    def recent(self) -> dict[str, int]:
        """The number of distinct positions since the last call, which starts a new window.

        Every method that learns sees all positions in the end; how many of them a policy sees in a window of
        steps shows whether it still moves around.
        """
        self._drain()
        if self._recent is None:
            return {}
        count = len(self._recent)
        self._recent.clear()
        return {RECENT: count}

    def _all_sets(self) -> dict[str, KeySet]:
        return self._sets if self._recent is None else {**self._sets, RECENT: self._recent}

    def state(self) -> dict[str, np.ndarray]:
        """The keys of all states counted so far by measure, (n, 16 or less) uint8; waits for the workers."""
        self._drain()
        return {measure: keys.array() for measure, keys in self._all_sets().items()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, replacing everything counted so far."""
        self._require_same_measures(state)
        self.clear()
        self.merge(state)

    def clear(self) -> None:
        """Forget all states; waits for the workers."""
        self._drain()
        for keys in self._all_sets().values():
            keys.clear()

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Add the states of another counter of this game, whose `state` this is."""
        self._require_same_measures(state)
        sets = self._all_sets()
        for measure, rows in state.items():
            for part in np.array_split(rows, len(rows) // PART_ROWS + 1):
                sets[measure].add(part.tobytes())

    def _require_same_measures(self, state: dict[str, np.ndarray]) -> None:
        expected = {measure: keys.width for measure, keys in self._all_sets().items()}
        given = {measure: rows.shape[1] if rows.ndim == 2 else None for measure, rows in state.items()}
        if given != expected or any(rows.dtype != np.uint8 for rows in state.values()):
            raise CheckpointError(
                f"the counted states cannot be loaded into a counter of {self.rom!r}: expected bytes of the "
                f"widths {expected}, got {given}; they were counted in another game"
            )

    def close(self) -> None:
        """Kill the workers; steps they have not processed are lost. A second call does nothing."""
        self._end()

    def _add(self, kind: Any, counted: Any, actions: Any, frame_numbers: Any, lives: Any, score: Any) -> None:
        self._check()
        row = self._rows[self._filled]  # (N,)
        row["kind"], row["counted"], row["action"] = kind, counted, actions
        row["frame"], row["lives"], row["score"] = frame_numbers, lives, score
        self._filled += 1
        if self._filled == len(self._rows):
            self._send()

    def _send(self) -> None:
        for worker in self._workers:
            while worker.unanswered >= MESSAGES_AHEAD or (worker.unanswered and worker.pipe.poll()):
                self._receive(worker)
            try:
                worker.send(self._rows[: self._filled, worker.envs].tobytes(), self._timeout_s)
            except WorkerLostError as lost:
                self._fail(str(lost))
            worker.unanswered += 1
        self._filled = 0

    def _receive(self, worker: _ShadowWorker) -> None:
        try:
            sentence = worker.receive(self._timeout_s).decode()
            keys = [worker.receive(self._timeout_s) for _ in self._sets if not sentence]
        except WorkerLostError as lost:
            self._fail(str(lost))
        if sentence:
            self._fail(sentence)
        worker.unanswered -= 1
        for measure, new in zip(self._sets, keys, strict=True):
            self._sets[measure].add(new)
            if measure == "positions" and self._recent is not None:
                self._recent.add(new)

    def _drain(self) -> None:
        self._check()
        if self._filled:
            self._send()
        for worker in self._workers:
            while worker.unanswered:
                self._receive(worker)

    def _check(self) -> None:
        if self._failure:
            raise EnvironmentFailedError(self._failure)
        if not self._end.still_active():
            raise EnvironmentFailedError(f"the counter of {self.rom!r} was closed: create a new one")

    def _fail(self, what: str) -> NoReturn:
        self._failure = (
            f"the states of {self.rom!r} cannot be counted: {what}; run without counting by "
            f"env.count_states = False"
        )
        raise EnvironmentFailedError(self._failure) from None


class _ShadowWorker(ScriptWorker):
    """A worker that runs the shadows of some of the games."""

    def __init__(self, settings: RamSettings) -> None:
        super().__init__(ram_worker.__file__, settings)
        first = settings["first_env"]
        self.envs = slice(first, first + settings["num_envs"])
        self.unanswered = 0


def rom_path(rom: str) -> str:
    """The file of a ROM that ale-py installs."""
    try:
        roms = importlib.import_module("ale_py.roms")
    except ImportError:
        raise MissingExtraError("ale-py", "atari", "counting the states of Atari games") from None
    if rom not in roms.get_all_rom_ids():
        raise UnknownNameError("game", rom, roms.get_all_rom_ids())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # handled below
        path = roms.get_rom_path(rom)
    if path is None:
        raise ConfigError(f"the ROM of {rom!r} cannot be read: expected the file that ale-py installs")
    return str(path)
