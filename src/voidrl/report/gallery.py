"""Pictures of a report: maze heat maps and videos of policies.

They show a few representative runs within a budget that the page states. A picture that could not be made is
listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from voidrl.errors import CheckpointError, ConfigError, VoidrlError
from voidrl.report import media
from voidrl.report.groups import ArmRuns, source_of, stages_of
from voidrl.report.outcomes import maze_of
from voidrl.report.read import Collection, Run
from voidrl.report.saved import keep, key_of, newest, read_kept, read_visits
from voidrl.runs.checkpoint import Checkpoint

MAX_MAZES = 24
MAX_CLIPS = 12
MAX_BYTES = 6_000_000  # all clips together, before base64
CLIP_SECONDS, CLIP_HEIGHT = 12, 168
CACHED = f"clip-2-{CLIP_SECONDS}s-{CLIP_HEIGHT}px-{{}}.mp4"  # increase 2 when clips are made differently
Say = Callable[[str], None]


@dataclass(frozen=True)
class HeatMap:
    """A run's visits of each cell of its maze."""

    env_name: str
    label: str
    seed: int
    size: int
    walls: list[int]
    """Cells that are walls."""
    visits: list[int]
    """(size²,) row by row."""
    start: int
    goal: int | None
    coverage: float
    entropy: float
    """Entropy of the visit distribution, in nats."""
    max_entropy: float
    """Entropy if every open cell were visited equally often."""


@dataclass(frozen=True)
class Picture:
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

    heats: list[HeatMap] = field(default_factory=list)
    scenes: list[tuple[str, list[Picture]]] = field(default_factory=list)
    """Titles, and videos that are shown side by side."""
    notes: list[str] = field(default_factory=list)
    """Sentences about omitted media."""


def make_gallery(collection: Collection, arms: Sequence[ArmRuns], say: Say, *, with_media: bool) -> Gallery:
    """Heat maps always, videos with `with_media`."""
    gallery = Gallery()
    checkpoints: dict[Path, Checkpoint] = {}
    for run in collection.runs:
        try:
            if (saved := newest(run.path)) is not None:
                checkpoints[run.path] = saved
        except VoidrlError as error:
            _note(run, error, say)
    _add_heats(gallery, arms, checkpoints, say)
    if with_media:
        _add_scenes(gallery, collection.runs, arms, _Clips(checkpoints, say))
    return gallery


def _note(run: Run, error: VoidrlError, say: Say) -> None:
    run.notes.append(str(error))
    say(f"{run.path}: {error}")


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


def _heat_map(arm: ArmRuns, run: Run, visits: np.ndarray) -> HeatMap:
    maze = maze_of(arm.env)
    assert maze is not None
    cells = np.zeros(maze.size**2, np.int64)
    cells[: min(len(visits), len(cells))] = visits[: len(cells)]
    open_cells = ~maze.walls.reshape(-1)
    p = cells[cells > 0] / max(int(cells.sum()), 1)
    goal = maze.goal_cell
    return HeatMap(
        env_name=arm.env_name,
        label=arm.label,
        seed=run.seed,
        size=maze.size,
        walls=np.flatnonzero(~open_cells).tolist(),
        visits=cells.tolist(),
        start=int(maze.start_cell[0]) * maze.size + int(maze.start_cell[1]),
        goal=None if goal is None else int(goal[0]) * maze.size + int(goal[1]),
        coverage=float((cells[open_cells] > 0).mean()),
        entropy=float(-(p * np.log(p)).sum()),
        max_entropy=float(np.log(open_cells.sum())),
    )


class _Clips:
    """Makes clips once, caches them in their run folders, and keeps to the size budget."""

    def __init__(self, checkpoints: dict[Path, Checkpoint], say: Say) -> None:
        self._checkpoints = checkpoints
        self._say = say
        self._made: dict[Path, tuple[bytes | None, str]] = {}
        self._bytes = 0

    def get(self, run: Run) -> tuple[bytes | None, str]:
        """An MP4, or why there is none."""
        if run.path not in self._made:
            try:
                self._made[run.path] = self._load_or_make(run), ""
            except VoidrlError as error:
                self._made[run.path] = None, self._reason(run, error)
            except Exception as error:  # a custom environment can raise anything; the report must not fail
                self._made[run.path] = None, f"{type(error).__name__}: {error}"
        return self._made[run.path]

    def _reason(self, run: Run, error: VoidrlError) -> str:
        """Why there is no picture, without the names of run and checkpoint, in which equal reasons differ."""
        text, saved = str(error), self._checkpoints.get(run.path)
        if saved is not None:
            text = text.replace(f"the checkpoint {saved.path}", "the checkpoint")
        return text.replace(f"the run {run.path}", "the run").replace(f"of {run.path}", "of the run")

    def _load_or_make(self, run: Run) -> bytes:
        saved = self._checkpoints.get(run.path)
        if saved is None:
            raise CheckpointError("no readable checkpoint")
        key = key_of(saved)
        data = read_kept(run.path, CACHED, key)
        if data is None or data[4:8] != b"ftyp":  # damaged, or no MP4
            self._say(f"{run.path}: making a clip")
            from voidrl.system.threads import using

            with using(1):  # a single agent plays
                data = media.clip(run.path, seconds=CLIP_SECONDS, height=CLIP_HEIGHT)
            keep(run.path, CACHED, key, data)
        if self._bytes + len(data) > MAX_BYTES:
            raise ConfigError(f"the limit of {MAX_BYTES / 1e6:g} MB for videos is reached")
        self._bytes += len(data)
        return data


def _add_scenes(gallery: Gallery, runs: Sequence[Run], arms: Sequence[ArmRuns], clips_of: _Clips) -> None:
    """Agents before and after fine-tuning and from scratch, by task; then other pre-trained agents."""
    shown: set[Path] = set()
    planned: list[tuple[str, list[tuple[str, str, Run]]]] = []
    stages = stages_of(arms)
    for members in stages.get("task", {}).values():
        row = []
        for arm in members:
            run = arm.counted[0]
            source = source_of(run, runs)
            if source is not None:
                shown.add(source.path)
                row.append((f"{arm.label}, before", "pre-trained, no reward seen", source))
            after = "fine-tuned" if run.phase == "finetune" else "trained from scratch"
            row.append((f"{arm.label}, after" if source is not None else arm.label, after, run))
        planned.append((f"{members[0].env_name}, with task reward", row))
    for members in stages.get("pretrain", {}).values():
        firsts = [(arm.label, arm.counted[0]) for arm in members if arm.counted[0].path not in shown]
        row = [(label, "pre-trained", run) for label, run in firsts]
        planned.append((f"{members[0].env_name}, pre-training", row))
    left = MAX_CLIPS
    for title, row in planned:
        clips = [
            Picture(name, f"{about}, seed {run.seed}", run.name, *clips_of.get(run))
            for name, about, run in row[:left]
        ]
        left -= len(clips)
        if clips:
            gallery.scenes.append((title, clips))
    total = sum(len(row) for _, row in planned)
    if total > MAX_CLIPS:
        gallery.notes.append(f"The first {MAX_CLIPS} of {total} possible videos are shown.")
