"""Network input from stored images, and their augmentation: random shifts and crops, and jitter.

The shifts of DrQ, SPR and ATC, RAD's crops and CURL's on Atari are one operation: a window of the image is
padded by repeating its edges, then cropped at random. In each direction, with a window of w pixels from low,
padding p and a result of n pixels, pixel y of the result is pixel low + clamp(y + d, 0, w − 1) of the source,
where d is drawn from −p to w + p − n.

On CUDA one kernel does everything. The plain PyTorch version runs on the CPU and is the reference in tests.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import AugmentConfig
from voidrl.errors import ConfigError, SpaceError
from voidrl.kernels import usable
from voidrl.nets.observations import pack_input, unpack
from voidrl.types import EnvSpec, Frames, Layout

PLAIN = Layout()
NO_AUGMENTATION = AugmentConfig(shift_pixels=0, intensity_scale=0.0)
Size = tuple[int, ...]  # height and width; () for those of the source
MOST_SHIFT = 4  # pixels, of images for which no shift is given
LEAST_SHIFTED = 16  # pixels: images with a shorter side are not shifted then


def images(obs: Tensor, layout: Layout = PLAIN, size: Size = ()) -> Tensor:
    """Convert (B, C, H, W) uint8 to network input x/255 − 0.5 in autocast's dtype, on CUDA in this layout.

    Of images larger than `size` it takes the center.
    """
    return network_input(obs, None, NO_AUGMENTATION, None, None, layout, size=size)


def default_shift(size: Size) -> int:
    """The largest shift of images for which none is given: a ninth of the shorter side, at most 4 pixels.

    Below 16 pixels, where a pixel is often a symbol, images are not shifted. Vectors, of size (), never are,
    and have the value of large images in their configs.
    """
    side = min(size, default=9 * MOST_SHIFT)
    return min(MOST_SHIFT, side // 9) if side >= LEAST_SHIFTED else 0


def with_shift(config: AugmentConfig, size: Size) -> AugmentConfig:
    """The config for images of this height and width, with the default shift if it has none."""
    if config.shift_pixels is not None:
        return config
    return dataclasses.replace(config, shift_pixels=default_shift(size))


class Augment:
    """Converts observations for the losses: images to augmented network input; vectors are unchanged.

    `spec` says which part of a mixed observation is its image; without it there are no numbers.
    """

    def __init__(self, config: AugmentConfig, spec: EnvSpec | None = None) -> None:
        self.config, self.spec = config, spec
        self.size: Size = (config.crop_size, config.crop_size) if config.crop_size else ()

    def __call__(self, frames: Frames, layout: Layout = PLAIN) -> Tensor:
        """Augment each observation with new random numbers; on CUDA in this layout, channels last.

        Mixed observations become one vector each (`observations.split_input`), whatever the layout.
        """
        return self.plain(frames, layout, augments=True)

    def plain(self, frames: Frames, layout: Layout = PLAIN, *, augments: bool = False) -> Tensor:
        """Observations without augmentation: the center of each image, if images are cropped."""
        if frames.source.dtype != torch.uint8:
            return frames.stacked()
        if self.spec is None or not self.spec.num_values:
            return self._images(*frames, layout, augments)
        stacked, numbers = unpack(frames.stacked(), self.spec)
        return pack_input(self._images(stacked, None, PLAIN, augments), numbers)

    def _images(self, source: Tensor, index: Tensor | None, layout: Layout, augments: bool) -> Tensor:
        """Images of stored frames or, without an index, of stacked ones."""
        if not augments:
            return network_input(source, index, NO_AUGMENTATION, None, None, layout, size=self.size)
        image: Size = tuple(source.shape[2:])
        config, device = with_shift(self.config, image), source.device
        batch = len(source if index is None else index)
        pixels, inner = config.shift_pixels or 0, config.inner_size
        window, size = (inner, inner) if inner else image, self.size or image
        still = shift = low = noise = None
        if config.shift_probability < 1:
            still = torch.rand(batch, device=device) >= config.shift_probability
        if inner:
            low = _offsets(0, [i - w for i, w in zip(image, window, strict=True)], batch, still, device)
        if pixels or size != window:
            most = [w + pixels - s for w, s in zip(window, size, strict=True)]
            shift = _offsets(-pixels, most, batch, still, device)
        if config.intensity_scale:
            noise = torch.randn(batch, device=device)
        return network_input(source, index, config, shift, noise, layout, low=low, size=self.size)


def network_spec(spec: EnvSpec, config: AugmentConfig) -> EnvSpec:
    """The spec of what networks read: cropped images. Sizes that do not fit the environment's are refused."""
    if not spec.pixels:
        return spec
    channels, *image = spec.frame_shape
    crop, inner = config.crop_size, config.inner_size
    pixels = with_shift(config, tuple(image)).shift_pixels or 0
    for name, given in (("crop_size", crop), ("inner_size", inner)):
        if given > min(image):
            raise ConfigError(
                f"augment.{name} = {given} cannot be used on {spec.describe()}: expected at most "
                f"{min(image)} pixels, or 0 for whole images"
            )
    size = crop or max(image)
    if inner and inner + 2 * pixels < size:
        raise ConfigError(
            f"augment.inner_size = {inner} cannot be used with augment.shift_pixels = {pixels}: a window "
            f"padded by them on both sides must fill {size} pixels; expected shift_pixels of "
            f"{-(-(size - inner) // 2)} or more"
        )
    return dataclasses.replace(spec, frame_shape=(channels, crop, crop)) if crop else spec


def network_input(
    source: Tensor,
    index: Tensor | None,
    config: AugmentConfig,
    shift: Tensor | None,
    noise: Tensor | None,
    layout: Layout,
    *,
    low: Tensor | None = None,
    size: Size = (),
) -> Tensor:
    """Apply an augmentation with given random numbers; None to skip one.

    `low` (2, B) are the corners of windows of `config.inner_size`; `shift` (2, B), relative to them, says
    where an image of `size` begins, by default in the middle; `noise` (B,) is of the intensity.
    """
    if size and any(i < s for i, s in zip(source.shape[2:], size, strict=True)):
        given, wanted = ("×".join(map(str, shape)) for shape in (source.shape[2:], size))
        raise SpaceError(f"images of {given} cannot be cropped to {wanted}: expected at least that size")
    kind = source.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    if usable(source):
        from voidrl.kernels import images as kernels  # imports Triton

        scale = config.intensity_scale
        window = (low, config.inner_size, *size)
        return kernels.images(source, index, shift, noise, scale, *layout, dtype, *window)  # type: ignore[no-any-return]
    obs = source if index is None else Frames(source, index).stacked()
    size = size or tuple(source.shape[2:])
    if low is not None:
        obs = shift_images(obs, low, 0, (config.inner_size, config.inner_size))
    obs = (
        center_crop(obs, size) if shift is None else shift_images(obs, shift, config.shift_pixels or 0, size)
    )
    x = obs.float().div_(255)
    if noise is not None:
        x.mul_((1 + config.intensity_scale * noise.clamp(-2, 2))[:, None, None, None])
    x = x.sub_(0.5).to(dtype)
    return to_layout(x, layout) if x.is_cuda else x


def to_layout(x: Tensor, layout: Layout) -> Tensor:
    """Convert plain images to this layout, channels last."""
    x = F.pixel_unshuffle(x, layout.fold)
    padding = (0, 0, 0, 0, 0, -x.shape[1] % layout.multiple)
    return F.pad(x, padding).contiguous(memory_format=torch.channels_last)


def shift_images(images: Tensor, shift: Tensor, pixels: int, size: Size = ()) -> Tensor:
    """Shift images by (2, B): pixel (y, x) becomes (y + dy, x + dx), clamped to the edges.

    Shifts are at least −`pixels`, and at most `pixels` where the result of `size` is as large as the image;
    where it is smaller, by as much more.

    Rows are padded by repeating their ends; then each row of the result is a contiguous run of bytes in a
    padded row, and copying runs is many times faster than gathering pixels.
    """
    b, c, h, w = images.shape
    height, width = size or (h, w)
    wide = w + 2 * pixels
    rows = images.reshape(-1, w)  # (B · C · H, W)
    if pixels:
        left, right = rows[:, :1].expand(-1, pixels), rows[:, -1:].expand(-1, pixels)
        rows = torch.cat([left, rows, right], 1)
    y = (torch.arange(height, device=images.device) + shift[0, :, None]).clamp(0, h - 1)  # (B, height)
    begin = y * wide + pixels + shift[1, :, None]  # (B, height) within a plane
    planes = torch.arange(0, b * c * h * wide, h * wide, device=images.device).view(b, c, 1)
    runs = rows.flatten().unfold(0, width, 1)  # (…, width): a view that overlaps itself
    return runs.index_select(0, (planes + begin[:, None]).flatten()).view(b, c, height, width)


def center_crop(obs: Tensor, size: Size) -> Tensor:
    """The center of images (B, C, H, W), as a view; images of this size as they are."""
    image = tuple(obs.shape[2:])
    if not size or image == size:
        return obs
    top, left = ((i - s) // 2 for i, s in zip(image, size, strict=True))
    return obs[:, :, top : top + size[0], left : left + size[1]]


def _offsets(least: int, most: list[int], batch: int, still: Tensor | None, device: torch.device) -> Tensor:
    """(2, B) uniform whole numbers from `least` to `most`, of rows and columns; the middle where `still`."""
    if most[0] == most[1]:
        drawn = torch.randint(least, most[0] + 1, (2, batch), device=device)
    else:
        drawn = torch.stack([torch.randint(least, last + 1, (batch,), device=device) for last in most])
    if still is not None:
        for axis, last in zip(drawn, most, strict=True):
            axis.masked_fill_(still, (least + last) // 2)
    return drawn
