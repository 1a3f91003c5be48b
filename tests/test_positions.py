"""Positions that environments report are counted in bins that grow; what is no position is not counted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_runs import Placed, Walk, newest, tiny

import voidrl
from voidrl.errors import CheckpointError
from voidrl.training.collecting import Collector
from voidrl.training.positions import FINEST, Positions
from voidrl.training.saved_run import LoopState


def counts(positions):
    """Width of a bin, and counts by the lower left corners of bins."""
    width = 2.0**positions.level
    corners = (positions.first + np.argwhere(positions.counts)) * width
    values = positions.counts[positions.counts > 0].tolist()
    return width, dict(zip(map(tuple, corners.tolist()), values, strict=True))


def test_positions_are_counted_and_bins_doubled_as_by_hand():
    found, both = Positions(), {(0, 0): 2}
    found.add(np.array([[0.5, 0.5]] * 2))
    assert counts(found) == (2.0**FINEST, {(0.5, 0.5): 2})
    found.add(np.array([[32.4, 0.5]]))  # 64 bins of ½ are just enough
    assert counts(found) == (0.5, {(0.5, 0.5): 2, (32, 0.5): 1})
    found.add(np.array([[63.9, -0.1]]))
    assert counts(found) == (1, both | {(32, 0): 1, (63, -1): 1})
    found.add(np.array([[64.0, 0.0]]))  # bins 0 and 1, 62 and 63 become one
    assert counts(found) == (2, both | {(32, 0): 1, (62, -2): 1, (64, 0): 1})
    found.add(np.array([[-300.0, 0.0], [np.nan, 0], [0, np.inf], [1.1e12, 0]]))  # the last three: ignored
    assert counts(found) == (8, {(0, 0): 2, (32, 0): 1, (56, -8): 1, (64, 0): 1, (-304, 0): 1})


def test_the_order_of_positions_does_not_matter_nor_does_a_checkpoint():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(300, 2)) * 10 ** rng.uniform(-7, 4, (300, 1))
    one, other = Positions(), Positions()
    one.add(positions)
    for each in rng.permutation(positions):
        other = Positions.load(other.state())
        other.add(each[None])
    for name, tensor in one.state().items():
        assert torch.equal(tensor, other.state()[name])
    assert one.counts.sum() == 300
    with pytest.raises(CheckpointError, match="damaged, or not voidrl's"):
        Positions.load({"positions": torch.zeros(3, 3)})


N = np.array
INFOS = {  # of two environments: what they report, and the counted bins
    "Gymnasium's vector environments": (
        {"variables": {"x": N([1.0, 2]), "_x": N([True, False]), "y": N([3, 4]), "_y": N([True, True])}},
        [(1, 3)],
    ),
    "native ones": ({"variables": {"x": [1, 2], "y": N([3, 4], np.uint8)}}, [(1, 3), (2, 4)]),
    "a cell wins": ({"cell": N([0, 5]), "variables": {"x": N([1, 2]), "y": N([3, 4])}}, []),
    "a cell that is no number does not": ({"cell": N(["a", "b"]), "variables": {"x": [1], "y": [3]}}, []),
    "not finite": ({"variables": {"x": N([np.nan, 1]), "y": N([0, np.inf])}}, []),
    "text": ({"variables": {"x": N(["1", "2"]), "y": N([1, 2])}}, []),
    "objects": ({"variables": {"x": N([None, 1.0]), "y": N([1, 2])}}, []),
    "pairs": ({"variables": {"x": np.ones((2, 1)), "y": N([1, 2])}}, []),
    "ragged": ({"variables": {"x": [[1], [1, 2]], "y": N([1, 2])}}, []),
    "a wrong mask": ({"variables": {"x": N([1, 2]), "_x": N([True]), "y": N([1, 2])}}, []),
    "no y": ({"variables": {"x": N([1, 2])}}, []),
    "no dictionary": ({"variables": N([1, 2])}, []),
    "nothing": ({}, []),
}


@pytest.mark.parametrize("case", INFOS)
def test_only_finite_numbers_of_both_names_are_positions(case):
    info, expected = INFOS[case]
    collector = object.__new__(Collector)
    collector.run, collector.envs = SimpleNamespace(state=LoopState()), SimpleNamespace(num_envs=2)
    collector._count_visits(info)
    _, found = counts(collector.run.state.positions)
    assert found == dict.fromkeys(expected, 1)
    assert len(collector.run.state.visits) == (6 if case == "a cell wins" else 0)


def saved_positions(run):
    tensors, _ = newest(run)
    return Positions.load({name.removeprefix("loop.safetensors/"): each for name, each in tensors.items()})


class Late(Walk):
    """Reports (time, −1) from its second step on."""

    def _seen(self):
        there = {"x": float(self.time), "y": -1, "name": "late"}
        return self.at.astype(np.float32), {"variables": there if self.time > 1 else {"y": -1}}


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_run_counts_positions_in_its_checkpoints(tmp_path, backend):
    config = tiny(env__num_envs=2, env__backend=backend, log__checkpoint_every_steps=100)
    voidrl.pretrain(Late, "random", steps=24, out=tmp_path / "run", config=config)
    assert counts(saved_positions(tmp_path / "run")) == (0.125, {(time, -1): 4 for time in range(2, 7)})


def test_a_checkpoint_from_before_positions_were_counted_can_be_resumed(tmp_path, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(Positions, "state", lambda self: {})
        voidrl.pretrain(Placed, "random", steps=12, out=tmp_path / "run", config=tiny())
    assert saved_positions(tmp_path / "run").counts.size == 0
    voidrl.resume(tmp_path / "run", env=Placed, steps=24)
    assert saved_positions(tmp_path / "run").counts.sum() == 12 + 3  # steps and starts of episodes
