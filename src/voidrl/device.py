"""Where a run computes, and the random numbers it draws there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from voidrl.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    match = re.fullmatch(r"auto|cuda(?::(\d+))?", str(name))
    if match is None:
        raise ConfigError(f"device = {name!r} cannot be used: expected auto, cpu, cuda or cuda:N")
    index = int(match[1]) if match[1] else torch.cuda.current_device() if count else 0
    if index >= count:
        there = f"sees only {count} CUDA devices" if count else "sees no CUDA device"
        raise ConfigError(f"device = {name!r} cannot be used: torch {there} here; use auto or cpu")
    return torch.device("cuda", index)


def has_bf16(device: torch.device) -> bool:
    """Whether products in bf16 are faster there: on tensor cores they are, on most CPUs they are not."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether products are bf16 under this `Config.precision`."""
    return precision == "bf16" or (precision == "auto" and has_bf16(device))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of one's own on the CPU and on `device`; those from before go on afterwards."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs that are not ours
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def placed(name: str, seed: int) -> Iterator[torch.device]:
    """The device of that name, with random numbers of one's own; the caller's go on afterwards."""
    place = pick_device(name)
    # Streams and events are those of the current device: on a machine with several it must be ours.
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext(), seeded(seed, place):
        yield place


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The generators of torch; nothing else in a run draws random numbers between two resets."""
    state = {"rng_cpu": torch.get_rng_state()}
    return {**state, "rng_cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """The inverse of `random_state`; a run moved to another kind of device goes on with fresh ones there."""
    torch.set_rng_state(state["rng_cpu"])
    if device.type == "cuda" and "rng_cuda" in state:
        torch.cuda.set_rng_state(state["rng_cuda"], device)
