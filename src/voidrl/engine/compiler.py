"""Compiled versions of what an agent's pieces mark as fusable, and what happens where compiling fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from voidrl.agent.agent import Agent
from voidrl.engine.cache import open_cache, start_workers
from voidrl.replay import Replay

RECOMPILE_LIMIT = 2**14  # all optimizers that a process ever has share the code of one `step`
FUSED_BY_COMPILER = {"fused": False, "foreach": True}  # an optimizer's step, into one pass that fills the GPU
OPTIONS: dict[str, Any] = {"fallback_random": True}  # the same random numbers as without
CUDA_OPTIONS = {"combo_kernels": True}  # small kernels that do not wait for each other run as one


class Compiler:
    """The fusable methods of an agent and its replay, each compiled when it is first called.

    It is true as long as there is anything to compile.
    """

    resets = 0
    """Times that the compiled code of the process was dropped. All engines warm up again afterwards, since
    nothing may compile during a capture."""

    def __init__(self, agent: Agent, replay: Replay, say: Callable[[str], None], *, active: bool) -> None:
        self._methods = _fusable_methods(agent, replay) if active else []
        self._may_give_up, self._say = agent.config.engine == "auto", say
        self.cache = open_cache(agent.device, say) if self._methods else None
        if self._methods and agent.device.type == "cuda":
            start_workers()

    def __bool__(self) -> bool:
        return bool(self._methods)

    def give_up(self) -> None:
        """Compile nothing from here on."""
        self._methods = []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, fusable methods are replaced by their compiled versions."""
        if not self._methods:
            yield
            return
        with ExitStack() as undo:
            limits = {"recompile_limit": RECOMPILE_LIMIT, "accumulated_recompile_limit": RECOMPILE_LIMIT}
            undo.enter_context(torch._dynamo.config.patch(limits))
            undo.enter_context(torch._functorch.config.patch(enable_autograd_cache=True))
            if hasattr(torch._functorch.config, "backward_pass_autocast"):  # as the agent has it without
                undo.enter_context(torch._functorch.config.patch(backward_pass_autocast="off"))
            for owner, name, compiled in self._methods:
                setattr(owner, name, compiled)
                undo.callback(delattr, owner, name)
                for group in owner.param_groups if isinstance(owner, torch.optim.Optimizer) else ():
                    undo.callback(group.update, {key: group[key] for key in FUSED_BY_COMPILER})
                    group.update(FUSED_BY_COMPILER)
            yield

    def can_recover(self, error: Exception) -> bool:
        """Whether to run without compiling, which is said: if the engine was our choice.

        Either way the user learns where the code of earlier runs is, which may be damaged.
        """
        advice = f"if code compiled earlier is damaged, delete {self.cache}"
        if not self._may_give_up:
            if self.cache is not None:
                error.add_note(advice)
            return False
        cause = getattr(error, "inner_exception", error)  # torch names only itself in the first line
        first_line = str(cause).strip().partition("\n")[0]
        reason = f"{type(cause).__name__}: {first_line}"
        where = "" if self.cache is None else f"; {advice}"
        self._say(f"engine: graph, since the update could not be compiled ({reason}){where}")
        self.give_up()
        torch.compiler.reset()
        Compiler.resets += 1
        return True


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
