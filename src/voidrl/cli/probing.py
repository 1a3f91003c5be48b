"""probe."""

from __future__ import annotations

import json

from voidrl.cli.options import DEVICE_HELP, RUN_HELP, Parser, add_source_options, load_agent
from voidrl.system.terminal.tables import print_table, wrap_text


def probe(argv: list[str]) -> None:
    """Measure what the representation sees of the true state and of the task's reward: `voidrl probe RUN`."""
    parser = Parser("probe", probe.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help=RUN_HELP)
    add("--steps", default="10k", help="steps of play to measure on (default: 10k)")
    policies = ["agent", "random", "sticky", "mixed"]
    policy_help = "agent, random, sticky, or mixed: a third of each (default)"
    add("--policy", choices=policies, default="mixed", metavar="NAME", help=policy_help)
    add("--env", help="by default the one it was trained in")
    add("--num-envs", type=int, metavar="N", help="environments in parallel (default: 24)")
    add("--seed", type=int, default=0, help="seed of the play and of held-out episodes (default: 0)")
    add("--json", action="store_true", help="print the result as JSON")
    add("--device", default="auto", help=DEVICE_HELP)
    add_source_options(parser)
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.probing.result import FILE_NAME, columns, heading, notes, rows
    from voidrl.runs.checkpoint import list_steps, write_json_atomic
    from voidrl.system.files import user_path

    agent = load_agent(options, options.run, options.device)
    how = {name: getattr(options, name) for name in ("steps", "policy", "seed", "num_envs")}
    saved = api.probe(agent, options.env or None, **how).to_json()
    run = user_path(options.run)
    # The data that lets a later reader of the run judge whether the probe is still valid.
    steps = list_steps(run / "checkpoints") or [saved["agent"]["steps"]]
    saved["agent"]["steps"] = steps[-1]
    if options.json:
        print(json.dumps(saved))
        return
    print(f"{wrap_text(heading(saved))}\n")
    if saved["variables"] or saved["task_reward"]:
        print_table(columns(saved), rows(saved))
    for note in notes(saved):
        print(wrap_text(note, indent=0))
    if (run / "checkpoints").is_dir() and not options.best:  # probe.json is of the last agent
        write_json_atomic(run / FILE_NAME, saved)
        print(f"\nwritten to {run / FILE_NAME}")
