"""Periodic resets: shrink and perturb the encoder, reinitialize the heads (SR-SPR, BBF)."""

from __future__ import annotations

import torch
from torch import nn

from voidrl import dist
from voidrl.agent.agent import Agent
from voidrl.learners.base import Learner
from voidrl.representations.base import Representation


@torch.no_grad()
def reset(agent: Agent) -> None:
    """Reset what this phase trains, except the method's own networks; targets are reset like the original.

    The encoder keeps the share `reset.keep` of its weights, the rest being those of a new one. Heads are
    reinitialized, and their optimizers' moments set to 0. Everything is written in place, so that captured
    graphs stay valid.
    """
    fresh = Agent(agent.spec, agent.config, torch.device("cpu"))
    dist.broadcast_([*fresh.tensors().values()])  # random numbers differ between ranks
    trained = set(agent.optimizers.all_parameters())
    done: set[nn.Parameter] = set()  # f and the learner may share an encoder
    reinitialized: set[nn.Parameter] = set()
    for piece, new_piece in zip(_pieces(agent), _pieces(fresh), strict=True):
        mine = dict(piece.named_parameters(remove_duplicate=False))
        new = dict(new_piece.named_parameters(remove_duplicate=False))
        heads: set[str] = set()
        for name, weight in mine.items():
            original = mine.get(name.removeprefix("target_"), weight)
            if weight in done or original not in trained:
                continue
            done.add(weight)
            if name.partition(".")[0] in piece.resets_partly:
                weight.lerp_(new[name].to(weight.device), 1 - agent.config.reset.keep)
            else:
                weight.copy_(new[name])
                reinitialized.add(weight)
                heads.add(name.partition(".")[0])
        new_buffers = dict(new_piece.named_buffers(remove_duplicate=False))
        for name, buffer in piece.named_buffers(remove_duplicate=False):
            child, dot, _ = name.partition(".")
            if dot and child in heads:  # running statistics; a schedule is not part of a child
                buffer.copy_(new_buffers[name])
    agent.optimizers.forget(reinitialized)
    agent.horizon.restart()


def _pieces(agent: Agent) -> list[Representation | Learner]:
    """Representation and learner; a representation's parts, which are representations too, before itself."""
    found = [part for part in agent.representation.modules() if isinstance(part, Representation)]
    return [*reversed(found), agent.learner]
