"""Matplotlib for the figure of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from voidrl.errors import MissingExtraError


def import_pyplot() -> Any:
    """Import pyplot for drawing to files; an error that says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing figures") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def fill_maze(axis: Any, walls: np.ndarray, visits: np.ndarray, cells: Mapping[str, Sequence[int]]) -> None:
    """Draw a maze with its visits on a logarithmic color scale, and letters in some cells."""
    shown = np.where(visits > 0, np.log1p(visits), np.nan)  # most visits are near the start
    axis.imshow(np.where(walls, 0.22, 0.93), cmap="gray", vmin=0, vmax=1)
    axis.imshow(shown, cmap="YlOrRd", vmin=0, vmax=max(float(np.log1p(visits).max()), 1e-9))
    for letter, (row, column) in cells.items():
        disc = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "black"}
        axis.text(column, row, letter, bbox=disc, ha="center", va="center", fontsize=7, weight="bold")
    axis.axis("off")
