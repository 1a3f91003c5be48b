"""Videos of agents: the episodes that `voidrl.evaluate` plays, as frames and as MP4 files."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import chdir, closing, suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from voidrl import api
from voidrl.agent import Agent
from voidrl.config import bonus_suffix, require, to_json
from voidrl.envs.make import make_envs
from voidrl.envs.suites.dmcontrol import find_dmc_task
from voidrl.envs.vector import Envs, StepResult
from voidrl.errors import EnvironmentFailedError
from voidrl.report.videos.mp4 import encode, prepare_target
from voidrl.sharing import pretrained as share
from voidrl.system.device import seeded
from voidrl.system.files import user_path
from voidrl.system.terminal.foreign import quiet_libraries
from voidrl.system.units import human_count
from voidrl.training import assembly, build
from voidrl.training.build import Env
from voidrl.training.evaluation import evaluate_agent

HEIGHT = 420  # twice the height of most Atari games, so that their pixels stay square
MAX_FPS = 30.0
DEFAULT_STEPS_PER_SECOND = 15.0  # if the environment does not define its own
IN_MEMORY_BYTES = 64 << 20  # more frames go to a temporary file
BACKGROUND, TEXT, MUTED = (24, 26, 32), (240, 240, 240), (170, 176, 190)
GAP = 6  # pixels between two panels


class Moment(NamedTuple):
    """The state of an episode when a frame was taken."""

    episode: int  # from 1
    step: int
    score: float  # the sum of rewards so far


class Recording:
    """The frames of one agent, compressed in memory or, if there are many, in a temporary file.

    Iterating yields the frames one by one, (H, W, 3) uint8, any number of times.
    """

    def __init__(self, label: str, env: str, fps: float, *, rewarded: bool = True) -> None:
        self.label, self.env, self.fps, self.rewarded = label, env, fps, rewarded
        self.returns: list[float] = []
        """Returns of the finished episodes, as in `Evaluation`."""
        self.lengths: list[int] = []
        """Steps of each finished episode."""
        self.moments: list[Moment] = []
        """One for each frame."""
        self.shape: tuple[int, ...] = ()
        """(H, W, 3)."""
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
        self._ends: list[int] = []

    def add(self, frame: np.ndarray, moment: Moment) -> None:
        """Append the next frame."""
        self.shape = self.shape or frame.shape
        if frame.shape != self.shape:
            sizes = f"{self.shape[:2]} and then of {frame.shape[:2]}"
            raise EnvironmentFailedError(f"environment {self.env!r} rendered frames of {sizes}")
        self._file.seek(self._ends[-1] if self._ends else 0)
        self._file.write(zlib.compress(np.ascontiguousarray(frame).data, 1))
        self._ends.append(self._file.tell())
        self.moments.append(moment)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[np.ndarray]:
        for begin, end in zip(chain([0], self._ends), self._ends, strict=False):
            self._file.seek(begin)  # another iterator may have moved it
            data = zlib.decompress(self._file.read(end - begin))
            yield np.frombuffer(data, np.uint8).reshape(self.shape)

    @property
    def seconds(self) -> float:
        """Length of the video."""
        return len(self) / self.fps

    def close(self) -> None:
        """Discard the frames."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# Recording


@quiet_libraries()
def record(
    source: Agent | str | Path,
    env: Env | None = None,
    *,
    episodes: int | None = 1,
    seconds: float | None = None,
    seed: int = 0,
    deterministic: bool = True,
    epsilon: float | None = None,
    fps: float | None = None,
    height: int = HEIGHT,
    device: str = "auto",
    label: str | None = None,
) -> Recording:
    """Play the episodes that `voidrl.evaluate` plays with this seed and `num_envs=1`, and record frames.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or `user/name` on the Hub.
        env: By default the environment it was trained in; a DMControl domain without a task is allowed.
        episodes: Number of episodes; None records until `seconds` have passed.
        seconds: Stop after this many seconds of video, even within an episode.
        seed: Seed of the environment and of random actions.
        deterministic: Act without exploration noise.
        epsilon: Probability of a random action; None uses the agent's `config.log.eval_epsilon`.
        fps: Show each step as one frame, at this rate. By default the video runs in the environment's real
            time at up to 30 frames per second; faster environments show every second step, or every third, ….
        height: In pixels, for environments that render at any size (DMControl).
        device: The device of a loaded agent.
        label: Text above the picture; by default method, phase, seed and steps.
    """
    require(0 <= seed < 2**30, "seed", seed, "a whole number in [0, 2³⁰)")
    require(episodes is None or episodes >= 1, "episodes", episodes, "1 or more")
    require(episodes is not None or seconds is not None, "episodes", episodes, "a number, or `seconds`")
    require(seconds is None or 0 < seconds < math.inf, "seconds", seconds, "a number above 0")
    require(fps is None or 0 < fps <= 240, "fps", fps, "a number above 0, up to 240")
    require(16 <= height <= 2048, "height", height, "16 to 2048 pixels")
    agent = source if isinstance(source, Agent) else api.load(source, device=device)
    epsilon = agent.config.log.eval_epsilon if epsilon is None else epsilon
    require(0 <= epsilon <= 1, "epsilon", epsilon, "a probability in [0, 1]")
    trained_in = agent.config.env
    config, factory = build.env_for(share.own_env(agent) if env is None else env, trained_in)
    config = dataclasses.replace(config, count_states=False)
    with (
        chdir(Path.cwd()),
        closing(make_envs(config, factory, 1, evaluation=True, render_height=height)) as envs,
    ):
        assembly.require_same_spaces(agent.spec, trained_in.id, envs.spec, config.id)
        steps_per_second = envs.steps_per_second or DEFAULT_STEPS_PER_SECOND
        every = 1 if fps is not None else math.ceil(steps_per_second / MAX_FPS)
        place = find_dmc_task(config.id) if factory is None else None
        recording = Recording(
            label_of(agent) if label is None else label,
            config.id,
            steps_per_second / every if fps is None else float(fps),
            rewarded=place is None or place.task is not None,
        )
        camera = _Camera(envs, recording, every, seconds)
        try:
            with suppress(_LongEnoughError):
                evaluate_agent(
                    agent,
                    envs,
                    10**12 if episodes is None else episodes,
                    seed,
                    deterministic=deterministic,
                    epsilon=epsilon,
                    watch=camera.observe,
                )
        except BaseException:
            recording.close()
            raise
    return recording


def label_of(agent: Agent) -> str:
    """Return a label with method, phase, seed and steps."""
    config = agent.config
    method = config.method.name.rpartition(":")[2]
    name = {"pretrain": method, "finetune": f"{method}, fine-tuned", "train": "from scratch"}[config.phase]
    return f"{name}{bonus_suffix(to_json(config))}, seed {config.seed}, {human_count(agent.steps)} steps"


def untrained(agent: Agent) -> Agent:
    """Return the agent as it was initialized, before any training."""
    with seeded(agent.config.seed, agent.device):
        fresh = Agent(agent.spec, agent.config, agent.device)
    if (given := agent.representation.given_part) is not None:
        fresh.representation.given_part.load_state_dict(given.state_dict())  # type: ignore[union-attr]
    fresh.trusted = agent.trusted
    return fresh


class _LongEnoughError(Exception):
    """The video has reached the requested length."""


class _Camera:
    """Records every k-th step of an evaluation, and the first and last state of each episode."""

    def __init__(self, envs: Envs, recording: Recording, every: int, seconds: float | None) -> None:
        self.envs, self.recording, self.every = envs, recording, every
        self.max_frames = math.inf if seconds is None else max(1, round(seconds * recording.fps))
        self.now, self.ended = Moment(1, 0, 0.0), False

    def observe(self, result: StepResult | None) -> None:
        now = self.now
        if self.ended:  # this step was a reset
            self.now, self.ended = Moment(now.episode + 1, 0, 0.0), False
        elif result is not None:
            self.now = Moment(now.episode, now.step + 1, now.score + float(result.score[0]))
            self.ended = bool(result.ended[0])
        if self.ended:
            self.recording.returns.append(self.now.score)
            self.recording.lengths.append(self.now.step)
        if self.ended or self.now.step % self.every == 0:
            self.recording.add(self.envs.render(), self.now)
            if len(self.recording) >= self.max_frames:
                raise _LongEnoughError


# Writing


def write_video(
    recordings: Sequence[Recording],
    path: str | Path,
    *,
    height: int = HEIGHT,
    labels: bool = True,
    quality: int = 21,
) -> Path:
    """Write recordings side by side into one MP4; shorter ones hold their last frame.

    Args:
        recordings: They are shown in one row, and have the same frame rate.
        path: Must end in `.mp4`. An existing file is replaced once the new one is complete.
        height: Height of each picture in pixels.
        labels: Show a bar above each picture with its label, steps and return.
        quality: The CRF of x264: lower is better and larger.
    """
    require(bool(recordings) and all(recordings), "recordings", [*recordings], "one or more, with frames")
    rates = sorted({one.fps for one in recordings})
    require(len(rates) == 1, "recordings", rates, "one frame rate; record with `fps`")
    target = user_path(path)
    prepare_target(target)
    encode(compose(recordings, height, labels=labels), target, fps=rates[0], quality=quality)
    return target


def compose(recordings: Sequence[Recording], height: int, *, labels: bool) -> Iterator[np.ndarray]:
    """Yield the frames of the combined video, (H, W, 3) with even sides: recordings in a row."""
    panels = [_draw_panel(one, height, labels=labels) for one in recordings]
    shown: list[np.ndarray] = []
    for new in zip_longest(*panels):
        shown = [old if picture is None else picture for picture, old in zip(new, shown or new, strict=True)]
        gap = np.full((len(shown[0]), GAP, 3), BACKGROUND, np.uint8)
        row = np.concatenate([part for picture in shown for part in (picture, gap)][:-1], axis=1)
        yield np.pad(row, ((0, len(row) % 2), (0, row.shape[1] % 2), (0, 0)), mode="edge")


def _draw_panel(recording: Recording, height: int, *, labels: bool) -> Iterator[np.ndarray]:
    """Yield the pictures of one recording, with two lines of text above them if labels are shown."""
    width = max(1, round(recording.shape[1] * height / recording.shape[0]))
    for frame, moment in zip(recording, recording.moments, strict=True):
        picture = resize(frame, height, width)
        yield np.concatenate([_draw_bar(recording, moment, height, width), picture]) if labels else picture


def _draw_bar(recording: Recording, moment: Moment, height: int, width: int) -> np.ndarray:
    """The label, then return, step and episode, (bar height, width, 3)."""
    from PIL import Image, ImageDraw, ImageFont

    status = [f"step {moment.step}"]
    if recording.rewarded:
        whole = moment.score == round(moment.score)
        status.insert(0, f"return {moment.score:.0f}" if whole else f"return {moment.score:.2f}")
    if recording.moments[-1].episode > 1:
        status.append(f"episode {moment.episode}")
    size = min(24, max(10, height // 28))
    line = round(1.4 * size)
    bar = 2 * line + size // 2
    image = Image.new("RGB", (width, bar + bar % 2), BACKGROUND)
    draw, font, top = ImageDraw.Draw(image), ImageFont.load_default(size), size // 4
    for text, color in ((recording.label, TEXT), ("   ".join(status), MUTED)):
        shown = text
        while text and font.getlength(shown) > width - size:
            text = text[:-1]
            shown = f"{text.rstrip(' ,')}…"
        draw.text((size // 2, top), shown, color, font)
        top += line
    return np.asarray(image)


def resize(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize a picture; magnified twice or more, its pixels stay sharp squares."""
    from PIL import Image

    if frame.shape[:2] == (height, width):
        return frame
    how = Image.Resampling.NEAREST if height >= 2 * frame.shape[0] else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(frame).resize((width, height), how))
