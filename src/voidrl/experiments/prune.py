"""Pruning of a run by `--tune`: a file in the folder of the cell's lock requests it, a callback checks.

The file is in the experiment's folder, wherever the run is; nodes that do not share the folder are sent it.
"""

from __future__ import annotations

from pathlib import Path

from voidrl.runs.locks import CELLS
from voidrl.training.callbacks import STOP, Callback, RunView


def prune_path(root: Path, folder: str) -> Path:
    """The file with which a cell is pruned."""
    return root / CELLS / f"{folder}.prune"


def request_prune(root: Path, folder: str) -> None:
    """Ask a cell to write a checkpoint and end at its next row of metrics."""
    path = prune_path(root, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def clear_prune(root: Path, folder: str) -> None:
    """Drop an earlier request: the cell is wanted again."""
    prune_path(root, folder).unlink(missing_ok=True)


class PruneOnRequest(Callback):
    """Stop the run of a cell when it is pruned; `voidrl.runs.status` knows its name."""

    def __init__(self, root: Path, folder: str) -> None:
        self.path = prune_path(root, folder)

    def on_row(self, run: RunView) -> str | None:
        """Look for the request."""
        return STOP if run.step < run.config.steps and self.path.exists() else None
