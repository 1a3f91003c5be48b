"""All faults: importing a group adds its faults to the catalogue."""

# ruff: noqa: I001 - the order of the groups in the table
import faults_output
import faults_signals
import faults_files
import faults_input
from fault_catalogue import FAULTS

GROUPS = (faults_output, faults_signals, faults_files, faults_input)

__all__ = ["FAULTS", "GROUPS"]
