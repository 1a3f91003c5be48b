"""Random shift against padding and cropping, intensity, network input, and what passes through."""

import pytest
import torch
import torch.nn.functional as F

from voidrl.augment import Augment, images, jitter_gain, shift_images
from voidrl.config import AugmentConfig
from voidrl.types import Frames


def each(obs):
    """Observations of one frame each."""
    return Frames(obs, torch.arange(len(obs))[:, None])


def crops(image, pixels):
    """Every shift (dy, dx) of one (C, H, W) image, by padding with repeated edges and cropping."""
    _, h, w = image.shape
    padded = F.pad(image[None].float(), (pixels,) * 4, mode="replicate")[0].to(image.dtype)
    moves = range(-pixels, pixels + 1)
    return {
        (dy, dx): padded[:, pixels + dy : pixels + dy + h, pixels + dx : pixels + dx + w]
        for dy in moves
        for dx in moves
    }


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("pixels", "shape"), [(0, (2, 3, 4)), (1, (2, 5, 6)), (2, (3, 7, 4)), (4, (1, 6, 9)), (4, (2, 1, 3))]
)
def test_a_shift_is_padding_by_repetition_and_cropping(dtype, pixels, shape):
    image = torch.randint(256, shape).to(dtype)
    wanted = crops(image, pixels)
    shift = torch.tensor(list(wanted)).T  # (2, B)
    found = shift_images(image.expand(len(wanted), *shape), shift, pixels)  # not contiguous
    assert found.dtype == dtype
    assert torch.equal(found, torch.stack(list(wanted.values())))


def test_a_shift_by_hand():
    image = torch.arange(1, 10).view(1, 1, 3, 3)
    moved = shift_images(image.expand(2, 1, 3, 3), torch.tensor([[1, 0], [0, -2]]), 2)
    assert moved[0, 0].tolist() == [[4, 5, 6], [7, 8, 9], [7, 8, 9]]  # one row down in the source
    assert moved[1, 0].tolist() == [[1, 1, 1], [4, 4, 4], [7, 7, 7]]


@pytest.mark.parametrize("pixels", [1, 4])
def test_every_shift_is_as_likely(pixels):
    torch.manual_seed(0)
    image = torch.randperm(81).view(1, 9, 9).to(torch.uint8)
    names = {crop.numpy().tobytes(): shift for shift, crop in crops(image, pixels).items()}
    kinds = (2 * pixels + 1) ** 2
    assert len(names) == kinds  # every shift can be told from the others
    views = Augment(AugmentConfig(pixels, 0.0))(each(image.expand(200 * kinds, 1, 9, 9)))
    views = ((views + 0.5) * 255).round().to(torch.uint8)
    found = [names[view.numpy().tobytes()] for view in views]  # a KeyError is a shift that does not exist
    counts = torch.tensor([found.count(shift) for shift in names.values()], dtype=torch.float64)
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < kinds + 5 * (2 * kinds) ** 0.5


def test_channels_move_together_and_samples_apart():
    torch.manual_seed(0)
    plane = torch.randint(256, (1, 1, 12, 12), dtype=torch.uint8)
    views = Augment(AugmentConfig(4, 0.0))(each(plane.expand(64, 5, 12, 12)))
    assert (views == views[:, :1]).all()
    assert len({one.numpy().tobytes() for one in views}) > 30


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


def test_gain_by_hand():
    assert jitter_gain(torch.tensor([-9.0, 0.0, 1.0, 9.0]), 0.25).tolist() == [0.5, 1, 1.25, 1.5]


def test_bytes_become_floats_around_zero():
    obs = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    plain = images(obs)
    assert torch.equal(plain, obs.float() / 255 - 0.5)
    assert torch.equal(Augment(AugmentConfig(0, 0.0))(each(obs)), plain)
    many = each(obs.expand(50, 3, 16, 16))
    moved = Augment(AugmentConfig(4, 0.0))(many)
    assert moved.dtype == torch.float32
    assert moved.min() >= -0.5
    assert moved.max() <= 0.5
    jittered = Augment(AugmentConfig(4, 0.5))(many)
    assert jittered.max() > 0.5
    assert jittered.min() >= -0.5


def test_frames_are_stacked_oldest_first():
    source = torch.randint(256, (10, 3, 6, 5), dtype=torch.uint8)
    index = torch.tensor([[7, 0], [2, 2], [9, 1]])
    stacks = Frames(source, index)
    wanted = source[index].flatten(1, 2)  # (3, 6, 6, 5)
    assert torch.equal(stacks.stacked(), wanted)
    assert torch.equal(Augment(AugmentConfig(0, 0.0))(stacks), images(wanted))


def test_autocast_decides_the_type():
    obs = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    exact = images(obs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(images(obs), exact.bfloat16())
        assert Augment(AugmentConfig(2, 0.1))(each(obs)).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(images(obs), exact)


def test_on_the_cpu_nothing_is_padded():
    made = images(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    assert made.shape == (4, 3, 8, 8)
    assert made.is_contiguous()


def test_each_call_is_a_fresh_view():
    augment = Augment(AugmentConfig(4, 0.1))
    obs = torch.randint(256, (8, 3, 20, 20), dtype=torch.uint8)
    kept = obs.clone()
    assert not torch.equal(augment(each(obs)), augment(each(obs)))
    assert torch.equal(obs, kept)


def test_vectors_pass_through():
    source = torch.randn(5, 7)
    index = torch.tensor([[3, 4], [0, 0]])
    augmented = Augment(AugmentConfig(4, 0.5))(Frames(source, index))
    assert torch.equal(augmented, torch.cat([source[index[:, 0]], source[index[:, 1]]], 1))
    assert augmented.dtype == torch.float32


def test_it_can_be_compiled():
    augment, source = Augment(AugmentConfig(2, 0.1)), torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    index = torch.randint(9, (5, 2))

    def run(source, index):
        with torch.autocast("cpu", torch.bfloat16):
            return augment(Frames(source, index))

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    want = run(source, index)
    torch.manual_seed(0)
    assert torch.equal(compiled(source, index), want)
