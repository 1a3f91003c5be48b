"""The weights of a saved agent: they must fit its config, before any memory is allocated, and be finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from voidrl.agent import Agent
from voidrl.agent.dry_build import dry_build
from voidrl.config import Config
from voidrl.errors import CheckpointError, shown
from voidrl.runs.tensor_files import TensorHeader, read_headers
from voidrl.types import EnvSpec


def require_fitting(path: Path, spec: EnvSpec, config: Config) -> None:
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


def require_finite(path: Path, tensors: Mapping[str, Tensor], agent: Agent) -> None:
    """Refuse NaN in any tensor and infinity in a weight; a buffer may hold it, as a running maximum does."""
    weights = dict(agent.named_parameters())
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or torch.isfinite(tensor).all():
            continue
        if name in weights or torch.isnan(tensor).any():
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"{path} cannot be used: {shown(name)} has {count} values that are NaN or infinite; the "
                f"agent had diverged, or the file was tampered with"
            )
