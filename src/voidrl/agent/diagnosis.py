"""Finds which number was the first that is not finite, and which piece raised an error."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from voidrl.agent import Agent
from voidrl.config import registry
from voidrl.errors import VoidrlError
from voidrl.types import CHECK, NonFinite

LOOK_FOR = "look for divisions by 0, and for logarithms, roots and norms of 0"


# Numbers that are not finite


class Culprit(NamedTuple):
    """The first number that was not finite."""

    what: str
    """What it is, and whose."""
    why: str
    """What made it so, and what to try."""
    update: int | None = None
    """The number of the update, if it was not the last."""


def diagnose_metrics(agent: Agent, non_finite: Sequence[NonFinite], updates: range) -> Culprit | None:
    """Whose metric was the first that is not finite, in which of the updates since the last flush.

    Within an update it is the first that was computed. None if all are finite.
    """
    variants = [agent.learner.variant(update) for update in updates] if non_finite else []

    def when(found: NonFinite) -> int:
        runs = [update for update, variant in zip(updates, variants, strict=True) if variant == found.variant]
        return runs[min(found.finite_adds, len(runs) - 1)] if runs else updates.start

    first = min(non_finite, key=lambda found: (when(found), found.order), default=None)
    return None if first is None else _diagnose_metric(agent, first.key)._replace(update=when(first))


def _diagnose_metric(agent: Agent, key: str) -> Culprit:
    """Whose metric this is, given that all those computed before it were finite."""
    owner = agent.metric_owners.get(key, "learner")
    loss = key.rpartition("/")[2]
    name = f"metric {key!r}"
    if key.startswith(CHECK):
        name = "the loss" if loss == owner else f"the {loss} loss"
    method = f"method {agent.config.method.name!r}"
    if owner == "representation":
        return Culprit(f"{name} of {_representation(agent)}", _trained_f(agent, "loss"))
    if owner == "latents":
        return Culprit(f"z = f(s) of {_representation(agent)}", _trained_f(agent, "encode"))
    if owner == "method":
        where = "losses" if key.startswith(CHECK) else "losses or metrics"
        return Culprit(f"{name} of {method}", _code_or_rate(agent, "method", where))
    if owner == "reward":
        return Culprit(f"the intrinsic reward of {method}", _code_or_rate(agent, "method", "reward"))
    if owner == "task":
        scale = agent.config.reward_scale
        return Culprit("the sum of the task's rewards", f"lower reward_scale ({scale:g} now)")
    learner = f"learner {agent.config.learner.name!r}"
    return Culprit(f"{name} of {learner}", _code_or_rate(agent, "learner", "losses"))


def diagnose_weight(agent: Agent) -> Culprit | None:
    """Whose weights are not finite, although every loss was; None if all weights are finite."""
    for name, value in agent.named_parameters():
        if torch.isfinite(value).all():  # host synchronization, once per checkpoint
            continue
        part = name.partition(".")[0]
        f = part == "representation"
        why = _trained_f(agent, "loss") if f else _code_or_rate(agent, part, "losses")
        return Culprit(f"weight {name}", f"the losses were finite, their gradients were not: {why}")
    return None


def diagnose_skill(agent: Agent, function: str) -> Culprit:
    """The method, which has returned a skill that is not finite."""
    name = agent.config.method.name
    return Culprit(f"a skill of method {name!r}", f"its `{function}` returned it: {LOOK_FOR}")


def diagnose_policy(agent: Agent) -> Culprit:
    """The learner, whose losses were finite before it chose an action that is not."""
    what = f"the policy's action, of learner {agent.config.learner.name!r},"
    return Culprit(what, _code_or_rate(agent, "learner", "act"))


def _code_or_rate(agent: Agent, kind: str, function: str) -> str:
    """What to do about a piece: look at the code if it is custom, else lower the learning rate."""
    rate = f"try a lower {_rate(agent, kind)}"
    if ":" in getattr(agent.config, kind).name:
        trains = any(p.requires_grad for p in getattr(agent, kind).parameters())
        return f"its `{function}` returned it: {LOOK_FOR}" + (f", or {rate}" if trains else "")
    if kind == "method" and not any(True for _ in agent.method.parameters()):
        return f"z was finite, but may have grown too large: {_trained_f(agent, '')}"
    return f"training has diverged: {rate}"


def _trained_f(agent: Agent, function: str) -> str:
    """What to do about f, which may have several trainers."""
    own = [name for name in (agent.config.representation.name, _encoder_name(agent)) if ":" in name]
    rates = " or ".join(_rate(agent, kind) for kind in sorted(agent.trainers, reverse=True))
    remedies = []
    if own and function:
        called = "forward" if own == [_encoder_name(agent)] else function
        remedies.append(
            f"look at `{called}` of {own[0]} for divisions by 0, and logarithms, roots and norms of 0"
        )
    if rates:
        remedies.append(f"try a lower {rates}")
    reason = "f has diverged, " if rates and not own else ""
    return reason + ", or ".join(remedies or ["check the range of the observations"])


def _rate(agent: Agent, kind: str) -> str:
    config = agent.config
    if kind == "learner":
        return f"{config.effective.learning_rate_field} ({config.effective.learning_rate:g} now)"
    return f"{kind}.learning_rate ({getattr(config, kind).learning_rate:g} now)"


def _encoder_name(agent: Agent) -> str:
    shares = agent.representation.uses_learner_encoder
    config = agent.config.learner.encoder if shares else agent.config.representation.encoder
    return config.stack if agent.representation.encoder is not None else ""


def _representation(agent: Agent) -> str:
    encoder = _encoder_name(agent)
    custom = f" with encoder {encoder!r}" if ":" in encoder else ""
    return f"representation {agent.config.representation.name!r}{custom}"


# Exceptions


class Failure(NamedTuple):
    """Where custom code raised an error."""

    piece: str
    """Its kind and name."""
    frame: traceback.FrameSummary
    """The innermost frame of that code."""

    def __str__(self) -> str:
        file = Path(self.frame.filename).name
        return f"{self.piece} failed in `{self.frame.name}`, line {self.frame.lineno} of {file}"


def failed_piece(agent: Agent, error: BaseException) -> Failure | None:
    """The custom piece in whose code the error was raised; None if it was not in such code.

    Errors for users speak for themselves, and memory may run out anywhere.
    """
    if isinstance(error, VoidrlError | MemoryError | torch.OutOfMemoryError):
        return None
    homes = _custom_functions(agent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if piece := homes.get((frame.filename, frame.name)):
            return Failure(piece, frame)
    return None


def _custom_functions(agent: Agent) -> dict[tuple[str, str], str]:
    """File and name of each function of the agent's custom classes, and the piece that it belongs to."""
    config = agent.config
    stacks = {config.representation.encoder.stack, config.learner.encoder.stack}
    classes = {f"encoder {name!r}": registry.find_encoder(name) for name in stacks if ":" in name}
    for kind in ("learner", "representation", "method"):
        classes[f"{kind} {getattr(config, kind).name!r}"] = type(getattr(agent, kind))
    return {
        (code.co_filename, code.co_name): piece
        for piece, cls in classes.items()
        for base in cls.__mro__
        if not base.__module__.startswith(("voidrl.", "torch."))
        for function in vars(base).values()
        if (code := getattr(inspect.unwrap(function), "__code__", None)) is not None
    }
