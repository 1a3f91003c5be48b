"""How far frames of Atari can be compressed so that a GPU reads any of them by itself: the study behind it.

    python benchmarks/frame_compression.py

Bytes per frame, everything included, of random play:

- zlib: each frame by zlib, the reference; a byte of it is not known before all that precede it are.
- tiles, offsets: 4×4 tiles as a constant, as a base and offsets of 1, 2 or 4 bits, or raw.
- tiles, palettes: 2×8 tiles as a constant, as 2, 4 or 16 colors and indices, or raw.
- left: words of 8 bytes that are not those of the pixels to their left, behind a mask of which these are.
- key frames: the same of words that are not those of a key frame of the environment, every so many steps, two
  of which are kept; in words of 4 bytes too. `voidrl.replay.compression` has words of 8 and 256 steps.
"""

from __future__ import annotations

import argparse
import zlib

import numpy as np
from replay_memory import GAMES, play

INDEX_BYTES = 12  # of a frame: where its record begins, and its key frame
OFFSET_BITS = (1, 2, 4)
COLORS = {1: 0, 2: 1, 4: 2, 16: 4}  # and the bits of an index


def tiles(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n, H, W) → (n, tiles, pixels); edges are repeated to whole tiles."""
    n, h, w = frames.shape
    padded = np.pad(frames, ((0, 0), (0, -h % height), (0, -w % width)), mode="edge")
    cut = padded.reshape(n, padded.shape[1] // height, height, padded.shape[2] // width, width)
    return cut.transpose(0, 1, 3, 2, 4).reshape(n, -1, height * width)


def offsets_bytes(frames: np.ndarray) -> float:
    """A base and offsets in each tile of 4×4; 2 bits say how a tile is stored."""
    cut = tiles(frames, 4, 4)
    span = cut.max(2).astype(int) - cut.min(2)
    cost = np.full(span.shape, 16.0)
    for bits in sorted(OFFSET_BITS, reverse=True):
        cost = np.where(span < 2**bits, 1 + 16 * bits / 8, cost)
    cost = np.where(span == 0, 1, cost)
    return float(cost.sum(1).mean() + cut.shape[1] / 4 + INDEX_BYTES)


def palettes_bytes(frames: np.ndarray) -> float:
    """Colors and indices in each tile of 2×8; 2 bits say how a tile is stored."""
    cut = tiles(frames, 2, 8)
    colors = 1 + (np.diff(np.sort(cut, 2), axis=2) != 0).sum(2)
    cost = np.full(colors.shape, 16.0)
    for most, bits in sorted(COLORS.items(), reverse=True):
        cost = np.where(colors <= most, np.minimum(cost, colors + 16 * bits / 8), cost)
    return float(cost.sum(1).mean() + cut.shape[1] / 4 + INDEX_BYTES)


def masked_bytes(difference: np.ndarray, word: int) -> float:
    """A mask, in whole words, and the words of (n, …) that are not 0."""
    flat = difference.reshape(len(difference), -1)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % word)))
    stored = flat.reshape(len(flat), -1, word).any(2)
    mask = -(-stored.shape[1] // (8 * word)) * word
    return float(mask + word * stored.sum(1).mean() + INDEX_BYTES)


def key_frames_bytes(frames: np.ndarray, every: int, word: int) -> float:
    """(steps, N, H, W): two key frames of each group of steps, and what differs from the latter."""
    keys = frames[np.arange(len(frames)) // every * every]
    difference = (frames ^ keys).reshape(-1, *frames.shape[2:])
    return masked_bytes(difference, word) + 2 * keys[0, 0].nbytes / every


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=512, help="of each environment")
    options = parser.parse_args()
    names = (
        "zlib",
        "tiles, offsets",
        "tiles, palettes",
        "left",
        "keys 64",
        "keys 256",
        "… 4 bytes",
        "keys 512",
    )
    print(f"| game | {' | '.join(names)} |\n|---{'|---:' * len(names)}|")
    for game in options.games:
        frames = play(game, options.num_envs, options.steps)[0][:, :, 0]
        some = frames.reshape(-1, *frames.shape[2:])[:: max(1, frames[..., 0, 0].size // 500)]
        left = some.copy()
        left[..., 1:] ^= some[..., :-1]
        found = (
            float(np.mean([len(zlib.compress(frame.tobytes())) for frame in some])),
            offsets_bytes(some),
            palettes_bytes(some),
            masked_bytes(left, 8),
            key_frames_bytes(frames, 64, 8),
            key_frames_bytes(frames, 256, 8),
            key_frames_bytes(frames, 256, 4),
            key_frames_bytes(frames, 512, 8),
        )
        print(f"| {game} | {' | '.join(f'{each:.0f}' for each in found)} |", flush=True)


if __name__ == "__main__":
    main()
