"""Runs the agent's updates and actions: eagerly, compiled, or as captured CUDA graphs.

No other file knows which. A captured update is recorded once and then launched as a whole, so that the GPU
never waits for Python. The agent's own `score` and `learn` are recorded: the first updates of each variant
run eagerly and count like any other; then the same Python code runs once more under capture, which computes
nothing. Loading or moving the agent drops the graphs, and they are captured again.

Updates and actions are launched without waiting for them. The host waits only for the actions that the
environments need, and steps the environments while the GPU runs the updates.
"""

from __future__ import annotations

import gc
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from voidrl import kernels
from voidrl.agent.agent import Agent
from voidrl.agent.exploration import Explorer
from voidrl.engine.accumulator import Accumulator
from voidrl.engine.compiler import Compiler
from voidrl.engine.host_reads import HostReads, diagnose_host_read
from voidrl.engine.idle import IdleTimer
from voidrl.engine.mode import pick_mode
from voidrl.engine.overlap import Overlap
from voidrl.errors import CaptureError, VoidrlError
from voidrl.nets.encoder import check_convolutions
from voidrl.replay import Replay
from voidrl.system.device import random_state, restore_random_state, uses_bf16
from voidrl.types import Metrics

WARMUP_RUNS = 2  # before a capture, so that lazily created state, such as the optimizers', exists
MAX_BURST = 16  # updates in one graph
MAX_GRAPHS = 16  # with an odd ratio of updates to steps few bursts come back; single updates always do


class Engine:
    """One agent's updates on one replay, and its actions for the environments that fill it."""

    def __init__(
        self, agent: Agent, replay: Replay, say: Callable[[str], None], *, before: str | None = None
    ) -> None:
        """`before` is the engine of a run that is resumed, which `engine = "auto"` keeps."""
        self.agent, self.replay, self.say = agent, replay, say
        self.explorer: Explorer | None = None
        """The pre-trained policy of a run that explores with it."""
        if agent.device.type == "cuda":
            kernels.check(agent.device, say)
            if uses_bf16(agent.config.precision, agent.device) and kernels.usable(agent.task_skill):
                check_convolutions(agent, agent.device, say)
        self.metrics = Accumulator()
        self.idle = IdleTimer(agent.device)
        self.mode = pick_mode(agent, before, say)
        self._captures = self.mode != "eager" and agent.device.type == "cuda"
        self._stream = torch.cuda.Stream(agent.device) if self._captures else None
        self._update: Callable[[Replay, int], Metrics] = agent.update
        self._overlap = Overlap(agent, replay) if self._captures and agent.learns else None
        self._compiler = Compiler(agent, replay, active=self.mode == "compile")
        self._forget()

    def _forget(self) -> None:
        """Drop the captured graphs: their tensors may no longer be the agent's."""
        self._generation = self.agent.generation
        self._runs: Counter[str | int | tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[str | int, ...], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None
        # What the graphs of `choose` read and write.
        self._skills: dict[str, Tensor] = {}
        self._actions: dict[str, Tensor] = {}

    def close(self) -> None:
        """Drop the graphs for good: a group of ranks cannot be left while they hold what it exchanges by."""
        if self._captures:
            torch.cuda.synchronize(self.agent.device)
        self._forget()

    # Updates

    def update(self, first: int, count: int) -> None:
        """Run the updates number `first` … `first + count − 1`; on CUDA it returns before they are done."""
        if self._generation != self.agent.generation:
            self._forget()
        variants = [self.agent.learner.variant(first + i) for i in range(count)]
        done = 0
        while done < count:
            done += self._advance(tuple(variants[done : done + MAX_BURST]))

    def _advance(self, variants: tuple[int, ...]) -> int:
        """Run some of these updates, at least the first; returns how many."""
        if not self._captures:
            with self._compiler.applied():
                self._run(variants[0])
            return 1
        if self._runs[variants[0]] < WARMUP_RUNS:
            self._warm_up(variants[0], lambda: self._run(variants[0]))
            return 1
        known = all(self._runs[v] >= WARMUP_RUNS for v in variants)
        if known and variants not in self._graphs:  # a pattern that came twice will come again
            self._runs[variants] += 1
            known = self._runs[variants] > 1 and len(self._graphs) < MAX_GRAPHS
        if not known:
            variants = variants[:1]
        self._launch(variants, lambda: self._run(*variants))
        return len(variants)

    def replace_update(self, step: Callable[[Replay, int], Metrics]) -> None:
        """Use `step` in place of `Agent.update`."""
        self._update, self._overlap = step, None

    def _run(self, *variants: int) -> None:
        if self._overlap is not None:
            self._overlap.run(variants, self.metrics.add)
            return
        for variant in variants:
            self.metrics.add(self._update(self.replay, variant), variant)

    # Actions

    def choose(self, skill: Tensor, *, explore: bool = False) -> Tensor:
        """Exploratory actions for all environments in one pass, to be read before the next update.

        Graphs of updates use the same memory. With `explore`, they are those of the pre-trained policy where
        its schedule says so.
        """
        if self._generation != self.agent.generation:
            self._forget()
        if not (self._captures and self.agent.learns):
            return self._act(skill, explore)
        kind = "explore" if explore else "act"

        def act() -> None:
            self._actions[kind] = self._act(self._skills[kind], explore)

        if self._runs[kind] < WARMUP_RUNS:
            self._skills[kind] = skill.clone()
            self._warm_up(kind, act)
        else:
            if skill.numel():
                self._skills[kind].copy_(skill)
            self._launch((kind,), act)
        return self._actions[kind]

    def _act(self, skill: Tensor, explore: bool) -> Tensor:
        obs = self.replay.latest()
        actions = self.agent.choose(obs, skill, deterministic=False)
        if not explore:
            return actions
        assert self.explorer is not None
        with self.agent.precision():
            return self.explorer.replace(actions, obs, skill)

    # Capture

    def _warm_up(self, kind: str | int, run: Callable[[], Any]) -> None:
        """Run eagerly; the first time, also check that it can be captured.

        The check sees only what is not compiled, which rounds differently from what is. With `compile` it is
        therefore undone, or a resumed run, whose first updates are checked again, would not be exact.
        """
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            checked, compiles = self._runs[kind] > 0, bool(self._compiler)
            if not checked:
                restore = self._remember() if compiles else None
                with HostReads() as reads:
                    run()
                if restore is not None:
                    restore()
                if reads.first is not None:
                    self._give_up(diagnose_host_read(self.agent, reads.first, reads.what))
            if checked or compiles:
                with self._compiler.applied():
                    run()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._runs[kind] += 1

    def _remember(self) -> Callable[[], None]:
        """A function that makes weights, optimizers, metrics and random numbers what they are now."""

        def state() -> dict[int, Tensor]:
            parts = [self.agent.tensors(), self.agent.optimizers.tensors()]
            if self.replay.priorities is not None:
                parts.append(self.replay.priorities.state())
            if self.explorer is not None:
                parts.append(self.explorer.state())
            tensors = [*self.metrics.buffers(), *(tensor for part in parts for tensor in part.values())]
            return {id(tensor): tensor for tensor in tensors}

        before = {key: tensor.detach().clone() for key, tensor in state().items()}
        random_numbers = random_state(self.agent.device)

        @torch.no_grad()
        def restore() -> None:
            if self._overlap is not None:
                self._overlap.join()
            for key, tensor in state().items():
                if key in before:
                    tensor.copy_(before[key])
                else:
                    tensor.zero_()  # moments and sums that were created meanwhile
            restore_random_state(random_numbers, self.agent.device)

        return restore

    def _launch(self, key: tuple[str | int, ...], run: Callable[[], Any]) -> None:
        if key not in self._graphs:
            self._graphs[key] = self._captured(run)
        self._graphs[key].replay()

    def _captured(self, run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """A graph of everything that `run` launches."""
        assert self._stream is not None
        graph, failures, collects = torch.cuda.CUDAGraph(), [], gc.isenabled()
        gc.disable()  # freeing what waits for the device, as pinned memory does, would end the capture
        try:
            with (
                self._compiler.applied(),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
            ):
                try:
                    run()
                except RuntimeError as error:  # the end of a broken capture raises another one
                    failures.append(error)
                    raise
        except RuntimeError as error:
            first = failures[0] if failures else error
            if isinstance(first, torch.OutOfMemoryError | VoidrlError):
                raise first from None
            sentence = diagnose_host_read(
                self.agent, traceback.extract_tb(first.__traceback__), str(first).partition("\n")[0]
            )
            raise CaptureError(f"{sentence}, in a new process") from first
        finally:
            if collects:
                gc.enable()
        # A capture begins by zeroing the counter of random numbers, on its own stream: on a busy GPU that may
        # come after the first launch has set it.
        torch.cuda.current_stream(self.agent.device).wait_stream(self._stream)
        return graph

    def _give_up(self, sentence: str) -> None:
        """Fall back to eager updates with `engine = "auto"`, raise an error otherwise."""
        if self.agent.config.engine != "auto":
            raise CaptureError(sentence)
        self.say(f"engine: eager, since {sentence}")
        self.mode, self._captures = "eager", False
        self._compiler.give_up()
        self._overlap = None
