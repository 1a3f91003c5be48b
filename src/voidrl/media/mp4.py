"""MP4 files that browsers play (H.264, yuv420p, index first), written by ffmpeg. Does not import torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np

from voidrl.errors import ConfigError, MissingExtraError, VoidrlError

MARK = "written by voidrl video"  # kept in the file: only such files are replaced
INDEX_BYTES = 16 << 20  # in which the mark is sought; an hour's index has some 3 MB
LONGEST_SIDE = 4096  # beyond it many browsers show nothing


def find_ffmpeg() -> str:
    """The ffmpeg that is used: imageio-ffmpeg's own (extra `video`), which has x264, else the one on PATH."""
    with suppress(ImportError, RuntimeError):
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())  # where IMAGEIO_FFMPEG_EXE names another, that one
    found = shutil.which("ffmpeg")
    if found is None:
        raise MissingExtraError("imageio-ffmpeg", "video", "a video")
    return found


def prepare_target(path: Path) -> None:
    """Refuse what a video could not be written to, before anything is done for it; make the folder."""
    if path.suffix.lower() != ".mp4":
        raise ConfigError(f"a video cannot be called {path.name!r}: expected a name that ends in .mp4")
    if path.is_dir() or (path.exists() and not _is_ours(path)):
        raise ConfigError(
            f"{path} is there and is no video of voidrl's, so it is left untouched: choose another name"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"a video cannot be written to {path.parent} ({error.strerror or error}): choose another place "
            f"with -o FILE.mp4"
        ) from error


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(INDEX_BYTES)
    except OSError:
        return False
    return start[4:8] == b"ftyp" and MARK.encode() in start


def encode(frames: Iterable[np.ndarray], path: Path, *, fps: float, quality: int = 21) -> None:
    """Write frames to a file, which is there once it is complete.

    Args:
        frames: (H, W, 3) uint8, all of one size, with even sides.
        path: See `prepare_target`; what is there is replaced.
        fps: Frames of a second.
        quality: x264's CRF: lower is better and larger.
    """
    iterator = iter(frames)
    first = next(iterator)
    height, width = first.shape[:2]
    if max(height, width) > LONGEST_SIDE:
        raise ConfigError(
            f"a video of {width} × {height} pixels cannot be made: expected at most {LONGEST_SIDE} a side; "
            f"lower the height, or show fewer runs"
        )
    part = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    command = [find_ffmpeg(), "-nostdin", "-y", "-loglevel", "error"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-video_size", f"{width}x{height}"]
    command += ["-framerate", str(Fraction(fps).limit_denominator(1001)), "-i", "pipe:0"]
    command += ["-c:v", "libx264", "-crf", str(quality), "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    command += ["-metadata", f"comment={MARK}", "-f", "mp4", f"file:{part}"]
    try:
        with tempfile.TemporaryFile() as said:
            # In a session of its own: Ctrl-C is for us, who then end it.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
            try:
                _feed(process, first, iterator)
                failed = process.wait() != 0
            finally:
                process.kill()
                process.wait()
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        if failed:
            last = lines[-1] if lines else f"it ended with exit status {process.returncode}"
            raise VoidrlError(f"ffmpeg ({command[0]}) could not write {path}: {last}")
        part.replace(path)
    except OSError as error:
        raise VoidrlError(f"the video {path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # has moved already where all went well


def _feed(process: subprocess.Popen[bytes], first: np.ndarray, rest: Iterable[np.ndarray]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # it has ended: why is in what it said
        pipe.write(np.ascontiguousarray(first).data)
        for frame in rest:
            assert frame.shape == first.shape
            pipe.write(np.ascontiguousarray(frame).data)
