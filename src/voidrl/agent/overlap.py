"""What of an update may run on another stream of the GPU, since it reads nothing that is changed meanwhile.

`Agent.score` of one update may run while `Agent.learn` of the update before still does. Where both train the
same weights, the representation's loss may be computed next to the rest of its own update.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from voidrl import dist
from voidrl.agent.agent import Agent
from voidrl.methods.base import Method
from voidrl.replay import Replay
from voidrl.representations.base import Representation
from voidrl.types import Metrics

Needs = Literal["nothing", "encoder", "everything"]


def scoring_needs(agent: Agent, replay: Replay) -> Needs:
    """What of the learner must have been trained before the next sample can be scored.

    `encoder`: as soon as the critic's loss is minimized, the weights that scoring reads are those of the next
    update, whatever the actor and the targets still do.
    """
    if replay.priorities is not None or dist.current().is_distributed or agent.learner.rollout_steps:
        return "everything"  # drawn by the last errors; or exchanged in an order that all ranks keep
    if not (agent.uses_method or agent.trains_representation):
        return "nothing"
    own_critic = type(agent.method).make_critic is not Method.make_critic
    if agent.representation.reads_learner or own_critic or _follows_learner(agent):
        return "everything"
    shared = _tensors(agent.learner) & (_tensors(agent.representation) | _tensors(agent.method))
    if not shared:
        return "nothing"
    critic = _ids(agent.optimizers.parameters("critic")) if "critic" in agent.optimizers else set()
    trained = {id(p) for p in agent.learner.encoder.parameters() if p.requires_grad}
    alone = agent.trainers <= {"learner"} and trained <= critic
    # A custom learner may encode again after the critic's loss, and spectral norm would iterate.
    ours = type(agent.learner).__module__.startswith("voidrl.")
    keeps = ours or not any(True for _ in agent.learner.encoder.buffers())
    return "encoder" if alone and keeps and shared <= _tensors(agent.learner.encoder) else "everything"


def runs_beside(agent: Agent) -> bool:
    """Whether the representation's loss may be computed while the rest of the same update is.

    It then reads the same weights as the rest and must change nothing. In training mode, networks with
    buffers do: spectral and batch normalization, and noise that the learner redraws.
    """
    representation = agent.representation
    return (
        agent.trains_representation
        and agent.adds_representation_loss
        and not representation.reads_learner
        and not any(True for _ in representation.buffers())
        and type(representation).__module__.startswith("voidrl.")
        and not agent.learner.rollout_steps
        and not dist.current().is_distributed
    )


def own_metrics(agent: Agent, metrics: Metrics) -> Metrics:
    """The metrics of a score, with copies of those that share memory with what the next score changes."""
    live = {tensor.untyped_storage().data_ptr() for tensor in agent.tensors().values()}
    return {
        name: value.clone() if value.untyped_storage().data_ptr() in live else value
        for name, value in metrics.items()
    }


def _follows_learner(agent: Agent) -> bool:
    """Whether the representation or the method changes after the learner has trained f, in `after_step`."""
    changes = (
        type(agent.representation).after_step is not Representation.after_step,
        type(agent.method).after_step is not Method.after_step,
    )
    return "learner" in agent.trainers and any(changes)


def _tensors(module: nn.Module) -> set[int]:
    return _ids(module.parameters()) | _ids(module.buffers())


def _ids(tensors: Iterable[Tensor]) -> set[int]:
    return {id(tensor) for tensor in tensors}
