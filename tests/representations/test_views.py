"""Views: each read is a fresh augmentation of the right states, and what is stored stays as it is."""

import pytest
import torch
from helpers import DISCRETE, PIXELS, fill_replay

from voidrl.augment import Augment, images
from voidrl.config import AugmentConfig
from voidrl.representations.base import Views
from voidrl.types import Layout


def views_of(spec, n_step=1, **augment):
    """Views of 8 transitions, and the same as stored."""
    torch.manual_seed(0)
    replay = fill_replay(spec)
    segment = replay.segment(replay.sample(8), n_step, 0.9)
    return Views(replay, segment, Augment(AugmentConfig(**augment)), Layout()), replay.n_step_batch(segment)


def test_each_read_is_drawn_afresh():
    views, stored = views_of(PIXELS, shift_pixels=2)
    for read in (views.obs, views.next_obs):
        first, second = read(), read()
        assert first.shape == second.shape == (8, *PIXELS.obs_shape)
        assert not torch.equal(first, second)
    assert all(map(torch.equal, views.batch, stored))


@pytest.mark.parametrize("n_step", [1, 3])
def test_views_are_of_the_first_state_and_the_last(n_step):
    views, stored = views_of(PIXELS, n_step, shift_pixels=0, intensity_scale=0.0)
    assert torch.equal(views.obs(), images(stored.obs))
    assert torch.equal(views.next_obs(), images(stored.next_obs))
    assert not torch.equal(stored.obs, stored.next_obs)


def test_several_views_at_once_are_all_first_ones_then_all_second_ones():
    plain, stored = views_of(PIXELS, shift_pixels=0, intensity_scale=0.0)
    assert torch.equal(plain.obs(times=3), images(stored.obs).repeat(3, 1, 1, 1))
    assert torch.equal(plain.next_obs(times=2), images(stored.next_obs).repeat(2, 1, 1, 1))
    views, _ = views_of(PIXELS, shift_pixels=2)
    alike = [torch.equal(a, b) for a, b in zip(*views.obs(times=2).chunk(2), strict=True)]
    assert sum(alike) < 4  # one of 25 pairs is


def test_vectors_are_as_stored():
    views, stored = views_of(DISCRETE)
    assert torch.equal(views.obs(times=2), stored.obs.repeat(2, 1))
    assert torch.equal(views.next_obs(), stored.next_obs)
