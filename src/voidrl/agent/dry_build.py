"""The agent of a config without its memory, on torch's meta device: names, shapes and types of tensors."""

from __future__ import annotations

import torch

from voidrl.agent.agent import Agent
from voidrl.config import Config
from voidrl.errors import ConfigError, VoidrlError
from voidrl.types import EnvSpec


def dry_build(spec: EnvSpec, config: Config) -> Agent | None:
    """Build an agent that takes neither memory nor time, whatever its sizes.

    None for custom code that cannot be built this way, since it reads values in its constructor.
    """
    try:
        with torch.device("meta") as meta:
            return Agent(spec, config, meta)
    except VoidrlError:
        raise
    except Exception as error:
        if has_custom_code(config):
            return None
        reason = str(error).partition("\n")[0]  # such as "Storage size calculation overflowed"
        raise ConfigError(f"an agent of this config cannot be built: {reason}") from error


def has_custom_code(config: Config) -> bool:
    """Whether a part of the agent is `module:Class`, rather than voidrl's own."""
    networks = config.representation, config.learner
    names = [config.method.name, *(name for piece in networks for name in (piece.name, piece.encoder.stack))]
    return any(":" in name for name in names)
