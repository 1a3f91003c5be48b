"""probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voidrl.cli.options import add_source_options, load_agent, make_parser
from voidrl.system.terminal.tables import print_table, wrap_text


def probe(argv: list[str]) -> None:
    """Measure what the representation and the reward see of the true state: `voidrl probe RUN`."""
    parser = make_parser("probe", probe.__doc__)
    add = parser.add_argument
    add("run", help="the folder of a run, a checkpoint or a saved agent, or user/name on the Hub")
    add("--steps", default="10k", help="steps of play to measure on (default: 10k)")
    policies = ["agent", "random", "sticky", "mixed"]
    add("--policy", choices=policies, default="mixed", help="who plays; mixed is a third of each (default)")
    add("--variables", help="names of variables, separated by commas (default: all)")
    add("--env", help="by default the one it was trained in")
    add("--num-envs", type=int, help="environments in parallel (default: 24)")
    add("--seed", type=int, default=0, help="seed of the play and of held-out episodes (default: 0)")
    add("--json", metavar="FILE", help="write the result there; - prints it (default: probe.json in the run)")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add_source_options(parser)
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.system.files import user_path

    names = None if options.variables is None else [name.strip() for name in options.variables.split(",")]
    agent = load_agent(options, options.run, options.device)
    result = api.probe(
        agent,
        options.env or None,
        steps=options.steps,
        policy=options.policy,
        seed=options.seed,
        variables=names,
        num_envs=options.num_envs,
    )
    source = str(agent.origin) if options.best else options.run  # probe.json is of the last agent
    saved = _record(result.to_json(), agent.steps, source)
    if options.json == "-":
        print(json.dumps(saved))
        return
    show(saved)
    path = _written(saved, user_path(source), options.json)
    if path is not None:
        print(f"\nwritten to {path}")


def _record(saved: dict[str, Any], agent_steps: int, source: str) -> dict[str, Any]:
    """The result, with the data that lets a later reader of the run judge whether it is still valid."""
    from voidrl.runs.checkpoint import list_steps
    from voidrl.runs.evaluations import start_date
    from voidrl.system.files import user_path

    run = user_path(source)
    steps = list_steps(run / "checkpoints")
    own = {"steps": steps[-1] if steps else agent_steps, "source": str(source), "started": start_date(run)}
    return {**saved, "agent": {**saved["agent"], "steps_with_pretraining": agent_steps, **own}}


def _written(saved: dict[str, Any], run: Path, file: str | None) -> Path | None:
    """Write the result to `file`, else into the run; None where the agent is not in a run folder."""
    from voidrl.probing.saved import FILE_NAME
    from voidrl.runs.checkpoint import write_json_atomic
    from voidrl.system.files import user_path

    if file is None and not (run / "checkpoints").is_dir():
        return None
    path = run / FILE_NAME if file is None else user_path(file)
    write_json_atomic(path, saved)
    return path


def show(saved: dict[str, Any]) -> None:
    """Print a probe as tables."""
    from voidrl.probing.sentences import heading, lines, variable_columns, variable_notes, variable_rows

    print(wrap_text(heading(saved)))
    print()
    if saved["variables"]:
        print_table(variable_columns(saved), variable_rows(saved))
    for note in variable_notes(saved):
        print(wrap_text(note, indent=0))
    print()
    print_table(["reward", "value", "meaning"], lines(saved))
