"""Reads of the replay, against a list of episodes: stacks, n-step returns, borders, graphs."""

import numpy as np
import pytest
import torch
from tiny_replays import Oracle, line, numbers, steps_of, vector_spec

from voidrl.engine.host_reads import HostReads
from voidrl.replay import Replay

CPU = torch.device("cpu")


@pytest.mark.parametrize(("num_envs", "capacity", "stack"), [(1, 7, 4), (5, 40, 2), (2, 1, 4)])
def test_every_sample_agrees_with_a_list_of_episodes(num_envs, capacity, stack):
    oracle = Oracle(num_envs, capacity, stack, seed=stack, skill_dim=2)
    torch.manual_seed(0)
    oracle.reset()
    for time in range(150):
        if time % 41 == 0:
            oracle.reset()
            continue
        oracle.step()
        assert len(oracle.replay) == len(oracle.valid())
        if time % 2:
            for n in (1, 3, 10):
                oracle.check(oracle.replay.sample(12), n, 0.9)
        if time % 10 == 0:
            drawn = oracle.replay.action[oracle.replay.sample(60 * len(oracle.valid()))]
            assert set(drawn.tolist()) == oracle.valid()
    assert oracle.row > 3 * oracle.replay.rows


def test_latest_is_what_the_environments_wait_on():
    oracle = Oracle(3, 6, 3, seed=1)
    oracle.reset()
    for _ in range(60):
        assert numbers(oracle.replay.latest()).tolist() == oracle.awaited()
        oracle.step()


def test_sampling_is_uniform_over_the_valid_transitions():
    oracle = Oracle(3, 30, 2, seed=3, end=0.3)
    torch.manual_seed(1)
    oracle.reset()
    for _ in range(100):
        oracle.step()
    valid, draws = sorted(oracle.valid()), 200_000
    slots = oracle.replay.sample(draws)
    counts = np.bincount(np.searchsorted(valid, oracle.replay.action[slots].numpy()), minlength=len(valid))
    expected = draws / len(valid)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < len(valid) + 5 * np.sqrt(2 * len(valid))
    last = [bool(oracle.episodes[e][k]["steps"][t]["end"]) for e, k, t, _ in map(oracle.where.get, valid)]
    assert any(last)
    assert counts[last].mean() == pytest.approx(expected, rel=0.03)


# --- n-step returns by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "discount"), [("terminated", 0.0), ("truncated", 0.25)])
def test_n_step_targets_stop_at_an_episodes_end(ending, discount):
    # frames 0 1 2 3 | 4 5: step 3 is the reset, whose reward 64 belongs to nobody
    replay = line([1, 2, 4, 64, 8], {2: ending})
    batch = replay.batch(torch.tensor([0, 1, 2, 4]), 3, 0.5)
    assert batch.reward.tolist() == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4, 8]
    bootstrap = {"terminated": [0, 0, 0, 0.5], "truncated": [0.125, 0.25, 0.5, 0.5]}[ending]
    assert batch.discount.tolist() == bootstrap
    assert bootstrap[1] == discount
    assert batch.next_obs.flatten().tolist() == [3, 3, 3, 5]
    assert batch.skill.flatten().tolist() == [0, 1, 2, 4]
    assert torch.allclose(batch.action[:, 1], torch.tensor([0.0, 0.01, 0.02, 0.04]))
    assert sorted(set(replay.sample(500).tolist())) == [0, 1, 2, 4]


def test_a_lost_life_is_terminal_and_the_step_after_it_is_real():
    """Nothing is bootstrapped across it, no step is left out, and stacks reach back over it."""
    # frames 0 1 2 3 4 5: with step 2 a life is lost; step 3 continues from frame 3
    replay = line([1, 2, 4, 64, 8], {2: "lost"}, stack=2)
    assert len(replay) == 5
    batch = replay.batch(torch.tensor([0, 1, 2, 3, 4]), 3, 0.5)
    assert batch.reward.tolist() == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4, 64 + 0.5 * 8, 8]
    assert batch.discount.tolist() == [0, 0, 0, 0.25, 0.5]
    assert batch.obs.tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert batch.next_obs.tolist() == [[2, 3], [2, 3], [2, 3], [4, 5], [4, 5]]


def test_a_segment_is_its_steps():
    replay = line([1, 2, 4, 64, 8], {2: "terminated"}, stack=2)
    segment = replay.segment(torch.tensor([0, 1, 4]), 3, 0.5)
    assert segment.weights.tolist() == [[1, 0.5, 0.25], [1, 0.5, 0], [1, 0, 0]]
    assert segment.slots.tolist() == [[0, 1, 2], [1, 2, 2], [4, 4, 4]]
    assert segment.states[:, -1].tolist() == [3, 3, 5]
    batches, weights = zip(*steps_of(replay, segment), strict=True)
    assert torch.stack(weights, 1).tolist() == segment.weights.tolist()
    assert [b.reward.tolist() for b in batches] == [[1, 2, 8], [2, 4, 8], [4, 4, 8]]
    assert [b.discount.tolist() for b in batches] == [[1, 1, 1], [1, 0, 1], [0, 0, 1]]
    assert batches[1].obs.tolist() == [[0, 1], [1, 2], [4, 5]]  # the last stands at its final state
    assert batches[1].next_obs.tolist() == [[1, 2], [2, 3], [4, 5]]
    summed = sum(w * b.reward for w, b in zip(weights, batches, strict=True))
    assert torch.equal(summed, replay.batch(torch.tensor([0, 1, 4]), 3, 0.5).reward)


def test_a_reset_cuts_the_running_episode_as_a_truncation():
    replay = line([1, 2], {})
    replay.reset(np.full((1, 1), 50, np.float32))
    replay.reset(np.full((1, 1), 60, np.float32))
    batch = replay.batch(torch.tensor([0, 1]), 5, 0.5)
    assert batch.reward.tolist() == [2, 2]
    assert batch.discount.tolist() == [0.25, 0.5]
    assert batch.next_obs.flatten().tolist() == [2, 2]
    assert replay.latest().tolist() == [[60]]
    assert len(replay) == 2
    ended, empty = line([1, 2], {1: "terminated"}), line([], {})
    for each in (ended, empty):
        each.reset(np.full((1, 1), 5, np.float32))
        assert each.latest().tolist() == [[5]]
    assert ended.batch(torch.tensor([0, 1]), 5, 0.5).discount.tolist() == [0, 0]
    assert not empty.ending.any()


# --- what a CUDA graph needs ------------------------------------------------------------------------------


def read(replay):
    """Everything that an update calls."""
    slots = replay.sample(6)
    segment = replay.segment(slots, 3, 0.9)
    steps = [(*batch, weights) for batch, weights in steps_of(replay, segment)]
    return [*replay.batch(slots, 3, 0.9), replay.observations(slots), replay.latest(), *sum(steps, ())]


def test_reading_never_waits_for_the_host():
    oracle = Oracle(2, 10, 2)
    oracle.reset()
    for _ in range(5):
        oracle.step()
    with HostReads() as reads:
        read(oracle.replay)
    assert reads.first is None, reads.what


def test_a_graph_may_hold_on_to_the_tensors():
    oracle = Oracle(2, 6, 2)
    held = {
        k: v.data_ptr() for k, v in vars(oracle.replay).items() if isinstance(v, torch.Tensor) and v.numel()
    }
    oracle.reset()
    for _ in range(30):
        oracle.step()
    oracle.replay.load(oracle.replay.state(), ((n, tag, make()) for n, tag, make in oracle.replay.chunks()))
    assert held == {k: getattr(oracle.replay, k).data_ptr() for k in held}


# Options and notes


@pytest.mark.parametrize("stack", [1, 3])
def test_options_are_whole_episodes_that_are_over_and_stored(stack):
    oracle = Oracle(2, 24, stack, end=0.2)
    oracle.reset()
    complete = 0
    for _ in range(60):  # the ring is overwritten more than four times
        oracle.step()
        slots = oracle.replay.newest(len(oracle.replay))
        found = oracle.replay.options(slots, longest=5)
        first, last = (numbers(oracle.replay.observations(each)) for each in (found.first, found.last))
        for i, action in enumerate(oracle.replay.action[slots].tolist()):
            env, number, time, row = oracle.where[action]
            episode = oracle.episodes[env][number]
            steps = len(episode["steps"])
            over = episode["steps"][-1]["end"] is not None
            stored = row - time >= oracle.oldest()
            assert found.complete[i] == (over and steps <= 5 and stored)
            if found.complete[i]:
                assert found.steps[i] == steps
                assert first[i].tolist() == oracle.stacked(episode, 0)
                assert last[i].tolist() == oracle.stacked(episode, steps)
                complete += 1
    assert complete > 100


def skilled_line(steps, period, lost=(), capacity=20):
    """One environment, frames 0, 1, 2, …, whose skill changes every `period` steps."""
    replay, no = Replay(vector_spec(), 1, capacity, 1, CPU, CPU, note_dim=1), np.zeros(1, bool)
    replay.reset(np.zeros((1, 1), np.float32))
    for i in range(steps):
        frame, skill = np.full((1, 1), i + 1, np.float32), torch.full((1, 1), float(i // period))
        changes = np.array([(i + 1) % period == 0])
        action = np.zeros((1, 2), np.float32)
        replay.add(action, np.zeros(1), np.array([i in lost]), no, frame, skill, no, changes)
        replay.annotate(torch.zeros(1, dtype=torch.int64), torch.full((1, 1), float(i)))
    return replay


def test_options_end_with_skills_and_lives():
    replay = skilled_line(11, 4, lost=(5,))
    found = replay.options(torch.arange(11), longest=4)
    assert found.steps[:8].tolist() == [4, 4, 4, 4, 2, 2, 2, 2]
    assert found.complete.tolist() == [True] * 8 + [False] * 3
    assert replay.frames[found.first, 0][:8].tolist() == [0] * 4 + [4, 4, 6, 6]
    assert replay.frames[found.last, 0][:8].tolist() == [4] * 4 + [6, 6, 8, 8]
    assert not replay.options(torch.arange(4), longest=3).complete.any()


def test_notes_and_endings_are_those_of_the_step_into_the_next_state():
    replay = skilled_line(11, 4)
    slots = torch.arange(11)
    batch = replay.batch(slots, 1, 1.0)
    assert batch.note[:, 0].tolist() == list(range(11))
    assert batch.ended.tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    joined = replay.batch(slots, 3, 1.0)
    assert joined.note[:, 0].tolist() == [2, 3, 3, 3, 6, 7, 7, 7, 10, 10, 10]
    assert joined.ended.tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0]
    for i, (step, weights) in enumerate(steps_of(replay, replay.segment(slots[:4], 3, 1.0))):
        valid = weights > 0
        assert step.note[valid, 0].tolist() == [0 + i, 1 + i, 2 + i, 3 + i][: valid.sum()]
        assert step.ended[valid].tolist() == [float(t + i == 3) for t in range(4)][: valid.sum()]
