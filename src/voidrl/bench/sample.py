"""Reading a learner's batch of images: sample, gather, stack, shift, scale and cast."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from voidrl.augment import Augment, jitter_gain, shift_images, to_layout
from voidrl.bench.data import random_replay
from voidrl.bench.results import Result, number, percent, speedup, value_range
from voidrl.bench.roofline import Peaks
from voidrl.bench.timing import measure_calls
from voidrl.bench.workloads import ATARI, PIXELS
from voidrl.config import AugmentConfig, EncoderConfig
from voidrl.device import uses_bf16
from voidrl.nets import Encoder
from voidrl.replay import Replay
from voidrl.types import EnvSpec, Layout

NAME_WIDTH = 14
CASES: tuple[tuple[EnvSpec, str, AugmentConfig], ...] = (
    (PIXELS, "paper", AugmentConfig(shift_pixels=4)),
    (ATARI, "nature", AugmentConfig(shift_pixels=4, intensity_scale=0.05)),
)
STEPS = 1024  # of 16 environments: 347 MB of frames, more than caches hold


def results(
    options: Namespace, device: torch.device, peaks: Peaks, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure color and gray images, in the layout that the first convolution reads."""
    in_bf16 = uses_bf16(options.precision, device)
    for spec, stack, config in CASES:
        layout = Encoder(spec.obs_shape, EncoderConfig(stack)).layout
        replay = random_replay(spec, device, 0, say, STEPS)
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16, cache_enabled=False):
            yield _result(replay, config, layout, options, peaks)


def _result(
    replay: Replay, config: AugmentConfig, layout: Layout, options: Namespace, peaks: Peaks
) -> Result:
    batch, device, spec = options.batch_size, replay.device, replay.spec
    augment = Augment(config)

    def sample() -> Tensor:
        return augment(replay.frames_of(replay.sample(batch)), layout)

    made = sample()
    calls: list[Callable[[], Tensor]] = [sample]
    if options.against:
        calls.append(partial(reference, replay, batch, config, layout, made.dtype))
    timing, *baseline = measure_calls(calls, device, options.seconds)
    pixels = batch * torch.Size(spec.obs_shape).numel()
    moved = pixels + made.numel() * made.element_size()
    needed = pixels * (1 + made.element_size())  # without padding channels
    floor = needed / peaks.bandwidth
    figures = {
        "frame": list(spec.frame_shape),
        "stack": spec.frame_stack,
        "batch_size": batch,
        "dtype": str(made.dtype).removeprefix("torch."),
        **timing.rates("stacks_per_second", batch),
        **timing.compare(baseline, floor),
        "gb_per_second": moved / timing.seconds / 1e9,
        "floor": {"microseconds": floor * 1e6, "gb": needed / 1e9},
    }
    cells = {
        "frames": f"{spec.frame_stack} × {'×'.join(map(str, spec.frame_shape))}",
        "batch": str(batch),
        "type": figures["dtype"],
        "stacks/s": number(figures["stacks_per_second"]),
        "µs": number(figures["microseconds"]),
        "GB/s": number(figures["gb_per_second"]),
        **speedup(figures),
        "floor µs": number(floor * 1e6),
        "of floor": percent(figures["floor_share"]),
    }
    rates = value_range(figures, "stacks_per_second")
    return Result(figures, cells, (f"{rates} stacks/s, {number(needed / 1e6)} MB per batch",))


def reference(
    replay: Replay, batch: int, config: AugmentConfig, layout: Layout, dtype: torch.dtype
) -> Tensor:
    """The same in plain PyTorch, operator by operator."""
    obs = replay.frames_of(replay.sample(batch)).stacked()
    pixels = config.shift_pixels
    obs = shift_images(obs, torch.randint(-pixels, pixels + 1, (2, batch), device=obs.device), pixels)
    x = obs.float() / 255
    if config.intensity_scale:
        x = x * jitter_gain(torch.randn(batch, device=x.device), config.intensity_scale)[:, None, None, None]
    x = (x - 0.5).to(dtype)
    return to_layout(x, layout) if x.is_cuda else x
