"""export."""

from __future__ import annotations

import re
from pathlib import Path

from voidrl.cli.options import add_source_options, load_agent, make_parser
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError
from voidrl.system.files import user_path

POLICIES = {"onnx": "policy.onnx", "torch": "policy.pt2"}
DATA = {"minari": "", "npz": "replay.npz"}


def export(argv: list[str]) -> None:
    """Write an agent's policy, or the experience of its run, for others: `voidrl export RUN --to onnx`."""
    parser = make_parser("export", export.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="the folder of a run or a checkpoint; for policies also a saved agent")
    to_help = "the policy as onnx or torch (torch.export), or the replay as minari or npz"
    add("--to", metavar="FORMAT", required=True, help=to_help)
    out_help = (
        "the file, or for minari the id (name-v0) or path of the dataset (default: policy.onnx, policy.pt2 "
        "or replay.npz in the run's folder; for minari voidrl/NAME-v0 after the run)"
    )
    add("-o", "--out", metavar="FILE", help=out_help)
    add("--force", action="store_true", help="replace what is there")
    add_source_options(parser)
    options = parser.parse_args(argv)
    if options.to not in (*POLICIES, *DATA):
        raise UnknownNameError("format", options.to, [*POLICIES, *DATA])
    out = options.out or default_out(options.run, options.to)
    if options.to in DATA:
        if options.best:
            raise ConfigError(f"--best is for policies: the replay that --to {options.to} writes has no best")
        from voidrl.data.export import export_data

        written = export_data(options.run, out, options.to, overwrite=options.force)
        print(f"{written.name}: {written}")
        return
    from voidrl.playing.export import export_policy, require_free

    require_free(user_path(out), options.force)
    agent = load_agent(options, options.run)
    print(export_policy(agent, out, options.to, overwrite=options.force))


def default_out(run: str, to: str) -> str:
    """The default path of an export: in the folder of its run, otherwise the current folder."""
    from voidrl.runs.folder import RunFolder

    file = {**POLICIES, **DATA}[to]
    try:
        folder = RunFolder.open(run).path.absolute()
    except RunFolderError:  # a saved agent, or something that will be refused
        return f"{user_path(run).name}{Path(file).suffix}"
    name = re.sub(r"[^-\w]+", "-", folder.name)
    return str(folder / file) if file else f"voidrl/{name}-v0"
