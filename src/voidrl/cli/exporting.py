"""export."""

from __future__ import annotations

import re

from voidrl.cli.options import add_source_options, load_agent, make_parser
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError
from voidrl.system.files import user_path

FORMATS = ("onnx", "minari")


def export(argv: list[str]) -> None:
    """Write an agent's policy, or the experience of its run, for others: `voidrl export RUN --to onnx`."""
    parser = make_parser("export", export.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="the folder of a run or a checkpoint; for policies also a saved agent")
    add("--to", metavar="FORMAT", required=True, help="the policy as onnx, or the replay as minari")
    out_help = (
        "the file (default: policy.onnx in the run's folder), or the id of the dataset (default: "
        "voidrl/NAME-v0 after the run)"
    )
    add("-o", "--out", metavar="FILE", help=out_help)
    add("--force", action="store_true", help="replace what is there")
    add_source_options(parser)
    options = parser.parse_args(argv)
    if options.to not in FORMATS:
        raise UnknownNameError("format", options.to, FORMATS)
    out = options.out or _default_out(options.run, options.to)
    if options.to == "minari":
        if options.best:
            raise ConfigError("--best is for policies: the replay has no best")
        from voidrl.data.export import export_data

        written = export_data(options.run, out, overwrite=options.force)
        print(f"{written.name}: {written}")
        return
    from voidrl.playing.export import export_policy, require_free

    require_free(user_path(out), options.force)
    print(export_policy(load_agent(options, options.run), out, overwrite=options.force))


def _default_out(run: str, to: str) -> str:
    """The default path of an export: in the folder of its run, otherwise the current folder."""
    from voidrl.runs.folder import RunFolder

    try:
        folder = RunFolder.open(run).path.absolute()
    except RunFolderError:  # a saved agent, or something that will be refused
        return f"{user_path(run).name}.onnx"
    name = re.sub(r"[^-\w]+", "-", folder.name)
    return str(folder / "policy.onnx") if to == "onnx" else f"voidrl/{name}-v0"
