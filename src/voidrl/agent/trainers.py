"""Who trains the encoder f: which losses reach it in a phase, and which combinations cannot work."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from voidrl import ranks
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


def has_frozen_column(config: Config) -> bool:
    """Whether this phase keeps a pre-trained encoder next to a new one."""
    return config.phase == "finetune" and config.finetune.frozen_column != "none"


def encoder_trainers(config: Config, pieces: Pieces) -> frozenset[str]:
    """Whose losses train f in this phase: any of `representation`, `method`, `learner`."""
    representation = pieces.representation
    shared = is_shared(config, representation)
    if has_frozen_column(config):  # f stays as it is, shared or not
        return frozenset()
    if config.phase == "pretrain":
        return _method_trainers(config, representation)
    trainers: set[str] = set()
    if not (shared and is_frozen(config)):
        # A task's learner trains the encoder that it acts with, with a bonus as without one.
        trainers |= {"learner"} if shared else set()
        trainers |= _method_trainers(config, representation) if config.effective.has_bonus else set()
    if config.representation.auxiliary:
        trainers.add("representation")
    return frozenset(trainers if trains_representation(config, pieces) else trainers - {"representation"})


def _method_trainers(config: Config, representation: type[Representation]) -> frozenset[str]:
    """Whose losses make f what the method reads."""
    shared = is_shared(config, representation)
    if config.encoder_trainers:
        return frozenset(config.encoder_trainers)
    if not representation.has_loss:
        return frozenset({"learner"} if shared else ())
    joined = shared and config.representation.auxiliary
    return frozenset({"representation", "learner"} if joined else {"representation"})


def is_frozen(config: Config) -> bool:
    """Whether fine-tuning keeps the learner's encoder as it was pre-trained."""
    return config.phase == "finetune" and config.finetune.encoder_learning_rate == 0


def trains_representation(config: Config, pieces: Pieces) -> bool:
    """Whether the representation's loss is minimized in this phase."""
    if not pieces.representation.has_loss:
        return False
    shared = is_shared(config, pieces.representation)
    if config.phase == "pretrain":
        return pieces.method.uses_latents(config) or shared
    kept = has_frozen_column(config) or (shared and is_frozen(config))
    read = config.effective.has_bonus and pieces.method.uses_latents(config) and not kept
    return config.representation.auxiliary or read


def check_combination(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    """Refuse pieces and fields that cannot work together, with a combination that does."""
    _check_learner(spec, config, pieces)
    _check_bonus(config, pieces)  # before the rollouts: a method that brings its own learner is no bonus
    _check_rollouts(config, pieces)
    _check_sharing(spec, config, pieces)
    _check_trainers(config, pieces)
    _check_skills(config, pieces)
    if config.effective.uses_method:
        pieces.method.check(spec, config)
    check_ranks(config, pieces, ranks.current().size)


def check_ranks(config: Config, pieces: Pieces, size: int) -> None:
    """Refuse what `size` processes cannot train together, with something that they can."""
    if size == 1:
        return
    used = {
        "method": config.effective.uses_method,
        "representation": config.effective.uses_method or trains_representation(config, pieces),
        "learner": True,
    }
    for kind, is_used in used.items():
        if is_used and not getattr(pieces, kind).splits_over_ranks:
            name = getattr(config, kind).name
            custom = f", or set splits_over_ranks = True in {name} if it may" if ":" in name else ""
            instead = {"method": "apt or rnd", "representation": "simclr", "learner": "dqn, sac or ddpg"}[
                kind
            ]
            raise ConfigError(
                f"{kind} {name!r} cannot be used on {size} ranks: what it keeps of the states that it has "
                f"seen would differ between them; use 1 rank, or a {kind} such as {instead}{custom}"
            )
    batches = {"learner.batch_size": config.learner.batch_size}
    if trains_representation(config, pieces):
        batches["representation.batch_size"] = config.representation.batch_size
    for field, batch_size in batches.items():
        if batch_size % size:
            nearest = max(1, batch_size // size) * size
            raise ConfigError(
                f"{field} = {batch_size} cannot be used on {size} ranks: expected a multiple of {size}, "
                f"since each takes the same part of the batch; use {nearest}"
            )
    if config.phase == "finetune" and isinstance(config.method, SkillConfig):
        raise ConfigError(
            f"an agent of method {config.method.name!r} cannot be fine-tuned on {size} ranks: its skill for "
            f"the task is chosen from what one process has earned in the warm-up; use 1 rank"
        )
    pool, k = getattr(config.method, "pool", None), getattr(config.method, "k", 0)
    share, itself = config.learner.batch_size // size, bool(getattr(config.method, "include_self", False))
    if config.effective.uses_method and pool == 0 and k - itself > share - 1:
        raise ConfigError(
            f"method.k = {k} cannot be used with learner.batch_size = {config.learner.batch_size} on {size} "
            f"ranks and method.pool = 0: a state has the {share - 1} others of its rank's part to search; "
            f"use method.pool = 'all_ranks', or a larger batch"
        )


def check_vector_rewards(config: Config, method: Method, learner: type[Learner], critic: object) -> None:
    """Refuse vector rewards where they cannot be learned from; `critic` is the method's."""
    if config.phase != "pretrain" or not method.reward_dim:
        return
    name, dim = config.method.name, method.reward_dim
    if dim != method.skill_dim:
        raise ConfigError(
            f"method {name!r} has rewards of {dim} numbers and skills of {method.skill_dim}: expected the "
            f"same width, since skills weigh the components; set reward_dim = skill_dim, or 0 for scalars"
        )
    if not learner.takes_vector_rewards:
        raise ConfigError(
            f"learner {config.learner.name!r} cannot be used with method {name!r}, whose rewards are vectors "
            f"of {dim} numbers: expected a learner that takes them; use dqn"
        )
    if not (isinstance(critic, nn.Module) and hasattr(critic, "successor")):
        raise ConfigError(
            f"method {name!r} has rewards of {dim} numbers and no critic with `successor`: return one from "
            f"make_critic, such as voidrl.nets.successor_critic(…), or use reward_dim = 0"
        )
    if config.intrinsic_normalization == "standardize":
        raise ConfigError(
            f"intrinsic_normalization = 'standardize' cannot be used with method {name!r}, whose rewards are "
            f"vectors of {dim} numbers: there is no one mean to subtract; use 'scale' or 'none'"
        )


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
    if config.replay.data is not None and not trains_representation(config, pieces):
        raise ConfigError(
            f"replay.data = {config.replay.data!r} cannot be used with learner {name!r}, which learns from "
            f"rollouts of its own policy alone, and representation {config.representation.name!r}, which is "
            f"not trained: leave it out, or use a representation with a loss such as simclr"
        )
    refused = {
        "replay.priority_exponent": config.replay.priority_exponent,
        "reset.every_updates": config.reset.every_updates,
        "finetune.explorer": config.finetune.explorer if config.phase == "finetune" else 0,
        "bonus.coefficient": config.bonus.coefficient if config.effective.has_bonus else 0,
    }
    for field, value in refused.items():
        if value:
            raise ConfigError(
                f"{field} = {value} cannot be used with learner {name!r}, which learns from each step of its "
                f"own policy once: use 0, or a learner that samples the replay, such as dqn or sac"
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
    read = config.effective.has_bonus and pieces.method.uses_latents(config)
    if pieces.representation.reads_files and config.phase == "train" and share == "nothing" and not read:
        raise ConfigError(
            f"representation {name!r} cannot be used with share_encoder = 'nothing' in phase 'train': the "
            f"learner would not read it; use share_encoder = 'all'"
        )
    unread = config.phase != "pretrain" and not is_shared(config, pieces.representation) and not read
    if unread and trains_representation(config, pieces):
        raise ConfigError(
            f"representation.auxiliary = True cannot be used with representation {name!r} and share_encoder "
            f"= 'nothing' in phase {config.phase!r}: its loss would train an encoder that nothing reads; use "
            f"share_encoder = 'stack' or 'all' from pre-training on, or representation.auxiliary = False"
        )


def _check_trainers(config: Config, pieces: Pieces) -> None:
    name = config.representation.name
    frozen = is_frozen(config)
    trains_f = config.effective.uses_method and not frozen and not has_frozen_column(config)
    given = config.encoder_trainers if trains_f else ()
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
    if frozen and config.representation.auxiliary and pieces.representation.has_loss:
        raise ConfigError(
            f"finetune.encoder_learning_rate = 0 cannot be used with representation.auxiliary = True: the "
            f"loss of representation {name!r} would train a frozen encoder; set representation.auxiliary = "
            f"False"
        )
    if has_frozen_column(config) and trains_representation(config, pieces):
        raise ConfigError(
            f"finetune.frozen_column = {config.finetune.frozen_column!r} cannot be used with "
            f"representation.auxiliary = True: f stays as it was pre-trained, and the loss of representation "
            f"{name!r} would train it; set representation.auxiliary = False"
        )


def _check_bonus(config: Config, pieces: Pieces) -> None:
    if not config.effective.has_bonus:
        return
    name, coefficient = config.method.name, config.bonus.coefficient
    if not pieces.method.learns or pieces.method.learner:
        raise ConfigError(
            f"method {name!r} cannot be used as a bonus (bonus.coefficient = {coefficient:g}): it has no "
            f"reward of a transition that could be added to the task's; use apt or rnd"
        )
    if config.phase == "finetune" and isinstance(config.method, SkillConfig):
        raise ConfigError(
            f"bonus.coefficient = {coefficient:g} cannot be used while fine-tuning an agent of method "
            f"{name!r}: its reward tells skills apart, and fine-tuning follows the one that was chosen for "
            f"the task; use 0, or an agent of a method without skills such as apt"
        )


def _check_skills(config: Config, pieces: Pieces) -> None:
    if not isinstance(config.method, SkillConfig) or not (
        config.effective.uses_method or config.phase == "finetune"
    ):
        return
    name, period, n = config.method.name, config.method.skill_every_steps, config.learner.longest_n_step
    if 0 < period < n:
        field = "n_step" if n == config.learner.n_step else "n_step_end"
        raise ConfigError(
            f"method.skill_every_steps = {period} cannot be used with learner.{field} = {n}: a return "
            f"must not be longer than the skill that earns it; use {n} or more, or a smaller {field}"
        )
    tuning = config.finetune
    if config.phase != "train" and tuning.warmup_actions == "random" and not pieces.method.regresses_skill:
        raise ConfigError(
            f"finetune.warmup_actions = 'random' cannot be used with method {name!r}: the warm-up follows "
            f"the skills from which one is chosen for the task, which takes the policy; use 'policy'"
        )
