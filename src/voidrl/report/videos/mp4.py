"""MP4 files that browsers play: H.264, yuv420p, index first. Does not import torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import closing, suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np

from voidrl.errors import ConfigError, MissingExtraError, VoidrlError


def find_ffmpeg() -> str:
    """Return the path of the ffmpeg that imageio-ffmpeg uses (extra `video`); Pillow has to be there too."""
    try:
        import imageio_ffmpeg
        import PIL.Image  # noqa: F401

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # no package; no ffmpeg for this platform
        raise MissingExtraError("imageio-ffmpeg", "video", "a video") from None


def prepare_target(path: Path) -> None:
    """Create the folder of a video, or refuse a path that the video could not be written to."""
    if path.suffix.lower() != ".mp4":
        raise ConfigError(f"a video cannot be called {path.name!r}: expected a name that ends in .mp4")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"a video cannot be written to {path.parent} ({error.strerror or error}): choose another folder "
            f"with -o FILE.mp4"
        ) from error


def encode(frames: Iterable[np.ndarray], path: Path, *, fps: float, quality: int = 21) -> None:
    """Write frames to a file, which appears only once it is complete.

    Args:
        frames: (H, W, 3) uint8, all of one size, with even sides.
        path: See `prepare_target`; an existing file is replaced.
        fps: Frames per second.
        quality: The CRF of x264: lower is better and larger.
    """
    ffmpeg = find_ffmpeg()
    from imageio_ffmpeg import count_frames_and_secs, write_frames

    iterator = iter(frames)
    first = next(iterator)
    height, width = first.shape[:2]
    part = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    writer = write_frames(
        f"file:{part}",
        (width, height),
        fps=Fraction(fps).limit_denominator(1001),
        quality=None,  # replaced by -crf
        codec="libx264",
        macro_block_size=2,
        ffmpeg_log_level="error",
        output_params=f"-crf {quality} -movflags +faststart -f mp4".split(),
    )
    count = 0
    try:
        with closing(writer):
            writer.send(None)
            for frame in chain([first], iterator):
                writer.send(np.ascontiguousarray(frame))
                count += 1
        if count_frames_and_secs(part)[0] != count:  # imageio-ffmpeg does not check the exit status
            raise OSError("the file is not complete")
        part.replace(path)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "see the message of ffmpeg above"
        raise VoidrlError(f"ffmpeg ({ffmpeg}) could not write {path}: {reason}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # already renamed on success
