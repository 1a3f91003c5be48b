"""Short videos of runs for a report. Importing this module imports neither torch nor environments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from voidrl.errors import CheckpointError

if TYPE_CHECKING:
    from voidrl.agent import Agent

WEIGHTS = "agent.safetensors"
QUALITY = 26  # x264's CRF: small files, as a page holds many


def clip(run_folder: Path, *, seconds: float = 12, height: int = 168) -> bytes:
    """An MP4 of the newest checkpoint's policy in its environment: as many episodes as fit, on the CPU.

    Raises:
        VoidrlError: If no video can be made.
    """
    from voidrl.report.videos.mp4 import find_ffmpeg
    from voidrl.report.videos.video import record, write_video

    find_ffmpeg()  # raises before any episode is played
    with (
        record(newest_agent(run_folder), episodes=None, seconds=seconds, seed=0, height=height) as recording,
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / "clip.mp4"
        write_video([recording], path, height=height, labels=False, quality=QUALITY)
        return path.read_bytes()


def newest_agent(run_folder: Path) -> Agent:
    """The agent of a run's newest checkpoint, on the CPU.

    Unlike `voidrl.load` it reads only the weights: a checkpoint can hold gigabytes of replay.
    """
    from voidrl.agent import Agent
    from voidrl.envs.spaces import spec_from_json
    from voidrl.report.saved import newest, read_part
    from voidrl.system.device import placed
    from voidrl.training.build import config_from_json

    saved = newest(run_folder)
    if saved is None:
        raise CheckpointError(f"the run {run_folder} has no checkpoint yet")
    tensors = read_part(saved, WEIGHTS)
    try:
        spec, config = spec_from_json(saved.meta["spec"]), config_from_json(saved.meta["config"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {saved.path} cannot be read: {error!r}") from error
    with placed("cpu", config.seed) as place:
        agent = Agent(spec, config, place)
    agent.load_tensors(tensors)
    agent.steps = saved.count("agent_steps")
    return agent
