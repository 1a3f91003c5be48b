"""Updates whose halves run at the same time, on two streams of the GPU.

`Agent.score` of one update may run while `Agent.learn` of the update before still does. Where both train the
same weights, the representation's loss may be computed alongside the rest of its update. Results are those
of one stream, bit for bit: random numbers are drawn in the order of the code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.agent.agent import Agent, Scored
from voidrl.agent.optimizers import Aside
from voidrl.methods.base import Method
from voidrl.replay import Replay
from voidrl.representations.base import Representation
from voidrl.types import Metrics

Needs = Literal["nothing", "encoder", "everything"]
MAX_SCORED = 2  # samples that are scored and not yet learned


class SideStream(Aside):
    """A second stream for one loss.

    Its gradients are computed there too, since autograd returns to the stream of the forward pass.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._read: tuple[Any, ...] = ()

    @contextmanager
    def __call__(self, *read: Any) -> Iterator[None]:
        """Launch the kernels inside on this stream, until `join` waits for them.

        The memory of what they `read` is not given to others meanwhile.
        """
        self._read = read
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the present stream wait for this one."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._read = ()


class Overlap:
    """Runs captured updates with as much at the same time as their halves allow."""

    def __init__(self, agent: Agent, replay: Replay) -> None:
        self._agent, self._replay = agent, replay
        needs = scoring_needs(agent, replay)
        self._needs_encoder = needs == "encoder"
        self._side = torch.cuda.Stream(agent.device) if needs != "everything" else None
        self._aside: SideStream | None = None
        if self._side is None and can_be_concurrent(agent):
            self._aside = SideStream(agent.device)

    def run(self, variants: Sequence[int], add: Callable[[Metrics, int], None]) -> None:
        """Run these updates; `add` takes their metrics."""
        if self._side is not None:
            self._pipelined(variants, add, self._side)
            return
        for variant in variants:
            scored = self._agent.score(self._replay, self._aside)
            add(self._agent.learn(self._replay, scored, variant), variant)

    def _pipelined(
        self, variants: Sequence[int], add: Callable[[Metrics, int], None], side: torch.cuda.Stream
    ) -> None:
        """Score each update on a second stream while the previous one is still learned.

        A scored sample is kept until it has been learned, or its memory would be given to a later one.
        """
        agent, main = self._agent, torch.cuda.current_stream(self._agent.device)
        side.wait_stream(main)
        learned: deque[tuple[Scored, torch.cuda.Event]] = deque(maxlen=MAX_SCORED)
        trained: list[torch.cuda.Event] = []
        for variant in variants:
            with torch.cuda.stream(side):
                for event in trained if self._needs_encoder else ():
                    side.wait_event(event)
                if len(learned) == MAX_SCORED:
                    side.wait_event(learned.popleft()[1])
                scored = agent.score(self._replay)
                scored = scored._replace(metrics=own_metrics(agent, scored.metrics))
            main.wait_stream(side)
            trained.clear()
            metrics = agent.learn(self._replay, scored, variant, lambda: trained.append(main.record_event()))
            add(metrics, variant)
            learned.append((scored, main.record_event()))
        main.wait_stream(side)

    def join(self) -> None:
        """Wait for the second stream, also after an update that failed."""
        if self._side is not None:
            torch.cuda.current_stream(self._agent.device).wait_stream(self._side)
        if self._aside is not None:
            self._aside.join()


def scoring_needs(agent: Agent, replay: Replay) -> Needs:
    """The part of the learner that must have been trained before the next sample can be scored.

    `encoder`: scoring reads no weights that change after the critic's loss is minimized, whatever the actor
    and the targets still do.
    """
    if replay.priorities is not None or dist.current().is_distributed:
        return "everything"  # drawn by the last errors; or exchanged in an order that all ranks keep
    if not (agent.uses_method or agent.trains_representation):
        return "nothing"
    f, method = type(agent.representation), type(agent.method)
    moves = f.after_update is not Representation.after_update, method.after_update is not Method.after_update
    if "learner" in agent.encoder_trainers and any(moves):  # after the learner has trained f
        return "everything"
    if agent.representation.reads_learner or method.make_critic is not Method.make_critic:
        return "everything"
    shared = _tensors(agent.learner) & (_tensors(agent.representation) | _tensors(agent.method))
    if not shared:
        return "nothing"
    critic = _ids(agent.optimizers.parameters("critic")) if "critic" in agent.optimizers else set()
    trained = {id(p) for p in agent.learner.encoder.parameters() if p.requires_grad}
    by_critic = agent.encoder_trainers <= {"learner"} and trained <= critic
    # A custom learner may encode again after the critic's loss, and spectral norm would iterate.
    ours = type(agent.learner).__module__.startswith("voidrl.")
    keeps = ours or not any(True for _ in agent.learner.encoder.buffers())
    return "encoder" if by_critic and keeps and shared <= _tensors(agent.learner.encoder) else "everything"


def can_be_concurrent(agent: Agent) -> bool:
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
        and not dist.current().is_distributed
    )


def own_metrics(agent: Agent, metrics: Metrics) -> Metrics:
    """The metrics of a score, with copies of those that share memory with what the next score changes."""
    live = {tensor.untyped_storage().data_ptr() for tensor in agent.tensors().values()}
    return {
        name: value.clone() if value.untyped_storage().data_ptr() in live else value
        for name, value in metrics.items()
    }


def _tensors(module: nn.Module) -> set[int]:
    return _ids(module.parameters()) | _ids(module.buffers())


def _ids(tensors: Iterable[Tensor]) -> set[int]:
    return {id(tensor) for tensor in tensors}
