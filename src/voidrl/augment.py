"""Network input from stored images, and DrQ's augmentation: random shift with repeated edges, and jitter.

On CUDA one kernel does everything. The plain PyTorch version runs on the CPU and is the reference in tests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import AugmentConfig
from voidrl.kernels import usable
from voidrl.types import Frames, Layout

PLAIN = Layout()
NO_AUGMENTATION = AugmentConfig(shift_pixels=0, intensity_scale=0.0)


def images(obs: Tensor, layout: Layout = PLAIN) -> Tensor:
    """Convert (B, C, H, W) uint8 to network input x/255 − 0.5 in autocast's dtype, on CUDA in this layout."""
    return network_input(obs, None, NO_AUGMENTATION, None, None, layout)


class Augment:
    """Converts observations for the losses: images to augmented network input; vectors are unchanged."""

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config

    def __call__(self, frames: Frames, layout: Layout = PLAIN) -> Tensor:
        """Augment each observation with new random numbers; on CUDA in this layout, channels last."""
        source, index = frames
        if source.dtype != torch.uint8:
            return frames.stacked()
        batch, pixels = len(index), self.config.shift_pixels
        shift = noise = None
        if pixels:
            shift = torch.randint(-pixels, pixels + 1, (2, batch), device=source.device)
        if self.config.intensity_scale:
            noise = torch.randn(batch, device=source.device)
        return network_input(source, index, self.config, shift, noise, layout)


def network_input(
    source: Tensor,
    index: Tensor | None,
    config: AugmentConfig,
    shift: Tensor | None,
    noise: Tensor | None,
    layout: Layout,
) -> Tensor:
    """Apply an augmentation with given random numbers, `shift` (2, B) and `noise` (B,); None to skip one."""
    kind = source.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    if usable(source):
        from voidrl.kernels import images as kernels  # imports Triton

        scale = config.intensity_scale
        made: Tensor = kernels.images(source, index, shift, noise, scale, *layout, dtype)
        return made
    obs = source if index is None else Frames(source, index).stacked()
    if shift is not None:
        obs = shift_images(obs, shift, config.shift_pixels)
    x = obs.float().div_(255)
    if noise is not None:
        x.mul_(jitter_gain(noise, config.intensity_scale)[:, None, None, None])
    x = x.sub_(0.5).to(dtype)
    return to_layout(x, layout) if x.is_cuda else x


def to_layout(x: Tensor, layout: Layout) -> Tensor:
    """Convert plain images to this layout, channels last."""
    x = F.pixel_unshuffle(x, layout.fold)
    padding = (0, 0, 0, 0, 0, -x.shape[1] % layout.multiple)
    return F.pad(x, padding).contiguous(memory_format=torch.channels_last)


def shift_images(images: Tensor, shift: Tensor, pixels: int) -> Tensor:
    """Shift images by (2, B) up to `pixels`: pixel (y, x) becomes (y + dy, x + dx), clamped to the edges.

    Rows are padded by repeating their ends; then each row of the result is a contiguous run of bytes in a
    padded row, and copying runs is many times faster than gathering pixels.
    """
    b, c, h, w = images.shape
    wide = w + 2 * pixels
    rows = images.reshape(-1, w)  # (B · C · H, W)
    left, right = rows[:, :1].expand(-1, pixels), rows[:, -1:].expand(-1, pixels)
    flat = torch.cat([left, rows, right], 1).flatten()
    y = (torch.arange(h, device=images.device) + shift[0, :, None]).clamp(0, h - 1)  # (B, H)
    begin = y * wide + pixels + shift[1, :, None]  # (B, H) within a plane
    planes = torch.arange(0, b * c * h * wide, h * wide, device=images.device).view(b, c, 1)
    runs = flat.unfold(0, w, 1)  # (…, W): a view that overlaps itself
    return runs.index_select(0, (planes + begin[:, None]).flatten()).view(b, c, h, w)


def jitter_gain(noise: Tensor, scale: float) -> Tensor:
    """The factor of intensity jitter: 1 + scale · clip(noise, −2, 2)."""
    return 1 + scale * noise.clamp(-2, 2)
