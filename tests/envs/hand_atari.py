"""One Atari game driven by hand, frame by frame: what voidrl's `atari/` environments are compared with.

It shares with them the emulator alone. Action repeat, frame max, resizing, no-ops and the cap are done anew
here, in the plainest way; that the two agree pixel by pixel is what `test_atari_golden.py` tests.
"""

from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py")

from ale_py import roms  # noqa: E402

FRAME_SKIP, SIZE = 4, 84


class Played(NamedTuple):
    """What one step, four frames, gave."""

    frame: np.ndarray  # (84, 84) uint8
    score: int  # points as the game counts them
    lives: int
    over: bool  # the game has ended
    capped: bool  # it has not, but its time is up


class HandAtari:
    """A game; `reset` before the first `step`.

    Some games (beam_rider, berzerk, …) are not the same after each reset: they find what the one before left
    in the console. So it must be reset exactly as often as the game that it is compared with.
    """

    def __init__(self, rom, max_frames=108_000, full_actions=False):
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("frame_skip", 1)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(roms.get_rom_path(rom))
        self.actions = self.ale.getLegalActionSet() if full_actions else self.ale.getMinimalActionSet()
        self.max_frames = max_frames

    @property
    def lives(self):
        return self.ale.lives()

    @property
    def frame_number(self):
        """Frames since the emulator was reset: those that start the game, no-ops, and steps."""
        return self.ale.getEpisodeFrameNumber()

    def reset(self, frame_number):
        """A new game, and its first frame: the screen after no-ops up to this frame, of one frame each."""
        self.ale.reset_game()
        self.start_frames = self.frame_number  # some games need buttons pressed to begin
        self.noops = frame_number - self.start_frames
        for _ in range(self.noops):
            self.ale.act(0)
        self.frames = 0  # no-ops do not count towards the cap
        self.third = self.fourth = self.ale.getScreenGrayscale()
        return resize(self.fourth)

    def step(self, action):
        """One action on four frames, of which the last two are seen: the brighter one at each pixel.

        Where a frame ends the episode the rest is not played, and that frame is not seen any more. In its
        place stays what was there: with less than four frames that makes the frame of the step before.
        """
        score = 0
        for i in range(FRAME_SKIP):
            score += self.ale.act(self.actions[action])
            self.frames += 1
            over = self.ale.game_over()
            capped = not over and self.frames >= self.max_frames
            if over or capped:
                break
            if i == FRAME_SKIP - 2:
                self.third = self.ale.getScreenGrayscale()
            if i == FRAME_SKIP - 1:
                self.fourth = self.ale.getScreenGrayscale()
        self.fourth = np.maximum(self.third, self.fourth)
        return Played(resize(self.fourth), score, self.lives, over, capped)


def resize(screen):
    """(H, W) → (84, 84) by area: an output pixel is the mean of the part of the screen that it covers.

    Rows first, in float32, rounded to the nearest and halves to the even: so that even ties, of which a
    frame has some dozens, come out the same.
    """
    height, width = screen.shape
    rows = averaged(screen, *shares(width))  # (H, 84)
    return np.rint(averaged(rows.T, *shares(height)).T).astype(np.uint8)


def averaged(lines, sources, weights):
    """Along the last axis: (n, size) → (n, 84)."""
    total = np.zeros((len(lines), SIZE), np.float32)
    for source, weight in zip(sources.T, weights.T, strict=True):
        total += lines[:, source].astype(np.float32) * weight
    return total


@cache
def shares(size):
    """(84, k), (84, k): the pixels that each of the 84 covers, and the share of it that each makes."""
    width = Fraction(size, SIZE)
    most = int(width) + 2
    sources, weights = np.zeros((SIZE, most), int), np.zeros((SIZE, most), np.float32)
    for j in range(SIZE):
        left, right = j * width, (j + 1) * width
        for k in range(most):
            pixel = int(left) + k
            covered = max(min(right, pixel + 1) - max(left, pixel), 0)
            sources[j, k], weights[j, k] = min(pixel, size - 1), float(covered / width)
    return sources, weights


def assert_same_picture(frame, expected):
    """Equal, but for ties that another processor may round the other way."""
    if not np.array_equal(frame, expected):
        gap = np.abs(frame.astype(int) - expected)
        assert gap.max() <= 1, f"{(gap > 1).sum()} pixels differ, by up to {gap.max()} gray levels"
        assert (gap > 0).mean() < 0.01, f"{(gap > 0).sum()} pixels differ by one gray level"
