"""Runs one benchmark, printing each row and rewriting the JSON file as soon as the row is measured."""

from __future__ import annotations

import importlib
import textwrap
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from voidrl.cli.benchmarks.results import Result
from voidrl.cli.benchmarks.roofline import find_peaks
from voidrl.errors import ConfigError
from voidrl.runs.checkpoint import write_json_atomic
from voidrl.runs.folder import environment_info
from voidrl.system.device import pick_device, seeded
from voidrl.system.terminal.output import say

WITH_ROOFLINE = ("update", "knn", "sample")
TABLE_WIDTH = 100
LEAST_COLUMN_WIDTH = 8


def run(options: Namespace) -> list[dict[str, Any]]:
    """Run `voidrl bench` with parsed options; returns the figures of every row."""
    device = pick_device(options.device)
    if device.type != "cuda" and "graph" in (getattr(options, "engine", ""), getattr(options, "against", "")):
        raise ConfigError(f"engine = 'graph' cannot be used on {device}: expected a CUDA device; use eager")
    benchmark = importlib.import_module(f"voidrl.cli.benchmarks.{options.what}")
    info = environment_info()
    document = {**info, "command": " ".join(["voidrl", "bench", *options.argv]), "device": str(device)}
    document["threads"] = torch.get_num_threads()
    cpu = f"{info['cpu']['model']}, {document['threads']} threads"
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    if options.what == "env" and device.type == "cuda":  # most environments are on the CPU
        hardware = f"{cpu}; {hardware}"
    print(f"{hardware}; " + ", ".join(f"{name} {info['versions'][name]}" for name in ("voidrl", "torch")))
    peaks = None
    if options.what in WITH_ROOFLINE:
        peaks = find_peaks(device)
        document["peaks"] = vars(peaks)
        print(peaks.describe())
    rows: list[dict[str, Any]] = []
    current_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with current_device, seeded(0, device):  # streams and graphs are created on the current device
        for result in benchmark.results(options, device, peaks, say):
            _print_result(result, benchmark.NAME_WIDTH, header=not rows)
            rows.append(result.figures)
            if options.json is not None:
                write_json_atomic(options.json, {**document, "rows": rows})
    return rows


def _table_line(cells: Iterable[str], widths: Sequence[int]) -> str:
    """The first column is left-aligned, the others are right-aligned."""
    aligned = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
    return " ".join([aligned[0].lstrip().ljust(widths[0]), *aligned[1:]])


def _print_result(result: Result, name_width: int, *, header: bool) -> None:
    widths = [name_width, *(max(LEAST_COLUMN_WIDTH, len(title)) for title in [*result.cells][1:])]
    if header:
        titles = _table_line(result.cells, widths)
        print(f"\n{titles}\n{'─' * len(titles)}")
    print(_table_line(result.cells.values(), widths))
    for note in result.notes:
        print(textwrap.indent(textwrap.fill(note, TABLE_WIDTH - 2, break_on_hyphens=False), "  "), flush=True)
