"""Decides what the encoders share, and which losses train them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from voidrl.config import Config, registry
from voidrl.learners.base import Learner
from voidrl.methods.base import Method
from voidrl.nets import Encoder
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent


class Pieces(NamedTuple):
    """The classes that make up an agent."""

    representation: type[Representation]
    method: type[Method]
    learner: type[Learner]

    @classmethod
    def of(cls, config: Config) -> Pieces:
        """The classes that a config names."""
        return cls(*(registry.find(kind, getattr(config, kind).name) for kind in cls._fields))


class EncoderTraining(NamedTuple):
    """The decision for the representation's encoder, in the present phase."""

    trainers: frozenset[str]
    """Pieces whose losses reach it: any of `representation`, `method`, `learner`. Several are added up."""
    trains_representation: bool
    """Whether the representation's loss is minimized, be it for its heads only."""
    is_shared: bool
    """Whether the encoder, or its stack, is a part of the learner's."""


def decide(config: Config, pieces: Pieces) -> EncoderTraining:
    """Decide whose losses train the encoder."""
    phase, representation = config.effective, pieces.representation
    auxiliary = config.representation.auxiliary
    is_shared = representation.uses_learner_encoder or config.share_encoder != "nothing"
    is_frozen = is_shared and phase.encoder_is_frozen
    is_read = phase.uses_method and pieces.method.uses_latents(config)
    serves = is_read or is_shared if phase.pretrains else auxiliary or (is_read and not is_frozen)
    trains_representation = representation.has_loss and serves

    trainers: set[str] = set()
    if phase.uses_method and not is_frozen:
        trainers.update(config.encoder_trainers)
        if not trainers:
            trainers |= {"representation"} if representation.has_loss else set()
            trainers |= {"learner"} if is_shared and (auxiliary or not representation.has_loss) else set()
    if not phase.pretrains:  # the learner trains the encoder that it acts with, with a bonus as without one
        trainers |= {"learner"} if is_shared and not is_frozen else set()
        trainers |= {"representation"} if auxiliary else set()
    if not trains_representation:
        trainers.discard("representation")
    return EncoderTraining(frozenset(trainers), trains_representation, is_shared)


def make_encoders(spec: EnvSpec, config: Config, pieces: Pieces) -> tuple[Encoder | None, Encoder]:
    """The representation's encoder and the learner's, which share as much as `share_encoder` says."""
    if pieces.representation.uses_learner_encoder:
        acting = Encoder(spec, config.learner.encoder)
        return acting, acting
    encoder = pieces.representation.make_encoder(spec, config.representation)
    if encoder is not None and config.share_encoder == "all":
        return encoder, encoder
    stack_of = encoder if config.share_encoder == "stack" else None
    return encoder, Encoder(spec, config.learner.encoder, stack_of=stack_of)


def assign_gradients(agent: Agent) -> None:
    """Give gradients only to what this phase trains."""
    learner, encoder = agent.learner, agent.representation.encoder
    weights, whole = is_trainable(learner.encoder), encoder is learner.encoder
    if whole and weights is False:
        agent.encoder_trainers -= {"learner"}
    is_frozen = agent.effective.encoder_is_frozen
    learner.trains_encoder = (
        weights is not False and not is_frozen and ("learner" in agent.encoder_trainers or not whole)
    )
    shares_stack = isinstance(encoder, Encoder) and not whole and encoder.stack is learner.encoder.stack
    if shares_stack and agent.spec.pixels and "learner" not in agent.encoder_trainers:
        learner.frozen_parts = (learner.encoder.stack,)
    if is_frozen:
        learner.encoder.requires_grad_(False)
    if agent.effective.first_layer_learning_rate == 0:
        nn.ModuleList(learner.first_layers).requires_grad_(False)
    if agent.uses_method:
        return
    kept = {*agent.method.parameters()}  # what only pre-training used is kept as it is
    if not agent.trains_representation:
        kept.update(agent.representation.parameters())
    for parameter in kept.difference(learner.parameters()):
        parameter.requires_grad_(False)


def is_trainable(encoder: nn.Module | None) -> bool | None:
    """Whether any of its weights can learn; None for an encoder without weights."""
    weights = [] if encoder is None else list(encoder.parameters())
    return any(p.requires_grad for p in weights) if weights else None
