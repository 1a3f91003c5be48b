"""Finds the first number that was not finite, and the custom piece in which an error was raised."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from voidrl.agent import Agent
from voidrl.config import Config, registry
from voidrl.errors import VoidrlError
from voidrl.types import CHECK, NonFinite


class Culprit(NamedTuple):
    """The first number that was not finite."""

    what: str  # its name, with the piece that computed it
    why: str  # the likely cause, as a remedy
    update: int | None = None  # its number, if it was not the last


def diagnose_metrics(agent: Agent, non_finite: Sequence[NonFinite], updates: range) -> Culprit | None:
    """The first metric that is not finite, in the updates since the last flush; None if all are finite.

    Within an update, metrics are ordered as they were computed.
    """

    def when(found: NonFinite) -> int:
        runs = [update for update in updates if agent.learner.variant(update) == found.variant]
        return runs[min(found.finite_adds, len(runs) - 1)] if runs else updates.start

    first = min(non_finite, key=lambda found: (when(found), found.order), default=None)
    if first is None:
        return None
    owner = agent.metric_owners.get(first.key, "learner")
    if owner == "task":
        remedy = f"lower reward_scale ({agent.config.reward_scale:g} now)"
        return Culprit("the sum of the task's rewards", remedy, when(first))
    name = "the loss" if first.key.startswith(CHECK) else f"metric {first.key!r}"
    place = {
        "latents": ("representation", "z = f(s)", "encode"),
        "reward": ("method", "the intrinsic reward", "reward"),
        "representation": ("representation", name, "loss"),
    }
    return diagnose(agent, *place.get(owner, (owner, name, "losses")))._replace(update=when(first))


def diagnose_weight(agent: Agent) -> Culprit | None:
    """The first weights that are not finite, although every loss was; None if all are finite."""
    for name, value in agent.named_parameters():
        if not torch.isfinite(value).all():  # host synchronization, once per checkpoint
            why = diagnose(agent, name.partition(".")[0], "", "losses").why
            return Culprit(f"weight {name}", f"the losses were finite, their gradients were not: {why}")
    return None


def diagnose(agent: Agent, kind: str, what: str, function: str) -> Culprit:
    """`what` a piece has computed in this function, and the advice to look at it or to lower its rates."""
    config, name = agent.config, getattr(agent.config, kind).name
    trainers = [kind] if any(p.requires_grad for p in getattr(agent, kind).parameters()) else []
    # A built-in method without weights has read z, which was finite but may have grown too large.
    if kind == "representation" or (kind == "method" and ":" not in name and not trainers):
        trainers = sorted(agent.encoder_trainers, reverse=True)
    zeros = "for divisions by 0, and logarithms, roots and norms of 0"
    advice = [f"look at `{function}` of {name} {zeros}"] if ":" in name else []
    for trainer in trainers:
        field, rate = f"{trainer}.learning_rate", getattr(config, trainer).learning_rate
        if trainer == "learner":
            field, rate = config.effective.learning_rate_field, config.effective.learning_rate
        advice.append(f"try a lower {field} ({rate:g} now)")
    return Culprit(f"{what} of {kind} {name!r}", ", or ".join(advice) or "check the range of observations")


def failed_piece(config: Config, error: BaseException) -> str:
    """A sentence with the error, the custom piece that raised it and the line; "" if none did.

    Errors for users speak for themselves, and memory may run out anywhere.
    """
    if isinstance(error, VoidrlError | MemoryError | torch.OutOfMemoryError):
        return ""
    names: dict[type, str] = {}
    for kind in ("learner", "representation", "method"):
        piece = getattr(config, kind)
        if ":" in piece.name:
            names[registry.find(kind, piece.name)] = f"{kind} {piece.name!r}"
        if kind != "method" and ":" in piece.encoder.stack:
            names[registry.find_encoder(piece.encoder.stack)] = f"encoder {piece.encoder.stack!r}"
    frames = [*traceback.walk_tb(error.__traceback__)]
    if names and frames[-1][0].f_code is Agent._make_pieces.__code__:  # the arguments did not fit
        return f"{' or '.join(names.values())} cannot be built ({type(error).__name__}: {error})"
    for frame, line in reversed(frames):
        name = names.get(type(frame.f_locals.get("self")))
        if name and isinstance(error, NotImplementedError):
            return f"{name} does not define `{frame.f_code.co_name}`"
        if name and not frame.f_globals.get("__name__", "").startswith(("voidrl.", "torch.")):
            place = f"`{frame.f_code.co_name}`, line {line} of {Path(frame.f_code.co_filename).name}"
            return f"{name} failed in {place} ({type(error).__name__}: {error})"
    return ""
