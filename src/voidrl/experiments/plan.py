"""A plan: the runs of an experiment, every one with its complete config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voidrl.config import Config
from voidrl.envs.ids import DMC
from voidrl.experiments.format import ArmSpec, ExperimentSpec
from voidrl.experiments.grid import Axis, Point
from voidrl.experiments.request import ExperimentRequest
from voidrl.types import EnvSpec


@dataclass(frozen=True)
class Cell:
    """One run."""

    folder: str
    """Run folder, relative to the experiment's: `walker_run/apt/seed1`, `freeway/apt/pretrain2-seed4`."""
    arm: ArmSpec
    label: str
    """Label of its row in tables."""
    task: str
    """The environment's id."""
    config: Config
    protocol_steps: int
    """Steps in the experiment's own protocol, regardless of the request."""
    spec: EnvSpec = field(repr=False, compare=False)
    source: str | None = None
    """Folder of the pre-training that it starts from."""
    evaluation: dict[str, Any] | None = None
    """Settings of its evaluation, as in evaluation.json."""
    is_final: bool = False
    """Whether it is the last run of an arm, rather than a pre-training for another."""
    pretrain_seed: int | None = None
    """Seed of the pre-training that it is, or starts from."""
    zero_shot: dict[str, Any] | None = None
    """Settings of the evaluation of the agent that it fine-tunes, in the environment of the task."""
    point: Mapping[str, Any] = field(default_factory=dict)
    """Values of the fields that vary in a grid."""

    @property
    def phase(self) -> str:
        """Pre-training, fine-tuning or training from scratch."""
        return self.config.phase

    @property
    def seed(self) -> int:
        """Seed of everything random in the run."""
        return self.config.seed


@dataclass(frozen=True)
class Plan:
    """All cells, in the order in which they start."""

    experiment: ExperimentSpec
    request: ExperimentRequest
    out: Path
    cells: list[Cell]
    notes: list[str]
    """Notes to the user."""
    axes: Mapping[str, Sequence[Axis]] = field(default_factory=dict)
    """Fields that vary in each arm of an experiment with a grid."""
    cells_at: Callable[[str, Point], list[Cell]] = field(
        default=lambda arm, point: [], repr=False, compare=False
    )
    """All cells of an arm, by its name, at a point of its grid."""

    @property
    def has_grid(self) -> bool:
        """Whether any field varies."""
        return any(self.axes.values())

    @property
    def published(self) -> str | None:
        """The published table for comparison; None for DMControl from pixels, as tables are from states."""
        pixels = any(c.task.startswith(DMC) and c.config.env.dmc.observation == "pixels" for c in self.cells)
        return None if pixels else self.experiment.published

    def path(self, cell: Cell | str) -> Path:
        """The run folder of a cell."""
        return self.out / (cell if isinstance(cell, str) else cell.folder)
