"""Finds what a CUDA graph cannot hold: reads on the host, and shapes that depend on values."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from voidrl.agent.agent import Agent

ROOM = Path(__file__).parent


class HostReads(TorchDispatchMode):
    """Records the first operation that a CUDA graph cannot hold: a host read, or a data-dependent shape."""

    ops = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique", "unique_dim", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.first: traceback.StackSummary | None = None
        self.what = ""

    def __torch_dispatch__(self, op: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op.name().removeprefix("aten::").partition(".")[0]
        if self.first is None:
            if name.startswith(self.ops):
                self.what = "the host reads a tensor"
            elif _has_mask(name, args):
                self.what = "a mask as index makes a shape that depends on values"
            elif name == "lift_fresh" and args[0].is_cuda:
                self.what = "a tensor is made from Python numbers"
            elif "copy" in name and _crosses(args, kwargs):
                self.what = "a tensor is copied between host and device"
            if self.what:
                self.first = traceback.extract_stack()
        return op(*args, **kwargs)


def _crosses(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether `_to_copy(source, device=…)` or `copy_(target, source)` leaves the device or enters it."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    places = {tensor.device.type for tensor in tensors}
    if kwargs.get("device") is not None:
        places.add(torch.device(kwargs["device"]).type)
    return len(places) > 1


def _has_mask(name: str, args: tuple) -> bool:
    if not name.startswith("index") or (name.startswith("index_put") and args[2].numel() == 1):
        return False  # x[mask] = 0 is a fill, whatever the mask
    parts = [part for arg in args[1:] if isinstance(arg, list | tuple) for part in arg]
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def diagnose_host_read(agent: Agent, frames: traceback.StackSummary, what: str) -> str:
    """A sentence with the piece and the line that cannot be captured, and a remedy."""
    pieces = {"method": agent.method, "representation": agent.representation, "learner": agent.learner}
    homes = {
        (function.__code__.co_filename, function.__name__): kind
        for kind, piece in pieces.items()
        for cls in reversed(type(piece).__mro__)
        for function in vars(cls).values()
        if inspect.isfunction(function)
    }
    own = [frame for frame in frames if (frame.filename, frame.name) in homes]
    elsewhere = [
        f for f in frames if "torch" not in Path(f.filename).parts and ROOM not in Path(f.filename).parents
    ]
    frame = (own or elsewhere or frames)[-1]
    kind = homes.get((frame.filename, frame.name), "")
    name = f"{kind} {getattr(agent.config, kind).name!r}" if kind else "the update"
    return (
        f"{name} cannot be captured in a CUDA graph ({what}: {Path(frame.filename).name}, line "
        f"{frame.lineno}, `{frame.line}`): keep it on the device, with torch.where instead of `if` and "
        f"buffers instead of Python counters, or run with engine = 'eager'"
    )
