"""Several processes that train one agent: who this one is, and what they exchange.

torchrun starts the processes, or `voidrl pretrain --ranks`; `process_group` makes a group of them. A number
that decides what happens next is exchanged on the host, always by gloo; tensors of the update by NCCL where
every rank has a GPU of its own, else by gloo. For one process, which is every run outside of such a group,
nothing here costs anything: each function returns what it was given.

All ranks call the same functions in the same order. One that dies makes the next call raise `RankLostError`
in all the others.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from voidrl.errors import ConfigError, RankLostError, RunInterrupted, StoppedBySignal, VoidrlError
from voidrl.ranks.liveness import End, Liveness

START_TIMEOUT = timedelta(minutes=5)  # until all processes have started
# For one that evaluates or writes a checkpoint, in a run or between two of a script. A dead process closes
# its connections, which is noticed at once; a dead machine does not, and is noticed by heartbeats in a run.
GLOO_TIMEOUT = timedelta(hours=6)
# An exchange within an update that takes this long ends the process, unless a CUDA graph replays it: NCCL may
# not watch those. `watch` notices dead processes and machines all the same.
NCCL_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class ProcessGroup:
    """The group that this process belongs to."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those on this machine."""
    local_size: int = 1
    backend: str = ""
    """`nccl` or `gloo`: what averages gradients; empty until `place` has chosen it."""
    liveness: Liveness | None = None
    """Who is still there; None for one process."""

    @property
    def is_main(self) -> bool:
        """Whether this is the one that logs, saves and speaks."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether tensors of an update are exchanged; a group of one that was made on purpose does so too."""
        return self.backend != ""

    @property
    def can_be_captured(self) -> bool:
        """Whether an update that exchanges tensors fits into a CUDA graph."""
        return not self.is_distributed or self.backend == "nccl"

    def share_of(self, batch_size: int) -> int:
        """How many transitions of a batch are this rank's: as many as every other's."""
        return batch_size // self.size

    def sharing(self, device: torch.device) -> int:
        """How many ranks take memory of a device that this one uses."""
        return 1 if device.type == "cuda" and self.backend == "nccl" else self.local_size

    def part(self, total: int) -> range:
        """Which of `total` things, such as environments, are this rank's: parts differ by one at most."""
        return range(self.rank * total // self.size, (self.rank + 1) * total // self.size)


@dataclass
class _Groups:
    """Those of torch. Its connections are closed when nothing refers to them any more, so only this does."""

    host: Any = None
    """For numbers on the host, by gloo."""
    device: Any = None
    """For tensors of updates: `host`, or one of NCCL."""
    all_gather: Any = None
    """`_all_gather` as a break between two compiled parts."""
    reduce: Any = None
    """`_reduce` likewise."""


_groups = _Groups()
_alone = ProcessGroup()
_current = _alone
_on_loss: Callable[[RankLostError], None] | None = None
_store: Any = None  # of torchrun: kept, as a script may start one run after another
_groups_made = 0
_processes: dict[int, tuple[str, int]] = {}  # of the last group: machines and process ids


def current() -> ProcessGroup:
    """The group of this process; one of size 1 outside of `process_group`."""
    return _current


def expected_size() -> int:
    """How many processes torchrun has started for one run; 1 without it."""
    return _variable("WORLD_SIZE", 1)


@contextmanager
def process_group(device: torch.device | None = None) -> Iterator[ProcessGroup]:
    """Join the other processes that torchrun has started; leaves them at the end.

    Tensors of updates are exchanged once `place` has said on which device they are; `device` says so at once.
    An exception leaves its sentence for the others, whose next exchange fails with it. It carries
    `is_reported` where the first rank ends for the same reason and says so.
    """
    global _current, _store, _groups_made, _processes
    size = expected_size()
    if size == 1 or _current is not _alone:
        yield _current
        return
    rank, local_rank = _variable("RANK"), _variable("LOCAL_RANK", 0)
    local_size = _variable("LOCAL_WORLD_SIZE", size)
    try:
        if _store is None:
            _store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=START_TIMEOUT)))
        _groups_made += 1  # what an earlier group left in the store, addresses among it, is not read again
        store = PrefixStore(f"voidrl/{_groups_made}", _store)
        liveness = Liveness(PrefixStore("liveness", store), rank, size)
        limit = GLOO_TIMEOUT if _processes else START_TIMEOUT
        _processes = liveness.wait_for_start(_processes, limit.total_seconds())
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=GLOO_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"rank {rank} of {size} cannot reach the others ({_first_line(error)}): expected torchrun's "
            f"MASTER_ADDR and MASTER_PORT, or start it with `voidrl pretrain --ranks {size}`"
        ) from error
    _groups.host = dist.group.WORLD
    _current = ProcessGroup(rank, size, local_rank, local_size, liveness=liveness)
    try:
        if device is not None:
            place(device)
        yield _current
        all_gather_object(None)  # nobody leaves while another one still needs it
        liveness.wait_for_others()
        _leave()
    except BaseException as error:
        end = End(" ".join(str(error).split()) or type(error).__name__, isinstance(error, RankLostError))
        liveness.report_end(end)
        _forget_groups(error)
        _leave()  # which ends the exchanges that others wait in
        if isinstance(error, VoidrlError | RunInterrupted | StoppedBySignal):
            error.is_reported = error.is_reported or liveness.is_reported(end)
        liveness.wait_for_others()
        raise
    finally:
        liveness.close()  # not before: NCCL may wait for a dead rank while the group is left


def _leave() -> None:
    global _current
    _current = _alone
    _groups.host = _groups.device = None
    if dist.is_initialized():
        dist.destroy_process_group()


def _forget_groups(error: BaseException | None) -> None:
    """Clear the frames of torch in which an exchange has failed: they refer to its group."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__", "").startswith("torch.distributed."):
                with suppress(RuntimeError):  # it is still running
                    frame.clear()
        error = error.__cause__ or error.__context__


@contextmanager
def alone() -> Iterator[None]:
    """What one rank does by itself, such as an evaluation: nothing is exchanged, as nobody would answer."""
    global _current
    group = _current
    _current = ProcessGroup()
    try:
        yield
    finally:
        _current = group


def place(device: torch.device) -> None:
    """Exchange tensors of updates on this device: by NCCL where every rank has a GPU of its own."""
    global _current
    if _current.size == 1:
        return
    places = all_gather_object(_physical(device))
    backend = "nccl" if None not in places and len({*places}) == _current.size else "gloo"
    with _exchanging():
        own = dist.new_group(backend="nccl", timeout=NCCL_TIMEOUT) if backend == "nccl" else _groups.host
    _exchange_by(own)
    _current = dataclasses.replace(_current, backend=backend)
    liveness = _current.liveness
    if liveness is not None and (backend == "nccl" or liveness.is_on_several_machines):
        liveness.watch(_report_loss)


def _exchange_by(group: Any) -> None:
    """Exchange tensors of updates within this group."""
    _groups.device = group
    # Not as decorators: this imports the compiler, which takes a second that agents at play are spared.
    _groups.all_gather, _groups.reduce = map(torch.compiler.disable, (_all_gather, _reduce))


def on_loss(report: Callable[[RankLostError], None] | None) -> None:
    """What is called before this process is ended because another one was lost and no exchange fails."""
    global _on_loss
    _on_loss = report


def _report_loss(sentence: str, is_reported: bool) -> None:
    if _on_loss is not None:
        error = RankLostError(sentence)
        error.is_reported = is_reported
        _on_loss(error)
    elif not is_reported and sys.stderr is not None:
        sys.stderr.write(f"voidrl: {sentence}\n")


def own_device(name: str) -> str:
    """The device of this rank where all were given the same name: each has its own GPU, if there are enough.

    A GPU that was named by its number is shared by all.
    """
    if _current.size == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{_current.local_rank % torch.cuda.device_count()}"


def _physical(device: torch.device) -> str | None:
    """What tells GPUs apart, also where processes see one each; None for a CPU."""
    if device.type != "cuda":
        return None
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their mean over ranks, in place and in one exchange."""
    if not _current.is_distributed or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    sum_(flat)
    flat /= _current.size
    _write(flat, tensors)


def average(x: Tensor) -> Tensor:
    """The mean of a tensor over ranks, without gradients; for one process the tensor itself."""
    if not _current.is_distributed:
        return x
    x = x.detach()
    return sum_(x.clone() if x.is_floating_point() else x.float()) / _current.size


def sum_(x: Tensor) -> Tensor:
    """Replace a tensor by its sum over ranks."""
    if not _current.is_distributed:
        return x
    summed: Tensor = _groups.reduce(x, "SUM")
    return summed


def min_(x: Tensor) -> Tensor:
    """Replace each element by the smallest of all ranks."""
    if not _current.is_distributed:
        return x
    smallest: Tensor = _groups.reduce(x, "MIN")
    return smallest


def broadcast_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by those of the first rank, in place: one exchange for each type of numbers."""
    if not _current.is_distributed:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        with _exchanging():
            dist.broadcast(flat, src=0, group=_group(flat))
        _write(flat, same)


def all_gather(x: Tensor) -> Tensor:
    """(n, …) of every rank → (size · n, …), in the order of ranks; gradients flow back to their rank.

    They are those of the sum of all ranks' losses, so that `average_` makes them those of the mean.
    """
    if not _current.is_distributed:
        return x
    gathered: Tensor = _groups.all_gather(x)
    return gathered


def _all_gather(x: Tensor) -> Tensor:
    gathered: Tensor = _AllGather.apply(x)  # type: ignore[no-untyped-call]
    return gathered


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        everything = x.new_empty(_current.size * len(x), *x.shape[1:])
        # Newer versions of torch have another name for it, and warn of the old one.
        exchange = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with _exchanging():
            exchange(everything, x.contiguous(), group=_group(x))
        return everything

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed: Tensor = _groups.reduce(gradients[0].clone(memory_format=torch.contiguous_format), "SUM")
        return summed.chunk(_current.size)[_current.rank]


def _reduce(x: Tensor, op: Literal["SUM", "MIN"]) -> Tensor:
    with _exchanging():
        dist.all_reduce(x, getattr(dist.ReduceOp, op), group=_group(x))
    return x


def _group(x: Tensor) -> Any:
    """NCCL takes tensors of its device alone: those in main memory go by the host's group."""
    return _groups.host if x.device.type == "cpu" else _groups.device


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
        dist.all_reduce(sums, group=_groups.host)
    found: list[float] = sums.tolist()
    return found


def all_gather_object(value: Any) -> list[Any]:
    """A picklable value of every rank, in their order, on every rank."""
    if _current.size == 1:
        return [value]
    values = [None] * _current.size
    with _exchanging():
        dist.all_gather_object(values, value, group=_groups.host)
    return values


def broadcast_object(value: Any) -> Any:
    """The value of the first rank, on every rank."""
    if _current.size == 1:
        return value
    values = [value]
    with _exchanging():
        dist.broadcast_object_list(values, src=0, group=_groups.host)
    return values[0]


@contextmanager
def _exchanging() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        found = _current.liveness.describe_loss() if _current.liveness is not None else ""
        raise RankLostError(found or f"a rank does not answer ({_first_line(error)})") from error


def _variable(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise ConfigError(f"the environment variable {name} is {text!r}: expected torchrun's whole number")
    return int(text)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
