"""A rough count of the operations of an update, from the config, without building any network."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

from voidrl.agent.agent import Agent
from voidrl.config import Config, EncoderConfig, registry
from voidrl.nets.augment import network_spec
from voidrl.nets.encoder import IMPALA_CHANNELS, STACKS
from voidrl.system.threads import cpu_threads
from voidrl.types import EnvSpec

GIGA = 1e9
# Passes of one batch through a network, a backward pass counting twice.
ENCODER_PASSES = 5  # s forward and backward, s' by the online and by the target network
FROZEN_PASSES = 3  # of a frozen encoder alongside: only forward
Q_PASSES = 5  # of the critic of discrete actions, as for the encoder
ACTOR_CRITIC_PASSES = 18  # two critics and their targets, a second time for the actor, and the actor
REPRESENTATION_PASSES = 6  # two views or two states of each sample, forward and backward


def update_gflop(spec: EnvSpec, config: Config) -> float:
    """Billions of floating-point operations of one update; right within a factor of about two."""
    learner, f = config.learner, config.representation
    batch = learner.batch_size * learner.views
    if learner.on_policy:  # a gradient step on a whole rollout; there is no target network
        batch = learner.rollout_steps * config.env.num_envs  # type: ignore[attr-defined]
    seen = network_spec(spec, config.augment).obs_shape
    passes = ACTOR_CRITIC_PASSES
    if spec.discrete:
        passes = Q_PASSES * (2 if getattr(learner, "dueling", False) else 1)
    features = learner.encoder.feature_dim or learner.hidden_dim
    head = 2 * learner.hidden_dim * (features + learner.hidden_dim * (learner.hidden_layers - 1))
    total = float(batch * passes * head)
    cls = registry.find("representation", f.name)
    own = 0.0 if f.name in ("identity", "learner") else encoder_flop(seen, f.encoder)
    shared = config.share_encoder == "all"
    acts = own if shared else encoder_flop(seen, learner.encoder)
    total += batch * ENCODER_PASSES * acts
    if config.effective.frozen_column != "none":
        total += batch * FROZEN_PASSES * (acts if config.finetune.frozen_column == "learner" else own)
    if cls.has_loss and (config.effective.uses_method or f.auxiliary):
        total += (f.batch_size or batch) * REPRESENTATION_PASSES * own
    if config.effective.uses_method:  # the states that are rewarded
        total += batch * own * (learner.n_step if learner.intrinsic_n_step == "summed" else 1)
    return total / GIGA


def acting_gflop(spec: EnvSpec, config: Config, num_envs: int) -> float:
    """Billions of operations to choose one action in each environment."""
    learner = config.learner
    own = config.representation.encoder if config.share_encoder == "all" else learner.encoder
    flop = encoder_flop(network_spec(spec, config.augment).obs_shape, own)
    if config.effective.frozen_column != "none":
        flop *= 2
    head = 2 * learner.hidden_dim * (own.feature_dim + learner.hidden_dim * (learner.hidden_layers - 1))
    return num_envs * (flop + 2 * head) / GIGA


def acting_threads(agent: Agent, num_envs: int) -> AbstractContextManager[None]:
    """A suitable number of CPU threads for an agent that acts and does not learn."""
    gflop = acting_gflop(agent.spec, agent.config, num_envs)
    return cpu_threads(agent.device, gflop, fixed=agent.config.cpu_threads)


def encoder_flop(shape: tuple[int, ...], config: EncoderConfig) -> float:
    """Operations of one observation's forward pass; a custom network counts as `nature`."""
    if len(shape) != 3:
        width = config.hidden_dim or config.feature_dim
        return 2.0 * (math.prod(shape) * width + (config.hidden_dim and width * config.feature_dim))
    flop, (channels, *size) = 0.0, shape
    if config.stack == "impala":
        for out in (max(1, round(c * config.width)) for c in IMPALA_CHANNELS):
            flop += 2 * 9 * math.prod(size) * channels * out
            size = [math.ceil(side / 2) for side in size]
            flop += 4 * 2 * 9 * math.prod(size) * out * out
            channels = out
    else:
        for out, kernel, stride in STACKS.get(config.stack, STACKS["nature"]):
            out = max(1, round(out * config.width))
            size = [max(1, (side - kernel) // stride + 1) for side in size]
            flop += 2 * kernel**2 * math.prod(size) * channels * out
            channels = out
    flat = channels * math.prod(size)
    width = config.hidden_dim or config.feature_dim
    return flop + 2.0 * (flat * width + (config.hidden_dim and width * config.feature_dim))
