"""The layout of observations: images with numbers, masks of actions, and what networks see of them.

An observation is one tensor. Images with numbers ("mixed", `spec.num_values` > 0) come in two forms:

- as stored: uint8 (B, (C + P) · stack, H, W), where each frame's P last planes are the bytes of its numbers;
- as network input, made by `Augment`: float32 (B, C · stack · H · W + v · stack), the images of x/255 − 0.5
  flattened, then the numbers of each frame, oldest first.

Where actions are masked, the mask is the last `num_actions` numbers of a frame. The newest frame is the last,
so the mask is the end of every vector and of every network input. Everything here is tensors in, tensors out,
without host reads, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from voidrl.types import EnvSpec

FLOAT_BYTES = 4


def input_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Shape of one observation as network input, after `Augment`."""
    if not spec.num_values:
        return spec.obs_shape
    return (math.prod(spec.obs_shape) + spec.num_values * spec.frame_stack,)


def visible_numbers(spec: EnvSpec) -> int:
    """Numbers of one observation that networks see: all but the masks; 0 for images alone."""
    of_frame = spec.num_values if spec.pixels else spec.frame_shape[0]
    return (of_frame - mask_width(spec)) * spec.frame_stack


def mask_width(spec: EnvSpec) -> int:
    """Numbers of a frame that are its mask."""
    return spec.num_actions if spec.masked else 0


def unpack(obs: Tensor, spec: EnvSpec) -> tuple[Tensor, Tensor]:
    """Stored mixed observations → uint8 images (B, C · stack, H, W) and float32 numbers (B, v · stack).

    Images may be larger than those of `spec`, if networks crop them: the planes are counted, not computed.
    """
    channels = spec.frame_shape[0]
    frames = obs.unflatten(1, (spec.frame_stack, -1))  # (B, stack, C + P, H, W)
    planes = frames[:, :, channels:].flatten(2)[..., : FLOAT_BYTES * spec.num_values]
    # Copied even if contiguous: a view of floats must begin at a multiple of 4 bytes.
    numbers = planes.clone(memory_format=torch.contiguous_format).view(torch.float32)  # (B, stack, v)
    return frames[:, :, :channels].flatten(1, 2), numbers.flatten(1)


def pack_input(images: Tensor, numbers: Tensor) -> Tensor:
    """Images (B, C · stack, H, W) as networks read them and numbers (B, v · stack) → network input."""
    return torch.cat([images.flatten(1).float(), numbers], 1)


def split_input(x: Tensor, spec: EnvSpec) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_input`, in views."""
    numbers = spec.num_values * spec.frame_stack
    return x[:, :-numbers].unflatten(1, spec.obs_shape), x[:, -numbers:]


def visible(numbers: Tensor, spec: EnvSpec) -> Tensor:
    """(B, stack · width) vectors, or the numbers of mixed observations, without the masks of their frames."""
    if not spec.masked:
        return numbers
    frames = numbers.unflatten(1, (spec.frame_stack, -1))  # (B, stack, width)
    return frames[..., : -mask_width(spec)].flatten(1)  # type: ignore[no-any-return]


def action_mask(obs: Tensor, spec: EnvSpec) -> Tensor | None:
    """(B, num_actions): which actions the newest frame allows; None where actions are not masked.

    `obs` are vectors or mixed observations, as stored or as network input. A mask that allows nothing is read
    as one that allows everything, since an environment always takes some action.
    """
    if not spec.masked:
        return None
    numbers = unpack(obs, spec)[1] if obs.dtype == torch.uint8 else obs
    allowed = numbers[:, -mask_width(spec) :] > 0.5
    return allowed | ~allowed.any(1, keepdim=True)


def random_allowed(mask: Tensor) -> Tensor:
    """(B,): for each row of (B, num_actions) one of the allowed actions, all equally likely."""
    drawn = torch.rand(mask.shape, device=mask.device)  # in [0, 1)
    return drawn.masked_fill(~mask, -1.0).argmax(1)


def symlog(x: Tensor) -> Tensor:
    """sign(x) · log(1 + |x|): about x near 0, and never far from it, whatever the units."""
    return x.sign() * x.abs().log1p()
