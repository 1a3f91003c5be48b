"""Compiled versions of what an agent's pieces mark as fusable."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from voidrl.agent.agent import Agent
from voidrl.replay import Replay
from voidrl.system.machine import whole_cores

RECOMPILE_LIMIT = 2**14  # all optimizers that a process ever has share the code of one `step`
FUSED_BY_COMPILER = {"fused": False, "foreach": True}  # an optimizer's step, into one pass that fills the GPU
OPTIONS: dict[str, Any] = {"fallback_random": True}  # the same random numbers as without
CUDA_OPTIONS = {"combo_kernels": True}  # small kernels that do not wait for each other run as one


class Compiler:
    """The fusable methods of an agent and its replay, each compiled when it is first called.

    It is true as long as there is anything to compile. torch keeps compiled code for the next start.
    """

    def __init__(self, agent: Agent, replay: Replay, *, active: bool) -> None:
        self._methods = _fusable_methods(agent, replay) if active else []
        self._tag = _operators_digest() if active else ""
        if self._methods and agent.device.type == "cuda":
            _start_workers()

    def __bool__(self) -> bool:
        return bool(self._methods)

    def give_up(self) -> None:
        """Compile nothing from here on."""
        self._methods = []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, fusable methods are replaced by their compiled versions, if there are any."""
        if not self._methods:
            yield
            return
        with ExitStack() as undo:
            limits = {"recompile_limit": RECOMPILE_LIMIT, "accumulated_recompile_limit": RECOMPILE_LIMIT}
            undo.enter_context(torch._dynamo.config.patch(limits))
            tag = {"cache_key_tag": self._tag}
            undo.enter_context(torch.compiler.config.patch(tag))  # type: ignore[attr-defined]
            undo.enter_context(torch._functorch.config.patch(enable_autograd_cache=True))
            if hasattr(torch._functorch.config, "backward_pass_autocast"):  # as the agent has it without
                undo.enter_context(torch._functorch.config.patch(backward_pass_autocast="off"))
            for owner, name, compiled in self._methods:
                setattr(owner, name, compiled)
                undo.callback(delattr, owner, name)
                for group in owner.param_groups if isinstance(owner, torch.optim.Optimizer) else ():
                    undo.callback(group.update, {key: group[key] for key in FUSED_BY_COMPILER})
                    group.update(FUSED_BY_COMPILER)
            try:
                yield
            except torch._dynamo.exc.TorchDynamoException as error:
                error.add_note("an update that cannot be compiled runs with engine = 'graph'")
                raise


def _start_workers() -> None:
    """Start the processes that compile kernels, without waiting for them.

    torch starts them when it first compiles, and compiles one kernel after the other until they are ready,
    which takes seconds. Here they start while the environments play the first steps.
    """
    from torch._inductor import config
    from torch._inductor.async_compile import maybe_warm_pool

    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:  # torch starts one for each core of the machine
        config.compile_threads = min(32, whole_cores())
    maybe_warm_pool()


def _operators_digest() -> str:
    """A digest of our operators: their gradients and shapes are compiled in, but torch does not hash them."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = file.read_bytes()
        if re.search(rb"^@torch\.library", source, re.MULTILINE):
            digest.update(source)
    return f"voidrl-{digest.hexdigest()[:12]}"


def _fusable_methods(agent: Agent, replay: Replay) -> list[tuple[Any, str, Callable]]:
    found = []
    owners = [*agent.modules(), replay, *([] if replay.priorities is None else [replay.priorities])]
    for owner in owners:
        for name, function in inspect.getmembers(type(owner), inspect.isfunction):
            if getattr(function, "fusable", False):
                found.append((owner, name, getattr(owner, name)))
    options = OPTIONS
    if agent.device.type == "cuda":
        found += [(optimizer, "step", optimizer.step) for optimizer in agent.optimizers.values()]
        options = options | CUDA_OPTIONS
    return [(owner, name, torch.compile(f, dynamic=False, options=options)) for owner, name, f in found]
