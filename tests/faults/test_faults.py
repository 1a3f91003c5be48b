"""Every fault of the catalogue has the outcome that `docs/reliability.md` promises."""

import faults_files  # noqa: F401 - importing a group adds its faults
import faults_input  # noqa: F401
import faults_output  # noqa: F401
import faults_signals  # noqa: F401
import pytest
from fault_catalogue import FAULTS
from fault_lab import Lab


@pytest.fixture(scope="module")
def lab():
    lab = Lab()
    yield lab
    lab.close()


def case(fault):
    marks = [] if fault.quick else [pytest.mark.faults]
    return pytest.param(fault, id=f"{fault.group}: {fault.name}", marks=marks)


@pytest.mark.parametrize("fault", [case(fault) for fault in FAULTS])
def test_the_outcome_is_the_promised_one(lab, fault):
    if reason := fault.needs():
        pytest.skip(reason)
    with lab.bench() as bench:
        shortcoming = fault.shortcoming(fault.inject(bench, fault.command))
    assert not shortcoming, f"{fault.command}: {shortcoming}"


def test_names_are_unique():
    names = [(fault.group, fault.name) for fault in FAULTS]
    assert len(names) == len(set(names))
