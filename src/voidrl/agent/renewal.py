"""Parts of an agent that begin anew: for a task, where adaptation asks for it, and in periodic resets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.nets import polyak_update
from voidrl.representations.base import Representation

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent
    from voidrl.learners.base import Learner

RUNS_OWN = ("horizon.", "bonus.", "learner.bounds.")  # state of a run, or of its rewards


def load_pretrained(agent: Agent, tensors: dict[str, Tensor]) -> None:
    """Start fine-tuning from a pre-trained agent's weights, with its heads or reinitialized ones."""
    heads, learner = agent.config.finetune.heads, agent.learner
    skipped = [*_head_names(agent, heads), *RUNS_OWN]
    if heads != "pretrained" or "task_scale" not in tensors:
        skipped.append("task_scale")  # values that are kept as they are keep the scale of their rewards
    if not any(name.startswith("normalizer.") for name in tensors):  # it was pre-trained without
        skipped.append("normalizer.")
    missing: list[str] = []
    if heads == "random":  # another learner's agent has other schedules and targets
        mine = [name for name in agent.tensors() if name.startswith("learner.")]
        missing = [name for name in mine if name not in tensors and ".encoder." not in name]
    remedy = "leave out the changes to the network, or pass finetune.heads = 'random' if only heads differ"
    agent.load_tensors(tensors, skip=(*skipped, *missing), remedy=remedy)
    if any(name.startswith("learner.target_encoder.") for name in missing):
        polyak_update(learner.get_submodule("target_encoder"), learner.encoder, tau=1.0)
    if heads in ("actor", "first_layer"):
        # URLB's target keeps its random initialization, trunk included, and only drifts towards the critic.
        # Here it starts equal to the critic, in the trunk or first layer too.
        _copy_targets(agent)
    agent.task_skill_chosen.fill_(False)  # a new task chooses its own
    agent.trials_dealt.zero_()
    agent.horizon.restart()


@torch.no_grad()
def renew_heads(agent: Agent, heads: Literal["actor", "random"]) -> None:
    """Reinitialize what `finetune.heads` of this name reinitializes, in place."""
    fresh, names = _fresh(agent).tensors(), _head_names(agent, heads)
    for name, value in agent.tensors().items():
        if name.startswith(names):
            value.copy_(fresh[name])
    _copy_targets(agent)


@torch.no_grad()
def reset(agent: Agent) -> None:
    """Shrink and perturb the encoder, and reinitialize the heads (SR-SPR, BBF).

    What this phase trains is reset, except the method's own networks; targets are reset like the original.
    The encoder keeps the share `reset.keep` of its weights, the rest being those of a new one. The moments of
    the heads' optimizers are set to 0. Everything is written in place, so that captured graphs stay valid.
    """
    trained = set(agent.optimizers.all_parameters())
    done: set[nn.Parameter] = set()  # f and the learner may share an encoder
    reinitialized: set[nn.Parameter] = set()
    for piece, new_piece in zip(_pieces(agent), _pieces(_fresh(agent)), strict=True):
        mine, new = _tensors(piece), _tensors(new_piece)
        heads: set[str] = set()
        for name, tensor in mine.items():
            child, dot, _ = name.partition(".")
            if not isinstance(tensor, nn.Parameter):
                if dot and child in heads:  # running statistics; a schedule is not part of a child
                    tensor.copy_(new[name])
                continue
            original = mine.get(name.removeprefix("target_"), tensor)
            if tensor in done or original not in trained:
                continue
            done.add(tensor)
            if child in piece.resets_partly:
                tensor.lerp_(new[name].to(tensor.device), 1 - agent.config.reset.keep)
            else:
                tensor.copy_(new[name])
                reinitialized.add(tensor)
                heads.add(child)
    agent.optimizers.forget(reinitialized)
    agent.horizon.restart()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Its weights, then its buffers, by every name that they have."""
    weights = module.named_parameters(remove_duplicate=False)
    return {**dict(weights), **dict(module.named_buffers(remove_duplicate=False))}


def _fresh(agent: Agent) -> Agent:
    """A new agent of the same config, on the CPU."""
    fresh = type(agent)(agent.spec, agent.config, torch.device("cpu"))
    dist.broadcast_([*fresh.tensors().values()])  # random numbers differ between ranks
    return fresh


def _pieces(agent: Agent) -> list[Representation | Learner]:
    """Representation and learner; a representation's parts, which are representations too, before itself."""
    found = [part for part in agent.representation.modules() if isinstance(part, Representation)]
    return [*reversed(found), agent.learner]


def _copy_targets(agent: Agent) -> None:
    """Make the targets of the critic's heads equal to them."""
    for name in {head.partition(".")[0] for head in agent.learner.critic_heads}:
        if isinstance(target := getattr(agent.learner, f"target_{name}", None), nn.Module):
            polyak_update(target, agent.learner.get_submodule(name), tau=1.0)


def _head_names(agent: Agent, heads: str) -> tuple[str, ...]:
    """Name prefixes of the tensors that fine-tuning with these `finetune.heads` reinitializes."""
    learner = agent.learner
    if heads in ("auto", "pretrained"):
        return ()
    if heads == "actor":
        return tuple(f"learner.{to}{n}." for n in learner.critic_heads for to in ("", "target_"))
    children = (f"{n}." for n, _ in learner.named_children() if n not in ("encoder", "target_encoder"))
    begins = (*children, *(n for n, _ in learner.named_parameters(recurse=False)))
    if heads == "random":
        return tuple(f"learner.{name}" for name in begins)
    kept = {id(t) for layer in learner.first_layers for t in _tensors(layer).values()}
    own = {name: tensor for name, tensor in _tensors(learner).items() if name.startswith(begins)}
    originals = {name: own.get(name.removeprefix("target_"), own[name]) for name in own}
    return tuple(f"learner.{name}" for name in own if id(originals[name]) not in kept)
