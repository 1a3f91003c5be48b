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
Q_PASSES = 5  # of the critic of discrete actions, as for the encoder
ACTOR_CRITIC_PASSES = 18  # two critics and their targets, a second time for the actor, and the actor
REPRESENTATION_PASSES = 6  # two views or two states of each sample, forward and backward


def update_gflop(spec: EnvSpec, config: Config) -> float:
    """Billions of floating-point operations of one update; right within a factor of about two."""
    learner, f, phase = config.learner, config.representation, config.effective
    batch = learner.batch_size * learner.views
    if learner.on_policy:  # a gradient step on a whole rollout
        batch = learner.rollout_steps * config.env.num_envs  # type: ignore[attr-defined]
    seen = network_spec(spec, config.augment).obs_shape
    own = 0.0 if f.name in ("identity", "learner") else encoder_flop(seen, f.encoder)
    acts = own if config.share_encoder == "all" else encoder_flop(seen, learner.encoder)
    passes = Q_PASSES * (1 + getattr(learner, "dueling", False)) if spec.discrete else ACTOR_CRITIC_PASSES
    total = batch * (passes * _head_flop(config) + ENCODER_PASSES * acts)
    if registry.find("representation", f.name).has_loss and (phase.uses_method or f.auxiliary):
        total += (f.batch_size or batch) * REPRESENTATION_PASSES * own
    if phase.uses_method:  # the states that are rewarded
        total += batch * own * (learner.n_step if learner.intrinsic_n_step == "summed" else 1)
    return total / GIGA


def acting_threads(agent: Agent, num_envs: int) -> AbstractContextManager[None]:
    """A suitable number of CPU threads for an agent that acts and does not learn."""
    config = agent.config
    own = config.representation.encoder if config.share_encoder == "all" else config.learner.encoder
    flop = encoder_flop(network_spec(agent.spec, config.augment).obs_shape, own) + 2 * _head_flop(config)
    return cpu_threads(agent.device, num_envs * flop / GIGA, fixed=config.cpu_threads)


def _head_flop(config: Config) -> float:
    """Operations of one pass of a head."""
    learner = config.learner
    features = learner.encoder.feature_dim or learner.hidden_dim
    return 2.0 * learner.hidden_dim * (features + learner.hidden_dim * (learner.hidden_layers - 1))


def encoder_flop(shape: tuple[int, ...], config: EncoderConfig) -> float:
    """Operations of one observation's forward pass; a custom network counts as `nature`."""
    flop, flat = 0.0, math.prod(shape)
    if len(shape) == 3:
        channels, *size = shape
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
