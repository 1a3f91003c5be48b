"""A map of the observations in a run's replay, placed by the agent's representation.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voidrl.errors import CheckpointError, ConfigError, MissingExtraError, NonFiniteError

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.report.saved import Saved
    from voidrl.types import EnvSpec

BATCH = 64  # observations encoded at a time
THUMB_PIXELS = 64  # longer side of a thumbnail
WEBP_QUALITY = 75
FEWEST_POINTS = 3


@dataclass(frozen=True)
class LatentMap:
    """Observations from a replay, with their latents projected onto the two main principal axes."""

    xy: np.ndarray
    """(N, 2) float64 in [0, 1], with equal scales on both axes."""
    time: np.ndarray
    """(N,) int64, ascending: the step at which each was observed."""
    explained: np.ndarray
    """(2,) float64: the fraction of the latents' variance explained by each axis."""
    total_steps: int
    """Steps of the run at the checkpoint; the replay may hold only the latest."""
    sprite: bytes = b""
    """A WebP image of all thumbnails, in rows of `columns`; empty if observations are not images."""
    thumb_size: tuple[int, int] = (0, 0)
    """(width, height) of a thumbnail in pixels; (0, 0) without thumbnails."""
    columns: int = 0
    """Thumbnails in a row."""
    thumbs: int = 0
    """Number of thumbnails: point i has number i · thumbs // N, in reading order."""


def latent_map(run_folder: Path, *, points: int = 600, thumbs: int = 600) -> LatentMap:
    """Encode evenly spaced observations of the newest checkpoint's replay and project them by PCA.

    This runs on the CPU, and reads only the observations that are shown.

    Args:
        run_folder: A run of any phase that trained a representation.
        points: How many observations, at most.
        thumbs: How many thumbnails, at most, if observations are images.

    Raises:
        VoidrlError: If there is nothing to map.
    """
    from voidrl.report.media import newest_agent

    agent, saved, meta = newest_agent(run_folder)
    _require_representation(agent, run_folder)
    replay = _StoredReplay(saved, agent.spec.frame_stack)
    slots, time = replay.evenly_spaced(points, meta["steps"])
    if len(slots) < FEWEST_POINTS:
        raise CheckpointError(
            f"the replay of {run_folder} has {len(slots)} observations: a map needs at least {FEWEST_POINTS}"
        )
    index = replay.stacks(slots)  # (N, stack)
    needed, where = np.unique(index, return_inverse=True)
    frames = replay.read("frames", needed)  # each once
    where = where.reshape(index.shape)
    xy, explained = project(_encode(agent, frames, where))
    has_thumbs = agent.spec.pixels and thumbs > 0
    pictures = _thumbnails(frames[where[:, -1]], agent.spec, thumbs) if has_thumbs else {}
    return LatentMap(xy, time, explained, meta["steps"], **pictures)


def _require_representation(agent: Agent, run_folder: Path) -> None:
    """Refuse to map a representation that was neither trained nor used."""
    config, f = agent.config, agent.representation.encoder
    shared = f is not None and f is agent.learner.encoder
    scratch = config.phase == "train" and not config.effective.has_bonus
    used = shared or (not scratch and agent.method.uses_latents(config))
    if not (agent.learns and used):
        what = "training from scratch" if scratch else f"method {config.method.name!r}"
        raise ConfigError(
            f"the run {run_folder} has no representation to map: {what} trains none; expected a run of a "
            f"method that does, such as apt"
        )


class _StoredReplay:
    """The replay of a checkpoint, of which only the requested rows are read; `voidrl.replay` writes it."""

    def __init__(self, saved: Saved, frame_stack: int) -> None:
        from safetensors import SafetensorError, safe_open

        self.frame_stack = frame_stack
        names = sorted(name for name in saved.files if name.startswith("replay_"))
        if "replay.safetensors" not in saved.files or not names:
            raise CheckpointError(f"the checkpoint {saved.path} has no replay, so there is nothing to map")
        try:
            index, *self.parts = (
                safe_open(saved.path / name, framework="numpy") for name in ("replay.safetensors", *names)
            )
            self.head, self.filled_rows, _, _ = index.get_tensor("counters").tolist()
            self.row_starts = index.get_tensor("row_starts")  # (rows,) steps taken from each row
            self.num_envs = index.get_slice("age").get_shape()[0]
            self.part_slots = self.parts[0].get_slice("age").get_shape()[0]  # in all parts but the last
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the replay of the checkpoint {saved.path} cannot be read: {error}"
            ) from error
        self.rows = len(self.row_starts)

    def evenly_spaced(self, points: int, total_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots of evenly spaced observations from old to new, and the step of each: (n,) both."""
        if self.filled_rows < self.rows:
            rows = np.arange(self.filled_rows)
        else:  # the ring is full: the oldest rows follow the head, and their frame stacks are incomplete
            rows = (self.head + self.frame_stack + np.arange(self.rows - self.frame_stack + 1)) % self.rows
        steps_since = self.row_starts[rows][::-1].cumsum()[::-1]
        slots = len(rows) * self.num_envs
        chosen = np.unique(np.linspace(0, slots - 1, min(points, slots)).round().astype(np.int64))
        row, env = rows[chosen // self.num_envs], chosen % self.num_envs
        return row * self.num_envs + env, total_steps - steps_since[chosen // self.num_envs]

    def stacks(self, slots: np.ndarray) -> np.ndarray:
        """(n, stack) slots of the frames of each observation, oldest first."""
        age = self.read("age", slots)  # an episode begins with its first frame repeated
        lags = np.arange(self.frame_stack - 1, -1, -1)
        back = np.minimum(lags, age[:, None]) * self.num_envs
        stacks: np.ndarray = (slots[:, None] - back) % (self.rows * self.num_envs)
        return stacks

    def read(self, name: str, slots: np.ndarray) -> np.ndarray:
        """(n, …) rows of a tensor."""
        slices = [part.get_slice(name) for part in self.parts]
        places = (divmod(slot, self.part_slots) for slot in slots.tolist())
        return np.concatenate([slices[part][at : at + 1] for part, at in places])


def _encode(agent: Agent, frames: np.ndarray, index: np.ndarray) -> np.ndarray:
    """(N, dim) latents of the observations that these frames make up."""
    import torch

    from voidrl.types import Frames

    source, encode = torch.from_numpy(frames), agent.representation.encode
    with torch.no_grad():
        parts = torch.from_numpy(index).split(BATCH)
        z = torch.cat([encode(Frames(source, part).stacked()).double() for part in parts]).numpy()
    if not np.isfinite(z).all():
        raise NonFiniteError(
            "the latents are not finite, so they cannot be mapped: the representation diverged"
        )
    return z


def project(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project (N, d) points onto two principal axes: (N, 2) in [0, 1], and the variance each axis explains.

    The axes share a scale; the longer one fills [0, 1]. The largest component of an axis is positive,
    so that the picture is deterministic.
    """
    centered = z - z.mean(axis=0)
    _, singular, axes = np.linalg.svd(centered, full_matrices=False)
    axes = np.concatenate([axes, np.zeros((2, z.shape[1]))])[:2]
    variance = np.concatenate([singular**2, np.zeros(2)])
    largest = axes[np.arange(2), np.abs(axes).argmax(axis=1)]
    xy = centered @ (axes * np.where(largest < 0, -1, 1)[:, None]).T  # (N, 2)
    middle, span = (xy.max(axis=0) + xy.min(axis=0)) / 2, np.ptp(xy, axis=0).max()
    explained = variance[:2] / max(variance.sum(), np.finfo(float).tiny)
    return np.clip(0.5 + (xy - middle) / (span or 1.0), 0, 1), explained


def _thumbnails(frames: np.ndarray, spec: EnvSpec, most: int) -> dict[str, Any]:
    """Fields of `LatentMap` for thumbnails of (N, *stored_shape) frames in one WebP image."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow", "video", "drawing thumbnails") from None
    from voidrl.envs.spaces import to_picture
    from voidrl.report.videos.video import resize

    number = min(most, len(frames))
    columns = math.ceil(math.sqrt(number))
    scale = min(1.0, THUMB_PIXELS / max(frames.shape[2:]))
    height, width = (max(1, round(side * scale)) for side in frames.shape[2:])
    sheet = np.zeros((math.ceil(number / columns) * height, columns * width, 3), np.uint8)
    chosen = -(-np.arange(number) * len(frames) // number)  # point i has thumbnail i · number // N
    for i, frame in enumerate(frames[chosen]):
        top, left = i // columns * height, i % columns * width
        sheet[top : top + height, left : left + width] = resize(to_picture(frame, spec), height, width)
    lossless, lossy = BytesIO(), BytesIO()  # lossless is smaller for games, lossy for rendered scenes
    Image.fromarray(sheet).save(lossless, "WEBP", lossless=True)
    Image.fromarray(sheet).save(lossy, "WEBP", quality=WEBP_QUALITY)
    sprite = min(lossless.getvalue(), lossy.getvalue(), key=len)
    return {"sprite": sprite, "thumb_size": (width, height), "columns": columns, "thumbs": number}
