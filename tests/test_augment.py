"""Shifts and crops against padding and slicing, intensity, network input, and agents that see less."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import PIXELS, fill_replay, make_agent, watch_losses

from voidrl.config import AugmentConfig
from voidrl.errors import ConfigError, SpaceError
from voidrl.nets.augment import Augment, center_crop, images
from voidrl.types import Frames

LARGE = replace(PIXELS, frame_shape=(3, 41, 40), raw_shape=(41, 40, 3))
CROP = {"augment__crop_size": 36, "augment__shift_pixels": 0}  # the rows 2 to 37, the columns 2 to 37


def each(obs):
    """Observations of one frame each."""
    return Frames(obs, torch.arange(len(obs))[:, None])


def test_intensity_multiplies_each_image_within_bounds():
    torch.manual_seed(0)
    frames = each(torch.full((20_000, 2, 3, 3), 100, dtype=torch.uint8))
    factor = (Augment(AugmentConfig(0, 0.05))(frames) + 0.5) * 255 / 100
    assert torch.allclose(factor, factor[:, :1, :1, :1].expand_as(factor))
    factor = factor[:, 0, 0, 0]
    assert factor.min().item() == pytest.approx(0.9)
    assert factor.max().item() == pytest.approx(1.1)
    assert factor.mean().item() == pytest.approx(1.0, abs=0.002)
    assert factor.std().item() == pytest.approx(0.05 * 0.959, abs=0.002)  # a normal clipped at two deviations


PIPELINES = {  # (H, W), then the window (0: all), the padding and the crop (0: the size of the image)
    "drq": ((9, 8), 0, 2, 0),
    "rad": ((9, 9), 0, 0, 6),
    "rad, not square": ((7, 9), 0, 0, 6),
    "curl on atari": ((8, 8), 6, 2, 0),
    "all of them": ((9, 9), 8, 1, 8),
}


def literally(image, inner, pixels, crop):
    """Every result of a random crop, padding with repeated edges and another random crop, one by one."""
    _, h, w = image.shape
    window, size = (inner or h, inner or w), (crop or h, crop or w)
    results = []
    for top in range(h - window[0] + 1):
        for left in range(w - window[1] + 1):
            part = image[:, top : top + window[0], left : left + window[1]]
            padded = F.pad(part[None].float(), (pixels,) * 4, mode="replicate")[0].to(image.dtype)
            rows, columns = (range(p - s + 1) for p, s in zip(padded.shape[1:], size, strict=True))
            results += [padded[:, y : y + size[0], x : x + size[1]] for y in rows for x in columns]
    return results


@pytest.mark.parametrize("name", PIPELINES)
def test_each_is_a_crop_then_padding_then_another_crop(name):
    """All results of the literal operations, each as likely as the others, and nothing else."""
    torch.manual_seed(0)
    (h, w), inner, pixels, crop = PIPELINES[name]
    image = torch.randperm(h * w).view(1, h, w).to(torch.uint8)
    wanted = literally(image, inner, pixels, crop)
    kinds = {result.numpy().tobytes(): i for i, result in enumerate(wanted)}
    assert len(kinds) == len(wanted)  # every result can be told from the others
    config = AugmentConfig(pixels, crop_size=crop, inner_size=inner)
    views = Augment(config)(each(image.expand(40 * len(kinds), 1, h, w)))
    views = ((views + 0.5) * 255).round().to(torch.uint8)  # not as network input
    found = torch.tensor([kinds[view.numpy().tobytes()] for view in views])
    counts = torch.bincount(found, minlength=len(kinds)).double()
    chi_square = ((counts - 40) ** 2 / 40).sum()
    assert chi_square < len(kinds) + 5 * (2 * len(kinds)) ** 0.5


@pytest.mark.parametrize("options", [{}, {"crop_size": 9}, {"inner_size": 9}], ids=str)
def test_frames_of_a_stack_move_together(options):
    torch.manual_seed(0)
    source = torch.randint(256, (1, 2, 12, 12), dtype=torch.uint8).expand(3, 2, 12, 12)
    views = Augment(AugmentConfig(3, **options))(Frames(source, torch.tensor([[0, 1, 2]] * 50)))
    assert torch.equal(views[:, :2], views[:, 2:4])
    assert torch.equal(views[:, :2], views[:, 4:])
    assert len({one.numpy().tobytes() for one in views}) > 20  # and observations apart


@pytest.mark.parametrize("crop", [0, 9])
def test_only_a_share_of_images_is_shifted(crop):
    torch.manual_seed(0)
    n, share = 5000, 0.1
    image = torch.randint(256, (1, 1, 11, 11), dtype=torch.uint8).expand(n, 1, 11, 11)
    config = AugmentConfig(4, crop_size=crop, shift_probability=share)
    plain = Augment(config).plain(each(image[:1]))
    kinds = (2 * 4 + 1 + (11 - crop if crop else 0)) ** 2  # shifts, one of which is none
    views = Augment(config)(each(image))
    moved = (views != plain).flatten(1).any(1).double().mean().item()
    expected = share * (1 - 1 / kinds)
    assert abs(moved - expected) < 4 * (expected * (1 - expected) / n) ** 0.5
    for unmoved in (AugmentConfig(4, shift_probability=0.0), AugmentConfig(0)):
        assert torch.equal(Augment(unmoved)(each(image)), images(image))


@pytest.mark.parametrize("shape", [(12, 10), (11, 9), (8, 9), (8, 8)])
def test_without_augmentation_the_center_is_seen(shape):
    obs = torch.randint(256, (5, 2, *shape), dtype=torch.uint8)
    top, left = (shape[0] - 8) // 2, (shape[1] - 8) // 2
    center = obs[:, :, top : top + 8, left : left + 8]
    assert torch.equal(center_crop(obs, (8, 8)), center)
    assert torch.equal(images(obs, size=(8, 8)), images(center))
    assert torch.equal(Augment(AugmentConfig(4, 0.3, crop_size=8)).plain(each(obs)), images(center))
    with pytest.raises(SpaceError, match="images of 7×9 cannot be cropped to 8×8: expected at least"):
        images(obs[:, :, :7].repeat(1, 1, 1, 2)[..., :9], size=(8, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop_size": -1}, "augment.crop_size = -1 cannot be used: expected 0 to 65536"),
        ({"shift_probability": 1.5}, r"augment.shift_probability = 1.5 .* a number in \[0, 1\]"),
        ({"crop_size": 41}, "crop_size = 41 cannot be used on pixels 3×41×40.* at most 40 pixels, or 0"),
        ({"inner_size": 50}, "inner_size = 50 cannot be used on pixels 3×41×40.* at most 40"),
        ({"inner_size": 36, "shift_pixels": 2}, "inner_size = 36 .*shift_pixels = 2: .*fill 41 .* 3 or more"),
        ({"inner_size": 30, "crop_size": 38, "shift_pixels": 3}, "must fill 38 pixels; expected .* of 4 or"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_agent(LARGE, **{f"augment__{name}": value for name, value in changes.items()})


def test_the_learner_sees_s_and_the_next_state_shifted_differently():
    agent = make_agent(PIXELS, augment__shift_pixels=4)
    replay, batches = fill_replay(PIXELS), []
    replay.frames[:] = torch.randint(256, (3, 36, 36), dtype=torch.uint8)  # all states alike
    watch_losses(agent, lambda batch, reward: batches.append(batch))
    agent.update(replay)
    same = (batches[0].obs == batches[0].next_obs).flatten(1).all(1)
    assert same.sum() <= 3  # of 16, each with probability 1/81


def test_a_cropping_agent_acts_on_the_center():
    agent, reference = make_agent(LARGE, **CROP), make_agent(PIXELS)
    assert agent.spec == LARGE
    assert agent.learner.spec.obs_shape == agent.representation.spec.obs_shape == (6, 36, 36)
    for name, tensor in reference.tensors().items():
        assert torch.equal(tensor, agent.tensors()[name]), name
    obs = np.random.default_rng(0).integers(0, 256, (32, 2, 41, 40, 3), dtype=np.uint8)
    center = obs[:, :, 2:38, 2:38]
    assert (agent.act(obs) == reference.act(center)).all()
    frames = torch.from_numpy(obs).permute(0, 1, 4, 2, 3).flatten(1, 2)
    z = agent.representation.encode(frames)
    assert torch.equal(z, reference.representation.encode(frames[:, :, 2:38, 2:38].contiguous()))
    with pytest.raises(SpaceError, match="cannot be acted on"):
        agent.act(center)
