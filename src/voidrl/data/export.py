"""The experience of a run as a Minari dataset."""

from __future__ import annotations

import copy
import json
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import torch

from voidrl import __version__
from voidrl.config import Config, to_json
from voidrl.data.episodes import find_spans, read_episodes
from voidrl.data.files import METADATA, write_dataset
from voidrl.envs.ids import ATARI, DMC, parse_id
from voidrl.errors import CheckpointError, ConfigError
from voidrl.replay import Replay
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.runs.tensor_files import read_headers
from voidrl.system.files import user_path
from voidrl.system.terminal.output import say
from voidrl.training.build import config_from_json
from voidrl.training.saved_run import REPLAY, latest_run, load_parts, load_replay, spec_of
from voidrl.types import EnvSpec


class Exported(NamedTuple):
    """Summary of a written dataset."""

    name: str
    """The id of the dataset."""
    episodes: int
    steps: int


def export_data(run: str | Path, dataset_id: str, *, overwrite: bool = False) -> Exported:
    """Write the replay of a run's newest checkpoint as a Minari dataset (extra `minari`).

    Observations are single frames as the environment produced them, actions are in its units. Episodes are
    in the order in which they began, rank after rank.

    Args:
        run: The folder of a run, or one of its checkpoints.
        dataset_id: The id of the dataset, such as `maze/apt-v0`.
        overwrite: Replace a dataset of this id.
    """
    folder, given = RunFolder.open(run), user_path(run)
    if (given / checkpoint.MANIFEST).is_file():
        saved = checkpoint.load(given)
    elif checkpoint.list_steps(folder.checkpoints_path):
        saved = latest_run(folder, say)
    else:
        raise CheckpointError(f"the run {folder.shown} holds no checkpoint yet")
    if REPLAY not in saved.files:
        raise CheckpointError(
            f"{saved.path} holds no replay: the run was complete with log.keep_replay = False, and only one "
            f"with log.keep_replay = True can be exported"
        )
    spec, config = spec_of(saved), config_from_json(saved.meta.get("config"))
    replays = [_replay_of(part, spec, config) for part in load_parts(saved)]
    found = [find_spans(replay) for replay in replays]
    if not (spans := [*chain(*found)]):
        raise ConfigError(f"{saved.path} cannot be exported: its replay has no steps")
    algorithm = config.method.name if config.effective.pretrains else config.learner.name
    metadata = {
        "voidrl": __version__,
        "environment": config.env.id,
        "seed": config.seed,
        "step": saved.step,
        "spec": spec.to_json(),
        "config": to_json(config),
        "episodes_without_beginning": [i for i, span in enumerate(spans) if span.cut],
        "episodes_without_end": [i for i, span in enumerate(spans) if span.open],
    }
    about = {
        METADATA: json.dumps(metadata),
        "algorithm_name": algorithm,
        "description": f"The replay of {algorithm} ({config.phase}) in {config.env.id} after {saved.step} "
        f"steps, by voidrl {__version__}.",
    }
    episodes = chain.from_iterable(map(read_episodes, replays, found))
    write_dataset(dataset_id, spec, _env_spec(config), about, episodes, overwrite=overwrite)
    return Exported(dataset_id, len(spans), sum(len(span.rows) for span in spans))


def _replay_of(saved: checkpoint.Checkpoint, spec: EnvSpec, config: Config) -> Replay:
    """The replay of a checkpoint or of one rank's part, in main memory."""
    chunk = next(name for name in sorted(saved.files) if name.startswith("replay_"))
    skill_dim = read_headers(saved.path / chunk)["skill"].shape[1]
    cpu, num_envs = torch.device("cpu"), len(saved.tensors(REPLAY)["age"])
    rows = -(-config.replay.capacity_steps // config.env.num_envs)
    replay = Replay(spec, num_envs, rows * num_envs, skill_dim, cpu, cpu, config.replay)
    load_replay(saved, replay)
    return replay


def _env_spec(config: Config) -> Any:
    """Gymnasium's spec of the environment, from which Minari makes it again; None where it has none."""
    name, options = parse_id(config.env.id)
    if name.startswith((ATARI, DMC)) or config.env.wrappers:
        return None
    try:
        found = copy.deepcopy(gym.spec(name))
    except gym.error.Error:  # a function, or an environment that is not registered here
        return None
    found.kwargs.update(options)
    return found
