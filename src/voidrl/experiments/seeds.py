"""Seeds of the runs of a method and of the pre-trainings that they start from. Imports no torch.

With `pretrain_seeds` in the file, every pre-trained agent is fine-tuned once per seed. No two runs of a
method then share a seed: with seeds 1 to N, run s from pre-training p has the seed (p − 1) N + s. A method
that is trained `like` the fine-tuned one shares its seeds, one run for each of its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voidrl.config import require
from voidrl.experiments.format import ArmSpec, ExperimentSpec
from voidrl.experiments.request import ExperimentRequest


class RunSeeds(NamedTuple):
    """The seeds behind one run of a method."""

    seed: int
    """Seed of the run itself."""
    pretrain: int | None = None
    """Seed of the pre-training that it starts from; None if it is no fine-tuning."""
    paired: bool = False
    """Whether a pre-training has several fine-tunings, so that a folder must name both seeds."""

    @property
    def folder(self) -> str:
        """The last part of the run's folder."""
        return f"pretrain{self.pretrain}-seed{self.seed}" if self.paired else f"seed{self.seed}"


def require_seeds(experiment: ExperimentSpec, request: ExperimentRequest) -> None:
    """Refuse seeds on the command line that the experiment cannot have."""
    for name, seeds in (("seeds", request.seeds), ("pretrain_seeds", request.pretrain_seeds)):
        require(len({*seeds}) == len(seeds), name, [*seeds], "each of them once")
    pretrained = [*request.pretrain_seeds]
    expected = f"none, as every fine-tuning of experiment {experiment.name!r} has its own pre-training"
    require(not pretrained or bool(experiment.pretrain_seeds), "--pretrain-seeds", pretrained, expected)
    require(min(pretrained, default=1) > 0, "pretrain_seeds", pretrained, "whole numbers from 1 on")


def run_seeds(experiment: ExperimentSpec, request: ExperimentRequest, arm: ArmSpec) -> list[RunSeeds]:
    """The requested runs of an arm in each task, in the order in which they start."""
    if arm.like is not None and not arm.seeds:
        return [RunSeeds(each.seed) for each in run_seeds(experiment, request, experiment.arms[arm.like])]
    seeds = _requested(arm, request.seeds, experiment.seeds)
    if arm.phases == ("pretrain",) and experiment.pretrain_seeds:
        seeds = _requested(arm, request.pretrain_seeds, experiment.pretrain_seeds)
    if arm.phases[-1] != "finetune":
        return [RunSeeds(seed) for seed in seeds]
    if not experiment.pretrain_seeds:
        return [RunSeeds(seed, seed) for seed in seeds]
    source = arm if arm.source is None else experiment.arms[arm.source]
    own = source.seeds if source.phases == ("pretrain",) else ()  # of another arm: those that are evaluated
    pretrained = request.pretrain_seeds or own or experiment.pretrain_seeds
    count = max(*arm.seeds, *experiment.seeds, 1)
    for seed in seeds:
        expected = f"1 to {count}, as in the file; --pretrain-seeds adds more"
        require(1 <= seed <= count, "seeds", seed, expected)
    # One fine-tuning of every pre-trained agent is done first.
    return [RunSeeds((p - 1) * count + seed, p, paired=True) for seed in seeds for p in pretrained]


def _requested(arm: ArmSpec, given: Sequence[int], default: Sequence[int]) -> Sequence[int]:
    """The command line's seeds, or the file's; of a method's own seeds, those that are asked for."""
    if arm.seeds:
        return [seed for seed in arm.seeds if not given or seed in given]
    return given or default
