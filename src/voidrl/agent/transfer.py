"""From a pre-trained agent to one that is fine-tuned: which tensors are kept, and which begin new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from voidrl.nets import polyak_update

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent

RUNS_OWN = ("horizon.", "bonus.", "learner.bounds.")  # state of a run, or of its rewards


def load_pretrained(agent: Agent, tensors: dict[str, Tensor]) -> None:
    """Start fine-tuning from a pre-trained agent's weights, with its heads or reinitialized ones."""
    heads, learner = agent.config.finetune.heads, agent.learner
    fresh = fresh_heads(agent, heads)
    skipped = [*fresh, *RUNS_OWN]
    if heads != "pretrained" or "task_scale" not in tensors:
        skipped.append("task_scale")  # values that are kept as they are keep the scale of their rewards
    if not any(name.startswith("normalizer.") for name in tensors):  # it was pre-trained without
        skipped.append("normalizer.")
    missing: list[str] = []
    if heads == "random":  # another learner's agent has other schedules and targets
        mine = [name for name in agent.tensors() if name.startswith("learner.")]
        missing = [name for name in mine if name not in tensors and ".encoder." not in name]
    remedy = (
        "leave out the changes to the network, or pass finetune.heads = 'random' if only the heads differ"
    )
    agent.load_tensors(tensors, skip=(*skipped, *missing), remedy=remedy)
    if any(name.startswith("learner.target_encoder.") for name in missing):
        polyak_update(learner.get_submodule("target_encoder"), learner.encoder, tau=1.0)
    if heads in ("actor", "first_layer"):
        # URLB's target keeps its random initialization, trunk included, and only drifts towards the critic.
        # Here it starts equal to the critic, in the trunk or first layer too.
        copy_targets(agent)
    agent.task_skill_chosen.fill_(False)  # a new task chooses its own
    agent.trials_dealt.zero_()
    agent.horizon.restart()


def copy_targets(agent: Agent) -> None:
    """Make the targets of the critic's heads equal to them."""
    for name in {head.partition(".")[0] for head in agent.learner.critic_heads}:
        if isinstance(target := getattr(agent.learner, f"target_{name}", None), nn.Module):
            polyak_update(target, agent.learner.get_submodule(name), tau=1.0)


def fresh_heads(agent: Agent, heads: str) -> tuple[str, ...]:
    """Name prefixes of the tensors that fine-tuning with these `finetune.heads` reinitializes."""
    learner = agent.learner
    if heads in ("auto", "pretrained"):
        return ()
    if heads == "actor":
        return tuple(f"learner.{to}{n}." for n in learner.critic_heads for to in ("", "target_"))
    children = (n for n, _ in learner.named_children() if n not in ("encoder", "target_encoder"))
    scalars = tuple(n for n, _ in learner.named_parameters(recurse=False))
    begins = (*(f"{name}." for name in children), *scalars)
    if heads == "random":
        return tuple(f"learner.{name}" for name in begins)
    kept = {id(t) for layer in learner.first_layers for t in (*layer.parameters(), *layer.buffers())}
    own = {**dict(learner.named_parameters()), **dict(learner.named_buffers())}
    originals = {name: own.get(name.removeprefix("target_"), own[name]) for name in own}
    return tuple(
        f"learner.{name}" for name in own if name.startswith(begins) and id(originals[name]) not in kept
    )
