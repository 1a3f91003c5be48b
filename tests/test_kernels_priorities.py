"""The kernels of prioritized sampling, in Triton's interpreter or on a GPU, against plain PyTorch."""

import pytest
import torch

pytest.importorskip("triton")

from helpers import KERNEL_DEVICES

from voidrl import kernels
from voidrl.kernels import priorities as compiled
from voidrl.replay.priorities import NEW, NONE, Priorities

pytestmark = [
    pytest.mark.parametrize("device", KERNEL_DEVICES),
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning"),  # the interpreter's
]


class Pair:
    """The same priorities twice: in plain PyTorch and with kernels."""

    def __init__(self, monkeypatch, device, slots, exponent=0.5):
        both = [Priorities(slots, exponent, 0.4, 1.0, torch.device(device)) for _ in range(2)]
        self.plain, self.fast = self.both = both
        self.calls = []
        monkeypatch.setattr(kernels, "usable", lambda tensor: tensor is self.fast.values)
        for name in ("draw", "update"):
            monkeypatch.setattr(compiled, name, self.counted(getattr(compiled, name)))

    def counted(self, op):
        def call(*args):
            self.calls.append(op)
            return op(*args)

        return call

    def fill(self, values, highest=2.0**20):
        for priorities in self.both:
            priorities.highest.fill_(highest)
            priorities.values[: len(values)] = values.to(priorities.values)

    def draw(self, batch, seed=0):
        found = []
        for priorities in self.both:
            torch.manual_seed(seed)
            found.append(priorities.draw(batch))
        (slots, weight), (their_slots, their_weight) = found
        assert torch.equal(their_slots, slots)
        torch.testing.assert_close(their_weight, weight, rtol=2e-7, atol=0)  # with dtypes
        self.check()
        return slots.cpu(), their_weight.cpu()

    def update(self, slots, error):
        for priorities in self.both:
            priorities.update(slots.to(priorities.values.device), error.to(priorities.values.device))
        self.check()

    def check(self):
        assert torch.equal(self.fast.values, self.plain.values)
        assert torch.equal(self.fast.highest, self.plain.highest)


def skewed(slots, seed=0):
    """Whole units over nine orders of magnitude."""
    random = torch.Generator().manual_seed(seed)
    units = torch.randn(slots, generator=random, dtype=torch.float64).mul(3).exp() * 1e6
    return units.round().clamp(1, 2.0**32)


@pytest.mark.parametrize(("slots", "batch"), [(700, 1), (1024, 5), (9000, 17)])
def test_draws_equal_those_of_plain_pytorch(monkeypatch, device, slots, batch):
    pair = Pair(monkeypatch, device, slots)
    values = skewed(slots)
    values[::3] = NONE
    values[100:140] = NEW
    values[1024:3072] = NONE  # empty blocks
    pair.fill(values, 2.0**32)
    for seed in range(2):
        drawn, _ = pair.draw(batch, seed)
        assert (values[drawn] > 0).all()
        for priorities in pair.both:
            priorities.highest *= 2  # which does not matter to those that were new
    assert len(pair.calls) == 2


def test_numbers_on_every_boundary_find_the_slot_that_begins_there(device):
    values = torch.randint(1, 9, (48,), generator=torch.Generator().manual_seed(0)).double()
    values[:20] = values[26:28] = values[32:40] = values[47:] = NONE  # blocks, and the ends of one
    values[46] += 256 - values.sum()
    ends = values.cumsum(0).unique()
    boundaries = torch.cat([ends[:-1], ends[1:] - 0.001])
    expected = torch.searchsorted(values.cumsum(0), boundaries, right=True)
    # The total is a power of two: with a stratum of 1, nothing is rounded.
    uniform = boundaries - torch.arange(len(boundaries))
    one = torch.ones(1, device=device).double()
    drawn, weight = compiled.draw(values.to(device), 999 * one, one, uniform.to(device), 1 / 256, 8)
    assert torch.equal(drawn.cpu(), expected)
    found = values[expected]
    assert found.min() == 1
    torch.testing.assert_close(weight.cpu(), (1 / found).float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("exponent", "dtype"), [(0.5, torch.float32), (0.7, torch.bfloat16), (1.0, torch.float32)]
)
def test_updates_equal_those_of_plain_pytorch(monkeypatch, device, exponent, dtype):
    pair = Pair(monkeypatch, device, 3000, exponent)
    pair.fill(skewed(3000))
    random = torch.Generator().manual_seed(0)
    for scale, batch in ((0.01, 50), (3.0, 200), (0.5, 1)):  # the second has a new highest
        slots = torch.randint(40, (batch,), generator=random) * 70  # many of them several times
        error = torch.empty(batch).exponential_(generator=random).mul(scale).to(dtype)
        pair.update(slots, error)
    assert pair.plain.highest > 2.0**20
    pair.draw(5)
    assert len(pair.calls) == 4


def test_errors_that_are_not_finite_and_their_duplicates(monkeypatch, device):
    pair = Pair(monkeypatch, device, 3000, exponent=0.5)
    pair.fill(skewed(3000))
    nan, inf = float("nan"), float("inf")
    pair.update(torch.tensor([5, 6, 5, 7, 8]), torch.tensor([nan, -1e-7, 4.0, nan, 0.0]))
    assert pair.fast.values[[5, 6, 7, 8]].tolist() == [2.0**21, 1, 1, 1]
    pair.update(torch.tensor([9, 9]), torch.tensor([inf, nan]))
    assert pair.fast.values[9] == pair.fast.highest == round(pair.fast.limit)
    assert pair.draw(4)[0].tolist().count(9) >= 2


def test_what_is_too_large_is_left_to_plain_pytorch(monkeypatch, device):
    pair = Pair(monkeypatch, device, 3000)
    pair.fill(skewed(3000))
    monkeypatch.setattr(compiled, "MAX_BATCH", 8)
    pair.draw(9)
    pair.update(torch.arange(9), torch.ones(9))
    monkeypatch.setattr(compiled, "MAX_BLOCKS", 2)
    pair.draw(3)
    assert not pair.calls


def test_the_compiled_methods_call_the_kernels(monkeypatch, device):
    """As far as it goes without a C++ compiler."""
    monkeypatch.setattr(kernels, "usable", lambda tensor: True)
    found = []
    for backend in (None, "aot_eager"):
        priorities = Priorities(1000, 0.5, 0.4, 1.0, torch.device(device))
        priorities.values[:1000] = skewed(1000).to(device)
        priorities.values[:30] = NEW
        for name in ("_draw", "update") if backend else ():
            setattr(
                priorities, name, torch.compile(getattr(priorities, name), backend=backend, fullgraph=True)
            )
        torch.manual_seed(1)
        for _ in range(2):
            slots, weight = priorities.draw(4)
            priorities.update(slots, 1e5 * weight)
        found.append([slots, weight, priorities.values, priorities.highest])
    torch._dynamo.reset()
    assert all(map(torch.equal, *found))
    assert found[0][3] > 2.0**20


@pytest.mark.parametrize("name", ["draw", "update"])
def test_the_operators_say_what_they_change(device, name):
    values, highest, slots = skewed(2048).to(device), torch.full((1,), 1e4, device=device).double(), [3, 9, 3]
    args = {
        "draw": (highest, highest / 2e4, torch.full((3,), 0.5, device=device).double(), 1 / 3, 1024),
        "update": (highest, torch.tensor(slots, device=device), values[:3].float(), 0.5, 2.0**-20, 2.0**40),
    }[name]
    torch.library.opcheck(getattr(compiled, name), (values, *args))
