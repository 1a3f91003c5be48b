"""Random shift against padding and cropping, intensity, and what passes through."""

import pytest
import torch
import torch.nn.functional as F

from voidrl.augment import Augment, intensity, random_shift
from voidrl.config import AugmentConfig


def padded_crops(image, pixels):
    """Every shift of one (C, H, W) image by padding with repeated edges and cropping, by (row, column)."""
    _, h, w = image.shape
    padded = F.pad(image[None].float(), (pixels,) * 4, mode="replicate")[0].to(image.dtype)
    return {
        (i, j): padded[:, i : i + h, j : j + w] for i in range(2 * pixels + 1) for j in range(2 * pixels + 1)
    }


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("pixels", "shape"), [(1, (2, 5, 6)), (2, (3, 7, 4)), (4, (1, 6, 9))])
def test_a_shift_is_padding_by_repetition_and_cropping(dtype, pixels, shape):
    torch.manual_seed(0)
    image = torch.randperm(shape[0] * shape[1] * shape[2]).view(shape).to(dtype)
    crops = padded_crops(image, pixels)
    names = {crop.numpy().tobytes(): shift for shift, crop in crops.items()}
    assert len(names) == len(crops) == (2 * pixels + 1) ** 2  # every shift can be told from the others
    draws = 200 * len(crops)
    shifted = random_shift(image.expand(draws, *shape), pixels)  # not contiguous
    assert shifted.shape == (draws, *shape)
    assert shifted.dtype == dtype
    found = [names[one.numpy().tobytes()] for one in shifted]  # a KeyError is a shift that does not exist
    counts = torch.tensor([found.count(shift) for shift in crops], dtype=torch.float64)
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < len(crops) + 5 * (2 * len(crops)) ** 0.5


def test_channels_move_together_and_samples_apart():
    torch.manual_seed(0)
    plane = torch.randint(256, (1, 1, 12, 12), dtype=torch.uint8)
    shifted = random_shift(plane.expand(64, 5, 12, 12), 4)
    assert (shifted == shifted[:, :1]).all()
    assert len({one.numpy().tobytes() for one in shifted}) > 30


def test_intensity_multiplies_each_image_within_bounds():
    torch.manual_seed(0)
    images = torch.full((20_000, 2, 3, 3), 0.5)
    factor = intensity(images, 0.05) / images
    assert torch.allclose(factor, factor[:, :1, :1, :1].expand_as(factor))
    factor = factor[:, 0, 0, 0]
    assert factor.min().item() == pytest.approx(0.9)
    assert factor.max().item() == pytest.approx(1.1)
    assert factor.mean().item() == pytest.approx(1.0, abs=0.002)
    assert factor.std().item() == pytest.approx(0.05 * 0.959, abs=0.002)  # a normal clipped at two deviations


def test_bytes_become_floats_in_the_unit_interval():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    plain = Augment(AugmentConfig(0, 0.0))(images)
    assert torch.equal(plain, images.float() / 255)
    shifted = Augment(AugmentConfig(4, 0.0))(images.expand(50, 3, 16, 16))
    assert shifted.dtype == torch.float32
    assert shifted.min() >= 0
    assert shifted.max() <= 1
    jittered = Augment(AugmentConfig(4, 0.5))(images.expand(50, 3, 16, 16))
    assert jittered.max() > 1
    assert jittered.min() >= 0


def test_each_call_is_a_fresh_view():
    augment = Augment(AugmentConfig(4, 0.1))
    images = torch.randint(256, (8, 3, 20, 20), dtype=torch.uint8)
    kept = images.clone()
    assert not torch.equal(augment(images), augment(images))
    assert torch.equal(images, kept)


def test_vectors_pass_through():
    x = torch.randn(5, 7)
    assert Augment(AugmentConfig(4, 0.5))(x) is x
