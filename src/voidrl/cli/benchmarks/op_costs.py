"""Operations and bytes of our own operators, counted from the math, not from the kernels' implementation."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves

Arguments = dict[str, Any]  # an operator's arguments by name


class OpCost(NamedTuple):
    """The minimal cost of one operator."""

    part: str
    """Class of operator, as in `profile.PARTS`."""
    flop: float
    bytes: float
    tf32: bool = False
    """Whether its products run on tensor cores, at the rate of TF32."""


def stored_bytes(tensor: Tensor) -> int:
    """Bytes in memory; an expanded axis counts once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(n for n, stride in sizes if stride or n == 0) * tensor.element_size()


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def bytes_in(value: Any) -> int:
    """Bytes of all tensors in nested lists, tuples and dictionaries."""
    return sum(map(stored_bytes, tensors_in(value)))


def knn_cost(arguments: Arguments, out: Tensor) -> OpCost:
    """All pairwise distances; where the queries are the particles, they are read once."""
    queries, particles = arguments["queries"], arguments["particles"]
    own = arguments["exclude_self"] and same_memory(queries, particles)
    (n, d), m = queries.shape, len(particles)
    size = stored_bytes(particles) + (0 if own else stored_bytes(queries)) + stored_bytes(out)
    return OpCost("neighbors", knn_flop(n, d, None if own else m), size)


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors view the same memory."""
    here, there = ((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in (a, b))
    return here == there


def knn_flop(n: int, d: int, m: int | None) -> float:
    """Subtract, multiply and add per coordinate of a pair; with m = None, pairs among n points."""
    pairs = n * (n - 1) / 2 if m is None else n * m
    return 3.0 * pairs * d


def images_cost(arguments: Arguments, out: Tensor) -> OpCost:
    """Only the frames that the index names are read from the replay."""
    source, index = arguments["source"], arguments["index"]
    frames = len(source) if index is None else min(len(source), index.numel())
    read = frames * stored_bytes(source) / max(1, len(source))
    others = {name: value for name, value in arguments.items() if name != "source"}
    return OpCost("images", 0.0, read + bytes_in(others) + stored_bytes(out))


def tf32_cost(arguments: Arguments, out: Tensor) -> OpCost:
    """A product of two matrices."""
    a, b = arguments["a"], arguments["b"]
    size = stored_bytes(a) + stored_bytes(b) + stored_bytes(out)
    return OpCost("products", 2.0 * out.numel() * a.shape[1], size, tf32=True)


def draw_priorities_cost(arguments: Arguments, out: tuple[Tensor, ...]) -> OpCost:
    """All priorities are read and added up."""
    values = arguments["values"]
    return OpCost("priorities", float(values.numel()), stored_bytes(values) + bytes_in(out))


def update_priorities_cost(arguments: Arguments, out: None) -> OpCost:
    """The priorities of the batch are written."""
    slots, error = arguments["slots"], arguments["error"]
    written = len(slots) * arguments["values"].element_size()
    return OpCost("priorities", 0.0, stored_bytes(slots) + stored_bytes(error) + written)


# Our convolutions are missing: `bench update` counts with plain layouts, and they leave inputs with 3, 4 or 9
# channels to PyTorch. The roofline refuses an operator of ours that is not listed here.
OWN_OPS: dict[str, Callable[[Arguments, Any], OpCost]] = {
    "knn_distances": knn_cost,
    "images": images_cost,
    "tf32_mm": tf32_cost,
    "draw_priorities": draw_priorities_cost,
    "update_priorities": update_priorities_cost,
}
