"""Several processes (ranks) that train one agent: who this one is, and what they exchange.

torchrun starts the processes; `process_group` joins them. Numbers on the host are exchanged by gloo; tensors
of updates by NCCL if each rank has its own GPU, else by gloo. In a run on one process each function
returns its argument.

All ranks call the same functions in the same order. If one ends, the next exchange of the others raises
`RankLostError`.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch._compile import _disable_dynamo
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from voidrl.errors import ConfigError, RankLostError
from voidrl.system.terminal.output import skip_destructors

START_TIMEOUT = timedelta(minutes=5)  # until all processes have started
# The others wait while one evaluates or writes a checkpoint, or between two runs of a script. A process that
# ends closes its connections, which the others notice at once.
GLOO_TIMEOUT = timedelta(hours=6)
NCCL_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class ProcessGroup:
    """The group of processes that this one belongs to."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank among the processes on this machine."""
    local_size: int = 1
    backend: str = ""
    """`nccl` or `gloo`: how tensors of an update are exchanged; empty until `place` has chosen it."""

    @property
    def is_main(self) -> bool:
        """Whether this is the first rank, which logs, evaluates and speaks."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether tensors of an update are exchanged; also in a group of one that was made on purpose."""
        return self.backend != ""

    @property
    def can_be_captured(self) -> bool:
        """Whether a CUDA graph can hold the exchanges of an update."""
        return not self.is_distributed or self.backend == "nccl"

    def share_of(self, batch_size: int) -> int:
        """The number of a batch's transitions that this rank samples, the same for all ranks."""
        return batch_size // self.size

    def sharing(self, device: torch.device) -> int:
        """The number of ranks that take memory of a device that this one uses."""
        return 1 if device.type == "cuda" and self.backend == "nccl" else self.local_size

    def part(self, total: int) -> range:
        """This rank's consecutive part of `total` things, such as environments; sizes differ by at most 1."""
        return range(self.rank * total // self.size, (self.rank + 1) * total // self.size)


_alone = ProcessGroup()
_current = _alone
_host: Any = None  # torch's group for numbers on the host
_device: Any = None  # and for tensors of updates
_store: Any = None  # kept, since a script may start one run after another
_groups_made = 0


def current() -> ProcessGroup:
    """The group of this process; one of size 1 outside of `process_group`."""
    return _current


def expected_size() -> int:
    """The number of processes that torchrun has started for one run; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Join the other processes that torchrun has started, and leave them at the end.

    Tensors of updates are exchanged once `place` is called. After an exception the connections are closed, so
    that the next exchange of the others fails.
    """
    global _current, _host, _device, _store, _groups_made
    size = expected_size()
    if size == 1 or _current is not _alone:
        yield _current
        return
    try:
        rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", 0))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        if _store is None:
            _store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=START_TIMEOUT)))
        _groups_made += 1
        # The store may hold the addresses of earlier groups, and of processes that torchrun has restarted.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
        store = PrefixStore(f"voidrl/{start}/{_groups_made}", _store)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=GLOO_TIMEOUT)
        _store.set_timeout(GLOO_TIMEOUT)  # of later groups: the others may still be in the run before
    except (RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"one of {size} ranks cannot reach the others ({str(error).splitlines()[0]}): expected "
            f"torchrun's RANK, MASTER_ADDR and MASTER_PORT; start all {size} with torchrun"
        ) from error
    _host = distributed.group.WORLD
    _current = ProcessGroup(rank, size, local_rank, local_size)
    is_complete = False
    try:
        yield _current
        all_gather_object(None)  # nobody leaves while another rank still exchanges something
        is_complete = True
        skip_destructors()  # gloo's threads now and then abort a process that has done everything
    finally:
        # NCCL would wait here for a rank that is lost: its connections are closed by the end of the process.
        if is_complete or _current.backend != "nccl":
            distributed.destroy_process_group()
        _current, _host, _device = _alone, None, None


@contextmanager
def alone() -> Iterator[None]:
    """Disable communication inside, for what one rank does by itself, such as an evaluation."""
    global _current
    group, _current = _current, ProcessGroup()
    try:
        yield
    finally:
        _current = group


def place(device: torch.device) -> None:
    """Exchange tensors of updates on this device: by NCCL if every rank has its own GPU."""
    global _current, _device
    if _current.size == 1:
        return
    cuda = device.type == "cuda"  # the id is the same where each process sees only one GPU
    gpu = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}" if cuda else None
    places = all_gather_object(gpu)
    own = None not in places and len({*places}) == _current.size
    with _exchanging():
        _device = distributed.new_group(timeout=NCCL_TIMEOUT, backend="nccl") if own else _host
    _current = dataclasses.replace(_current, backend="nccl" if own else "gloo")


def own_device(name: str) -> str:
    """The device of this rank for the name that all were given: a GPU each for `auto` and `cuda`.

    All ranks share a GPU that was named by its number.
    """
    if _current.size == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{_current.local_rank % torch.cuda.device_count()}"


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their mean over ranks, in place and in one exchange."""
    if _current.is_distributed and tensors:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        _write(sum_(flat) / _current.size, tensors)


def average(x: Tensor) -> Tensor:
    """The mean of a tensor over ranks, without gradients; for one process the tensor itself."""
    if not _current.is_distributed:
        return x
    x = x.detach()
    return sum_(x.clone() if x.is_floating_point() else x.float()) / _current.size


def sum_(x: Tensor) -> Tensor:
    """Replace a tensor by its sum over ranks."""
    return _reduce(x, "SUM") if _current.is_distributed else x


def min_(x: Tensor) -> Tensor:
    """Replace each element by the smallest of all ranks."""
    return _reduce(x, "MIN") if _current.is_distributed else x


def broadcast_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by those of the first rank, in place, with one exchange per dtype."""
    if not _current.is_distributed:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        with _exchanging():
            distributed.broadcast(flat, src=0, group=_group(flat))
        _write(flat, same)


def all_gather(x: Tensor) -> Tensor:
    """(n, …) of every rank → (size · n, …), in the order of ranks; gradients flow back to their rank.

    They are the gradients of the sum of all ranks' losses: `average_` makes them those of the mean.
    """
    return _gather(x) if _current.is_distributed else x


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        everything = x.new_empty(_current.size * len(x), *x.shape[1:])
        # Newer versions of torch have another name for it, and warn of the old one.
        exchange = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        with _exchanging():
            exchange(everything, x.contiguous(), group=_group(x))
        return everything

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = sum_(gradients[0].clone(memory_format=torch.contiguous_format))
        return summed.chunk(_current.size)[_current.rank]


# `torch.compiler.disable` would import the compiler, which takes a second, also for one process.
@_disable_dynamo
def _gather(x: Tensor) -> Tensor:
    gathered: Tensor = _AllGather.apply(x)  # type: ignore[no-untyped-call]
    return gathered


@_disable_dynamo
def _reduce(x: Tensor, op: str) -> Tensor:
    with _exchanging():
        distributed.all_reduce(x, getattr(distributed.ReduceOp, op), group=_group(x))
    return x


def _group(x: Tensor) -> Any:
    """The group that exchanges a tensor: NCCL only takes tensors on a GPU."""
    return _host if x.device.type == "cpu" else _device


@torch.no_grad()
def _write(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(list(tensors), [part.view_as(to) for part, to in zip(parts, tensors, strict=True)])


def total(*numbers: float) -> list[float]:
    """Sums over ranks of numbers on the host."""
    if _current.size == 1:
        return [*numbers]
    sums = torch.tensor(numbers, dtype=torch.float64)
    with _exchanging():
        distributed.all_reduce(sums, group=_host)
    return [float(number) for number in sums]


def all_gather_object(value: Any) -> list[Any]:
    """A picklable value of every rank, in their order, on every rank."""
    values = [value] * _current.size
    if _current.size > 1:
        with _exchanging():
            distributed.all_gather_object(values, value, group=_host)
    return values


def broadcast_object(value: Any) -> Any:
    """The value of the first rank, on every rank."""
    return all_gather_object(value)[0]


@contextmanager
def _exchanging() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(
            f"rank {_current.rank} of {_current.size} has lost another rank: see that rank's message"
        ) from error
