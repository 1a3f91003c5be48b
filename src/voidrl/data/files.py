"""Datasets as files: Minari's, and a plain .npz for those without it.

A Minari dataset is named by its id (`namespace/name-v0`), which lies under $MINARI_DATASETS_PATH or Minari's
own folder, or by a path. Images are stored unchanged: Minari's JPEG would change them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from voidrl.data.episodes import Episode
from voidrl.errors import ConfigError, DataError, MissingExtraError, VoidrlError, by_caller
from voidrl.system.files import user_path

MINARI_ID = re.compile(r"([-_\w][-_\w/]*/)?[-_\w]+-v\d+")
ROOT = "MINARI_DATASETS_PATH"
METADATA = "voidrl"
NPZ = ".npz"


class Content(NamedTuple):
    """The content of a dataset besides the episodes."""

    observation_space: gym.Space
    action_space: gym.Space
    env_spec: Any
    """Gymnasium's spec of the environment, if it has one."""
    metadata: dict[str, Any]
    """Voidrl's metadata, under the key `voidrl`."""
    about: dict[str, str]
    """Minari's fields, such as `algorithm_name` and `description`."""


class Dataset(Protocol):
    """Episodes that can be read in any order."""

    name: str
    observation_space: gym.Space
    action_space: gym.Space
    lengths: np.ndarray
    """(E,) steps of each episode."""
    is_ours: bool
    """Whether voidrl wrote it: of Dicts and Tuples it has the frames of the agent."""

    def episodes(self, indices: Iterable[int]) -> Iterator[Episode]:
        """The episodes of these numbers."""


def is_dataset_id(name: str) -> bool:
    """Whether a text is the id of a Minari dataset rather than a path."""
    return MINARI_ID.fullmatch(name) is not None and not name.startswith((".", "/", "~"))


def absolute_name(data: str | Path) -> str:
    """A dataset as any working folder finds it: an id, or an absolute path."""
    text = str(data)
    return text if is_dataset_id(text) and not user_path(text).exists() else str(user_path(text).absolute())


def open_dataset(data: str | Path) -> Dataset:
    """The dataset at a path, or of a Minari id."""
    text, path = str(data), user_path(data)
    if path.suffix == NPZ:
        return NpzDataset(path)
    folder = path if path.exists() or not is_dataset_id(text) else _minari_root() / text
    inner = folder if (folder / "metadata.json").is_file() else folder / "data"
    if not (inner / "metadata.json").is_file():
        where = "its id" if folder is not path else "the path"
        raise DataError(
            f"there is no dataset {text!r} in {folder}: expected {where} of a Minari dataset (`minari list "
            f"local` shows them, `minari download` fetches one), or a file {NPZ} of `voidrl export`"
        )
    return MinariDataset(inner, text)


# Minari


def _require_minari(purpose: str) -> None:
    for package in ("minari", "h5py"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "minari", purpose)


def _minari_root() -> Path:
    return user_path(os.environ.get(ROOT) or "~/.minari/datasets")


class MinariDataset:
    """A dataset of Minari."""

    def __init__(self, path: Path, name: str) -> None:
        _require_minari(f"the dataset {name!r}")
        self.name = name
        with _reported(name):
            from minari import MinariDataset as Stored

            self._stored = Stored(path)
            self.observation_space: gym.Space = self._stored.observation_space
            self.action_space: gym.Space = self._stored.action_space
            every = self._stored.storage.get_episode_metadata(self._stored.episode_indices)
            self.lengths = np.array([int(each["total_steps"]) for each in every], np.int64)
            self.is_ours = METADATA in self._stored.storage.metadata

    def episodes(self, indices: Iterable[int]) -> Iterator[Episode]:
        """The episodes of these numbers, read one at a time."""
        with _reported(self.name):
            for found in self._stored.iterate_episodes([*indices]):
                skills = (found.infos or {}).get("skill")
                yield Episode(
                    found.observations,
                    np.asarray(found.actions),
                    np.asarray(found.rewards, np.float32),
                    np.asarray(found.terminations, bool),
                    np.asarray(found.truncations, bool),
                    None if skills is None else np.asarray(skills, np.float32)[: len(found.rewards)],
                )


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


def write_minari(out: str | Path, content: Content, episodes: Iterable[Episode], *, overwrite: bool) -> str:
    """Write a Minari dataset; returns its id or its path."""
    _require_minari("export to Minari")
    from minari import __version__ as minari_version
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    text = str(out)
    by_id = is_dataset_id(text)
    folder = _minari_root() / text if by_id else user_path(text)
    if by_id:
        _make_namespace(text)
    dataset_id = text if by_id else folder.name if is_dataset_id(folder.name) else f"{_plain(folder.name)}-v0"

    def buffers() -> Iterator[EpisodeBuffer]:
        for episode in episodes:
            skills = episode.skills
            held = None if skills is None else {"skill": np.concatenate([skills, skills[-1:]])}
            yield EpisodeBuffer(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
                infos=held,
            )

    def write(target: Path) -> None:
        (target / "data").mkdir(parents=True)
        spaces = {"observation_space": content.observation_space, "action_space": content.action_space}
        storage = MinariStorage.new(
            target / "data", **spaces, env_spec=content.env_spec, data_format="hdf5", jpeg_encoding=False
        )
        own = {METADATA: json.dumps(content.metadata), **content.about}
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari_version, **own})
        storage.update_episodes(buffers())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a spec that is no JSON is left out
        _write_whole(folder, write, overwrite=overwrite)
    return text if by_id else str(folder)


def _make_namespace(dataset_id: str) -> None:
    """Make the namespace of an id known to Minari, without which it does not list the dataset."""
    from minari.namespace import create_namespace, list_local_namespaces

    namespace, _, _ = dataset_id.rpartition("/")
    if namespace and namespace not in list_local_namespaces():
        create_namespace(namespace)


def _plain(name: str) -> str:
    return re.sub(r"[^-\w]+", "-", name) or "dataset"


# NumPy


class NpzDataset:
    """The arrays of all episodes end to end, in one file."""

    is_ours = True

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            with np.load(path) as file:  # pickled objects are refused
                self._arrays = {name: file[name] for name in file.files}
            self.lengths = self._arrays["lengths"]
            names = json.loads(str(self._arrays["observation_keys"]))
            found = {name: self._arrays[f"observations/{name}"] for name in names}
            self._observations: Any = found if names else self._arrays["observations"]
            self.observation_space, self.action_space = (
                _space_from_json(json.loads(str(self._arrays[name])))
                for name in ("observation_space", "action_space")
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"the dataset {self.name!r} cannot be read ({type(error).__name__}: {error}): expected a "
                f"file of `voidrl export --to npz`"
            ) from error

    def episodes(self, indices: Iterable[int]) -> Iterator[Episode]:
        """The episodes of these numbers."""
        ends = np.cumsum(self.lengths)
        for i in indices:
            steps = slice(ends[i] - self.lengths[i], ends[i])
            states = slice(steps.start + i, steps.stop + i + 1)  # each episode before has one more
            seen = self._observations
            seen = {k: v[states] for k, v in seen.items()} if isinstance(seen, dict) else seen[states]
            names = ("actions", "rewards", "terminations", "truncations", "skills")
            found = {name: self._arrays[name][steps] for name in names if name in self._arrays}
            yield Episode(seen, **found)


def write_npz(out: str | Path, content: Content, episodes: Iterable[Episode], *, overwrite: bool) -> str:
    """Write all episodes as arrays in one file; returns its path."""
    path = user_path(out)
    path = path if path.suffix == NPZ else path.with_name(f"{path.name}{NPZ}")
    found = [*episodes]
    arrays: dict[str, np.ndarray] = {"lengths": np.array([len(each) for each in found], np.int64)}
    keys = [*found[0].observations] if isinstance(found[0].observations, dict) else []
    for key in keys:
        arrays[f"observations/{key}"] = np.concatenate([each.observations[key] for each in found])
    if not keys:
        arrays["observations"] = np.concatenate([each.observations for each in found])
    for name in ("actions", "rewards", "terminations", "truncations", "skills"):
        if getattr(found[0], name) is not None:
            arrays[name] = np.concatenate([getattr(each, name) for each in found])
    texts = {
        "observation_keys": keys,
        "observation_space": _space_to_json(content.observation_space),
        "action_space": _space_to_json(content.action_space),
        METADATA: {**content.metadata, **content.about},
    }
    arrays |= {name: np.array(json.dumps(value)) for name, value in texts.items()}

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    _write_whole(path, write, overwrite=overwrite)
    return str(path)


def _space_to_json(space: gym.Space) -> dict[str, Any]:
    """The spaces that `voidrl.data.episodes` makes."""
    if isinstance(space, gym.spaces.Dict):
        return {"dict": {key: _space_to_json(value) for key, value in space.items()}}
    if isinstance(space, gym.spaces.Discrete):
        return {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"sizes": space.nvec.tolist(), "start": space.start.tolist()}
    assert isinstance(space, gym.spaces.Box)
    bounds = {name: getattr(space, name) for name in ("low", "high")}
    short = {name: (b.flat[0] if (b == b.flat[0]).all() else b).tolist() for name, b in bounds.items()}
    return {**short, "shape": list(space.shape), "dtype": str(space.dtype)}


def _space_from_json(data: dict[str, Any]) -> gym.Space:
    if "dict" in data:
        return gym.spaces.Dict({key: _space_from_json(value) for key, value in data["dict"].items()})
    if "n" in data:
        return gym.spaces.Discrete(data["n"], start=data["start"])
    if "sizes" in data:
        return gym.spaces.MultiDiscrete(data["sizes"], start=data["start"])
    dtype: Any = np.dtype(data["dtype"])
    low, high = (np.broadcast_to(np.array(data[name], dtype), data["shape"]) for name in ("low", "high"))
    return gym.spaces.Box(low, high, dtype=dtype)


# Writing


WRITERS: dict[str, Callable[..., str]] = {"minari": write_minari, "npz": write_npz}


def _write_whole(path: Path, write: Callable[[Path], None], *, overwrite: bool) -> None:
    """Write a file or folder under a hidden name, then rename it: there is never half a dataset."""
    if path.exists() and not overwrite:
        force = by_caller("overwrite=True", "--force")
        raise ConfigError(f"{path} exists already: choose another name, or replace it with {force}")
    if path.is_dir() and not _is_minari(path):
        raise ConfigError(f"{path} is a folder without a dataset and is not replaced: choose another name")
    temporary = path.absolute().with_name(f".tmp-{os.getpid()}-{path.name}")  # Minari wants absolute paths
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        _remove(path)
        temporary.rename(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    finally:
        _remove(temporary)


def _is_minari(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
