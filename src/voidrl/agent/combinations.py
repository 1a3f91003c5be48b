"""Combinations of pieces and fields that cannot work, in one table, each with a remedy.

Pieces declare what they need and offer as class attributes (`actions`, `has_loss`, `learner`, …), or refuse a
config themselves (`Method.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voidrl.agent.encoder_training import Pieces, decide
from voidrl.config import Config, SkillConfig
from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.types import EnvSpec

STACK_FIELDS = ("stack", "activation", "width", "spectral_norm_iterations")
Row = tuple[Any, str, str, str]
"""Condition, offending piece or field, what it conflicts with, and the reason with a remedy."""


def check_combination(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    """Refuse pieces and fields that cannot work together, with a combination that does."""
    rows = [*_piece_rows(spec, config, pieces), *_encoder_rows(spec, config, pieces)]
    if config.learner.on_policy:
        rows += _on_policy_rows(config, pieces)
    for is_there, what, other, why in rows:
        if is_there:
            raise ConfigError(f"{what} cannot be used with {other}: {why}")
    if config.effective.uses_method:
        pieces.method.check(spec, config)


def _name(config: Config, kind: str) -> str:
    return f"{kind} {getattr(config, kind).name!r}"


def _piece_rows(spec: EnvSpec, config: Config, pieces: Pieces) -> Iterator[Row]:
    """Method, learner, bonus and skills."""
    method, learner, phase = pieces.method, pieces.learner, config.effective
    own, acts = _name(config, "method"), _name(config, "learner")
    yield (
        learner.actions not in ("both", "discrete" if spec.discrete else "continuous"),
        *(acts, spec.describe()),
        f"it takes {learner.actions} actions; use {'dqn' if spec.discrete else 'sac or ddpg'}",
    )
    yield (
        phase.pretrains and method.learner not in ("", config.learner.name),
        *(own, acts),
        f"it has no reward, and its own learner {method.learner!r} follows the gradient of what it "
        f"maximizes; leave the learner out",
    )
    bonus, has_skills = f"bonus.coefficient = {config.bonus.coefficient:g}", _has_skills(config)
    yield (
        phase.has_bonus and (not method.learns or method.learner),
        *(own, bonus),
        "it has no reward of a transition that could be added to the task's; use apt or rnd",
    )
    yield (
        phase.has_bonus and phase.adapts and has_skills,
        *(bonus, f"an agent of {own} in fine-tuning"),
        "its reward tells skills apart, and fine-tuning follows the one that was chosen for the task; use 0, "
        "or an agent of a method without skills such as apt",
    )
    n, field = config.learner.longest_n_step, "n_step"
    if n != config.learner.n_step:
        field = "n_step_end"
    period = getattr(config.method, "skill_every_steps", 0)
    yield (
        (phase.uses_method or phase.adapts) and 0 < period < n,
        *(f"method.skill_every_steps = {period}", f"learner.{field} = {n}"),
        f"a return must not be longer than the skill that earns it; use {n} or more, or a smaller {field}",
    )
    at_random = phase.may_adapt and config.finetune.warmup_actions == "random"
    yield (
        has_skills and at_random and not method.regresses_skill,
        *("finetune.warmup_actions = 'random'", own),
        "the warm-up follows the skills from which one is chosen for the task, which takes the policy; use "
        "'policy'",
    )


def _encoder_rows(spec: EnvSpec, config: Config, pieces: Pieces) -> Iterator[Row]:
    """Encoders that are shared, kept or trained by several losses."""
    method, representation, phase = pieces.method, pieces.representation, config.effective
    training, share = decide(config, pieces), config.share_encoder
    own, f = _name(config, "method"), _name(config, "representation")
    yield (
        share == "stack" and representation.uses_learner_encoder,
        *("share_encoder = 'stack'", f, "it uses the learner's encoder as a whole; use 'nothing'"),
    )
    yield (
        share == "stack" and not spec.pixels,
        *("share_encoder = 'stack'", spec.describe()),
        "vectors pass no convolutions that could be shared; use 'nothing' or 'all'",
    )
    mine, other = config.representation.encoder, config.learner.encoder
    for field in STACK_FIELDS[: 1 if ":" in other.stack else None]:  # a custom stack has its own layers
        values = getattr(mine, field), getattr(other, field)
        yield (
            share == "stack" and values[0] != values[1],
            "share_encoder = 'stack'",
            f"representation.encoder.{field} = {values[0]!r} and learner.encoder.{field} = {values[1]!r}",
            f"expected the same for both; set representation.encoder.{field} = {values[1]!r}",
        )
    is_read = phase.has_bonus and method.uses_latents(config)
    yield (
        representation.reads_files and not phase.may_adapt and share == "nothing" and not is_read,
        *(f, "share_encoder = 'nothing' when training from scratch"),
        "the learner would not read it; use share_encoder = 'all'",
    )
    unread = phase.learns_task and not training.is_shared and not is_read
    yield (
        unread and training.trains_representation,
        *("representation.auxiliary = True", f"{f} and share_encoder = 'nothing'"),
        "its loss would train an encoder that nothing reads; use share_encoder = 'stack' or 'all' from "
        "pre-training on, or representation.auxiliary = False",
    )
    yield (
        phase.encoder_is_frozen and config.representation.auxiliary and representation.has_loss,
        *("finetune.encoder_learning_rate = 0", "representation.auxiliary = True"),
        f"the loss of {f} would train an encoder that stays as it was pre-trained; set "
        f"representation.auxiliary = False",
    )
    if phase.encoder_is_frozen or not phase.uses_method:
        return
    given, trainers = config.encoder_trainers, f"encoder_trainers = {config.encoder_trainers}"
    yield (
        "representation" in given and not representation.has_loss,
        *(trainers, f, "it has no loss; leave out 'representation', or use simclr, icm, curl or spr"),
    )
    yield (
        "representation" in given and not training.trains_representation,
        *(trainers, f"{own} and share_encoder = 'nothing'"),
        f"nothing reads {f}, so its loss would serve nothing; leave encoder_trainers out, or use "
        f"share_encoder = 'all'",
    )
    yield (
        "learner" in given and not training.is_shared,
        *(trainers, "share_encoder = 'nothing'"),
        "the learner cannot train an encoder that it does not use; leave out 'learner', or use "
        "share_encoder = 'all'",
    )
    yield (
        "method" in given and not method.can_train_encoder,
        *(trainers, own, "its losses do not reach the encoder; leave out 'method', or use diayn"),
    )


def _on_policy_rows(config: Config, pieces: Pieces) -> Iterator[Row]:
    """A learner that learns from rollouts of its own policy."""
    phase, acts, own = config.effective, _name(config, "learner"), _name(config, "method")
    yield (
        phase.pretrains and pieces.method.learner != config.learner.name,
        *(acts, own, "its rewards need a learner that samples the replay; use dqn or sac, or method 'mepol'"),
    )
    yield _has_skills(config), acts, own, "it follows no skills; use dqn or sac"
    steps = int(getattr(config.learner, "rollout_steps", 0))
    needed = 2 * steps * config.env.num_envs
    yield (
        config.replay.capacity_steps < needed,
        f"replay.capacity_steps = {config.replay.capacity_steps}",
        f"learner.rollout_steps = {steps} and env.num_envs = {config.env.num_envs}",
        f"a rollout and its resets must fit; use {needed} or more, or shorter rollouts",
    )
    unused = {
        "replay.priority_exponent": config.replay.priority_exponent,
        "reset.every_updates": config.reset.every_updates,
        "bonus.coefficient": config.bonus.coefficient if phase.has_bonus else 0,
        "replay.data": config.replay.data,
    }
    for field, value in unused.items():
        yield (
            value,
            *(f"{field} = {value!r}", acts),
            "it learns from each step of its own policy once; use 0 or leave it out, or use a learner that "
            "samples the replay, such as dqn or sac",
        )


def _has_skills(config: Config) -> bool:
    return isinstance(config.method, SkillConfig)


def check_vector_rewards(config: Config, method: Method, pieces: Pieces) -> None:
    """Refuse vector rewards where they cannot be learned from."""
    if not method.reward_dim or config.effective.learns_task:
        return
    rewards = f"{_name(config, 'method')}, whose rewards are vectors of {method.reward_dim} numbers"
    assert method.reward_dim == method.skill_dim, f"{rewards}: skills weigh them, so they have as many"
    if not pieces.learner.takes_vector_rewards:
        raise ConfigError(f"{_name(config, 'learner')} cannot be used with {rewards}: use dqn")
    if config.intrinsic_normalization == "standardize":
        raise ConfigError(
            f"intrinsic_normalization = 'standardize' cannot be used with {rewards}: there is no one mean to "
            f"subtract; use 'scale' or 'none'"
        )
