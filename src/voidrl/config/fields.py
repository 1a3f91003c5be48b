"""Names, types and docs of config fields: those of the machine, and those that a resumed run may change."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from voidrl.config.pieces import PIECES

SET_BY_COMMAND = frozenset({"phase", "env.id", *(f"{kind}.name" for kind in PIECES)})  # no options
# Fields that belong to the machine and its user, not to the agent: shared agents have none of them.
LOCAL_FIELDS = (
    *("device", "cpu_threads", "engine", "env.backend", "env.timeout_s", "replay.data", "replay.device"),
    *("representation.weights", "log.keep_last", "log.keep_replay", "log.tensorboard", "log.wandb_project"),
)
# Fields of measuring and logging, which whoever runs a downloaded agent decides. `log.eval_epsilon` is not
# among them, since it belongs to the protocol of evaluations.
USER_FIELDS = (
    *("env.count_states", "log.log_every_steps", "log.eval_every_steps", "log.eval_episodes"),
    *("log.probe_every_steps", "log.checkpoint_every_steps", "log.snapshot_steps"),
)
# Fields that a run may change when it is resumed; "log." are all of that group. All others define the run.
RESUMABLE_FIELDS = (
    # How long, where and how it is computed.
    *("steps", "device", "cpu_threads", "engine", "precision", "replay.device"),
    # How environments are run.
    *("env.backend", "env.timeout_s", "env.check_bounds"),
    "log.",  # what is written, and when; checkpoints at other steps also cut episodes elsewhere
    # The remedies for a run that diverges.
    *("learner.learning_rate", "method.learning_rate", "representation.learning_rate"),
    *("finetune.learning_rate", "learner.max_grad_norm"),
)
# What other libraries call our fields.
OTHER_NAMES = {
    "lr": "learning_rate",
    "gamma": "discount",
    "tau": "target_tau",
    "n_envs": "num_envs",
    "n_steps": "n_step",
    "batch": "batch_size",
    "buffer_size": "capacity_steps",
    "total_timesteps": "steps",
    "timesteps": "steps",
    "learning_starts": "warmup_steps",
    "train_freq": "updates_per_step",
    "gradient_steps": "updates_per_step",
    "eval_freq": "eval_every_steps",
    "n_eval_episodes": "eval_episodes",
    "frame_skip": "action_repeat",
    "wandb": "wandb_project",
}


def to_json(config: object) -> Any:
    """Nested plain values; the inverse of `update` on a config of the same pieces."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return list(config) if isinstance(config, tuple) else config


def flat(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` → `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        inside = isinstance(value, Mapping)
        found |= flat(value, f"{path}{name}.") if inside else {f"{path}{name}": value}
    return found


def similar_fields(name: str, fields: Iterable[str]) -> list[str]:
    """Up to three dotted names that end like this one, or like its name in other libraries, learner first."""
    leaf = name.rpartition(".")[2]
    ends = {leaf, OTHER_NAMES.get(leaf, leaf)}
    found = [field for field in fields if field.rpartition(".")[2] in ends]
    return sorted(found, key=lambda field: (field.count("."), not field.startswith("learner.")))[:3]


def may_change(field: str, phase: str) -> bool:
    """Whether a run of this phase may be resumed with another value of a field."""
    if phase == "pretrain" and field.startswith(("finetune.", "bonus.", "reward_scale")):
        return True  # of later runs, which are not pre-training
    groups = tuple(name for name in RESUMABLE_FIELDS if name.endswith("."))
    return field in RESUMABLE_FIELDS or field.startswith(groups)


def bonus_method(config: Mapping[str, Any]) -> str:
    """The method whose reward a run adds to the task's, given its config as JSON; "" for none."""
    coefficient = config.get("bonus", {}).get("coefficient", 0)
    return str(config["method"]["name"]) if coefficient and config["phase"] != "pretrain" else ""


def bonus_suffix(config: Mapping[str, Any]) -> str:
    """The suffix that a bonus adds to the label of a run, given its config as JSON; "" without one."""
    method = bonus_method(config).rpartition(":")[2]
    return f" + {method if config['phase'] == 'train' else 'bonus'}" if method else ""


_read_types = functools.cache(typing.get_type_hints)


def field_types(cls: Any) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    return _read_types(cls)


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, and of those it derives from.

    It takes long, as whole files are parsed: only what prints the docs should ask.
    """
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        with suppress(OSError):  # a class typed into an interpreter has no source
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            for above, below in zip(tree.body, tree.body[1:], strict=False):
                match above, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    return found
