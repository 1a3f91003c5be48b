"""Reading a learner's batch of images: sample, gather, stack, shift, scale and cast; or drawing it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from voidrl.cli.benchmarks.data import random_replay
from voidrl.cli.benchmarks.results import Result, number, percent, speedup, value_range
from voidrl.cli.benchmarks.roofline import Peaks
from voidrl.cli.benchmarks.timing import measure_calls
from voidrl.cli.benchmarks.workloads import ATARI, PIXELS, continuous
from voidrl.config import AugmentConfig, EncoderConfig, ReplayConfig
from voidrl.nets import Encoder
from voidrl.nets.augment import Augment, jitter_gain, shift_images, to_layout
from voidrl.replay import Replay
from voidrl.system.device import uses_bf16
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
    """Measure color and gray images, in the layout that the first convolution reads; or ways to draw."""
    if options.prioritized:
        yield from _draws(options, device, peaks)
        return
    in_bf16 = uses_bf16(options.precision, device)
    for spec, stack, config in CASES:
        layout = Encoder(spec, EncoderConfig(stack)).layout
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


def _draws(options: Namespace, device: torch.device, peaks: Peaks) -> Iterator[Result]:
    """Uniform draws, prioritized ones, and these with the new priorities that an update writes."""
    batch = options.batch_size
    replay = _prioritized_replay(options.entries, device)
    priorities = replay.priorities
    assert priorities is not None
    error = torch.rand(batch, device=device)

    def draw_and_update() -> None:
        assert priorities is not None
        priorities.update(replay.draw(batch).slots, error)

    calls: dict[str, Callable[[], object]] = {
        "uniform": partial(replay.sample, batch),
        "prioritized": partial(replay.draw, batch),
        "… and updated": draw_and_update,
    }
    timings = measure_calls([*calls.values()], device, options.seconds)
    for name, timing in zip(calls, timings, strict=True):
        read = 8 * batch if name == "uniform" else priorities.values.nbytes
        figures = {
            "draw": name,
            "entries": len(replay),
            "batch_size": batch,
            **timing.rates("draws_per_second"),
            **timing.compare([], read / peaks.bandwidth),
            "times_uniform": timing.seconds / timings[0].seconds,
            "added_microseconds": (timing.seconds - timings[0].seconds) * 1e6,
        }
        cells = {
            "draw": name,
            "entries": f"{len(replay):,}",
            "batch": str(batch),
            "draws/s": number(figures["draws_per_second"]),
            "µs": number(figures["microseconds"]),
            "added µs": number(figures["added_microseconds"]),
            "× uniform": f"{figures['times_uniform']:.2f}×",
            "floor µs": number(read / peaks.bandwidth * 1e6),
        }
        yield Result(figures, cells, (f"{value_range(figures, 'draws_per_second')} draws/s",))


def _prioritized_replay(entries: int, device: torch.device) -> Replay:
    """Full, with priorities that have a long tail."""
    n = min(1000, entries)
    spec, steps = continuous((1,)), -(-entries // n)
    config = ReplayConfig(entries, priority_exponent=0.5)
    replay = Replay(spec, n, entries, 0, device, device, config)
    no, frames, action = np.zeros(n, bool), np.zeros((n, 1), np.float32), np.zeros((n, spec.action_dim))
    replay.reset(frames)
    for _ in range(steps):
        replay.add(action, np.zeros(n), no, no, frames, torch.zeros(n, 0, device=device))
    assert replay.priorities is not None
    started = replay.newest(len(replay))
    replay.priorities.update(started, torch.randn(len(started), device=device).mul(2).exp())
    return replay


def reference(
    replay: Replay, batch: int, config: AugmentConfig, layout: Layout, dtype: torch.dtype
) -> Tensor:
    """The batch in plain PyTorch, operator by operator."""
    obs = replay.frames_of(replay.sample(batch)).stacked()
    pixels = config.shift_pixels or 0
    obs = shift_images(obs, torch.randint(-pixels, pixels + 1, (2, batch), device=obs.device), pixels)
    x = obs.float() / 255
    if config.intensity_scale:
        x = x * jitter_gain(torch.randn(batch, device=x.device), config.intensity_scale)[:, None, None, None]
    x = (x - 0.5).to(dtype)
    return to_layout(x, layout) if x.is_cuda else x
