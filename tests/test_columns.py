"""A replay divided by columns and put together again."""

import numpy as np
import pytest
import torch
from helpers import CPU, DISCRETE, PIXELS, fill_replay

from voidrl.config import ReplayConfig
from voidrl.errors import CheckpointError
from voidrl.replay import Replay
from voidrl.replay.columns import take_columns
from voidrl.runs import checkpoint

SPLITS = {"two": (2, 2), "uneven": (1, 1, 2), "one": (4,), "each": (1, 1, 1, 1)}
STORED = ("frames", "action", "reward", "ending", "age", "skill", "note")


def whole_replay(spec=DISCRETE, config=None, steps=60, capacity=120):
    """Four environments whose replay has wrapped; skills and notes too."""
    replay = Replay(spec, 4, capacity, 2, CPU, CPU, config, 1)
    continue_with(replay, np.random.default_rng(0), steps)
    return replay


def continue_with(replay, rng, steps):
    """Random steps; columns differ, and each draw is for all four environments whatever the replay has."""
    shape = (4, *replay.spec.stored_shape)
    if len(replay) == 0:
        replay.reset(rng.integers(0, 256, shape).astype(np.uint8 if replay.spec.pixels else np.float32))
    for _ in range(steps):
        ends = rng.random(4) < 0.2
        frames = rng.integers(0, 256, shape).astype(np.uint8 if replay.spec.pixels else np.float32)
        skill = torch.from_numpy(rng.normal(size=(4, 2)).astype(np.float32))
        given = rng.integers(3, size=4), rng.normal(size=4), ends & (rng.random(4) < 0.5), ends
        action, reward, terminated, ended = given
        replay.add(action, reward, terminated, ended & ~terminated, frames, skill)
        replay.annotate(torch.arange(4), torch.from_numpy(rng.random((4, 1))))


def divided(replay, widths):
    parts, first = [], 0
    for width in widths:
        part = replay.empty_like(width)
        take_columns(part, first, [(0, replay)])
        parts.append((first, part))
        first += width
    return parts


def listed_starts(replay):
    """Slots of transitions, oldest first."""
    return replay.newest(len(replay)).flip(0).tolist()


@pytest.mark.parametrize("widths", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("spec", [DISCRETE, PIXELS], ids=["vectors", "stacked images"])
def test_a_divided_replay_put_together_is_the_same(spec, widths):
    whole = whole_replay(spec)
    parts = divided(whole, widths)
    again = whole.empty_like(4)
    take_columns(again, 0, parts)
    assert sum(len(part) for _, part in parts) == len(whole) == len(again)
    for name in STORED:
        assert torch.equal(getattr(again, name), getattr(whole, name)), name
    assert listed_starts(again) == listed_starts(whole)
    # And it continues as if nothing had happened, across the end of the ring.
    for replay in (whole, again):
        continue_with(replay, np.random.default_rng(1), 40)
    assert listed_starts(again) == listed_starts(whole)
    assert torch.equal(again.frames, whole.frames)
    assert torch.equal(again.latest(), whole.latest())


def test_a_part_has_the_transitions_of_its_columns_in_order_of_time():
    whole = whole_replay()
    (_, part), (first, other) = divided(whole, (3, 1))
    slots = [slot for slot in listed_starts(whole) if slot % 4 == first]
    batch, expected = (
        r.batch(torch.tensor(s), 3, 0.9) for r, s in ((other, listed_starts(other)), (whole, slots))
    )
    for mine, theirs in zip(batch, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert len(part) + len(other) == len(whole)


def test_priorities_move_with_their_columns():
    config = ReplayConfig(priority_exponent=0.6)
    whole = whole_replay(config=config)
    torch.manual_seed(0)
    slots, _ = whole.draw(32)
    whole.priorities.update(slots, torch.rand(32) + 3)
    again = whole.empty_like(4)
    take_columns(again, 0, divided(whole, (1, 3)))
    for name, tensor in whole.priorities.state().items():
        assert torch.equal(tensor, again.priorities.state()[name]), name


def test_a_checkpoint_of_a_divided_replay_is_loaded_exactly(tmp_path):
    [(_, part), _] = divided(whole_replay(), (2, 2))
    files = {"replay": checkpoint.Group(part.state())}
    files |= {f"replay_{name}": checkpoint.Group(tensors, tag) for name, tag, tensors in part.chunks()}
    saved = checkpoint.load(checkpoint.save(tmp_path, 1, files, {}, keep_last=1))
    chunks = ((n.removeprefix("replay_"), saved.tensors(n)) for n in saved.files if n != "replay")
    again = part.empty_like(2)
    again.load(saved.tensors("replay"), chunks)
    assert listed_starts(again) == listed_starts(part)
    for name in STORED:
        assert torch.equal(getattr(again, name), getattr(part, name)), name


def test_parts_of_different_moments_are_refused():
    one, later = divided(whole_replay(), (2, 2))[0], divided(whole_replay(steps=61), (2, 2))[1]
    with pytest.raises(CheckpointError, match="do not fit together"):
        take_columns(one[1].empty_like(4), 0, [one, later])


def test_an_empty_replay_can_be_divided():
    part = fill_replay(steps=0).empty_like(1)
    assert len(part) == 0
