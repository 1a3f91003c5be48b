"""Who trains the encoder f: which losses reach it in a phase, and which combinations cannot work."""

from __future__ import annotations

from typing import NamedTuple

from voidrl.config import Config, SkillConfig
from voidrl.errors import ConfigError
from voidrl.learners.base import Learner
from voidrl.methods.base import Method
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec

COMPARED_STACK = ("stack", "activation", "width", "spectral_norm_iterations")


class Pieces(NamedTuple):
    """The classes that make up an agent."""

    representation: type[Representation]
    method: type[Method]
    learner: type[Learner]


def is_shared(config: Config, representation: type[Representation]) -> bool:
    """Whether f, or its stack, is a part of the learner's encoder."""
    return representation.uses_learner_encoder or config.share_encoder != "nothing"


def encoder_trainers(config: Config, pieces: Pieces) -> frozenset[str]:
    """Whose losses train f in this phase: any of `representation`, `method`, `learner`."""
    representation = pieces.representation
    shared = is_shared(config, representation)
    if config.phase != "pretrain":
        frozen = config.phase == "finetune" and config.finetune.encoder_learning_rate == 0
        trainers = {"learner"} if shared and not frozen else set()
        return frozenset(trainers | ({"representation"} if trains_representation(config, pieces) else set()))
    if config.encoder_trainers:
        return frozenset(config.encoder_trainers)
    if not representation.has_loss:
        return frozenset({"learner"} if shared else ())
    joined = shared and config.representation.auxiliary
    return frozenset({"representation", "learner"} if joined else {"representation"})


def trains_representation(config: Config, pieces: Pieces) -> bool:
    """Whether the representation's loss is minimized in this phase."""
    if not pieces.representation.has_loss:
        return False
    if config.phase != "pretrain":
        return config.representation.auxiliary
    return pieces.method.reads_latents or is_shared(config, pieces.representation)


def check_combination(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    """Refuse pieces and fields that cannot work together, with a combination that does."""
    _check_learner(spec, config, pieces)
    _check_rollouts(config, pieces)
    _check_sharing(spec, config, pieces)
    _check_trainers(config, pieces)
    _check_skills(config, pieces)
    if config.phase == "pretrain":
        pieces.method.check(spec, config)


def _check_learner(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    if pieces.learner.actions not in ("both", "discrete" if spec.discrete else "continuous"):
        remedy = "dqn" if spec.discrete else "sac or ddpg"
        raise ConfigError(
            f"learner {config.learner.name!r} takes {pieces.learner.actions} actions and the environment has "
            f"{spec.describe()}: use {remedy}"
        )


def _check_rollouts(config: Config, pieces: Pieces) -> None:
    """Refuse what an on-policy learner cannot use, and a method without the learner that serves it."""
    name, method = config.learner.name, config.method.name
    if config.phase == "pretrain" and pieces.method.learner not in ("", name):
        raise ConfigError(
            f"method {method!r} cannot be used with learner {name!r}: it has no reward, and its own learner "
            f"{pieces.method.learner!r} follows the gradient of what it maximizes; leave the learner out"
        )
    if not config.learner.on_policy:
        return
    if config.phase == "pretrain" and pieces.method.learner != name:
        raise ConfigError(
            f"learner {name!r} cannot be used with method {method!r}, whose rewards need a learner that "
            f"samples the replay: use dqn or sac, or method 'mepol'"
        )
    if isinstance(config.method, SkillConfig):
        raise ConfigError(f"learner {name!r} cannot be used with method {method!r}: it follows no skills")
    steps, envs, capacity = config.learner.rollout_steps, config.env.num_envs, config.replay.capacity_steps  # type: ignore[attr-defined]
    needed = 2 * steps * envs
    if capacity < needed:
        raise ConfigError(
            f"replay.capacity_steps = {capacity} cannot be used with learner.rollout_steps = {steps} and "
            f"env.num_envs = {envs}: a rollout and its resets must fit; use {needed} or more, or shorter "
            f"rollouts"
        )
    refused = {
        "replay.priority_exponent": config.replay.priority_exponent,
        "reset.every_updates": config.reset.every_updates,
        "finetune.explorer": config.finetune.explorer if config.phase == "finetune" else 0,
    }
    for field, value in refused.items():
        if value:
            raise ConfigError(
                f"{field} = {value} cannot be used with learner {name!r}, which learns from each step of its "
                f"own policy once: use 0"
            )


def _check_sharing(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    name, share = config.representation.name, config.share_encoder
    if pieces.representation.uses_learner_encoder:
        if share == "stack":
            raise ConfigError(
                f"share_encoder = 'stack' cannot be used with representation {name!r}, which uses the "
                f"learner's encoder as a whole: use 'nothing'"
            )
    elif share == "stack":
        if not spec.pixels:
            raise ConfigError(
                f"share_encoder = 'stack' cannot be used with {spec.describe()}: vectors pass no "
                f"convolutions that could be shared; use 'nothing' or 'all'"
            )
        custom = ":" in config.learner.encoder.stack  # whose layers are its own
        for field in COMPARED_STACK[: 1 if custom else None]:
            mine = getattr(config.representation.encoder, field)
            other = getattr(config.learner.encoder, field)
            if mine != other:
                raise ConfigError(
                    f"share_encoder = 'stack' cannot be used with representation.encoder.{field} = {mine!r} "
                    f"and learner.encoder.{field} = {other!r}: expected the same for both; set "
                    f"representation.encoder.{field} = {other!r}"
                )
    if pieces.representation.reads_files and config.phase == "train" and share == "nothing":
        raise ConfigError(
            f"representation {name!r} cannot be used with share_encoder = 'nothing' in phase 'train': the "
            f"learner would not read it; use share_encoder = 'all'"
        )
    unread = config.phase != "pretrain" and not is_shared(config, pieces.representation)
    if unread and trains_representation(config, pieces):
        raise ConfigError(
            f"representation.auxiliary = True cannot be used with representation {name!r} and share_encoder "
            f"= 'nothing' in phase {config.phase!r}: its loss would train an encoder that nothing reads; use "
            f"share_encoder = 'stack' or 'all' from pre-training on, or representation.auxiliary = False"
        )


def _check_trainers(config: Config, pieces: Pieces) -> None:
    name = config.representation.name
    given = config.encoder_trainers if config.phase == "pretrain" else ()
    if "representation" in given and not pieces.representation.has_loss:
        raise ConfigError(
            f"encoder_trainers = {given} cannot be used with representation {name!r}, which has no loss: "
            f"leave out 'representation', or use simclr, icm, curl or spr"
        )
    if "representation" in given and not trains_representation(config, pieces):
        raise ConfigError(
            f"encoder_trainers = {given} cannot be used with method {config.method.name!r}, which does not "
            f"read f, and share_encoder = 'nothing': the loss of representation {name!r} would serve "
            f"nothing; leave encoder_trainers out, or use share_encoder = 'all'"
        )
    if "learner" in given and not is_shared(config, pieces.representation):
        raise ConfigError(
            f"encoder_trainers = {given} cannot be used with share_encoder = 'nothing': the learner cannot "
            f"train an encoder that it does not use; leave out 'learner', or use share_encoder = 'all'"
        )
    if "method" in given and not pieces.method.can_train_encoder:
        raise ConfigError(
            f"encoder_trainers = {given} cannot be used with method {config.method.name!r}, whose losses do "
            f"not reach f: leave out 'method', or use diayn"
        )
    frozen = config.phase == "finetune" and config.finetune.encoder_learning_rate == 0
    if frozen and trains_representation(config, pieces):
        raise ConfigError(
            f"finetune.encoder_learning_rate = 0 cannot be used with representation.auxiliary = True: the "
            f"loss of representation {name!r} would train a frozen encoder; set representation.auxiliary = "
            f"False"
        )


def _check_skills(config: Config, pieces: Pieces) -> None:
    if not isinstance(config.method, SkillConfig) or config.phase == "train":
        return
    name, period, n = config.method.name, config.method.skill_every_steps, config.learner.longest_n_step
    if 0 < period < n:
        field = "n_step" if n == config.learner.n_step else "n_step_end"
        raise ConfigError(
            f"method.skill_every_steps = {period} cannot be used with learner.{field} = {n}: a return "
            f"must not be longer than the skill that earns it; use {n} or more, or a smaller {field}"
        )
    tuning = config.finetune
    if tuning.warmup_actions == "random" and not pieces.method.regresses_skill:
        raise ConfigError(
            f"finetune.warmup_actions = 'random' cannot be used with method {name!r}: the warm-up follows "
            f"the skills from which one is chosen for the task, which takes the policy; use 'policy'"
        )
