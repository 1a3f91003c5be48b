"""The parts of an agent: its encoders and its optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from voidrl.agent.encoder_training import Pieces
from voidrl.agent.optimizers import Optimizers, Part
from voidrl.config import Config, LearnerConfig, RepresentationConfig
from voidrl.errors import ConfigError
from voidrl.nets import Encoder
from voidrl.types import EnvSpec

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent

RESERVED_GROUPS = {"actor", "critic", "encoder", "policy", "representation", "temperature", "value"}
"""Names of optimizers of built-in learners and representations, whether this agent has them or not."""


def make_encoders(spec: EnvSpec, config: Config, pieces: Pieces) -> tuple[Encoder | None, Encoder]:
    """The representation's encoder and the learner's, which share as much as `share_encoder` says."""
    if pieces.representation.uses_learner_encoder:
        acting = Encoder(spec, config.learner.encoder)
        return acting, acting
    encoder = pieces.representation.make_encoder(spec, config.representation)
    if config.share_encoder == "nothing":
        return encoder, Encoder(spec, config.learner.encoder)
    assert encoder is not None
    if config.share_encoder == "all":
        return encoder, encoder
    return encoder, Encoder(spec, config.learner.encoder, stack_of=encoder)


def make_optimizers(agent: Agent, device: torch.device) -> Optimizers:
    """One Adam for each group of weights that a loss names."""
    biases = (p for name, p in agent.named_parameters() if name.endswith(".bias"))
    optimizers = Optimizers(device, biases)
    if not agent.learns:
        return optimizers
    config, rates, decay = agent.config, _part_rates(agent), agent.config.learner.weight_decay
    taken: set[int] = set()
    for name, group in agent.learner.groups().items():
        parameters = list(group)
        taken |= {id(p) for p in parameters}
        parts: dict[float, list[nn.Parameter]] = {}
        for parameter in parameters:
            parts.setdefault(rates(parameter), []).append(parameter)
        optimizers.add(
            name, [Part(part, rate) for rate, part in parts.items()], **_settings(config.learner, decay)
        )
    if agent.uses_method or agent.trains_representation:
        settings, rate = _settings(config.representation, decay), config.representation.learning_rate
        warmed_up = agent.representation_rate if config.representation.warmup_updates else rate
        own = [p for p in agent.representation.parameters() if id(p) not in taken]
        heads_only = agent.trains_representation and "representation" not in agent.encoder_trainers
        if heads_only and "method" in agent.encoder_trainers:  # which trains the encoder
            inner = agent.representation.encoder
            encoder = set() if inner is None else {id(p) for p in inner.parameters()}
            optimizers.add("encoder", [Part([p for p in own if id(p) in encoder], rate)], **settings)
            own = [p for p in own if id(p) not in encoder]
        optimizers.add("representation", [Part(own, warmed_up)], **settings)
    if agent.uses_method:
        groups = {name: list(group) for name, group in agent.method.groups().items()}
        _check_groups(agent, groups)
        agent.method_groups = frozenset(groups)
        for name, parameters in groups.items():
            own = [p for p in parameters if id(p) not in taken]
            optimizers.add(name, [Part(own, agent.method.learning_rate(name))])
    return optimizers


def _check_groups(agent: Agent, groups: dict[str, list[nn.Parameter]]) -> None:
    """Refuse groups of a method that would leave weights untrained, its own or those of others."""
    name = agent.config.method.name
    if taken := sorted((RESERVED_GROUPS | {*agent.learner.groups()}) & {*groups}):
        raise ConfigError(
            f"groups() of method {name!r} has {taken[0]!r}, which is reserved for other optimizers of the "
            f"agent: use another name, such as {'method_' + taken[0]!r}"
        )
    listed = [id(p) for parameters in groups.values() for p in parameters]
    others = {id(p) for piece in (agent.learner, agent.representation) for p in piece.parameters()}
    for weight, parameter in agent.method.named_parameters():
        count = listed.count(id(parameter))
        if count > 1 or (not count and parameter.requires_grad and id(parameter) not in others):
            there = f"in {count} groups" if count else "in no group"
            raise ConfigError(
                f"weight {weight} of method {name!r} is {there} of groups(): expected exactly one, whose "
                f"loss trains it, or requires_grad = False for weights that stay as they are"
            )


def _settings(piece: LearnerConfig | RepresentationConfig, weight_decay: float) -> dict[str, float]:
    return {"eps": piece.adam_eps, "max_grad_norm": piece.max_grad_norm, "weight_decay": weight_decay}


def _part_rates(agent: Agent) -> Callable[[nn.Parameter], float]:
    """The learning rate of each weight of the learner; those with rate 0 are frozen."""
    phase, special = agent.effective, dict[int, float]()
    parts = (
        (phase.encoder_learning_rate, [agent.learner.encoder]),
        (phase.first_layer_learning_rate, agent.learner.first_layers),
    )
    for rate, modules in parts:
        if rate is not None:
            for parameter in (p for module in modules for p in module.parameters()):
                special[id(parameter)] = rate
                if rate == 0:
                    parameter.requires_grad_(False)
    return lambda parameter: special.get(id(parameter), phase.learning_rate)
