"""The GPUs of this machine, read from `nvidia-smi`: asking CUDA itself would take memory on every GPU."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

from voidrl.config import require

QUERY = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
PATIENCE_SECONDS = 30.0


class Gpu(NamedTuple):
    """A GPU that CUDA sees here."""

    number: int
    """Number among the GPUs that CUDA sees, as in `cuda:1`."""
    uuid: str
    """Its name in CUDA_VISIBLE_DEVICES, whatever others are visible."""


def read_gpus() -> list[Gpu]:
    """The GPUs that CUDA may use here, in its order; empty where there are none, or no `nvidia-smi`."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
        there = [line.replace(" ", "").split(",") for line in done.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = []
        for entry in visible.split(","):
            row = next((row for row in there if _names(entry.strip(), *row)), None)
            if row is None:  # as in CUDA: devices after an unknown one are invisible
                break
            found.append(row)
        there = found
    return [Gpu(number, uuid) for number, (_, uuid) in enumerate(there)]


def _names(entry: str, index: str, uuid: str) -> bool:
    return entry == index or (entry.startswith("GPU-") and uuid.startswith(entry))


def parse_devices(text: str | None) -> tuple[int, ...]:
    """The numbers in `0,1,2`; empty for `cpu` and None."""
    if text is None or text == "cpu":
        return ()
    words = [word.strip() for word in text.split(",")]
    distinct = len({*words}) == len(words)
    expected = "numbers of GPUs such as 0,1,2,3, each of them once, or cpu"
    require(distinct and all(word.isdecimal() for word in words), "--devices", text, expected)
    return tuple(map(int, words))


def require_gpus(devices: str) -> list[Gpu]:
    """The GPUs of `--devices`; refuses one that is not there."""
    there = {gpu.number: gpu for gpu in read_gpus()}
    known = f"GPU {', '.join(map(str, there))}" if there else "none"
    for number in parse_devices(devices):
        require(number in there, "--devices", devices, f"GPUs that nvidia-smi shows here ({known}), or cpu")
    return [there[number] for number in parse_devices(devices)]
