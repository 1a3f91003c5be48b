"""DrQ's augmentation of images: random shift with repeated edges, intensity jitter."""

from __future__ import annotations

import torch
from torch import Tensor

from voidrl.config import AugmentConfig


def random_shift(images: Tensor, pixels: int) -> Tensor:
    """Shift each image by up to `pixels` in each direction; what comes in from outside repeats the edge.

    Clamped indices say the same as padding by repetition and cropping, without the padded copy.
    """
    b, c, h, w = images.shape
    shift = torch.randint(-pixels, pixels + 1, (2, b, 1), device=images.device)
    rows = (torch.arange(h, device=images.device) + shift[0]).clamp(0, h - 1)  # (B, H)
    cols = (torch.arange(w, device=images.device) + shift[1]).clamp(0, w - 1)  # (B, W)
    flat = (rows[:, :, None] * w + cols[:, None, :]).view(b, 1, h * w)  # (B, 1, H·W)
    return images.reshape(b, c, h * w).gather(2, flat.expand(b, c, h * w)).view(b, c, h, w)


def intensity(images: Tensor, scale: float) -> Tensor:
    """Multiply each image by 1 + scale · clip(N(0, 1), −2, 2)."""
    noise = torch.randn(images.shape[0], 1, 1, 1, device=images.device).clamp(-2, 2)
    return images * (1 + scale * noise)


class Augment:
    """Observations as the losses see them: float images in about [0, 1], augmented; vectors unchanged."""

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config

    def __call__(self, obs: Tensor) -> Tensor:
        """A fresh augmentation of (B, C, H, W) uint8 images; anything else passes through."""
        if obs.dtype != torch.uint8:
            return obs
        if self.config.shift_pixels:
            obs = random_shift(obs, self.config.shift_pixels)
        images = obs.float() / 255
        return intensity(images, self.config.intensity_scale) if self.config.intensity_scale else images
