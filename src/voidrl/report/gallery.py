"""What can be looked at: where agents went, what they do, how they see their world.

Pictures come from a few runs that stand for the others, within a budget that the page states; what could not
be made is kept with its reason.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from voidrl.errors import VoidrlError
from voidrl.report.groups import Arm, stages_of
from voidrl.report.latents import LatentMap
from voidrl.report.outcomes import maze_of
from voidrl.report.published import source_of
from voidrl.report.read import Collection, Run
from voidrl.report.saved import Saved, drop_kept, keep, newest, read_kept, read_visits

MAX_MAZES = 24
MAX_CLIPS = 12
MAX_MAPS = 4
MAX_BYTES = 6_000_000  # of all clips and maps together, before they are written as text
CLIP_SECONDS, CLIP_HEIGHT = 12, 168
POINTS = 600
FORMAT = 1  # of what is kept; to be raised with any change in how it is made or packed
Say = Callable[[str], None]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Heat:
    """Where a run went in its maze."""

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
    seen: float
    entropy: float
    """Of the share of visits to each cell, in nats."""
    most_entropy: float
    """If every open cell were visited alike."""


@dataclass(frozen=True)
class Clip:
    """One video, or why there is none."""

    title: str
    about: str
    run: str
    data: bytes
    why_not: str


@dataclass(frozen=True)
class Scene:
    """Videos that are looked at side by side."""

    title: str
    clips: list[Clip]


@dataclass(frozen=True)
class Map:
    """One representation map, or why there is none."""

    title: str
    run: str
    latents: LatentMap | None
    why_not: str


@dataclass
class Gallery:
    """All pictures of a report."""

    heats: list[Heat] = field(default_factory=list)
    scenes: list[Scene] = field(default_factory=list)
    maps: list[Map] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, in sentences."""


def make_gallery(collection: Collection, arms: Sequence[Arm], say: Say, *, media: bool) -> Gallery:
    """Heat maps always, videos and maps with `media`."""
    gallery = Gallery()
    checkpoints: dict[int, Saved | None] = {}
    for arm in arms:
        for run in arm.runs:
            try:
                checkpoints[id(run)] = newest(run.path)
            except VoidrlError as error:
                checkpoints[id(run)] = None
                run.notes.append(str(error))
                say(f"{run.path}: {error}")
    _add_heats(gallery, arms, checkpoints, say)
    if media:
        studio = _Studio(checkpoints, say)
        _add_scenes(gallery, collection, arms, studio)
        _add_maps(gallery, arms, studio)
    return gallery


def _add_heats(gallery: Gallery, arms: Sequence[Arm], checkpoints: dict[int, Saved | None], say: Say) -> None:
    """First seeds of all arms, then second ones, as far as the budget goes."""
    seeds = max((len(arm.runs) for arm in arms), default=0)
    in_mazes = [arm for arm in arms if maze_of(arm.env) is not None]
    mazes = [(arm, arm.runs[i]) for i in range(seeds) for arm in in_mazes if i < len(arm.runs)]
    for arm, run in mazes:
        saved = checkpoints[id(run)]
        if saved is None:
            continue
        if len(gallery.heats) == MAX_MAZES:
            gallery.notes.append(f"Heat maps of the first {MAX_MAZES} runs are shown, by seeds.")
            break
        try:
            gallery.heats.append(_heat(arm, run, read_visits(saved)))
        except VoidrlError as error:
            run.notes.append(str(error))
            say(f"{run.path}: {error}")
    order = {id(arm): place for place, arm in enumerate(arms)}
    places = {(arm.env_name, arm.label): order[id(arm)] for arm in arms}
    gallery.heats.sort(key=lambda heat: (places[heat.env_name, heat.label], heat.seed))


def _heat(arm: Arm, run: Run, visits: np.ndarray) -> Heat:
    maze = maze_of(arm.env)
    assert maze is not None
    cells = np.zeros(maze.size**2, np.int64)
    cells[: min(len(visits), len(cells))] = visits[: len(cells)]
    open_cells = ~maze.walls.reshape(-1)
    shares = cells[cells > 0] / max(int(cells.sum()), 1)
    goal = maze.goal_cell
    return Heat(
        env_name=arm.env_name,
        label=arm.label,
        seed=run.seed,
        size=maze.size,
        walls=np.flatnonzero(~open_cells).tolist(),
        visits=cells.tolist(),
        start=int(maze.start_cell[0]) * maze.size + int(maze.start_cell[1]),
        goal=None if goal is None else int(goal[0]) * maze.size + int(goal[1]),
        seen=float((cells[open_cells] > 0).mean()),
        entropy=float(-(shares * np.log(shares)).sum()),
        most_entropy=float(np.log(open_cells.sum())),
    )


class _Studio:
    """Makes clips and maps once each, keeps them beside their runs, and watches the budget."""

    def __init__(self, checkpoints: dict[int, Saved | None], say: Say) -> None:
        self._checkpoints, self._say = checkpoints, say
        self._done: dict[tuple[str, int], tuple[Any, str]] = {}
        self.spent = 0

    def clip(self, run: Run) -> tuple[bytes, str]:
        """An MP4, or why there is none."""
        from voidrl.report import media

        def make() -> bytes:
            return media.clip(run.path, seconds=CLIP_SECONDS, height=CLIP_HEIGHT)

        kind = f"clip-{FORMAT}-{CLIP_SECONDS}s-{CLIP_HEIGHT}px-{{}}.mp4"
        found, why = self._once(kind, run, "video", make, _whole_mp4)
        return found or b"", why

    def map(self, run: Run) -> tuple[LatentMap | None, str]:
        """A map, or why there is none."""
        from voidrl.report import latents

        def make() -> bytes:
            return _packed(latents.latent_map(run.path, points=POINTS, thumbs=POINTS))

        return self._once(f"map-{FORMAT}-{POINTS}-{{}}.npz", run, "map", make, _unpacked)

    def _once(
        self, kind: str, run: Run, what: str, make: Callable[[], bytes], load: Callable[[bytes], Made]
    ) -> tuple[Made | None, str]:
        key = kind, id(run)
        if key not in self._done:
            size, found, why = self._make(kind, run, what, make, load)
            if self.spent + size > MAX_BYTES:
                size, found = 0, None
                why = f"the page's {MAX_BYTES / 1e6:g} MB of videos and maps are used up"
            self.spent += size
            self._done[key] = found, why
        return self._done[key]

    def _make(
        self, kind: str, run: Run, what: str, make: Callable[[], bytes], load: Callable[[bytes], Made]
    ) -> tuple[int, Made | None, str]:
        saved = self._checkpoints[id(run)]
        if saved is None:
            return 0, None, "it has no checkpoint that can be read"
        kept = read_kept(run.path, kind, saved.key)
        if kept is not None:
            try:
                return len(kept), load(kept), ""
            except Exception:  # torn, or not ours: what unpacks it can raise anything
                drop_kept(run.path, kind, saved.key)
        self._say(f"{run.path}: making a {what}")
        try:
            data = make()
            found = load(data)
        except VoidrlError as error:
            return 0, None, str(error)
        except Exception as error:  # an environment of a user's can raise anything; the report is worth more
            return 0, None, f"{type(error).__name__}: {error}"
        keep(run.path, kind, saved.key, data)
        return len(data), found, ""


def _add_scenes(gallery: Gallery, collection: Collection, arms: Sequence[Arm], studio: _Studio) -> None:
    """For each task, agents before and after fine-tuning and those from scratch; then what is left over."""
    shown: set[int] = set()
    wanted: list[tuple[str, list[tuple[str, str, Run]]]] = []
    stages = stages_of(arms)
    for found in stages.get("task", {}).values():
        row = []
        for arm in found:
            run = arm.counted[0]
            source = source_of(run, collection.runs)
            if source is not None:
                shown.add(id(source))
                row.append((f"{arm.label}, before", "pre-trained, has never seen a reward", source))
            after = "after fine-tuning" if run.phase == "finetune" else "trained from scratch"
            row.append((f"{arm.label}, after" if source is not None else arm.label, after, run))
        wanted.append((f"{found[0].env_name}, with the task's reward", row))
    for found in stages.get("pretrain", {}).values():
        row = [
            (arm.label, "without reward", arm.counted[0]) for arm in found if id(arm.counted[0]) not in shown
        ]
        wanted.append((f"{found[0].env_name}, without reward", row))
    left = MAX_CLIPS
    for title, row in wanted:
        clips = []
        for name, about, run in row[:left]:
            data, why = studio.clip(run)
            clips.append(Clip(name, f"{about}, seed {run.seed}", run.name, data, why))
        left -= len(clips)
        if clips:
            gallery.scenes.append(Scene(title, clips))
    total = sum(len(row) for _, row in wanted)
    if total > MAX_CLIPS:
        gallery.notes.append(f"Of {total} videos that could be shown, the first {MAX_CLIPS} are.")


def _add_maps(gallery: Gallery, arms: Sequence[Arm], studio: _Studio) -> None:
    """Of agents that explored without reward; where there are none, of the others."""
    learned = [arm for arm in arms if arm.counted[0].method != "random" or arm.phase == "train"]
    first = [arm for arm in learned if arm.phase == "pretrain"] or learned
    for arm in first[:MAX_MAPS]:
        run = arm.counted[0]
        found, why = studio.map(run)
        gallery.maps.append(Map(f"{arm.label} in {arm.env_name}, seed {run.seed}", run.name, found, why))
    if len(first) > MAX_MAPS:
        gallery.notes.append(f"Maps of the first {MAX_MAPS} of {len(first)} arms are shown.")


def _whole_mp4(data: bytes) -> bytes:
    """An MP4 is boxes one after the other, each with its length and its name; the first is `ftyp`."""
    if data[4:8] != b"ftyp":
        raise ValueError("not an MP4")
    end = 0
    while end < len(data):
        size = int.from_bytes(data[end : end + 4])
        if size == 1:  # too long for four bytes
            size = int.from_bytes(data[end + 8 : end + 16])
        end = end + size if size else len(data)
    if end != len(data):
        raise ValueError("a part of an MP4")
    return data


def _packed(found: LatentMap) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(
        out,
        xy=found.xy.astype(np.float32),
        time=found.time,
        explained=found.explained,
        total_steps=found.total_steps,
        sprite=np.frombuffer(found.sprite, np.uint8),
        thumb_size=np.array(found.thumb_size),
        columns=found.columns,
        thumbs=found.thumbs,
    )
    return out.getvalue()


def _unpacked(data: bytes) -> LatentMap:
    with np.load(io.BytesIO(data), allow_pickle=False) as saved:
        width, height = saved["thumb_size"].tolist()
        if saved["xy"].shape != (len(saved["time"]), 2):
            raise ValueError("not a map")
        return LatentMap(
            xy=saved["xy"],
            time=saved["time"],
            explained=saved["explained"],
            total_steps=int(saved["total_steps"]),
            sprite=saved["sprite"].tobytes(),
            thumb_size=(width, height),
            columns=int(saved["columns"]),
            thumbs=int(saved["thumbs"]),
        )
