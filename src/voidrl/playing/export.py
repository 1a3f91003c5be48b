"""The deterministic policy of an agent as an ONNX file.

A policy maps observations as networks take them, stacked frames (B, *obs_shape) in uint8 or float32, to the
agent's actions: indices (B,) or numbers in [−1, 1], (B, action_dim). Weights and metadata are in the file.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from voidrl import __version__
from voidrl.agent import Agent
from voidrl.config import to_json, without_local_fields
from voidrl.errors import ConfigError, MissingExtraError, by_caller
from voidrl.learners.base import Learner
from voidrl.nets.augment import images
from voidrl.nets.layers import FullPrecisionLinear
from voidrl.nets.noisy import NoisyLinear
from voidrl.nets.observations import pack_input
from voidrl.system.files import user_path

METADATA = "voidrl"  # its key in the metadata of the model
TRACED_BATCH = 2  # the least that torch does not take for a constant


def export_policy(agent: Agent, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the deterministic policy of an agent as an ONNX file (extra `onnx`), and return its path.

    The policy's inputs are `obs`, `values` (the numbers that come with images, stacked like these) and
    `skill`, the last two only where there are any; its output is `action`. The metadata says what an action
    means to the environment, and which skill the task has chosen.

    Args:
        agent: The agent.
        path: The file, by convention `….onnx`.
        overwrite: Replace the file.
    """
    target = user_path(path)
    require_free(target, overwrite)
    if not agent.learns:
        raise ConfigError(
            f"an agent of method {agent.config.method.name!r} cannot be exported: it learned no policy"
        )
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise MissingExtraError(missing[0], "onnx", "export to ONNX")
    temporary = target.with_name(f".tmp-{os.getpid()}-{target.name}")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own, about its code
            _write_onnx(Policy(agent), temporary, json.dumps(policy_metadata(agent)))
        temporary.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def require_free(target: Path, overwrite: bool) -> None:
    """Refuse a file that exists, and one in a folder that does not."""
    if target.exists() and not overwrite:
        force = by_caller("overwrite=True", "--force")
        raise ConfigError(f"{target} exists already: choose another name, or replace it with {force}")
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError(f"{target} cannot be written: expected a file in a folder that exists")


def policy_metadata(agent: Agent) -> dict[str, Any]:
    """Metadata for a player of the policy: how observations are made and actions are scaled."""
    spec = agent.spec
    action: dict[str, Any] = {"kind": "continuous", "shape": list(spec.action_shape)}
    if spec.discrete:
        action |= {"kind": "discrete", "n": spec.num_actions}
    if spec.action_sizes:
        action |= {"sizes": list(spec.action_sizes), "start": list(spec.action_start)}
        counted = "combinations of choices, the last component fastest"
        signs = "a number for each choice, of which the largest is taken; one alone, by its sign, for two"
        action["meaning"] = counted if spec.discrete else signs
    elif not spec.discrete:
        action |= {"low": list(spec.action_low), "high": list(spec.action_high)}
        rounded = ", rounded" if spec.action_integer else ""
        action["meaning"] = f"low + (action + 1) / 2 * (high - low){rounded}"
    if spec.masked:
        action["mask"] = "1 for allowed and 0 for other actions, at the end of the numbers of each frame"
    inputs = {
        name: {"dtype": str(each.dtype).removeprefix("torch."), "shape": ["batch", *each.shape[1:]]}
        for name, each in example_inputs(agent).items()
    }
    return {
        "voidrl": __version__,
        "environment": agent.config.env.id,
        "steps": agent.steps,
        "inputs": inputs,
        "stacking": "the last frame_stack frames along the first axis, oldest first; an episode begins with "
        "its first frame repeated",
        "normalization": "inside of the policy",
        "action": action,
        "skill": agent.task_skill.tolist(),
        "spec": spec.to_json(),
        "config": to_json(without_local_fields(agent.config)),
    }


def example_inputs(agent: Agent, batch: int = TRACED_BATCH) -> dict[str, Tensor]:
    """Inputs of the policy by name: stacked frames, the numbers that come with images, and skills."""
    spec, skill_dim = agent.spec, agent.method.skill_dim
    inputs = {"obs": torch.zeros(batch, *spec.obs_shape, dtype=torch.uint8 if spec.pixels else torch.float32)}
    if spec.num_values:
        inputs["values"] = torch.zeros(batch, spec.num_values * spec.frame_stack)
    return inputs | ({"skill": torch.zeros(batch, skill_dim)} if skill_dim else {})


class Policy(nn.Module):
    """Only the deterministic policy, on the CPU and without noise; the agent is not changed."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.inputs = example_inputs(agent)
        self.learner: Learner = copy.deepcopy(agent.learner).cpu().float().eval().requires_grad_(False)
        for module in [*self.learner.modules()]:
            for name, child in module.named_children():
                if isinstance(child, NoisyLinear):
                    setattr(module, name, _without_noise(child))

    def forward(self, obs: Tensor, values: Tensor | None = None, skill: Tensor | None = None) -> Tensor:
        """(B, *obs_shape), (B, numbers), (B, skill_dim) → (B,) or (B, action_dim)."""
        if skill is None:
            skill = obs.flatten(1)[:, :0].float()  # len(obs) would fix the size of batches
        if values is not None:  # not as the replay packs them, into bytes: ONNX cannot read floats from these
            obs = pack_input(images(obs, size=self.learner.encoder.image_size), values)
        return self.learner.act(obs, skill, deterministic=True)


def _without_noise(layer: NoisyLinear) -> nn.Linear:
    """The layer with only μ as its weights."""
    outputs, inputs = layer.weight.shape
    plain = FullPrecisionLinear(inputs, outputs)
    plain.weight, plain.bias = layer.weight, layer.bias
    return plain


def _write_onnx(policy: Policy, path: Path, metadata: str) -> None:
    """Write the policy for batches of any size."""
    batch, logger = torch.export.Dim("batch", min=1), logging.getLogger("torch.onnx")
    shapes, level = {name: {0: batch} for name in policy.inputs}, logger.level
    try:
        program = torch.export.export(policy, (), policy.inputs, dynamic_shapes=shapes)
    except Exception as error:  # any untraceable operation of a custom piece
        raise ConfigError(
            f"the policy cannot be exported ({type(error).__name__}: {str(error).splitlines()[0]}): "
            f"expected a learner and an encoder that torch.export can trace"
        ) from error
    how: dict[str, Any] = {"input_names": [*policy.inputs], "output_names": ["action"]}
    logger.setLevel(logging.ERROR)
    try:
        made: Any = torch.onnx.export(program, (), dynamo=True, verbose=False, **how)
    finally:
        logger.setLevel(level)
    made.model.metadata_props[METADATA] = metadata
    made.model.producer_name, made.model.producer_version = "voidrl", __version__
    made.save(path, external_data=False)
