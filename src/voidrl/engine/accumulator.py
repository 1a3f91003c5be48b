"""Means of metrics on the device, read by the host once per row."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from voidrl.errors import ConfigError
from voidrl.types import NonFinite


class Accumulator:
    """Means of device scalars between two log rows, kept on the device until `flush`.

    All scalars live on one device. Adds of the same variant with the same keys share one vector, which is
    never reallocated: an add may be part of a captured CUDA graph. The adds before the first that was not
    finite are counted too. They show the metric in which a NaN began, even if it has reached all others by
    the time the host reads.
    """

    def __init__(self) -> None:
        # By variant and keys, (2, keys): their sums, and the adds before the first sum that was not finite.
        self._groups: dict[tuple[int, tuple[str, ...]], Tensor] = {}
        self.non_finite: list[NonFinite] = []
        """Metrics that were not finite at the last flush."""

    def add(self, metrics: Mapping[str, Tensor], variant: int = 0) -> None:
        """Add 0-d tensors without a host read; a key may be missing from some adds."""
        if not metrics:
            return
        for key, value in metrics.items():
            if value.ndim:
                raise ConfigError(
                    f"metric {key!r} has shape {tuple(value.shape)}: expected a single number; reduce it "
                    "first, for instance with .mean()"
                )
        group = variant, tuple(metrics)
        row = torch.stack([value.detach() for value in metrics.values()])  # (keys,)
        if group not in self._groups:
            self._groups[group] = torch.zeros(2, len(row), dtype=torch.float64, device=row.device)
        sums, finite = self._groups[group]
        sums += row
        finite += sums - sums == 0  # once NaN or infinite, a sum stays so

    def flush(self) -> dict[str, float]:
        """Return the mean of every key since the last flush and start over; NaN and infinity are kept."""
        self.non_finite = []
        if not self._groups:
            return {}
        rows = torch.cat(self.buffers(), 1).tolist()  # the one host read
        sums: dict[str, float] = {}
        adds: dict[str, float] = {}
        keys = [(variant, i, key) for variant, keys in self._groups for i, key in enumerate(keys)]
        for (variant, order, key), total, finite in zip(keys, *rows, strict=True):
            sums[key] = sums.get(key, 0.0) + total
            adds[key] = adds.get(key, 0.0) + finite
            if not math.isfinite(total):
                self.non_finite.append(NonFinite(variant, key, int(finite), order))
        for buffer in self.buffers():
            buffer.zero_()
        return {k: v / adds[k] if math.isfinite(v) else v for k, v in sums.items() if adds[k] or v}

    def buffers(self) -> list[Tensor]:
        """The tensors that an add changes."""
        return [*self._groups.values()]
