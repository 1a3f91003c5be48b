"""The kernel against plain PyTorch: in Triton's interpreter without a GPU, on the GPU where there is one."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from voidrl.config import AugmentConfig
from voidrl.kernels.images import images
from voidrl.nets import augment
from voidrl.nets.augment import Augment, network_input, to_layout
from voidrl.types import Frames, Layout

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = AugmentConfig(4, 0.3)
# The interpreter cuts off what bf16 cannot hold; on a GPU, products and sums are fused and rounded once.
ABSOLUTE = 1e-6 if DEVICE.type == "cuda" else 0.0
TOLERANCE = {torch.float32: (0.0, ABSOLUTE), torch.bfloat16: (2**-7, 1e-6)}


def frames(count, channels, height, width):
    return torch.randint(256, (count, channels, height, width), dtype=torch.uint8, device=DEVICE)


def plain(source, index, shift, noise, dtype, low, inner, size):
    """The expected result, without padding."""
    index, shift, noise, low = (None if t is None else t.cpu() for t in (index, shift, noise, low))
    config = replace(CONFIG, inner_size=inner)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        made = network_input(source.cpu(), index, config, shift, noise, Layout(), low=low, size=size)
    assert made.dtype == dtype
    return made


def check(source, index, shift, noise, dtype, channels, fold=1, low=None, inner=0, size=()):
    layout, scale = Layout(fold, channels), CONFIG.intensity_scale
    made = images(source, index, shift, noise, scale, *layout, dtype, low, inner, *size)
    expected = plain(source, index, shift, noise, dtype, low, inner, size)
    want = torch.nn.functional.pixel_unshuffle(expected, fold)
    real = want.shape[1]
    assert made.shape == (len(want), channels, *want.shape[2:])
    assert made.shape == to_layout(expected, layout).shape
    assert made.dtype == dtype
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert (made[:, real:] == 0).all()
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(made[:, :real].cpu(), want, rtol=relative, atol=absolute, check_stride=False)


@pytest.mark.parametrize(
    ("stack", "channels", "height", "width", "padded", "pixels", "jitter", "dtype"),
    [
        (1, 1, 5, 7, 8, None, False, torch.float32),
        (1, 3, 39, 39, 8, 4, True, torch.bfloat16),
        (2, 1, 1, 1, 8, 4, True, torch.float32),
        (3, 3, 21, 20, 16, 0, False, torch.bfloat16),
        (4, 1, 24, 23, 8, None, True, torch.bfloat16),
        (2, 9, 3, 4, 24, 1, False, torch.float32),
        (5, 9, 3, 4, 48, 4, True, torch.float32),
    ],
)
def test_it_does_what_plain_pytorch_does(stack, channels, height, width, padded, pixels, jitter, dtype):
    torch.manual_seed(0)
    batch = 3
    index = torch.randint(11, (batch, stack), device=DEVICE)
    shift = None
    if pixels is not None:
        shift = torch.randint(-pixels, pixels + 1, (2, batch), device=DEVICE)
    noise = 3 * torch.randn(batch, device=DEVICE) if jitter else None
    check(frames(11, channels, height, width), index, shift, noise, dtype, padded)


CROPPED = {  # image, window and result; the range of shifts; channels of a frame, folded, padded
    "rad": ((20, 23), 0, (16, 16), ((0, 4), (0, 7)), 3, 1, 16),
    "shifted crops": ((13, 12), 0, (9, 10), ((-4, 8), (-4, 6)), 1, 1, 8),
    "curl": ((14, 14), 10, (), ((-4, 0), (-4, 0)), 1, 1, 8),
    "window and crop": ((15, 17), 11, (8, 12), ((-4, 7), (-4, 3)), 2, 4, 64),
    "the center": ((15, 12), 0, (12, 12), None, 3, 1, 16),
    "the center, folded": ((21, 24), 0, (16, 20), None, 1, 4, 32),
}


@pytest.mark.parametrize("case", CROPPED)
def test_windows_and_crops(case):
    image, inner, size, ranges, channels, fold, padded = CROPPED[case]
    dtype = torch.bfloat16 if fold > 1 else torch.float32
    index, low, shift = torch.randint(7, (4, 2), device=DEVICE), None, None
    if ranges is not None:
        corners = [torch.tensor([least, most]) for least, most in ranges]  # both ends, and two between
        shift = torch.stack([torch.cat([c, torch.randint(c[0], c[1] + 1, (2,))]) for c in corners]).to(DEVICE)
    if inner:
        low = torch.stack([torch.tensor([side - inner, 0, 1, 2]) for side in image]).to(DEVICE)
    noise = torch.randn(4, device=DEVICE) if ranges else None
    check(frames(7, channels, *image), index, shift, noise, dtype, padded, fold, low, inner, size)


def test_a_ring_may_be_larger_than_an_int32():
    if DEVICE.type != "cuda":
        pytest.skip("needs gigabytes: runs on a CUDA device")
    source = torch.zeros(2**31 // (64 * 64) + 2, 1, 64, 64, dtype=torch.uint8, device=DEVICE)
    source[-1] = 255
    index = torch.tensor([[len(source) - 1]], device=DEVICE)
    made = images(source, index, None, None, 0.0, 1, 8, torch.float32)[:, 0]
    assert torch.allclose(made, torch.full_like(made, 0.5))  # a GPU divides approximately


def test_it_is_a_well_behaved_operator():
    """`torch.compile` relies on the schema, and on shapes, types and strides known without running it."""
    index, shift = (
        torch.randint(9, (3, 2), device=DEVICE),
        torch.zeros(2, 3, dtype=torch.int64, device=DEVICE),
    )
    for arguments in (
        (frames(9, 3, 6, 5), index, shift, torch.randn(3, device=DEVICE), 0.1, 1, 8, torch.bfloat16),
        (frames(9, 3, 6, 5), None, None, None, 0.0, 1, 8, torch.float32),
        (frames(9, 3, 6, 6), index, shift, None, 0.0, 1, 8, torch.float32, shift, 5, 4, 4),
    ):
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
        torch.library.opcheck(images, arguments, test_utils=tests)


@pytest.mark.parametrize("compiled", [False, True])
def test_augmentation_uses_it(compiled, monkeypatch):
    monkeypatch.setattr(augment, "usable", lambda tensor: True)

    shift = Augment(AugmentConfig(2, 0.1))

    def run(source, index):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            augmented = shift(Frames(source, index), Layout(1, 8))
            return augmented, augment.images(source, Layout(1, 8))

    call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    views, plain = call(frames(9, 3, 6, 5), torch.randint(9, (7, 3), device=DEVICE))
    assert views.shape == (7, 16, 6, 5)
    assert plain.shape == (9, 8, 6, 5)
    for made in (views, plain):
        assert made.dtype == torch.bfloat16
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert made.float().std() > 0.1
