"""Minari datasets, by their id (`namespace/name-v0`) under $MINARI_DATASETS_PATH or `~/.minari/datasets`.

Images are stored unchanged: Minari's JPEG would change them.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from voidrl.data.episodes import Episode
from voidrl.data.units import action_space, observation_space
from voidrl.errors import ConfigError, DataError, MissingExtraError, VoidrlError, by_caller
from voidrl.types import EnvSpec

METADATA = "voidrl"


class Dataset:
    """A dataset, whose episodes are read one at a time."""

    def __init__(self, dataset_id: str) -> None:
        self.name = dataset_id
        folder = _folder_of(dataset_id)
        if not folder.is_dir():
            raise DataError(
                f"there is no dataset {dataset_id!r} in {folder.parent}: expected the id of a Minari dataset "
                f"(`minari list local` shows them, `minari download` fetches one)"
            )
        with _reported(dataset_id):
            import minari

            self._stored = minari.load_dataset(dataset_id)
            self.observation_space: gym.Space = self._stored.observation_space
            self.action_space: gym.Space = self._stored.action_space
            every = self._stored.storage.get_episode_metadata(self._stored.episode_indices)
            self.lengths = np.array([int(each["total_steps"]) for each in every], np.int64)  # (E,)
            self.is_ours = METADATA in self._stored.storage.metadata
            """Whether voidrl wrote it: of Dicts and Tuples it has the frames of the agent."""

    def episodes(self, indices: Iterable[int]) -> Iterator[Episode]:
        """Read the episodes of these numbers."""
        with _reported(self.name):
            for found in self._stored.iterate_episodes([*indices]):
                skills = (found.infos or {}).get("skill")
                ends = np.asarray(found.terminations, bool), np.asarray(found.truncations, bool)
                rewards = np.asarray(found.rewards, np.float32)
                if skills is not None:
                    skills = np.asarray(skills, np.float32)[: len(rewards)]
                yield Episode(found.observations, np.asarray(found.actions), rewards, *ends, skills)


def write_dataset(
    dataset_id: str,
    spec: EnvSpec,
    env_spec: Any,
    about: Mapping[str, str],
    episodes: Iterable[Episode],
    *,
    overwrite: bool,
) -> None:
    """Write a dataset under a hidden name, then rename it: there is never half a dataset.

    `env_spec` is Gymnasium's spec of the environment, if it has one, and `about` further metadata.
    """
    folder = _folder_of(dataset_id)
    from minari import __version__ as minari_version
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces

    if folder.exists() and not overwrite:
        force = by_caller("overwrite=True", "--force")
        raise ConfigError(f"{folder} exists already: choose another name, or replace it with {force}")
    if folder.exists() and not (folder / "data" / "metadata.json").is_file():
        raise ConfigError(f"{folder} holds no dataset and is not replaced: choose another name")

    def buffers() -> Iterator[EpisodeBuffer]:
        for episode in episodes:
            fields = {**vars(episode)}
            skills = fields.pop("skills")
            infos = None if skills is None else {"skill": np.concatenate([skills, skills[-1:]])}
            yield EpisodeBuffer(**fields, infos=infos)

    temporary = folder.with_name(f".tmp-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        namespace = dataset_id.rpartition("/")[0]
        if namespace and namespace not in list_local_namespaces():  # or Minari would not list the dataset
            create_namespace(namespace)
        (temporary / "data").mkdir(parents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a spec that is no JSON is left out
            spaces = {"observation_space": observation_space(spec), "action_space": action_space(spec)}
            how: dict[str, Any] = {**spaces, "env_spec": env_spec, "data_format": "hdf5"}
            storage = MinariStorage.new(temporary / "data", **how, jpeg_encoding=False)
            storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari_version, **about})
            storage.update_episodes(buffers())
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write {folder}: {error.strerror or error}; choose another place"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _folder_of(dataset_id: str) -> Path:
    try:
        import h5py  # noqa: F401
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError as error:
        raise MissingExtraError(error.name or "minari", "minari", "a dataset") from None
    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise ConfigError(
            f"dataset {dataset_id!r} cannot be used: expected an id such as 'maze-v0' or 'maze/apt-v0'"
        ) from None
    return Path(get_dataset_path(dataset_id)).absolute()


@contextmanager
def _reported(name: str) -> Iterator[None]:
    """Turn any exception of Minari into a sentence."""
    try:
        yield
    except VoidrlError:
        raise
    except Exception as error:
        raise DataError(
            f"the dataset {name!r} cannot be read ({type(error).__name__}: {error}): expected one that the "
            f"installed Minari reads"
        ) from error
