"""Every fault of the catalogue has the outcome that `docs/reliability.md` promises."""

from pathlib import Path

import pytest
from fault_catalogue import GOOD, run_fault
from fault_lab import Lab
from fault_list import FAULTS

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def lab():
    lab = Lab(SRC)
    yield lab
    lab.close()


def case(fault):
    marks = [] if fault.quick else [pytest.mark.faults]
    return pytest.param(fault, id=f"{fault.group}: {fault.name}", marks=marks)


@pytest.mark.parametrize("fault", [case(fault) for fault in FAULTS])
def test_the_outcome_is_the_promised_one(lab, fault):
    result = run_fault(fault, lab)
    if result.outcome == "skipped":
        pytest.skip(result.detail)
    assert result.outcome == fault.expect, f"{fault.command}: {result.detail}"


def test_names_are_unique_and_outcomes_known():
    names = [(fault.group, fault.name) for fault in FAULTS]
    assert len(names) == len(set(names))
    assert {fault.expect for fault in FAULTS} <= set(GOOD)
