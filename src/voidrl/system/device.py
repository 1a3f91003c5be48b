"""The device of a run and its random number generators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from voidrl.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is CUDA if available, otherwise the CPU."""
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


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether matrix products use bf16 under this `Config.precision`; `auto` does on tensor cores."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return precision == "bf16"


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of the CPU and `device`, and restore the caller's afterwards."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        reseed(seed, device)
        yield


@contextmanager
def placed(name: str, seed: int) -> Iterator[torch.device]:
    """Select a device by name with seeded generators, and restore the caller's afterwards."""
    place = pick_device(name)
    # Streams and events belong to the current device, which must be ours on a machine with several.
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext(), seeded(seed, place):
        yield place


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's generators; there is no other randomness in a run between two resets."""
    state = {"rng_cpu": torch.get_rng_state()}
    return {**state, "rng_cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore `random_state`; a run moved to another kind of device keeps the seeded generator there."""
    torch.set_rng_state(state["rng_cpu"])
    if device.type == "cuda" and "rng_cuda" in state:
        torch.cuda.set_rng_state(state["rng_cuda"], device)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and `device`; torch.manual_seed would also seed GPUs of others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
