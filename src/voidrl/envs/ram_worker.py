"""A worker process with emulators that shadow the games of `ram.StateCounter` and read their RAM.

It runs as a file, with the arguments of `workers.ScriptWorker`: the descriptor of its end of a pipe, the
parent's process id and `RamSettings` as JSON.

It reads messages of (T, n) `RECORD`s each, and answers each with an error message, empty on success, and then
one message of keys per measure.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import sys
import threading
from hashlib import blake2b
from multiprocessing.connection import Connection
from typing import Any, TypedDict

import numpy as np

from voidrl.envs.workers import end_with_parent

FRAME_SKIP = 4
KEY_BYTES = 16  # of a digest: two of n states collide with a probability below n² / 2^129
STEP, FRESH, LOAD = 0, 1, 2  # a step, the start of the next game, the first start after loading the ROM
RECORD = np.dtype(
    [
        ("kind", np.uint8),
        ("counted", np.bool_),
        ("action", np.int32),
        ("frame", np.int32),  # frames of this game so far, no-ops included
        ("lives", np.int32),  # −1 if unknown
        ("score", np.float64),  # unclipped
    ]
)


class RamSettings(TypedDict):
    """The settings of a worker."""

    rom_path: str
    full_actions: bool
    first_env: int
    num_envs: int
    measures: list[list[int]]  # RAM addresses of each measure's key


class DisagreementError(Exception):
    """The shadow is not in the state of its game."""


def key_bytes(num_addresses: int) -> int:
    """Width of a measure's keys: up to 15 bytes are stored whole, more become a digest."""
    return num_addresses if num_addresses < KEY_BYTES else KEY_BYTES


class Shadow:
    """One emulator that repeats what one game of ALE's vector environment did.

    It must live as long as the game's emulator: `reset_game` draws the console's timer from a generator that
    is not reset between games and does not clear the RAM, so in some games (berzerk, frostbite, …) the third
    game starts in another state than the first. Loading a ROM resets the generator to a fixed state:
    ALE's seed is for sticky actions only.
    """

    def __init__(self, ale_py: Any, settings: RamSettings, env: int) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.noop = ale_py.Action.NOOP
        self.settings, self.env = settings, env
        self.actions: list[Any] = []
        self.steps, self.ended = 0, False

    def repeat(self, kind: int, action: int, frame: int, lives: int, score: float) -> None:
        """Repeat a step or reset, and check that the results agree."""
        if kind == LOAD:
            self.ale.loadROM(self.settings["rom_path"])
            full = self.settings["full_actions"]
            self.actions = self.ale.getLegalActionSet() if full else self.ale.getMinimalActionSet()
            self.steps = 0
        else:
            self.steps += 1
        own_score = self._step(action, frame) if kind == STEP else self._start(frame)
        here = (self.ale.getEpisodeFrameNumber(), self.ale.lives() if lives >= 0 else lives, own_score)
        if here != (frame, lives, score):
            raise self._disagreement(
                f"frame {here[0]}, lives {here[1]} and score {here[2]} in the shadow, "
                f"frame {frame}, lives {lives} and score {score:g} in the game"
            )

    def _start(self, frame: int) -> int:
        """Start a new game with as many no-ops. Some games count the frames of their menu before them."""
        self.ale.reset_game()
        for _ in range(frame - self.ale.getEpisodeFrameNumber()):
            self.ale.act(self.noop)
        self.ended = False
        return 0

    def _step(self, action: int, frame: int) -> int:
        """Take one action and return its score.

        ALE stops skipping frames when the game is over, and at the maximum length of an episode, which shows
        in the frame number. It does not stop at a lost life.
        """
        if self.ended:
            raise self._disagreement("the game continued after its end")
        score, before = 0, self.ale.getEpisodeFrameNumber()
        for _ in range(min(FRAME_SKIP, frame - before)):
            score += self.ale.act(self.actions[action])
            if self.ale.game_over():
                break
        self.ended = self.ale.game_over() or frame - before < FRAME_SKIP
        return score

    def _disagreement(self, what: str) -> DisagreementError:
        return DisagreementError(f"game {self.env} at its step {self.steps}: {what}")


class Shadows:
    """The emulators of one worker."""

    def __init__(self, ale_py: Any, settings: RamSettings) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner on stderr
        self.shadows = [
            Shadow(ale_py, settings, settings["first_env"] + i) for i in range(settings["num_envs"])
        ]
        self.addresses = [np.array(addresses) for addresses in settings["measures"]]

    def play(self, records: np.ndarray) -> list[bytes]:
        """Repeat (T, n) steps; the distinct keys of the counted states they reached, per measure."""
        found: list[set[bytes]] = [set() for _ in self.addresses]
        for shadow, column in zip(self.shadows, records.T, strict=True):
            for kind, counted, *step in column.tolist():
                shadow.repeat(kind, *step)
                if kind == STEP and counted:
                    ram = shadow.ale.getRAM()  # (128,)
                    for keys, addresses in zip(found, self.addresses, strict=True):
                        key = ram[addresses].tobytes()
                        keys.add(
                            key if len(key) < KEY_BYTES else blake2b(key, digest_size=KEY_BYTES).digest()
                        )
        return [b"".join(keys) for keys in found]


def main(descriptor: int, parent: int, thread: int, settings: RamSettings) -> None:
    """Repeat steps until the parent closes the pipe or kills this process."""
    end_with_parent(parent, thread)
    pipe: Connection = Connection(descriptor)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Always ready to read: the parent may send more while this process waits for it to read an answer.
    reader = threading.Thread(target=_read, args=(pipe, inbox), daemon=True)
    reader.start()
    try:
        shadows = Shadows(_import_ale(), settings)
        while True:
            records = np.frombuffer(inbox.get(), RECORD).reshape(-1, settings["num_envs"])
            answer = [b"", *shadows.play(records)]
            for message in answer:
                pipe.send_bytes(message)
    except ConnectionError:
        pass  # the parent is gone; the reader then ends this process
    except Exception as error:
        text = str(error) if isinstance(error, DisagreementError) else f"a worker raised {error!r}"
        with contextlib.suppress(ConnectionError):
            pipe.send_bytes(text.encode())
    reader.join()  # the parent reads the message and ends this process


def _import_ale() -> Any:
    """Import ALE without Gymnasium, which takes longer to import than everything else here."""
    hidden: dict[str, Any] = sys.modules
    hidden["gymnasium"] = None
    try:
        return importlib.import_module("ale_py")
    except ImportError:  # another version, which needs it
        del hidden["gymnasium"]
        return importlib.import_module("ale_py")


def _read(pipe: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            inbox.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # immediately, even in the middle of a game


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
