"""Loads an agent, wherever it is: a run, a checkpoint, a saved agent, or the Hub."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from voidrl.agent import Agent
from voidrl.config import Config
from voidrl.errors import CheckpointError, RunFolderError, by_caller
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.sharing import pretrained as share
from voidrl.sharing.hub import is_repo_id
from voidrl.system.device import placed
from voidrl.system.files import path_hint, user_path
from voidrl.system.threads import cpu_threads
from voidrl.training import build, starting
from voidrl.training.saved_run import spec_of


def load(source: str | Path, *, device: str = "auto", trust_code: bool = False, best: bool = False) -> Agent:
    """An agent from the folder of a run (its newest valid checkpoint), a checkpoint or a saved agent.

    Where there is no such folder, `user/name` is loaded from the Hugging Face Hub, with `trust_code` as in
    `from_pretrained`. `best` loads the best evaluated agent of a fine-tuning run instead of its last; that
    may be the pre-trained agent.
    """
    path = user_path(source)
    if best:
        root = RunFolder.open(path).best_path
        if not checkpoint.list_steps(root):
            raise CheckpointError(
                f"{path} has no best agent, only fine-tuning keeps one: leave out "
                f"{by_caller('best=True', '--best')} to use its last agent"
            )
        return _newest_agent(root, device)
    is_saved = share.is_pretrained(path) or (path / share.WEIGHTS).is_file()
    # A missing path can only mean a name on the Hub; a misspelled `runs/x` in `runs/` does not.
    on_hub = is_repo_id(source) and not Path(source).parent.exists()
    if not path.exists() and ((hint := path_hint(path)) or not on_hub):
        if re.search(r":|-v\d+", name := str(source)):
            begin = by_caller(f"voidrl.pretrain({name!r})", f"`voidrl pretrain {shlex.quote(name)}`")
            hint = f"; in an environment, begin with {begin}"
        raise RunFolderError(
            f"there is nothing at {path}: expected the folder of a run, a checkpoint or a saved agent, "
            f"or user/name on the Hugging Face Hub{hint}"
        )
    if is_saved or not path.exists():
        return share.from_pretrained(source, device=device, trust_code=trust_code)
    if (path / checkpoint.MANIFEST).is_file():
        return saved_agent(checkpoint.load(path), device)
    root = path if checkpoint.list_steps(path) else RunFolder.open(path).checkpoints_path
    if not checkpoint.list_steps(root):
        raise CheckpointError(f"the run {path} holds no checkpoint yet")
    return _newest_agent(root, device)


def _newest_agent(root: Path, device: str) -> Agent:
    agent: Agent = checkpoint.latest(root, starting.say_once, read=lambda saved: saved_agent(saved, device))
    return agent


def saved_agent(saved: checkpoint.Checkpoint, device: str) -> Agent:
    """The agent of a checkpoint."""
    spec, config = spec_of(saved), starting.config_of(saved)
    with placed(device, config.seed) as place, cpu_threads(place, 0.0):
        agent = Agent(spec, config, place)
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.steps, agent.origin = saved.count("agent_steps"), saved.path.absolute()
    return agent


def open_run(run: str | Path) -> tuple[RunFolder, Config]:
    """The folder of a run that is to be resumed, and the config that is written there."""
    if share.is_pretrained(user_path(run)):
        raise RunFolderError(
            f"{run} holds an agent without replay and optimizers, which cannot be resumed: adapt it "
            f"with `voidrl finetune`"
        )
    folder = RunFolder.open(run)
    checkpoint.require_readable(folder.checkpoints_path)
    return folder, build.config_from_json(checkpoint.read_json(folder.config_path, "the config of a run"))
