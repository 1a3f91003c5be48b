"""Pictures of a report: maps of visits and videos of policies.

They show a few representative runs within a budget that the page states. A picture that could not be made is
listed with the reason. Of a checkpoint, which can hold gigabytes of replay, only the one small file that is
needed is read and checked.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from voidrl.envs.point_mass import CELLS
from voidrl.envs.registration import POINT_MASS_ID
from voidrl.errors import CheckpointError, VoidrlError
from voidrl.report.groups import PHASE_NAMES, ArmRuns, stages_of
from voidrl.report.outcomes import maze_of, measure_of
from voidrl.report.read import Collection, Run
from voidrl.runs.checkpoint import Checkpoint, check_file, list_steps, read_manifest
from voidrl.training.positions import BINS, Positions

MAX_MAPS = 24
MAX_CLIPS = 12
MAX_BYTES = 6_000_000  # all clips together, before base64
CLIP_SECONDS, CLIP_HEIGHT = 12, 168
QUALITY = 26  # x264's CRF: small files, as a page holds many
Say = Callable[[str], None]


class Picture(NamedTuple):
    """A video, or the reason why it is missing."""

    title: str
    about: str
    run: str
    content: bytes | None
    """The bytes of an MP4; None if it is missing."""
    why_not: str


@dataclass
class Gallery:
    """All pictures of a report."""

    heats: list[dict[str, Any]] = field(default_factory=list)
    """Visits of cells or positions, as the page's script reads them."""
    scenes: list[tuple[str, list[Picture]]] = field(default_factory=list)
    """Titles, and videos that are shown side by side."""
    notes: list[str] = field(default_factory=list)
    """Sentences about omitted media."""


def make_gallery(collection: Collection, arms: Sequence[ArmRuns], say: Say, *, with_media: bool) -> Gallery:
    """Heat maps always, videos with `with_media`."""
    gallery, checkpoints = Gallery(), dict[Path, Checkpoint]()
    for run in collection.runs:
        try:
            if (saved := newest(run.path)) is not None:
                checkpoints[run.path] = saved
        except VoidrlError as error:
            _note(run, error, say)
    _add_heats(gallery, arms, checkpoints, say)
    if with_media:
        _add_scenes(gallery, arms, checkpoints, say)
    return gallery


def _note(run: Run, error: VoidrlError, say: Say) -> None:
    run.notes.append(str(error))
    say(f"{run.path}: {error}")


def newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint with a readable manifest; None where there is no checkpoint at all."""
    problem: CheckpointError | None = None
    for step in reversed(list_steps(run / "checkpoints")):
        try:
            return read_manifest(run / "checkpoints" / f"step_{step:012d}")
        except CheckpointError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def check_part(saved: Checkpoint, name: str) -> None:
    """Check one file of a checkpoint, if it is in the manifest."""
    if name in saved.files:
        check_file(saved.path / name, saved.files[name])


# Maps of visits


def read_visits(saved: Checkpoint) -> tuple[np.ndarray, Positions]:
    """Visits of each cell, (cells,), and of positions; both empty where none are reported."""
    check_part(saved, "loop.safetensors")
    tensors = saved.tensors("loop.safetensors")
    if "visits" not in tensors:
        raise CheckpointError(f"its checkpoint {saved.path.name} has no counts of visits")
    return tensors["visits"].long().numpy().reshape(-1), Positions.load(tensors)


def _add_heats(
    gallery: Gallery, arms: Sequence[ArmRuns], checkpoints: dict[Path, Checkpoint], say: Say
) -> None:
    """The first run of every arm, then the second ones and so on, within the budget."""
    runs = [(i, number, run) for number, arm in enumerate(arms) for i, run in enumerate(arm.runs)]
    maps: dict[tuple[int, int], dict[str, Any]] = {}
    empty: set[int] = set()  # arms whose first run counted nothing: the others are not read
    for i, number, run in sorted(runs, key=lambda each: each[:2]):
        if run.path not in checkpoints or number in empty:
            continue
        if len(maps) == MAX_MAPS:
            gallery.notes.append(f"Maps of visits are limited to {MAX_MAPS} runs, first seeds first.")
            break
        try:
            if (found := _heat_map(arms[number], run, *read_visits(checkpoints[run.path]))) is None:
                empty.add(number)
            else:
                maps[number, i] = found
        except VoidrlError as error:
            _note(run, error, say)
    gallery.heats = [maps[key] for key in sorted(maps)]


def _heat_map(arm: ArmRuns, run: Run, visits: np.ndarray, positions: Positions) -> dict[str, Any] | None:
    """What the page's script draws; None if nothing was counted."""
    heat: dict[str, Any] = {"walls": [], "marks": {}, "range": {}, "merged": 1}
    if visits.any():
        maze = maze_of(arm.env)
        known = maze.size if maze else CELLS if arm.env.startswith(POINT_MASS_ID) else 0
        size = known or math.isqrt(len(visits) - 1) + 1
        grid = np.pad(visits, (0, max(0, size**2 - len(visits))))[: size**2].reshape(size, size)
        if maze is not None:
            p, num_open = grid[grid > 0] / grid.sum(), maze.num_open_cells
            share = measure_of("maze").format(float((grid[~maze.walls] > 0).mean()))
            entropy = f"entropy {-(p * np.log(p)).sum():.2f} of {np.log(num_open):.2f} nats"
            marks = {"S": maze.start_cell, "G": maze.goal_cell}
            heat["about"] = f"{share} of the maze visited, {entropy}"
            heat["walls"] = np.flatnonzero(maze.walls).tolist()
            heat["marks"] = {k: int(c[0]) * size + int(c[1]) for k, c in marks.items() if c is not None}
        else:
            heat["about"] = f"{(visits > 0).sum():,} cells visited, drawn in rows of {size}"
            merged = heat["merged"] = -(-size // BINS)  # cells per side of what is drawn as one
            grid = np.pad(grid, (0, -size % merged))
            grid = grid.reshape(len(grid) // merged, merged, -1, merged).sum((1, 3))
    elif positions.counts.any():
        grid, heat["range"] = _position_grid(positions)
        heat["about"] = f"{(grid > 0).sum():,} bins visited, each {2.0**positions.level:g} wide"
    else:
        return None
    heat |= {"env": f"{arm.env_name}, {PHASE_NAMES[run.phase]}", "label": f"{arm.label}, seed {run.seed}"}
    return heat | {"size": len(grid), "visits": grid.reshape(-1).tolist()}  # row by row


def _position_grid(positions: Positions) -> tuple[np.ndarray, dict[str, list[float]]]:
    """Counts in a square, x to the right and y upward, and its range on both axes."""
    used = np.argwhere(positions.counts)
    extent = used.max(0) + 1
    size = int(extent.max())
    left = (size - extent) // 2  # the shorter axis is in the middle
    grid = np.zeros((size, size), np.int64)
    grid[tuple((left + used).T)] = positions.counts[positions.counts > 0]
    ends = np.stack([positions.first - left, positions.first - left + size], 1) * 2.0**positions.level
    return grid.T[::-1], dict(zip("xy", ends.tolist(), strict=True))


# Videos


def make_clip(saved: Checkpoint) -> bytes:
    """An MP4 of a checkpoint's policy in its environment: as many episodes as fit, on the CPU."""
    from voidrl.report.videos.mp4 import find_ffmpeg
    from voidrl.report.videos.video import record, write_video
    from voidrl.sharing.loading import saved_agent
    from voidrl.system.threads import using

    find_ffmpeg()  # raises before any episode is played
    check_part(saved, "agent.safetensors")
    agent = saved_agent(saved, "cpu")  # the weights only
    with (
        using(1),  # a single agent plays
        record(agent, episodes=None, seconds=CLIP_SECONDS, height=CLIP_HEIGHT) as recording,
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / "clip.mp4"
        write_video([recording], path, height=CLIP_HEIGHT, labels=False, quality=QUALITY)
        return path.read_bytes()


def _clip_or_reason(run: Run, saved: Checkpoint | None, say: Say) -> tuple[bytes | None, str]:
    """An MP4, or why there is none."""
    if saved is None:
        return None, "no readable checkpoint"
    say(f"{run.path}: making a clip")
    try:
        return make_clip(saved), ""
    except VoidrlError as error:  # without the name of the checkpoint, in which equal reasons differ
        return None, str(error).replace(f"{saved.path}/", "")
    except Exception as error:  # a custom environment can raise anything; the report must not fail
        return None, f"{type(error).__name__}: {error}"


def _add_scenes(
    gallery: Gallery, arms: Sequence[ArmRuns], checkpoints: dict[Path, Checkpoint], say: Say
) -> None:
    """Agents before and after fine-tuning and from scratch, by task; then other pre-trained agents."""
    shown: set[Path] = set()
    planned: list[tuple[str, list[tuple[str, str, Run]]]] = []
    stages = stages_of(arms)
    for members in stages.get("task", {}).values():
        row = []
        for arm in members:
            run, title = arm.counted[0], arm.label
            if run.source is not None:
                shown.add(run.source.path)
                row.append((f"{title}, before", "pre-trained, no reward seen", run.source))
                title = f"{title}, after"
            row.append((title, "fine-tuned" if run.phase == "finetune" else "trained from scratch", run))
        planned.append((f"{members[0].env_name}, with task reward", row))
    for members in stages.get("pretrain", {}).values():
        firsts = [(arm.label, arm.counted[0]) for arm in members if arm.counted[0].path not in shown]
        row = [(label, "pre-trained", run) for label, run in firsts]
        planned.append((f"{members[0].env_name}, pre-training", row))
    clips: dict[Path, tuple[bytes | None, str]] = {}
    left, bytes_left = MAX_CLIPS, MAX_BYTES
    for title, row in planned:
        pictures = []
        for name, about, run in row[:left]:
            if run.path not in clips:
                data, why = _clip_or_reason(run, checkpoints.get(run.path), say)
                if len(data or b"") > bytes_left:
                    data, why = None, f"the limit of {MAX_BYTES / 1e6:g} MB for videos is reached"
                clips[run.path] = data, why
                bytes_left -= len(data or b"")
            pictures.append(Picture(name, f"{about}, seed {run.seed}", run.name, *clips[run.path]))
        left -= len(pictures)
        if pictures:
            gallery.scenes.append((title, pictures))
    total = sum(len(row) for _, row in planned)
    if total > MAX_CLIPS:
        gallery.notes.append(f"The first {MAX_CLIPS} of {total} possible videos are shown.")
