"""Reading a learner's batch of images: sampled, gathered, stacked, shifted, scaled and cast."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from voidrl.augment import Augment, arranged, gain, shifted
from voidrl.bench.data import random_replay
from voidrl.bench.peaks import Peaks
from voidrl.bench.report import Column, Row, number, percent, ratio, shown, spread
from voidrl.bench.timing import measure, repeated
from voidrl.bench.workloads import continuous, discrete
from voidrl.config import AugmentConfig, EncoderConfig, require
from voidrl.device import uses_bf16
from voidrl.nets import Encoder
from voidrl.replay import Replay
from voidrl.types import EnvSpec, Layout

CASES: tuple[tuple[EnvSpec, str, AugmentConfig], ...] = (
    (continuous((3, 84, 84), 3), "paper", AugmentConfig(shift_pixels=4)),
    (discrete((1, 84, 84), 4, 18), "nature", AugmentConfig(shift_pixels=4, intensity_scale=0.05)),
)
STEPS = 1024  # of 16 environments: 347 MB of frames, more than caches hold


def check(options: Namespace) -> None:
    """Refuse sizes that are none."""
    require(options.batch_size > 0, "batch_size", options.batch_size, "1 or more")


def columns(options: Namespace) -> list[Column]:
    """One row for each kind of image."""
    return [
        Column("frames", 14, lambda row: f"{row['stack']} × {'×'.join(map(str, row['frame']))}"),
        Column("batch", 6, lambda row: str(row["batch_size"])),
        Column("type", 9, lambda row: row["dtype"]),
        Column("stacks/s", 11, shown("stacks_per_second")),
        Column("µs", 9, shown("microseconds")),
        Column("GB/s", 8, shown("gb_per_second")),
        *([Column("× torch", 8, ratio)] if options.against else []),
        Column("floor µs", 9, lambda row: number(row["floor"]["microseconds"])),
        Column("of floor", 8, lambda row: percent(row["floor_share"])),
    ]


def details(row: Row) -> list[str]:
    """The spread."""
    return [f"{spread(row, 'stacks_per_second')} stacks/s, {number(row['floor']['gb'] * 1000)} MB each batch"]


def rows(options: Namespace, device: torch.device, peaks: Peaks, say: Callable[[str], None]) -> Iterator[Row]:
    """Each kind of image in turn, as the losses ask for it."""
    in_bf16 = uses_bf16(options.precision, device)
    for spec, stack, config in CASES:
        layout = Encoder(spec.obs_shape, EncoderConfig(stack)).layout  # as its first convolution reads it
        replay = random_replay(spec, device, 0, say, STEPS)
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16, cache_enabled=False):
            yield _row(replay, config, layout, options, peaks)


def _row(replay: Replay, config: AugmentConfig, layout: Layout, options: Namespace, peaks: Peaks) -> Row:
    batch, device, spec = options.batch_size, replay.device, replay.spec
    augment = Augment(config)

    def ours() -> Tensor:
        return augment(replay.frames_of(replay.sample(batch)), layout)

    made = ours()
    calls: list[Callable[[], Tensor]] = [ours]
    if options.against:
        calls.append(partial(reference, replay, batch, config, layout, made.dtype))
    runs = [repeated(call, device) for call in calls]
    timings = measure([run for run, _ in runs], device, options.seconds, runs[0][1])
    seconds = timings[0].seconds
    pixels = batch * torch.Size(spec.obs_shape).numel()
    moved = pixels + made.numel() * made.element_size()
    needed = pixels * (1 + made.element_size())  # without the channels that only fill up
    floor = needed / peaks.bandwidth
    return {
        "frame": list(spec.frame_shape),
        "stack": spec.frame_stack,
        "batch_size": batch,
        "dtype": str(made.dtype).removeprefix("torch."),
        **timings[0].rates("stacks_per_second", each=batch),
        "microseconds": seconds * 1e6,
        "gb_per_second": moved / seconds / 1e9,
        "ratio": timings[1].seconds / seconds if options.against else None,
        "against": options.against,
        "floor": {"microseconds": floor * 1e6, "gb": needed / 1e9},
        "floor_share": floor / seconds,
    }


def reference(
    replay: Replay, batch: int, config: AugmentConfig, layout: Layout, dtype: torch.dtype
) -> Tensor:
    """The same in plain PyTorch, one operator after the other."""
    obs = replay.frames_of(replay.sample(batch)).stacked()
    pixels = config.shift_pixels
    obs = shifted(obs, torch.randint(-pixels, pixels + 1, (2, batch), device=obs.device), pixels)
    x = obs.float() / 255
    if config.intensity_scale:
        x = x * gain(torch.randn(batch, device=x.device), config.intensity_scale)[:, None, None, None]
    x = (x - 0.5).to(dtype)
    return arranged(x, layout) if x.is_cuda else x
