"""Runs one benchmark: rows are printed as they come, and written to JSON after each."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from voidrl import checkpoint
from voidrl.bench import report
from voidrl.bench.peaks import find_peaks
from voidrl.device import pick_device, seeded
from voidrl.errors import ConfigError

WITH_FLOOR = ("update", "knn", "sample")


def run(options: Namespace) -> list[report.Row]:
    """What `voidrl bench` does; returns the rows."""
    benchmark = importlib.import_module(f"voidrl.bench.{options.what}")
    device = pick_device(getattr(options, "device", "cpu"))
    benchmark.check(options)
    if device.type != "cuda" and "graph" in (getattr(options, "engine", ""), getattr(options, "against", "")):
        raise ConfigError(f"engine = 'graph' cannot be used on {device}: expected a CUDA device; use eager")
    extra: dict[str, Any] = {}
    print(report.summary(device))
    peaks = None
    if options.what in WITH_FLOOR:
        peaks = find_peaks(device)
        extra["peaks"] = vars(peaks)
        print(peaks.describe())
    columns = benchmark.columns(options)
    print(f"\n{report.header(columns)}", flush=True)
    rows: list[report.Row] = []
    with _current(device), seeded(0, device):
        for row in benchmark.rows(options, device, peaks, say):
            rows.append(row)
            print(report.line(columns, row), flush=True)
            for text in benchmark.details(row):
                print(report.details(text), flush=True)
            if options.json is not None:
                document = report.document(options.argv, device, extra, rows)
                checkpoint.write_json_atomic(options.json, document)
    return rows


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Streams and graphs are made on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def say(text: str) -> None:
    """What a user should know beside the table."""
    print(text, file=sys.stderr, flush=True)
