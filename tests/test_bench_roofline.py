"""The roofline of `voidrl bench`: operations and bytes are counted correctly."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import CONTINUOUS, make_agent
from torch import nn

from voidrl import kernels
from voidrl.cli.benchmarks import update
from voidrl.cli.benchmarks.op_costs import OWN_OPS, knn_flop
from voidrl.cli.benchmarks.roofline import DATA_SHEETS, Peaks, count_floor, find_peaks
from voidrl.entropy import knn_distances
from voidrl.nets.tf32 import tf32_mm

CPU = torch.device("cpu")
PEAKS = Peaks(bf16=8e12, tf32=4e12, fp32=2e12, bandwidth=1e12)
SCARCE = Peaks(bf16=1e30, tf32=1e30, fp32=1e30, bandwidth=1.0)  # time is bytes


def test_floor_of_a_linear_layer():
    b, i, o = 32, 64, 128
    layer, x = nn.Linear(i, o), torch.randn(b, i, requires_grad=True)
    grad = torch.randn(b, o)
    floor = count_floor(lambda: layer(x).backward(grad), PEAKS)
    assert floor.flop == 3 * 2 * b * i * o  # forward, for the weight, for the input
    forward = b * i + i * o + o + b * o
    weight = b * o + b * i + i * o
    inputs = b * o + i * o + b * i
    assert floor.bytes == 4 * (forward + weight + inputs)
    assert floor.seconds == pytest.approx(
        sum(max(2 * b * i * o / 2e12, 4 * n / 1e12) for n in (forward, weight, inputs))
    )
    assert set(floor.parts) == {"products"}


def test_floor_takes_the_peak_of_the_type():
    a = torch.randn(256, 256)
    plain, half = (count_floor(lambda x=x: x @ x, PEAKS) for x in (a, a.bfloat16()))
    assert plain.flop == half.flop == 2 * 256**3
    assert plain.bytes == 2 * half.bytes == 3 * 4 * 256**2
    assert plain.seconds == pytest.approx(plain.flop / 2e12)
    assert half.seconds == pytest.approx(half.flop / 8e12)


def test_floor_of_a_convolution():
    layer, x = nn.Conv2d(3, 8, 3, stride=2, bias=False), torch.randn(4, 3, 21, 21)
    floor = count_floor(lambda: layer(x).backward(torch.randn(4, 8, 10, 10)), SCARCE)
    assert floor.flop == 2 * 2 * (4 * 8 * 10 * 10) * (3 * 3 * 3)  # forward and weight; the input needs none
    sizes = 4 * 3 * 21 * 21, 8 * 3 * 3 * 3, 4 * 8 * 10 * 10
    assert floor.bytes == 2 * 4 * sum(sizes)
    assert floor.parts == {"convolutions": floor.bytes}


def test_floor_of_optimizers_and_targets():
    n = 1000
    weight = nn.Parameter(torch.randn(n))
    adam = torch.optim.Adam([weight], fused=True)
    weight.grad = torch.randn(n)
    adam.step()
    floor = count_floor(adam.step, PEAKS)
    assert floor.bytes == 4 * 7 * n + 4  # weight and moments read and written, the gradient and the step read
    floor = count_floor(lambda: torch._foreach_lerp_([torch.zeros(n)], [torch.ones(n)], 0.1), PEAKS)
    assert floor.bytes == 4 * 3 * n
    assert floor.flop == 0
    assert floor.parts.keys() == {"optimizer"}


def test_floor_leaves_out_what_fuses():
    x = torch.randn(100, 100)
    floor = count_floor(lambda: (x.relu() + 1).softmax(1).sum(), PEAKS)
    assert (floor.flop, floor.bytes, floor.seconds) == (0, 0, 0)


def test_floor_of_our_kernels():
    queries, particles, out = torch.randn(10, 4), torch.randn(30, 4), torch.randn(10, 3)
    given = {"queries": queries, "particles": particles, "k": 3, "exclude_self": False}
    assert OWN_OPS["knn_distances"](given, out) == ("neighbors", 3 * 10 * 30 * 4, 4 * (40 + 120 + 30), False)
    given |= {"particles": queries.view(10, 4), "exclude_self": True}  # by another name
    assert OWN_OPS["knn_distances"](given, out) == ("neighbors", 3 * 45 * 4, 4 * (40 + 30), False)
    given["particles"] = queries.clone()  # might be other points
    assert OWN_OPS["knn_distances"](given, out) == ("neighbors", 3 * 100 * 4, 4 * (40 + 40 + 30), False)
    assert knn_flop(2, 5, None) == 15  # one pair
    source, index = torch.zeros(1000, 3, 8, 8, dtype=torch.uint8), torch.zeros(16, 2, dtype=torch.int64)
    made = torch.zeros(16, 8, 8, 8)
    given = {"source": source, "index": index, "shift": None, "noise": torch.zeros(16), "scale": 0.1}
    part, flop, size, _ = OWN_OPS["images"](given, made)
    assert (part, flop) == ("images", 0)
    assert size == 32 * 3 * 8 * 8 + 32 * 8 + 16 * 4 + made.numel() * 4  # not all of the replay


def test_tf32_products_count_at_the_rate_of_tf32():
    weight, x = torch.randn(8, 16, requires_grad=True), torch.randn(4, 8)
    floor = count_floor(lambda: tf32_mm(x, weight).sum().backward(), replace(PEAKS, tf32=1.0, bandwidth=1e30))
    assert floor.flop == 2 * (2 * 4 * 8 * 16)  # forward, and the gradient of the weight
    assert floor.seconds == floor.flop


def test_in_batch_neighbors_meet_once():
    z = torch.randn(20, 5)
    calls = [lambda: knn_distances(z, z, 3, exclude_self=True)]  # on the CPU by cdist
    if kernels._TRITON and not torch.cuda.is_available():  # else the kernels are compiled for CUDA
        from voidrl.kernels import knn as ours

        calls.append(lambda: ours.knn_distances(z, z, 3, True))
    for call in calls:
        floor = count_floor(call, PEAKS)
        assert floor.flop == 3 * (20 * 19 / 2) * 5
        assert floor.parts.keys() == {"neighbors"}
    floor = count_floor(lambda: knn_distances(z, z.clone(), 3, exclude_self=True), PEAKS)
    assert floor.flop == 3 * 20 * 20 * 5


def test_our_operators_are_known():
    found = set()
    for path in Path(kernels.__path__[0]).parent.rglob("*.py"):
        found |= set(re.findall(r'"voidrl::(\w+)"', path.read_text()))
    # The floor is counted in plain layouts, which our convolutions leave to PyTorch.
    assert found - {"conv_stack", "conv_stack_backward"} == OWN_OPS.keys()


def test_kinds_of_updates_weigh_as_often_as_they_come():
    agent = make_agent(learner="dqn", learner__target_every_updates=8000)
    agent.update = lambda replay, index: torch.ones(1, 1) @ torch.ones(1, 1) if index % 8000 == 0 else None
    assert update._update_floor(agent, None, PEAKS).flop == pytest.approx(2 / 8000)
    agent = make_agent(CONTINUOUS, learner="sac", learner__target_every_updates=3)  # and the actor every 2
    sizes = {0: 1000, 1: 1, 2: 10, 3: 100}  # both, none, the actor, the targets
    agent.update = lambda replay, index: torch.ones(sizes[index], 1) @ torch.ones(1, 1)
    floor = update._update_floor(agent, None, PEAKS)
    assert floor.flop == pytest.approx(2 * (1000 * 1 + 1 * 2 + 10 * 2 + 100 * 1) / 6)


def test_peaks():
    peaks = find_peaks(CPU)
    assert peaks.measured
    assert min(peaks.bf16, peaks.fp32, peaks.bandwidth) > 0
    assert "measured" in peaks.describe()
    sheet = DATA_SHEETS["NVIDIA H200"]
    assert "4.80 TB/s" in sheet.describe()
    assert "measured" not in sheet.describe()
