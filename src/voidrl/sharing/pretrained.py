"""Agents to share: a folder in the layout of the Hugging Face Hub, and the Hub itself.

    <folder>/config.json         format, versions, spec, config, steps; the size and sha256 of the weights
             model.safetensors   weights and buffers, as in the `agent.safetensors` of a checkpoint
             README.md           the model card

New weights are written beside the old ones; the moment at which `config.json`, which names their hash, is
replaced is the one at which the new agent is there. A kill leaves the old agent or the new one, whole.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl import __version__, checkpoint
from voidrl.agent import Agent
from voidrl.config import PIECES, Config, merge, to_json, update
from voidrl.device import placed
from voidrl.envs.ids import is_importable
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    HubError,
    VoidrlError,
    VoidrlWarning,
)
from voidrl.evaluation import Evaluation
from voidrl.sharing import card as model_card
from voidrl.sharing import hub
from voidrl.types import EnvSpec

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
NEXT = ".next.safetensors"  # weights on their way; theirs is the agent once config.json names them


# A folder


def save_pretrained(
    agent: Agent,
    folder: str | Path,
    *,
    evaluation: Evaluation | None = None,
    license: str | None = None,
    repo_id: str | None = None,
) -> Path:
    """Write an agent; see `Agent.save_pretrained`. One process at a time saves into a folder."""
    if repo_id is not None:
        hub.require_repo_id(repo_id)
    if not agent.trusted and _names_code(agent.config.env.id):
        raise ConfigError(
            f"the agent from {agent.origin} cannot be saved: its environment {agent.config.env.id!r} is code "
            f"named by a downloaded file, and whatever a folder names may run; if you trust its author, load "
            f"it with trust_code=True (--trust-code)"
        )
    path = Path(folder).expanduser()
    try:
        _require_replaceable(path)
        path.mkdir(parents=True, exist_ok=True)
        _settle(path)
        try:
            weights = checkpoint.write_tensors(path / NEXT, agent.tensors())
            data = _described(agent, weights, evaluation)
            card = _card(agent, path, data, license, repo_id, evaluation)
            checkpoint.write_json_atomic(path / CONFIG, {**data, "sha256": checkpoint.seal(data)})
        except (OSError, VoidrlError):  # a full disk, say
            _settle(path)
            raise
        (path / NEXT).replace(path / WEIGHTS)
        if card is not None:
            checkpoint.write_text_atomic(path / CARD, card)
    except OSError as e:
        size = sum(tensor.nbytes for tensor in agent.tensors().values())
        raise CheckpointError(
            f"cannot save the agent in {path}: {e.strerror or e}; choose a folder open to writing, with room "
            f"for {size} bytes"
        ) from e
    env = agent.config.env.id
    if not is_importable(env):
        told = (
            f"the environment {env!r} of the agent cannot be imported elsewhere: whoever loads the agent has "
            f"to pass one, unless you train with a function of a module, as 'module:factory'"
        )
        print(told, file=sys.stderr, flush=True)
    return path


def from_pretrained(
    source: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    token: str | None = None,
    trust_code: bool = False,
) -> Agent:
    """An agent from a folder of `agent.save_pretrained`, or from the Hugging Face Hub.

    Args:
        source: The folder; or, where there is none of that name, `user/name` on the Hub (extra `hub`).
        revision: A branch, tag or commit on the Hub; by default `main`.
        device: `auto`, `cpu`, `cuda`.
        token: For a private model; by default the one of `hf auth login` or of the variable `HF_TOKEN`.
        trust_code: Let an agent from the Hub name Python code (`module:name`) that is imported and called
            here: a method, representation or learner, and the environment it was trained in. A folder is
            always trusted.
    """
    path = Path(source).expanduser()
    if path.exists() and revision is not None:
        raise ConfigError(
            f"revision = {revision!r} cannot be used with the folder {path}: only the Hub has any"
        )
    trusted = trust_code or path.exists()
    folder = path if path.exists() else _download(str(source), revision, token)
    data = read_config(folder)
    try:
        if not trusted:
            _require_known_pieces(str(source), data["config"])
        spec, config = EnvSpec.from_json(data["spec"]), update(Config(), data["config"])
        steps = int(data["agent_steps"])
        weights = _entry(data)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        if isinstance(e, VoidrlError):  # a field or a class that is not known here, in a sentence
            raise
        raise CheckpointError(f"{folder / CONFIG} is not complete ({e!r}): save the agent anew") from e
    tensors = checkpoint.read_tensors(_find_weights(folder, weights))
    with placed(device, config.seed) as place:
        agent = Agent(spec, config, place)
    agent.load_tensors(tensors)
    agent.steps, agent.origin, agent.trusted = steps, folder.absolute(), trusted
    return agent


def own_env(agent: Agent) -> str:
    """The id of the environment it was trained in; refused where a download would so have code called."""
    env = agent.config.env.id
    if not agent.trusted and _names_code(env):
        raise ConfigError(
            f"the agent's own environment {env!r} would run code named by a downloaded file: give the "
            f"environment yourself (env=…, --env), or, if you trust its author, load the agent with "
            f"trust_code=True (--trust-code)"
        )
    return env


def _names_code(env: str) -> bool:
    """Whether an environment is `module:factory` or `module:Name-v0`; options may hold a colon."""
    return ":" in env.partition("?")[0]


def _require_known_pieces(repo_id: str, config: Mapping[str, Any]) -> None:
    """Nothing has been imported yet. Merged, all ways to write a piece's name are one."""
    merged = merge(config)
    for kind in PIECES:
        name = merged[kind].get("name") if isinstance(merged.get(kind), Mapping) else None
        if isinstance(name, str) and ":" in name:
            raise ConfigError(
                f"{kind} {name!r} of the model {repo_id!r} on the Hugging Face Hub would run code named by a "
                f"downloaded file: expected a name from `voidrl list`; if you trust its author, load the "
                f"agent with trust_code=True (--trust-code)"
            )


def is_pretrained(folder: Path) -> bool:
    """Whether `save_pretrained` has written this folder, or a newer one has."""
    return _config_of(folder).get("library_name") == "voidrl"


def is_on_hub(source: str | Path) -> bool:
    """Whether a path that is not there can only be meant as a name on the Hub; `runs/x` in `runs/` is not."""
    return hub.is_repo_id(source) and not Path(source).parent.exists()


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a saved agent, checked against its own hash."""
    path = folder / CONFIG
    data = _config_of(folder)
    if data.get("library_name") != "voidrl":
        if (folder / "checkpoints").is_dir() or (folder / checkpoint.MANIFEST).is_file():
            raise CheckpointError(
                f"{folder} is a run or a checkpoint and no saved agent: open it with `voidrl.load`"
            )
        other = data.get("library_name") or data.get("model_type")
        why = f"is of {other!r}" if other else "is not of voidrl" if path.is_file() else "is missing"
        raise CheckpointError(
            f"{folder} holds no voidrl agent: its {CONFIG} {why}, expected one of `agent.save_pretrained`"
        )
    version = data.get("format")
    if not isinstance(version, int) or version > FORMAT:  # asked first: a newer one may be sealed otherwise
        raise CheckpointError(f"{path} has format {version}, newer than {FORMAT}: upgrade voidrl")
    if data.pop("sha256", None) != checkpoint.seal(data):
        raise CheckpointError(
            f"{path} was damaged or edited, it does not match its own sha256: save the agent anew"
        )
    return data


def _config_of(folder: Path) -> dict[str, Any]:
    """What its config.json says, as it stands; nothing where that is no JSON object."""
    try:
        found = checkpoint.read_json(folder / CONFIG, "the config of an agent")
    except CheckpointError:
        return {}
    return found if isinstance(found, dict) else {}


def _require_replaceable(path: Path) -> None:
    """Hidden files, such as those of Git, are neither counted nor touched."""
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file: choose a folder for the agent")
    visible = [entry for entry in path.iterdir() if entry.name[0] != "."] if path.is_dir() else []
    if not visible:
        return
    version = _config_of(path).get("format")
    if not is_pretrained(path):
        raise CheckpointError(
            f"{path} is not empty and holds no saved agent, so it is left untouched: choose another folder"
        )
    if not isinstance(version, int) or version > FORMAT:
        raise CheckpointError(
            f"{path} holds an agent of format {version}, newer than {FORMAT}: choose another folder"
        )


def _settle(folder: Path) -> None:
    """Finish what was interrupted: weights that config.json names take their place, others go."""
    for scrap in (*folder.glob(f".tmp-*-{CONFIG}"), *folder.glob(f".tmp-*-{CARD}")):
        scrap.unlink(missing_ok=True)
    with suppress(CheckpointError, KeyError, TypeError):
        if _find_weights(folder, _entry(_config_of(folder))).name == NEXT:
            (folder / NEXT).replace(folder / WEIGHTS)
    (folder / NEXT).unlink(missing_ok=True)


def _entry(data: Mapping[str, Any]) -> checkpoint.FileEntry:
    weights = data["weights"]
    return {"sha256": weights["sha256"], "bytes": weights["bytes"], "tag": None}


def _find_weights(folder: Path, entry: checkpoint.FileEntry) -> Path:
    path = folder / WEIGHTS
    try:
        checkpoint.check_file(path, entry)
    except CheckpointError:
        with suppress(CheckpointError):
            checkpoint.check_file(folder / NEXT, entry)
            return folder / NEXT
        if _is_lfs_note(path):
            raise CheckpointError(
                f"{path} is Git LFS's note about the weights, not the weights: fetch them with `git lfs pull`"
            ) from None
        raise
    return path


def _is_lfs_note(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(7) == b"version"


def _described(agent: Agent, weights: checkpoint.FileEntry, evaluation: Evaluation | None) -> dict[str, Any]:
    """What config.json says, before its own hash."""
    about = _about(agent, weights["sha256"])
    if evaluation is not None:
        about["results"] = [model_card.given_result(agent, evaluation), *about.get("results", [])]
    return {
        "library_name": "voidrl",
        "format": FORMAT,
        "voidrl": __version__,
        "agent_steps": agent.steps,
        "spec": agent.spec.to_json(),
        "config": to_json(agent.config),
        "weights": {"bytes": weights["bytes"], "sha256": weights["sha256"]},
        "about": about,
    }


def _about(agent: Agent, sha256: str) -> dict[str, Any]:
    """What the folder it comes from says about exactly these weights; nothing once they have changed."""
    if agent.origin is None:
        return {}
    if not is_pretrained(agent.origin):
        return model_card.run_of(agent.origin, sha256)
    with suppress(CheckpointError, KeyError, TypeError):
        known = read_config(agent.origin)
        if known["weights"]["sha256"] == sha256:
            return dict(known["about"])
    return {}


def _card(
    agent: Agent,
    path: Path,
    data: Mapping[str, Any],
    license: str | None,
    repo_id: str | None,
    evaluation: Evaluation | None,
) -> str | None:
    """A new card, or the one of this agent that a person has edited; None if that is in its place."""
    mine, theirs = _edited_card(path), _edited_card(agent.origin)
    same = agent.origin is not None and _config_of(agent.origin).get("weights") == data["weights"]
    edited = path / CARD if mine is not None else agent.origin / CARD if theirs and same else None  # type: ignore[operator]
    if edited is None:
        size = sum(tensor.numel() for tensor in agent.tensors().values())
        return model_card.render(data, parameters=size, license=license, repo_id=repo_id)
    if mine is not None or license is not None or evaluation is not None:
        told = f"{edited} was edited by hand and is kept as it is; delete it to have a new one written"
        warnings.warn(told, VoidrlWarning, stacklevel=4)
    return None if mine is not None else theirs


def _edited_card(folder: Path | None) -> str | None:
    if folder is None or not is_pretrained(folder) or not (folder / CARD).is_file():
        return None
    text = (folder / CARD).read_text("utf-8")
    return text if model_card.is_edited(text) else None


# The Hub


def push_to_hub(
    agent: Agent,
    repo_id: str,
    *,
    private: bool = False,
    message: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    evaluation: Evaluation | None = None,
    license: str | None = None,
) -> str:
    """Publish an agent; see `Agent.push_to_hub`."""
    hub.require_repo_id(repo_id)
    hub.require_token(token)
    env = agent.config.env.id
    place = "in its author's own environment" if not is_importable(env) else env
    message = message or f"{agent.config.phase} {place}, {agent.steps} steps"
    files = [CONFIG, WEIGHTS, CARD]
    with tempfile.TemporaryDirectory() as made:
        folder = save_pretrained(
            agent, Path(made) / "agent", evaluation=evaluation, license=license, repo_id=repo_id
        )
        address = hub.prepare(repo_id, private=private, revision=revision, token=token)
        theirs = hub.read_text(repo_id, CARD, revision=revision, token=token)
        if theirs is not None and model_card.is_edited(theirs):
            files.remove(CARD)
            told = f"the card of {repo_id!r} was edited on the Hub and is kept"
            warnings.warn(f"{told}; delete it there to have a new one", VoidrlWarning, stacklevel=3)
        hub.upload(folder, repo_id, files, message=message, revision=revision, token=token)
    return address


def _download(repo_id: str, revision: str | None, token: str | None) -> Path:
    """The folder of the Hub's cache that holds the agent; weights are fetched only if they are one's."""
    if not hub.is_repo_id(repo_id):
        raise CheckpointError(
            f"there is nothing at {repo_id!r}: expected the folder of a saved agent, or user/name on the "
            f"Hugging Face Hub"
        )
    if not is_pretrained(hub.download(repo_id, [CONFIG], revision, token)):
        raise HubError(
            f"the model {repo_id!r} on the Hugging Face Hub is no voidrl agent: expected one that "
            f"`agent.push_to_hub` or `voidrl push` has published"
        )
    return hub.download(repo_id, [CONFIG, WEIGHTS], revision, token)
