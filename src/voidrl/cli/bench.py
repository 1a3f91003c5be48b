"""bench."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from voidrl.cli.options import Parser
from voidrl.config import require
from voidrl.errors import ConfigError
from voidrl.system.terminal.output import say
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import parse_count

DEFAULT_ENV = "voidrl/PixelMaze-v0"
MAX_SECONDS = 3600
COLUMNS = {  # of the tables: title, and the figure of a row
    "env": {"backend": "backend", "envs": "num_envs", "steps/s": "steps_per_second"},
    "train": {
        "engine": "engine", "envs": "num_envs", "updates/step": "updates_per_step",
        "updates/s": "updates_per_second", "steps/s": "steps_per_second", "frames/s": "frames_per_second",
    },
}  # fmt: skip


def bench(argv: list[str]) -> None:
    """Measure environments or whole runs on this machine: `voidrl bench train ENV`."""
    options = _parse(argv)
    import torch

    from voidrl.cli import speed
    from voidrl.runs.checkpoint import write_json_atomic
    from voidrl.runs.folder import environment_info
    from voidrl.system.device import placed

    info = environment_info()
    with placed(options.device, 0) as device:
        rows = list(speed.MEASURES[options.what](options, device, say))
    hardware = info["cpu"]["model"] if device.type == "cpu" else torch.cuda.get_device_name(device)
    print(f"{options.env} on {hardware}, torch {torch.__version__}")
    columns = COLUMNS[options.what]
    print_table([*columns, "range"], [_cells(row, columns.values()) for row in rows])
    for row in rows:
        if "limit" in row:
            print(wrap_text(row["limit"], indent=0))
    if options.json is not None:
        command = " ".join(["voidrl", "bench", *argv])
        document = {**info, "command": command, "device": str(device), "threads": torch.get_num_threads()}
        write_json_atomic(options.json, {**document, "rows": rows})


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser("bench", bench.__doc__)
    add = parser.add_argument
    what_help = "environments without an agent, or a whole run"
    add("what", choices=[*COLUMNS], metavar="{env,train}", help=what_help)
    add("env", nargs="?", default=DEFAULT_ENV, metavar="ENV", help=f"(default: {DEFAULT_ENV})")
    add("--preset", help="a protocol or an agent (default: as in `voidrl pretrain`)")
    add("--method", help="the intrinsic reward (default: as in `voidrl pretrain`)")
    add("--num-envs", type=int, nargs="+", metavar="N", help="environments; `env` measures each number")
    add("--steps", default="8k", help="of a whole run (default: 8k)")
    add("--updates-per-step", type=float, help="of a whole run (default: the preset's)")
    add("--seconds", type=float, default=2.0, help="of environments (default: 2)")
    add("--backend", help="how environments are stepped (default: the preset's)")
    engine_help = "auto, eager, graph or compile (default: auto)"
    add("--engine", choices=("auto", "eager", "graph", "compile"), default="auto", help=engine_help)
    add("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="auto, fp32 or bf16")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add("--json", type=Path, metavar="FILE", help="also write every figure to this file")
    options = parser.parse_args(argv)
    limits = f"more than 0 and at most {MAX_SECONDS}"
    require(0 < options.seconds <= MAX_SECONDS, "--seconds", options.seconds, limits)
    for number in options.num_envs or ():
        require(number > 0, "--num-envs", number, "1 or more")
    options.steps = parse_count(options.steps)
    path = options.json
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"--json {path} cannot be written: expected a file in an existing folder")
    return options


def _cells(row: dict[str, Any], keys: Any) -> list[str]:
    """The figures of a row as text, and its slowest and fastest part."""
    span = f"{_number(row['steps_per_second_min'])}–{_number(row['steps_per_second_max'])}"
    return [*(_number(row[key]) for key in keys), span]


def _number(value: Any) -> str:
    """A rate with four significant digits; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"
