"""Combinations of pieces and processes that cannot work."""

from __future__ import annotations

from voidrl.agent.encoder_training import Pieces, decide
from voidrl.config import Config, SkillConfig
from voidrl.errors import ConfigError


def check_ranks(config: Config, pieces: Pieces, size: int) -> None:
    """Refuse what `size` processes cannot train together, with something that they can."""
    if size == 1:
        return
    used = {
        "method": config.effective.uses_method,
        "representation": config.effective.uses_method or decide(config, pieces).trains_representation,
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
    if decide(config, pieces).trains_representation:
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
