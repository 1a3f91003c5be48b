"""Pictures of a report: maze heat maps and videos of policies.

They show a few representative runs within a budget that the page states. A picture that could not be made is
listed with the reason. Of a checkpoint, which can hold gigabytes of replay, only the one small file that is
needed is read and checked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from voidrl.errors import CheckpointError, VoidrlError
from voidrl.report.groups import ArmRuns, stages_of
from voidrl.report.outcomes import maze_of, measure_of
from voidrl.report.read import Collection, Run
from voidrl.runs.checkpoint import Checkpoint, check_file, list_steps, read_manifest

MAX_MAZES = 24
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
    """Visits of each cell of a maze, as the page's script reads them."""
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


# Heat maps


def read_visits(saved: Checkpoint) -> np.ndarray:
    """Visits of each cell, (cells,); empty where the environment does not report cells."""
    check_part(saved, "loop.safetensors")
    tensors = saved.tensors("loop.safetensors")
    if "visits" not in tensors:
        raise CheckpointError(f"its checkpoint {saved.path.name} has no counts of visits")
    visits: np.ndarray = tensors["visits"].long().numpy()
    return visits.reshape(-1)


def _add_heats(
    gallery: Gallery, arms: Sequence[ArmRuns], checkpoints: dict[Path, Checkpoint], say: Say
) -> None:
    """The first run of every arm, then the second ones and so on, within the budget."""
    wanted = [
        (i, number, arm, run)
        for number, arm in enumerate(arms)
        for i, run in enumerate(arm.runs)
        if run.path in checkpoints and maze_of(arm.env) is not None
    ]
    wanted.sort(key=lambda each: each[:2])
    if len(wanted) > MAX_MAZES:
        gallery.notes.append(f"Heat maps are limited to {MAX_MAZES} runs, first seeds first.")
    for _, _, arm, run in sorted(wanted[:MAX_MAZES], key=lambda each: (each[1], each[0])):
        try:
            gallery.heats.append(_heat_map(arm, run, read_visits(checkpoints[run.path])))
        except VoidrlError as error:
            _note(run, error, say)


def _heat_map(arm: ArmRuns, run: Run, visits: np.ndarray) -> dict[str, Any]:
    maze = maze_of(arm.env)
    assert maze is not None
    cells = np.zeros(maze.size**2, np.int64)
    cells[: min(len(visits), len(cells))] = visits[: len(cells)]
    open_cells = ~maze.walls.reshape(-1)
    p = cells[cells > 0] / max(int(cells.sum()), 1)
    seen = measure_of("maze").format(float((cells[open_cells] > 0).mean()))
    marks = {"S": maze.start_cell, "G": maze.goal_cell}
    return {
        "env": arm.env_name,
        "label": f"{arm.label}, seed {run.seed}",
        "about": f"{seen} of the maze visited, entropy {float(-(p * np.log(p)).sum()):.2f} of "
        f"{float(np.log(open_cells.sum())):.2f} nats",
        "size": maze.size,
        "walls": np.flatnonzero(~open_cells).tolist(),
        "visits": cells.tolist(),  # row by row
        "marks": {
            letter: int(cell[0]) * maze.size + int(cell[1])
            for letter, cell in marks.items()
            if cell is not None
        },
    }


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
