"""The kernel that accumulates metrics, in Triton's interpreter or on a GPU, against plain PyTorch."""

import pytest
import torch

from voidrl.engine.accumulator import _accumulate

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("keys", [1, 5, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_equals_plain_pytorch(keys, dtype):
    from voidrl.kernels.accumulate import accumulate

    generator = torch.Generator().manual_seed(keys)
    sums, finite = torch.zeros(2, keys, dtype=torch.float64)
    their_sums, their_finite = torch.zeros(2, keys, dtype=torch.float64, device=DEVICE)
    for add, bad in enumerate([0.0, float("nan"), float("-inf"), float("inf")]):
        row = torch.randn(keys, generator=generator).to(dtype)
        row[-1 - min(add, keys - 1)] += bad
        _accumulate(row, sums, finite)
        accumulate(row.to(DEVICE), their_sums, their_finite)
    torch.testing.assert_close(their_sums.cpu(), sums, rtol=0, atol=0, equal_nan=True)
    assert their_finite.cpu().tolist() == finite.tolist()
    assert finite.min() < 4
