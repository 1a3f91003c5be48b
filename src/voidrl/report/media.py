"""Short videos of runs for a report. Cheap to import: torch and environments are loaded by the first clip."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl.errors import CheckpointError

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.report.saved import Saved

WEIGHTS = "agent.safetensors"
QUALITY = 26  # x264's CRF: a page holds many of them


def clip(run_folder: Path, *, seconds: float = 12, height: int = 168, seed: int = 0) -> bytes:
    """What the newest checkpoint's policy does in its own environment, as an MP4 for browsers.

    It is played on the CPU, and holds as many episodes as there is time for, without text.

    Raises:
        VoidrlError: Where there is no video, with one sentence of why.
    """
    from voidrl.media.mp4 import find_ffmpeg
    from voidrl.media.video import record, write_video

    find_ffmpeg()  # what is missing is said before anything is played
    agent, _, _ = newest_agent(run_folder)
    with (
        record(agent, episodes=None, seconds=seconds, seed=seed, height=height) as recording,
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / "clip.mp4"
        write_video([recording], path, height=height, labels=False, quality=QUALITY)
        return path.read_bytes()


def newest_agent(run_folder: Path) -> tuple[Agent, Saved, dict[str, Any]]:
    """The agent of a run's newest checkpoint, on the CPU, the checkpoint, and the `meta` of its manifest.

    Unlike `voidrl.load` it reads no more than the weights: a checkpoint can hold gigabytes of replay.
    """
    from voidrl.agent import Agent
    from voidrl.build import config_from_json
    from voidrl.checkpoint import MANIFEST, read_json, read_tensors
    from voidrl.device import placed
    from voidrl.report.saved import newest
    from voidrl.types import EnvSpec

    saved = newest(run_folder)
    if saved is None:
        raise CheckpointError(f"the run {run_folder} holds no checkpoint yet")
    path = saved.path / WEIGHTS
    try:
        meta = read_json(saved.path / MANIFEST, "the manifest of the checkpoint")["meta"]
        with path.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == saved.files[WEIGHTS]["sha256"]
        spec, config = EnvSpec.from_json(meta["spec"]), config_from_json(meta["config"])
    except (OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {saved.path} cannot be read: {error!r}") from error
    if not whole:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the one in the manifest")
    with placed("cpu", config.seed) as place:
        agent = Agent(spec, config, place)
    agent.load_tensors(read_tensors(path))
    agent.steps = meta["agent_steps"]
    return agent, saved, meta
