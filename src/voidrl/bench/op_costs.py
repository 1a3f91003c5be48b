"""Operations and bytes of our own operators, by what they compute and not by how their kernels do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from torch import Tensor


class Piece(NamedTuple):
    """One step that reads and writes memory."""

    part: str
    flop: float
    bytes: float
    in_bf16: bool = False
    """Whether the operations are products on tensor cores."""


Given = dict[str, Any]  # an operator's arguments by name


def stored_bytes(tensor: Tensor) -> int:
    """What is there to be read: an expanded axis is read once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(n for n, stride in sizes if stride or n == 0) * tensor.element_size()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def bytes_in(value: Any) -> int:
    """Of all tensors in it."""
    return sum(map(stored_bytes, tensors_in(value)))


def knn_distances(given: Given, out: Tensor) -> list[Piece]:
    """Every pair's distance; points among themselves are read once."""
    queries, particles = given["queries"], given["particles"]
    own = given["exclude_self"] and same(queries, particles)
    (n, d), m = queries.shape, len(particles)
    size = stored_bytes(particles) + (0 if own else stored_bytes(queries)) + stored_bytes(out)
    return [Piece("neighbors", knn_flop(n, d, None if own else m), size)]


def same(queries: Tensor, particles: Tensor) -> bool:
    """Whether both are the same points in memory, perhaps by two names."""
    here, there = ((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in (queries, particles))
    return here == there


def knn_flop(n: int, d: int, m: int | None) -> float:
    """Subtract, multiply, add for each coordinate of a pair; points among themselves meet once."""
    pairs = n * (n - 1) / 2 if m is None else n * m
    return 3.0 * pairs * d


def images(given: Given, out: Tensor) -> list[Piece]:
    """Of the frames in the replay only those that the index names are read."""
    source, index = given["source"], given["index"]
    frames = len(source) if index is None else min(len(source), index.numel())
    read = frames * stored_bytes(source) / max(1, len(source))
    others = {name: value for name, value in given.items() if name != "source"}
    return [Piece("images", 0.0, read + bytes_in(others) + stored_bytes(out))]


def conv_stack(given: Given, out: list[Tensor]) -> list[Piece]:
    """Layer after layer: its input, weights and result."""
    sizes = _sizes(given["x"], given["weights"], given["strides"])
    return [
        Piece("convolutions", _flop(weight, result), 2.0 * (prod(x) + prod(result)) + bytes_in(weight), True)
        for weight, x, result in zip(given["weights"], sizes, sizes[1:], strict=False)
    ]


def conv_stack_backward(given: Given, out: list[Tensor]) -> list[Piece]:
    """For each layer the gradient of its weight, and that of its input where it is needed."""
    sizes = _sizes(given["x"], given["weights"], given["strides"])
    pieces = []
    for i, (weight, x, result) in enumerate(zip(given["weights"], sizes, sizes[1:], strict=False)):
        both = i > 0 or given["to_input"]
        size = 2.0 * (prod(x) * (1 + both) + prod(result)) + bytes_in(weight) * (1 + both)
        pieces.append(Piece("convolutions", _flop(weight, result) * (1 + both), size, True))
    return pieces


def _sizes(x: Tensor, weights: Sequence[Tensor], strides: Sequence[int]) -> list[tuple[int, ...]]:
    """Of the images before and after each layer."""
    batch, height, width = x.shape[0], *x.shape[2:]
    # Channels beyond the weight's are padding.
    sizes: list[tuple[int, ...]] = [(batch, weights[0].shape[1], height, width)]
    for weight, stride in zip(weights, strides, strict=True):
        height, width = (
            (n - k) // stride + 1 for n, k in zip((height, width), weight.shape[2:], strict=True)
        )
        sizes.append((batch, weight.shape[0], height, width))
    return sizes


def _flop(weight: Tensor, result: tuple[int, ...]) -> float:
    return 2.0 * prod(result) * prod(weight.shape[1:])


# `bench update` counts with plain layouts, whose 3, 4 or 9 channels our convolutions leave to PyTorch. They
# are here all the same: an operator of ours that is missing would count nothing, and nobody would notice.
OWN_OPS: dict[str, Callable[[Given, Any], list[Piece]]] = {
    "knn_distances": knn_distances,
    "images": images,
    "conv_stack": conv_stack,
    "conv_stack_backward": conv_stack_backward,
}
