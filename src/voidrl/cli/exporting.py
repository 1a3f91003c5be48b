"""export."""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from voidrl.cli.options import RUN_HELP, Parser, add_source_options, load_agent
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError, printable
from voidrl.system.files import user_path

FORMATS = ("onnx", "minari", "hub:user/name")
HUB = "hub:"


def export(argv: list[str]) -> None:
    """Write an agent or the experience of its run for others: `voidrl export RUN --to onnx`."""
    parser = Parser("export", export.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help=RUN_HELP)
    to_help = "the policy as onnx, the replay as minari, or hub:user/name to publish the agent on the Hub"
    add("--to", metavar="FORMAT", required=True, help=to_help)
    out_help = (
        "the file (default: policy.onnx in the run's folder), or the id of the dataset (default: "
        "voidrl/NAME-v0 after the run)"
    )
    add("-o", "--out", metavar="FILE", help=out_help)
    add("--force", action="store_true", help="replace what is there")
    add("--private", action="store_true", help="make a new repository private")
    add("--message", help="commit message (default: what was trained, and how long)")
    add("--revision", help="a branch, created if it does not exist (default: main)")
    add("--license", help="for the card, such as mit (default: none is stated)")
    add("--dry-run", action="store_true", help="show what would be uploaded, and upload nothing")
    add_source_options(parser)
    options = parser.parse_args(argv)
    if options.to.startswith(HUB):
        _publish(options, options.to.removeprefix(HUB))
        return
    if options.to not in FORMATS:
        raise UnknownNameError("format", options.to, FORMATS)
    out = options.out or _default_out(options.run, options.to)
    if options.to == "minari":
        if options.best:
            raise ConfigError("--best is for policies: the replay has no best")
        from voidrl.data.export import export_data

        written = export_data(options.run, out, overwrite=options.force)
        print(f"{written.name}: {written.steps} steps of {written.episodes} episodes")
        return
    from voidrl.playing.export import export_policy, require_free

    require_free(user_path(out), options.force)
    print(printable(export_policy(load_agent(options, options.run), out, overwrite=options.force)))


def _default_out(run: str, to: str) -> str:
    """The default path of an export: in the folder of its run, otherwise the current folder."""
    from voidrl.runs.folder import RunFolder

    try:
        folder = RunFolder.open(run).path.absolute()
    except RunFolderError:  # a saved agent, or something that will be refused
        return f"{user_path(run).name}.onnx"
    name = re.sub(r"[^-\w]+", "-", folder.name)
    return str(folder / "policy.onnx") if to == "onnx" else f"voidrl/{name}-v0"


def _publish(options: argparse.Namespace, repo_id: str) -> None:
    """Push the agent to the Hub, or show what would be pushed."""
    from voidrl import push_to_hub, save_pretrained

    agent = load_agent(options, options.run)
    if not options.dry_run:
        how = {name: getattr(options, name) for name in ("private", "message", "revision", "license")}
        print(push_to_hub(agent, repo_id, **how))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = save_pretrained(agent, Path(made) / "agent", license=options.license, repo_id=repo_id)
        for path in sorted(folder.iterdir()):
            print(f"{path.stat().st_size:>12}  {path.name}")
        print(f"\n{(folder / 'README.md').read_text('utf-8')}")
        print(f"Nothing was uploaded; without --dry-run this goes to {repo_id} on the Hugging Face Hub.")
