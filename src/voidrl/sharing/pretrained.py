"""Saved agents: a folder in the layout of the Hugging Face Hub, and the Hub itself.

<folder>/config.json         format, version, spaces, config, steps; size and sha256 of the weights
model.safetensors   weights and buffers, as in `agent.safetensors` of a checkpoint
README.md           the model card
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from voidrl import __version__
from voidrl.agent import Agent
from voidrl.agent.dry_build import dry_build
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
from voidrl.runs.tensor_files import FileEntry, TensorHeader, read_headers, read_tensors, write_tensors
from voidrl.sharing import card as model_card
from voidrl.sharing import hub
from voidrl.sharing.card import CARD
from voidrl.system.device import placed
from voidrl.system.files import user_path
from voidrl.system.terminal.output import say
from voidrl.training.evaluation import Evaluation
from voidrl.types import EnvSpec

FORMAT = 3
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_STEPS = 10**12  # as many as a checkpoint's name has digits for
SHAPE = {
    "agent_steps": int,
    "config": dict,
    "weights": checkpoint.FILE_SHAPE,
    "about": model_card.ABOUT,
}


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
    agent saved there before is replaced; any other folder that is not empty is refused. A card that was
    edited by hand is kept.

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
    env, path = agent.config.env.id, user_path(folder)
    if risk := _risk(agent):
        raise ConfigError(
            f"the agent from {agent.origin} cannot be saved: its environment {shown(env)} would {risk}, "
            f"which a saved folder is trusted to do; if you trust its author, load it with {_trusting()}"
        )
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file: choose a folder for the agent")
    temporary, card = path / f".tmp-{WEIGHTS}", path / CARD
    try:
        # Hidden files, such as Git's, are ignored and kept.
        visible = path.is_dir() and any(entry.name[0] != "." for entry in path.iterdir())
        if visible and not is_pretrained(path):
            raise CheckpointError(f"{path} is not empty and holds no saved agent: choose another folder")
        path.mkdir(parents=True, exist_ok=True)
        try:
            entry = write_tensors(temporary, agent.tensors())
            data = _config_json(agent, entry, evaluation)
            temporary.replace(path / WEIGHTS)  # the old config.json does not fit them, and would be refused
            checkpoint.write_json_atomic(path / CONFIG, {**data, "sha256": checkpoint.seal(data)})
        finally:
            temporary.unlink(missing_ok=True)
        if card.is_file() and model_card.is_edited(card.read_text("utf-8", "replace")):
            message = f"{card} was edited by hand and is kept; delete it to get a new one"
            warnings.warn(message, VoidrlWarning, stacklevel=2)
        else:
            text = model_card.render(data, license=license, repo_id=repo_id)
            checkpoint.write_text_atomic(card, text)
    except OSError as e:
        raise CheckpointError(
            f"cannot save the agent in {path}: {e.strerror or e}; choose a writable folder with enough space"
        ) from e
    if not is_importable(env):
        say(
            f"the environment {env!r} of the agent cannot be imported elsewhere: whoever loads the agent has "
            f"to pass one, unless you train with a function in a module, as 'module:factory'"
        )
    return path


def _config_json(agent: Agent, entry: FileEntry, evaluation: Evaluation | None) -> dict[str, Any]:
    """The contents of config.json without its own hash, with all known evaluations of these weights."""
    results = []
    if evaluation is not None:
        results.append(model_card.result(agent.config.env.id, evaluation.metrics(), "by voidrl.evaluate"))
    if agent.origin is not None and not is_pretrained(agent.origin):
        results += model_card.results_of(agent.origin, entry["sha256"])
    elif agent.origin is not None:
        with suppress(VoidrlError):
            known = read_config(agent.origin)
            if known["weights"]["sha256"] == entry["sha256"]:
                results += known["about"].get("results", [])
    return {
        "library_name": "voidrl",
        "format": FORMAT,
        "voidrl": __version__,
        "agent_steps": agent.steps,
        "spec": agent.spec.to_json(),
        "config": to_json(without_local_fields(agent.config)),
        "weights": {"bytes": entry["bytes"], "sha256": entry["sha256"]},
        "about": {"results": results},
    }


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
    is_local = path.exists()
    if is_local and revision is not None:
        raise ConfigError(f"revision = {revision!r} is for agents on the Hub, and {path} is a folder")
    folder, repo_id = path, str(source)
    if not is_local and not hub.is_repo_id(repo_id):
        raise CheckpointError(
            f"there is nothing at {repo_id!r}: expected the folder of a saved agent, or user/name on the "
            f"Hugging Face Hub"
        )
    if not is_local:
        if not is_pretrained(hub.download(repo_id, [CONFIG], revision, token)):  # before gigabytes of weights
            raise HubError(
                f"the model {repo_id!r} on the Hugging Face Hub is not a voidrl agent: expected one "
                f"published by `voidrl.push_to_hub`"
            )
        folder = hub.download(repo_id, [CONFIG, WEIGHTS], revision, token)
    data, file = read_config(folder), folder / WEIGHTS
    if not (trust_code or is_local):
        _refuse_code(repo_id, data["config"])
    checkpoint.require_regular(file)
    with suppress(OSError), file.open("rb") as start:
        if start.read(12) == b"version http":
            raise CheckpointError(
                f"{file} is a Git LFS pointer, not the weights: fetch them with `git lfs pull`"
            )
    checkpoint.check_file(file, data["weights"])
    try:
        spec = spec_from_json(data.get("spec"))
        config = update(Config(), data["config"])
        config = without_local_fields(config) if is_local else without_user_fields(config)
        _require_fitting(file, spec, config)
    except (ConfigError, SpaceError) as error:
        raise ConfigError(f"{folder / CONFIG}: {error}") from error
    tensors = read_tensors(file)
    with placed(device, config.seed) as place:
        agent = Agent(spec, config, place)
    _require_finite(file, tensors, agent)
    agent.load_tensors(tensors)
    agent.steps, agent.origin = data["agent_steps"], folder.absolute()
    agent.trusted = trust_code or is_local
    return agent


def own_env(agent: Agent) -> str:
    """Return the id of the environment the agent was trained in, unless a download could do harm by it."""
    env = agent.config.env.id
    if risk := _risk(agent):
        raise ConfigError(
            f"the agent's own environment {shown(env)} would {risk}: pass an environment "
            f"({by_caller('env=…', '--env')}), or, if you trust its author, load the agent with {_trusting()}"
        )
    return env


def _trusting() -> str:
    """The caller's option for trusting the code of a downloaded agent."""
    return by_caller("trust_code=True", "--trust-code")


def _risk(agent: Agent) -> str | None:
    """The risk of making a stranger's environment here; None if it is harmless."""
    env, by = agent.config.env.id, "named by a downloaded file"
    if agent.trusted or not (names_code(env) or names_path(env)):
        return None
    return f"run code {by}" if names_code(env) else f"open a path {by}"


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
    path = folder / CONFIG
    with suppress(CheckpointError):
        return path.is_file() and checkpoint.read_json(path, "a config").get("library_name") == "voidrl"
    return False


def read_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of a saved agent: every key is there and has its type, and its hash fits."""
    path = folder / CONFIG
    data = checkpoint.read_json(path, "the config of an agent") if path.is_file() else {}
    if data.get("library_name") != "voidrl":
        raise CheckpointError(
            f"{folder} holds no agent saved by `voidrl.save_pretrained`: expected its {CONFIG}; open runs "
            f"and checkpoints with `voidrl.load`"
        )
    checkpoint.require_format(path, data, FORMAT)
    if data.pop("sha256", None) != checkpoint.seal(data):
        raise CheckpointError(
            f"{path} was damaged or edited: it does not match its own sha256; save the agent again"
        )
    checkpoint.require_shape(path, data, SHAPE)
    if not 0 <= data["agent_steps"] < MAX_STEPS:
        raise CheckpointError(f"{path} is damaged: its agent_steps is {shown(data['agent_steps'])}")
    return data


def _require_fitting(path: Path, spec: EnvSpec, config: Config) -> None:
    """Compare names, shapes and types in the header of a file with those that the config implies.

    Custom code that cannot be built without memory is not compared: it is built as usual, since its user
    trusts it, and its weights are compared when they are copied.
    """
    found, agent = read_headers(path), dry_build(spec, config)
    if agent is None:
        return
    expected = {name: TensorHeader.of(tensor) for name, tensor in agent.tensors().items()}
    for name in (*expected, *found):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{path} does not fit its config: {shown(name)} is {found.get(name, 'missing')} there, and "
                f"{expected.get(name, 'nothing')} by the config; save the agent again"
            )


def _require_finite(path: Path, tensors: Mapping[str, Tensor], agent: Agent) -> None:
    """Refuse NaN in any tensor and infinity in a weight; a buffer may hold it, as a running maximum does."""
    weights = dict(agent.named_parameters())
    for name, tensor in tensors.items():
        bad = ~tensor.isfinite() if name in weights else tensor.isnan()
        if bad.any():
            raise CheckpointError(
                f"{path} cannot be used: {shown(name)} has {int(bad.sum())} values that are NaN or infinite; "
                f"the agent had diverged, or the file was tampered with"
            )


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
    env = agent.config.env.id
    place = env if is_importable(env) else model_card.CUSTOM
    message = message or f"{agent.config.phase} in {place}, {agent.steps} steps"
    with tempfile.TemporaryDirectory() as scratch:
        about: dict[str, Any] = {"evaluation": evaluation, "license": license, "repo_id": repo_id}
        folder = save_pretrained(agent, Path(scratch) / "agent", **about)
        how: dict[str, Any] = {"private": private, "message": message, "revision": revision, "token": token}
        return hub.publish(folder, repo_id, [CONFIG, WEIGHTS, CARD], **how)
