"""Saved agents: a folder in the layout of the Hugging Face Hub, and the Hub itself.

    <folder>/config.json         format, version, spaces, config, steps; size and sha256 of the weights
             model.safetensors   weights and buffers, as in `agent.safetensors` of a checkpoint
             README.md           the model card

New weights are first written under a hidden name. Replacing `config.json`, which holds their hash, commits
the save: a process killed at any moment leaves either the old agent or the new one intact.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from voidrl import __version__
from voidrl.agent import Agent
from voidrl.config import (
    LOCAL_FIELDS,
    Config,
    flat,
    merge,
    to_json,
    update,
    without_local_fields,
    without_user_fields,
)
from voidrl.envs.ids import has_colon, is_importable, names_code, names_path
from voidrl.envs.spaces import spec_from_json
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    HubError,
    SpaceError,
    VoidrlError,
    VoidrlWarning,
    by_caller,
    shown,
)
from voidrl.runs import checkpoint
from voidrl.runs.tensor_files import FileEntry, read_tensors, write_tensors
from voidrl.sharing import card as model_card
from voidrl.sharing import hub, weights
from voidrl.system.device import placed
from voidrl.system.files import read_text, user_path
from voidrl.system.terminal.output import say
from voidrl.training.evaluation import Evaluation
from voidrl.types import EnvSpec

FORMAT = 3
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
MAX_CARD_BYTES = 1 << 20
MAX_STEPS = 10**12  # as many as a checkpoint's name has digits for
NEXT = ".next.safetensors"  # new weights, which count once config.json holds their hash


# Saving


def save_pretrained(
    agent: Agent,
    folder: str | Path,
    *,
    evaluation: Evaluation | None = None,
    license: str | None = None,
    repo_id: str | None = None,
) -> Path:
    """Save an agent, without its replay and optimizers, in the layout of the Hugging Face Hub.

    `voidrl.from_pretrained` reads the folder, and so does every function and command that takes an agent. An
    agent saved there before is replaced; any other folder that is not empty is refused. Without the extra
    `hub`, the model card is skipped with a note. Only one process at a time may save into a folder.

    Args:
        agent: The agent to save.
        folder: Destination of `model.safetensors`, `config.json` and the model card `README.md`.
        evaluation: A result of `voidrl.evaluate` for this agent in its own environment, shown on the card in
            addition to the evaluations that its run recorded.
        license: The Hub's identifier of a license, such as `mit`; by default the card states none.
        repo_id: The `user/name` under which the agent will be published, shown on the card.
    """
    if repo_id is not None:
        hub.require_repo_id(repo_id)
    env = agent.config.env.id
    if not agent.trusted and (risk := _risk(env)):
        raise ConfigError(
            f"the agent from {agent.origin} cannot be saved: its environment {shown(env)} would {risk} named "
            f"by a downloaded file, which a saved folder is trusted to do; if you trust its author, load it "
            f"with {_trusting()}"
        )
    path = user_path(folder)
    try:
        _require_replaceable(path)
        path.mkdir(parents=True, exist_ok=True)
        _finish_interrupted_save(path)
        try:
            entry = write_tensors(path / NEXT, agent.tensors())
            data = _config_json(agent, entry, evaluation)
            card = _card(agent, path, data, license, repo_id, evaluation)
            checkpoint.write_json_atomic(path / CONFIG, {**data, "sha256": checkpoint.seal(data)})
        except (OSError, VoidrlError):  # e.g. a full disk
            _finish_interrupted_save(path)
            raise
        (path / NEXT).replace(path / WEIGHTS)
        if card is not None:
            checkpoint.write_text_atomic(path / CARD, card)
    except OSError as e:
        size = sum(tensor.nbytes for tensor in agent.tensors().values())
        raise CheckpointError(
            f"cannot save the agent in {path}: {e.strerror or e}; choose a writable folder with "
            f"{size} bytes free"
        ) from e
    if not is_importable(env):
        say(
            f"the environment {env!r} of the agent cannot be imported elsewhere: whoever loads the agent has "
            f"to pass one, unless you train with a function in a module, as 'module:factory'"
        )
    return path


def _require_replaceable(path: Path) -> None:
    """Refuse a folder with anything but a saved agent; hidden files, such as Git's, are ignored and kept."""
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file: choose a folder for the agent")
    if not path.is_dir() or all(entry.name[0] == "." for entry in path.iterdir()):
        return
    if not is_pretrained(path):
        raise CheckpointError(f"{path} is not empty and holds no saved agent: choose another folder")
    version = _config_of(path).get("format")
    if type(version) is not int or version > FORMAT:
        raise CheckpointError(
            f"{path} holds an agent of format {shown(version)}, newer than {FORMAT}: choose another folder"
        )


def _finish_interrupted_save(folder: Path) -> None:
    """Move weights that config.json already names into place, and delete other leftovers."""
    for leftover in (*folder.glob(f".tmp-*-{CONFIG}"), *folder.glob(f".tmp-*-{CARD}")):
        leftover.unlink(missing_ok=True)
    with suppress(CheckpointError):
        entry = checkpoint.file_entry(folder / CONFIG, _config_of(folder), "weights")
        if _find_weights(folder, entry).name == NEXT:
            (folder / NEXT).replace(folder / WEIGHTS)
    (folder / NEXT).unlink(missing_ok=True)


def _config_json(agent: Agent, entry: FileEntry, evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the contents of config.json without its own hash."""
    about = _about(agent, entry["sha256"])
    if evaluation is not None:
        about["results"] = [model_card.result_from(agent, evaluation), *about.get("results", [])]
    return {
        "library_name": "voidrl",
        "format": FORMAT,
        "voidrl": __version__,
        "agent_steps": agent.steps,
        "spec": agent.spec.to_json(),
        "config": to_json(without_local_fields(agent.config)),
        "weights": {"bytes": entry["bytes"], "sha256": entry["sha256"]},
        "about": about,
    }


def _about(agent: Agent, sha256: str) -> dict[str, Any]:
    """Return the records of the agent's folder of origin about exactly these weights."""
    if agent.origin is None:
        return {}
    if not is_pretrained(agent.origin):
        return model_card.describe_run(agent.origin, sha256)
    with suppress(VoidrlError):
        known = _read_manifest(agent.origin)
        return known.about if known.weights["sha256"] == sha256 else {}
    return {}


def _card(
    agent: Agent,
    folder: Path,
    data: Mapping[str, Any],
    license: str | None,
    repo_id: str | None,
    evaluation: Evaluation | None,
) -> str | None:
    """Return the card to write; None to keep the existing one.

    Hand-edited cards are kept, except for other people's, whose text is not the user's to publish.
    """
    edited = _edited_card(folder)
    own = agent.origin if agent.trusted else None
    if not edited and own and _config_of(own).get("weights") == data["weights"]:
        edited = _edited_card(own)
    if edited:
        if edited.parent == folder or license is not None or evaluation is not None:
            message = f"{edited} was edited by hand and is kept; delete it to get a new one"
            warnings.warn(message, VoidrlWarning, stacklevel=3)
        return None if edited.parent == folder else _card_text(edited)
    parameters = sum(tensor.numel() for tensor in agent.tensors().values())
    try:
        return model_card.render(data, parameters=parameters, license=license, repo_id=repo_id)
    except ImportError:
        say("no model card was written: it needs huggingface_hub; pip install 'voidrl[hub]'")
        (folder / CARD).unlink(missing_ok=True)  # it would describe the replaced agent
        return None


def _edited_card(folder: Path) -> Path | None:
    path = folder / CARD
    if not is_pretrained(folder) or not path.is_file():
        return None
    _require_inside(folder, path)  # its text may be published
    return path if model_card.is_edited(_card_text(path)) else None


def _card_text(path: Path) -> str:
    try:
        return read_text(path, MAX_CARD_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): delete it to get a new one") from error


# Loading


def from_pretrained(
    source: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    token: str | None = None,
    trust_code: bool = False,
) -> Agent:
    """Load an agent from a folder written by `voidrl.save_pretrained`, or from the Hugging Face Hub.

    Args:
        source: The folder; if it does not exist, `user/name` on the Hub (extra `hub`).
        revision: A branch, tag or commit on the Hub; by default `main`.
        device: `auto`, `cpu`, `cuda`.
        token: For a private model; by default the token of `hf auth login` or the variable `HF_TOKEN`.
        trust_code: Let an agent from the Hub name Python code (`module:name`) that is imported and called
            here: a method, representation or learner, and the environment it was trained in, whose options
            may then be paths. A folder is always trusted.
    """
    path = user_path(source)
    if path.exists() and revision is not None:
        why = "only the Hub has revisions"
        raise ConfigError(f"revision = {revision!r} cannot be used with the folder {path}: {why}")
    trusted = trust_code or path.exists()
    folder = path if path.exists() else _download(str(source), revision, token)
    manifest = _read_manifest(folder)
    if not trusted:
        _refuse_code(str(source), manifest.config)
    file = _find_weights(folder, manifest.weights)
    try:
        config = update(Config(), manifest.config)
        config = without_local_fields(config) if path.exists() else without_user_fields(config)
        weights.require_fitting(file, manifest.spec, config)
    except (ConfigError, SpaceError) as error:
        raise ConfigError(f"{folder / CONFIG}: {error}") from error
    tensors = read_tensors(file)
    with placed(device, config.seed) as place:
        agent = Agent(manifest.spec, config, place)
    weights.require_finite(file, tensors, agent)
    agent.load_tensors(tensors)
    agent.steps, agent.origin, agent.trusted = manifest.agent_steps, folder.absolute(), trusted
    return agent


def own_env(agent: Agent) -> str:
    """Return the id of the environment the agent was trained in, unless a download could do harm by it."""
    env = agent.config.env.id
    if not agent.trusted and (risk := _risk(env)):
        raise ConfigError(
            f"the agent's own environment {shown(env)} would {risk} named by a downloaded file: pass an "
            f"environment ({by_caller('env=…', '--env')}), or, if you trust its author, load the agent with "
            f"{_trusting()}"
        )
    return env


def _trusting() -> str:
    """The caller's option for trusting the code of a downloaded agent."""
    return by_caller("trust_code=True", "--trust-code")


def _risk(env: str) -> str | None:
    """Return the risk of making a stranger's environment here; None if it is harmless."""
    if names_code(env):
        return "run code"
    return "open a path" if names_path(env) else None


def _refuse_code(repo_id: str, config: Mapping[str, Any]) -> None:
    """Refuse fields that may name code, before any import; `merge` unifies the ways to write a field.

    The environment is checked where it would be made (`own_env`), since another one can be passed.
    """
    for field, value in flat(merge(config)).items():
        if field not in (*LOCAL_FIELDS, "env.id") and has_colon(value):
            raise ConfigError(
                f"{field} = {shown(value)} of the model {repo_id!r} on the Hugging Face Hub would run code "
                f"named by a downloaded file: expected a name from `voidrl list`; if you trust its author, "
                f"load the agent with {_trusting()}"
            )


def is_pretrained(folder: Path) -> bool:
    """Whether the folder holds an agent saved by any version of voidrl."""
    return _config_of(folder).get("library_name") == "voidrl"


def is_on_hub(source: str | Path) -> bool:
    """Whether a missing path can only mean a name on the Hub; a misspelled `runs/x` in `runs/` does not."""
    return hub.is_repo_id(source) and not Path(source).parent.exists()


def read_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of a saved agent after checking it against its own hash."""
    path = folder / CONFIG
    data = checkpoint.read_json(path, "the config of an agent") if path.is_file() else {}
    if data.get("library_name") != "voidrl":
        raise CheckpointError(
            f"{folder} holds no agent saved by `voidrl.save_pretrained`: expected its {CONFIG}; open runs "
            f"and checkpoints with `voidrl.load`"
        )
    _require_inside(folder, path)
    checkpoint.require_format(path, data, FORMAT)
    if data.pop("sha256", None) != checkpoint.seal(data):
        raise CheckpointError(
            f"{path} was damaged or edited: it does not match its own sha256; save the agent again"
        )
    return data


class _Manifest(NamedTuple):
    """A `config.json` of which every key is there and has its type; the values of `config` are unchecked."""

    spec: EnvSpec
    config: dict[str, Any]
    agent_steps: int
    weights: FileEntry
    about: dict[str, Any]


def _read_manifest(folder: Path) -> _Manifest:
    path, data = folder / CONFIG, read_config(folder)
    try:
        spec = spec_from_json(data.get("spec"))
        about = model_card.require_about(checkpoint.require_field(path, data, "about", dict))
    except VoidrlError as error:
        raise CheckpointError(f"{path}: {error}") from error
    config = checkpoint.require_field(path, data, "config", dict)
    steps = checkpoint.require_field(path, data, "agent_steps", int)
    if not 0 <= steps < MAX_STEPS:
        raise CheckpointError(f"{path} cannot be used: agent_steps = {shown(steps)}, expected 0 or more")
    return _Manifest(spec, config, steps, checkpoint.file_entry(path, data, "weights"), about)


def _config_of(folder: Path) -> dict[str, Any]:
    """Return the unverified config.json; empty if it is missing or not a JSON object."""
    with suppress(CheckpointError):
        return checkpoint.read_json(folder / CONFIG, "the config of an agent")
    return {}


def _require_inside(folder: Path, path: Path) -> None:
    """Refuse links out of the folder, except into the cache of the Hub's client, which consists of them."""
    try:
        home, target = folder.resolve(), path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not target.is_relative_to(home) and target.parent != home.parent.parent / "blobs":
        raise CheckpointError(
            f"{path} is a link to {target}, outside of the agent's folder: replace it by the file itself"
        )


def _find_weights(folder: Path, entry: FileEntry) -> Path:
    path = folder / WEIGHTS
    _require_inside(folder, folder / NEXT)
    with suppress(CheckpointError):
        checkpoint.check_file(folder / NEXT, entry)
        return folder / NEXT
    _require_inside(folder, path)
    try:
        checkpoint.check_file(path, entry)
    except CheckpointError:
        if path.is_file() and _starts_with(path, b"version"):
            remedy = "fetch them with `git lfs pull`"
            raise CheckpointError(f"{path} is a Git LFS pointer, not the weights: {remedy}") from None
        raise
    return path


def _starts_with(path: Path, text: bytes) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(text)) == text
    return False


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
    """Publish the files of `save_pretrained` on the Hugging Face Hub (extra `hub`), and return the URL.

    Args:
        agent: The agent to publish.
        repo_id: `user/name`; the repository is created if necessary.
        private: Make it private; an existing public repository is refused.
        message: The commit message.
        revision: A branch, created if necessary; by default `main`.
        token: By default the token of `hf auth login` or the variable `HF_TOKEN`.
        evaluation: See `save_pretrained`.
        license: See `save_pretrained`.
    """
    hub.require_repo_id(repo_id)
    hub.require_token(token)
    env = agent.config.env.id
    place = env if is_importable(env) else "a custom environment"
    message = message or f"{agent.config.phase} in {model_card.one_line(place)}, {agent.steps} steps"
    files = [CONFIG, WEIGHTS, CARD]
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_pretrained(
            agent, Path(scratch) / "agent", evaluation=evaluation, license=license, repo_id=repo_id
        )
        url = hub.prepare(repo_id, private=private, revision=revision, token=token)
        published = hub.read_text(repo_id, CARD, revision=revision, token=token)
        if published is not None and model_card.is_edited(published):
            files.remove(CARD)
            warning = f"the card of {repo_id!r} was edited on the Hub and is kept; delete it to get a new one"
            warnings.warn(warning, VoidrlWarning, stacklevel=2)
        hub.upload(folder, repo_id, files, message=message, revision=revision, token=token)
    return url


def _download(repo_id: str, revision: str | None, token: str | None) -> Path:
    """Return the cached folder of an agent on the Hub; other models' weights are not downloaded."""
    if not hub.is_repo_id(repo_id):
        raise CheckpointError(
            f"there is nothing at {repo_id!r}: expected the folder of a saved agent, or user/name on the "
            f"Hugging Face Hub"
        )
    folder = hub.download(repo_id, [CONFIG], revision, token)
    path = folder / CONFIG
    data = checkpoint.read_json(path, "the config of an agent") if path.is_file() else {}
    if data.get("library_name") != "voidrl":
        raise HubError(
            f"the model {repo_id!r} on the Hugging Face Hub is not a voidrl agent: expected one published by "
            f"`voidrl.push_to_hub`"
        )
    return hub.download(repo_id, [CONFIG, WEIGHTS], revision, token)
