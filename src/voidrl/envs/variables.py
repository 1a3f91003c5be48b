"""The true state of environments, which representations should capture and no agent observes.

`Envs.true_state` returns it for environments created with `true_state=True`. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from voidrl.envs.spaces import NUMBERS

KEY = "variables"
"""Key of `info` under which an environment reports its state, a number by name."""


class Variable(NamedTuple):
    """One number of the true state."""

    name: str
    controllable: bool
    """Whether actions change it at once, as they do the player's position, but not a ghost's."""
    discrete: bool
    """Whether its values are categories, such as a room or a direction, without meaningful distances."""


def reported_state(
    info: Mapping[str, Any], frames: np.ndarray, *, pixels: bool
) -> tuple[tuple[Variable, ...], np.ndarray]:
    """The variables that N environments report, and their values (N, V) float64.

    The first of these that there is: `info["variables"]`, `info["cell"]`, the components of a vector
    observation. Control is unknown in a custom environment, so all count as controllable.
    """
    n = len(frames)
    told = info.get(KEY)
    if isinstance(told, Mapping):
        columns = {str(name): _column(values, n) for name, values in told.items() if name[:1] != "_"}
        found = {name: column for name, column in columns.items() if column is not None}
        if found:
            variables = tuple(Variable(name, controllable=True, discrete=False) for name in found)
            return variables, np.stack([*found.values()], 1)
    cell = _column(info.get("cell"), n)
    if cell is not None:
        return (Variable("cell", controllable=True, discrete=True),), cell[:, None]
    if pixels:
        return (), np.zeros((n, 0))
    flat = frames.reshape(n, -1).astype(np.float64)
    names = (f"observation_{i}" for i in range(flat.shape[1]))
    return tuple(Variable(name, controllable=True, discrete=False) for name in names), flat


def _column(values: Any, n: int) -> np.ndarray | None:
    """(n,) float64 if these are n numbers."""
    found = np.asarray(values)
    return found.astype(np.float64) if found.shape == (n,) and found.dtype.kind in NUMBERS else None
