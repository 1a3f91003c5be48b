"""Videos read back by ffmpeg, as a player would."""

import re
import subprocess
from typing import NamedTuple

import numpy as np

from voidrl.report.videos.mp4 import find_ffmpeg


class Decoded(NamedTuple):
    """What is in a video file."""

    frames: np.ndarray  # (n, H, W, 3) uint8
    fps: float
    about: str  # what ffmpeg says of the stream


def decode(path):
    told = subprocess.run([find_ffmpeg(), "-hide_banner", "-i", path], capture_output=True, text=True).stderr
    stream = re.search(r"Stream .*Video: .*", told)[0]
    width, height = map(int, re.search(r", (\d+)x(\d+)", stream).groups())
    command = [find_ffmpeg(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
    return Decoded(frames, float(re.search(r"([\d.]+) fps", stream)[1]), stream)
