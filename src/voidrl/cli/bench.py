"""bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voidrl.cli.options import Parser, split_options
from voidrl.cli.training import ENV_HELP, read_request, start_parser
from voidrl.errors import ConfigError
from voidrl.system.terminal.output import say
from voidrl.system.terminal.tables import print_table, wrap_text

JSON_HELP = "also write every figure to this file"
ENV_NUMBERS = ("1", "16", "64")
COLUMNS = {  # of the tables: title, and the figure of a row
    "env": {"backend": "backend", "envs": "num_envs", "steps/s": "steps_per_second"},
    "train": {
        "engine": "engine", "envs": "num_envs", "updates/step": "updates_per_step",
        "updates/s": "updates_per_second", "steps/s": "steps_per_second", "frames/s": "frames_per_second",
    },
}  # fmt: skip


def bench(argv: list[str]) -> None:
    """Measure environments or whole runs on this machine: `voidrl bench train ENV`."""
    parser = Parser("bench", bench.__doc__)
    parser.add_argument("what", metavar="{env,train}", help="environments without an agent, or a whole run")
    parser.add_argument("env", metavar="ENV …", help=f"{ENV_HELP}; and any option of `voidrl pretrain`")
    parser.add_argument("--json", metavar="FILE", help=JSON_HELP)
    what, words = parser.read_first(argv, "measurement", COLUMNS)
    given = dict(split_options(words[1:])) if words and not words[0].startswith("-") else {}
    from voidrl.presets.presets import AGENTS

    command = "train" if given.get("--preset") in AGENTS else "pretrain"

    def read(*more: str) -> Any:
        parser = start_parser(command, f"bench {what}")
        about = (bench.__doc__ or "").partition(":")[0]
        parser.description = f"{about}, with the options of `voidrl {command}`."
        parser.add_argument("--json", metavar="FILE", help=JSON_HELP)
        return read_request(command, [*words, *more], parser)

    varies = what == "env" and not {"--env.num-envs", "--env.num_envs"} & {*given}
    requests = [read("--env.num-envs", number) for number in ENV_NUMBERS] if varies else [read()]
    path = requests[0].options.json and Path(requests[0].options.json)
    if path and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"--json {path} cannot be written: expected a file in an existing folder")
    import torch

    from voidrl.cli import speed
    from voidrl.runs.checkpoint import write_json_atomic
    from voidrl.runs.folder import environment_info
    from voidrl.system.device import placed

    info = environment_info()
    with placed(requests[0].config.device, 0) as device:
        if what == "env":
            rows = [speed.env_rates(each) for each in requests]
        else:
            rows = [speed.run_rates(requests[0], None if "--steps" in given else speed.STEPS, device, say)]
    hardware = info["cpu"]["model"] if device.type == "cpu" else torch.cuda.get_device_name(device)
    print(f"{words[0]} on {hardware}, torch {torch.__version__}")
    columns = {**COLUMNS[what], "slowest": "steps_per_second_min", "fastest": "steps_per_second_max"}
    print_table([*columns], [[_number(row[key]) for key in columns.values()] for row in rows])
    for row in rows:
        if "limit" in row:
            print(wrap_text(row["limit"], indent=0))
    if path:
        document = {**info, "command": " ".join(["voidrl", "bench", *argv]), "device": str(device)}
        write_json_atomic(path, {**document, "threads": torch.get_num_threads(), "rows": rows})


def _number(value: Any) -> str:
    """A rate with four significant digits; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
