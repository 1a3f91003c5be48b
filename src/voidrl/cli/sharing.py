"""push."""

from __future__ import annotations

import tempfile
from pathlib import Path

from voidrl.cli.options import add_source_options, load_agent, make_parser


def push(argv: list[str]) -> None:
    """Publish an agent on the Hugging Face Hub: `voidrl push RUN user/name`."""
    parser = make_parser("push", push.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="the folder of a run, a checkpoint or a saved agent")
    add("repo_id", metavar="user/name", help="the repository; created if it does not exist")
    add("--private", action="store_true", help="make it private")
    add("--message", help="commit message (default: what was trained, and how long)")
    add("--revision", help="a branch, created if it does not exist (default: main)")
    add("--license", help="for the card, such as mit (default: none is stated)")
    add("--dry-run", action="store_true", help="show what would be uploaded, and upload nothing")
    add_source_options(parser)
    options = parser.parse_args(argv)
    from voidrl import push_to_hub, save_pretrained

    agent = load_agent(options, options.run)
    repo_id, license = options.repo_id, options.license
    if not options.dry_run:
        how = {name: getattr(options, name) for name in ("private", "message", "revision")}
        print(push_to_hub(agent, repo_id, license=license, **how))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = save_pretrained(agent, Path(made) / "agent", license=license, repo_id=repo_id)
        for path in sorted(folder.iterdir()):
            print(f"{path.stat().st_size:>12}  {path.name}")
        print(f"\n{(folder / 'README.md').read_text('utf-8')}")
        print(f"Nothing was uploaded; without --dry-run this goes to {repo_id} on the Hugging Face Hub.")
