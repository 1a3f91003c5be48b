"""Views: each read is a fresh augmentation of the right states, and what is stored stays as it is."""

import pytest
import torch
from helpers import PIXELS, fill_replay, line_replay

from voidrl.config import AugmentConfig
from voidrl.nets.augment import Augment, images
from voidrl.representations.base import Views
from voidrl.types import Layout


def views_of(spec, n_step=1, **augment):
    """Views of 8 transitions, and the same as stored."""
    torch.manual_seed(0)
    replay = fill_replay(spec)
    segment = replay.segment(replay.sample(8), n_step, 0.9)
    return Views(replay, segment, Augment(AugmentConfig(**augment)), Layout()), replay.n_step_batch(segment)


@pytest.mark.parametrize("n_step", [1, 3])
def test_views_are_of_the_first_state_and_the_last_and_each_is_drawn_afresh(n_step):
    views, stored = views_of(PIXELS, n_step, shift_pixels=2)
    for read in (views.obs, views.next_obs):
        first, second = read(), read()
        assert first.shape == second.shape == (8, *PIXELS.obs_shape)
        assert not torch.equal(first, second)
    assert all(map(torch.equal, views.batch, stored))
    views, stored = views_of(PIXELS, n_step, shift_pixels=0, intensity_scale=0.0)
    assert torch.equal(views.obs(), images(stored.obs))
    assert torch.equal(views.next_obs(), images(stored.next_obs))
    assert not torch.equal(stored.obs, stored.next_obs)


@pytest.mark.parametrize("window", [1, 3, 50])
def test_a_future_state_is_of_the_same_episode_and_any_step_of_it_is_as_likely(window):
    """Frames 0 … 11 are one episode, 12 … 80 another, which the data ends."""
    replay = line_replay(range(81), terminated_at=(10,))
    starts = sorted(replay.starts[: len(replay)].tolist())
    assert starts == [t for t in range(80) if t != 11]
    slots = torch.tensor(starts).repeat(200)
    views = Views(replay, replay.segment(slots, 1, 1.0), Augment(AugmentConfig()), Layout())
    torch.manual_seed(0)
    future, now = views.future(window).squeeze(1), replay.observations(slots).squeeze(1)
    last = torch.minimum(now + window, torch.where(now <= 10, 11.0, 80.0))
    assert (future > now).all()
    assert (future <= last).all()
    for start in (0, 5, 10, 20, 79):
        mine = future[now == start]
        reachable = int(last[now == start][0]) - start
        counts = torch.bincount((mine - start).long(), minlength=reachable + 1)[1:]
        assert len(counts) == reachable
        assert (counts - 200 / reachable).abs().max() < 5 * (200 / reachable) ** 0.5
