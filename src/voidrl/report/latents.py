"""A map of what a run's agent has seen, as its representation sees it. Cheap to import."""

from __future__ import annotations

import json
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

BATCH = 64  # observations encoded at a time
THUMB_PIXELS = 64  # of a thumbnail's longer side
WEBP_QUALITY = 75
FEWEST_POINTS = 3
DTYPES = {"U8": np.uint8, "I32": np.int32, "I64": np.int64, "F32": np.float32}  # by safetensors' names


@dataclass(frozen=True)
class LatentMap:
    """Observations from a replay, where their latents lie in the plane that shows most of their variance."""

    xy: np.ndarray
    """(N, 2) float64 in [0, 1], both axes to the same scale."""
    time: np.ndarray
    """(N,) int64, ascending: steps that the run had taken when it saw each."""
    explained: np.ndarray
    """(2,) float64: the share of the latents' variance along each axis."""
    total_steps: int
    """Steps of the run at the checkpoint; the replay may hold only the last of them."""
    sprite: bytes
    """One WebP picture of all thumbnails, in rows of `columns`; empty where observations are no images."""
    thumb_size: tuple[int, int]
    """(width, height) of a thumbnail in pixels; (0, 0) where there are none."""
    columns: int
    """Thumbnails in a row of the sheet."""
    thumbs: int
    """Thumbnails in the sheet: that of point i is number i · thumbs // N, counted along the rows."""


def latent_map(run_folder: Path, *, points: int = 600, thumbs: int = 600) -> LatentMap:
    """Evenly spaced observations of the newest checkpoint's replay, encoded and projected by PCA.

    Computed on the CPU, wherever the run was. Of the replay only what is shown is read.

    Args:
        run_folder: A run of any phase that trained a representation.
        points: How many observations, or all where there are fewer.
        thumbs: How many of them are also shown as thumbnails, where they are images.

    Raises:
        VoidrlError: Where there is no such map, with one sentence of why.
    """
    from voidrl.report.media import newest_agent

    agent, saved, meta = newest_agent(run_folder)
    _require_representation(agent, run_folder)
    replay = _StoredReplay(saved, agent.spec.frame_stack)
    slots, time = replay.spread(points, meta["steps"])
    if len(slots) < FEWEST_POINTS:
        raise CheckpointError(
            f"the run {run_folder} has kept {len(slots)} observations: a map needs {FEWEST_POINTS} or more"
        )
    index = replay.stacks(slots)  # (N, stack)
    needed, where = np.unique(index, return_inverse=True)
    frames = replay.frames(needed)  # each once, as stored
    where = where.reshape(index.shape)
    xy, explained = project(_encode(agent, frames, where))
    sheet = _Sheet(frames[where[:, -1]], thumbs) if agent.spec.pixels and thumbs > 0 else None
    return LatentMap(
        xy=xy,
        time=time,
        explained=explained,
        total_steps=meta["steps"],
        sprite=b"" if sheet is None else sheet.webp(),
        thumb_size=(0, 0) if sheet is None else (sheet.width, sheet.height),
        columns=0 if sheet is None else sheet.columns,
        thumbs=0 if sheet is None else sheet.count,
    )


def _require_representation(agent: Agent, run_folder: Path) -> None:
    """Refuse to map what nobody trained or used."""
    config, f = agent.config, agent.representation.encoder
    shared = f is not None and f is agent.learner.encoder
    used = shared or (config.phase != "train" and agent.method.reads_latents)
    if not (agent.learns and used):
        why = f"of method {config.method.name!r}, which" if config.phase != "train" else "from scratch, which"
        raise ConfigError(
            f"the run {run_folder} has no representation to map: it is {why} trains none; expected a run of "
            f"a method that does, such as apt"
        )


class _Tensors:
    """Rows of the tensors in a safetensors file, read one by one where they lie.

    The library maps files into memory, and for each row the disk would then read megabytes around it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                self._header = json.loads(file.read(length))
        except (OSError, ValueError, MemoryError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        self._begin = 8 + length

    def shape(self, name: str) -> list[int]:
        """Of a tensor."""
        try:
            return [*self._header[name]["shape"]]
        except (KeyError, TypeError):
            raise CheckpointError(f"{self.path} cannot be read: it holds no {name!r}") from None

    def rows(self, name: str, first: int, count: int) -> np.ndarray:
        """(count, …) of a tensor."""
        shape = [count, *self.shape(name)[1:]]
        kind = np.dtype(DTYPES[self._header[name]["dtype"]])
        row_bytes = kind.itemsize * math.prod(shape[1:])
        try:
            with self.path.open("rb") as file:
                file.seek(self._begin + self._header[name]["data_offsets"][0] + first * row_bytes)
                return np.frombuffer(file.read(count * row_bytes), kind).reshape(shape)
        except (OSError, ValueError) as error:  # a file that is too short gives too few numbers
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error

    def whole(self, name: str) -> np.ndarray:
        """All of a tensor."""
        return self.rows(name, 0, self.shape(name)[0])


class _StoredReplay:
    """The replay of a checkpoint, read where it lies: see `voidrl.replay` for what is where."""

    def __init__(self, saved: Saved, frame_stack: int) -> None:
        self.frame_stack = frame_stack
        names = sorted(name for name in saved.files if name.startswith("replay_"))
        if "replay.safetensors" not in saved.files or not names:
            raise CheckpointError(
                f"the checkpoint {saved.path} has no replay, so nothing that could be mapped"
            )
        positions = _Tensors(saved.path / "replay.safetensors")
        self.head, self.filled_rows, _, _ = positions.whole("counters").tolist()
        self.row_starts = positions.whole("row_starts")  # (rows,) steps taken from each row
        self.num_envs, self.rows = positions.shape("age")[0], len(self.row_starts)
        self.parts = [_Tensors(saved.path / name) for name in names]  # one after the other
        self.part_slots = self.parts[0].shape("age")[0]  # of all but the last

    def spread(self, points: int, total_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots of evenly spaced observations from old to new, and the steps taken by then: (n,) each."""
        if self.filled_rows < self.rows:
            rows = np.arange(self.filled_rows)
        else:  # the ring is full: the oldest lie after the newest, and the first stacks reach what is lost
            rows = (self.head + self.frame_stack + np.arange(self.rows - self.frame_stack + 1)) % self.rows
        taken_since = self.row_starts[rows][::-1].cumsum()[::-1]  # from this row on
        slots = len(rows) * self.num_envs
        chosen = np.unique(np.linspace(0, slots - 1, min(points, slots)).round().astype(np.int64))
        row, env = rows[chosen // self.num_envs], chosen % self.num_envs
        return row * self.num_envs + env, total_steps - taken_since[chosen // self.num_envs]

    def stacks(self, slots: np.ndarray) -> np.ndarray:
        """(n, stack) slots of the frames that make up each observation, oldest first."""
        age = self._read("age", slots)  # an episode begins with its first frame repeated
        lags = np.arange(self.frame_stack - 1, -1, -1)
        back = np.minimum(lags, age[:, None]) * self.num_envs
        stacks: np.ndarray = (slots[:, None] - back) % (self.rows * self.num_envs)
        return stacks

    def frames(self, slots: np.ndarray) -> np.ndarray:
        """(n, *frame_shape)."""
        return self._read("frames", slots)

    def _read(self, name: str, slots: np.ndarray) -> np.ndarray:
        places = [divmod(slot, self.part_slots) for slot in slots.tolist()]
        return np.concatenate([self.parts[part].rows(name, at, 1) for part, at in places])


def _encode(agent: Agent, frames: np.ndarray, index: np.ndarray) -> np.ndarray:
    """(N, dim) latents of the observations made up of these frames."""
    import torch

    from voidrl.types import Frames

    source, encode = torch.from_numpy(frames), agent.representation.encode
    with torch.no_grad():
        parts = torch.from_numpy(index).split(BATCH)
        z = torch.cat([encode(Frames(source, part).stacked()).double() for part in parts]).numpy()
    if not np.isfinite(z).all():
        raise NonFiniteError(
            "the latents are not finite, so they cannot be mapped: the representation has diverged"
        )
    return z


def project(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, d) points on their two principal axes, (N, 2) in [0, 1], and each axis's share of the variance.

    Both axes have one scale, in which the longer one fills [0, 1] and the other is centerd. The sign of an
    axis is that of its largest component, so that the same points always give the same picture.
    """
    centerd = z - z.mean(axis=0)
    _, singular, axes = np.linalg.svd(centerd, full_matrices=False)
    axes = np.concatenate([axes, np.zeros((2, z.shape[1]))])[:2]
    variance = np.concatenate([singular**2, np.zeros(2)])
    largest = axes[np.arange(2), np.abs(axes).argmax(axis=1)]
    xy = centerd @ (axes * np.where(largest < 0, -1, 1)[:, None]).T  # (N, 2)
    middle, span = (xy.max(axis=0) + xy.min(axis=0)) / 2, np.ptp(xy, axis=0).max()
    explained = variance[:2] / max(variance.sum(), np.finfo(float).tiny)
    return np.clip(0.5 + (xy - middle) / (span or 1.0), 0, 1), explained


class _Sheet:
    """Thumbnails of N images in one picture."""

    def __init__(self, images: np.ndarray, thumbs: int) -> None:
        self.count = min(thumbs, len(images))
        self.columns = math.ceil(math.sqrt(self.count))
        first = -(
            -np.arange(self.count) * len(images) // self.count
        )  # that a point i has number i·count // N
        self.images = images[first]
        height, width = images.shape[2:]
        scale = min(1.0, THUMB_PIXELS / max(height, width))
        self.height, self.width = max(1, round(height * scale)), max(1, round(width * scale))

    def webp(self) -> bytes:
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtraError("pillow", "video", "a picture of what an agent saw") from None
        from voidrl.media.video import resize
        from voidrl.spaces import to_picture

        rows = math.ceil(self.count / self.columns)
        sheet = np.zeros((rows * self.height, self.columns * self.width, 3), np.uint8)
        for i, image in enumerate(self.images):
            top, left = i // self.columns * self.height, i % self.columns * self.width
            small = resize(to_picture(image), self.height, self.width)
            sheet[top : top + self.height, left : left + self.width] = small
        # Games repeat themselves, and are smallest without loss; what is rendered with light is not.
        kinds: list[dict[str, Any]] = [{"lossless": True}, {"quality": WEBP_QUALITY}]
        files = [BytesIO() for _ in kinds]
        for file, kind in zip(files, kinds, strict=True):
            Image.fromarray(sheet).save(file, "WEBP", **kind)
        return min((file.getvalue() for file in files), key=len)
