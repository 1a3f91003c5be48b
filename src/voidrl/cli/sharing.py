"""push."""

from __future__ import annotations

import tempfile
from pathlib import Path

from voidrl.cli.options import TRUST_HELP, make_parser


def push(argv: list[str]) -> None:
    """Publish an agent on the Hugging Face Hub: `voidrl push RUN user/name`."""
    parser = make_parser("push", push.__doc__)
    parser.add_argument("run", metavar="RUN", help="the folder of a run, a checkpoint or a saved agent")
    parser.add_argument("repo_id", metavar="user/name", help="the repository; created if it does not exist")
    parser.add_argument("--private", action="store_true", help="make it private")
    parser.add_argument("--message", help="commit message (default: what was trained, and how long)")
    parser.add_argument("--revision", help="a branch, created if it does not exist (default: main)")
    parser.add_argument("--license", help="for the card, such as mit (default: none is stated)")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be uploaded, and upload nothing"
    )
    parser.add_argument("--trust-code", action="store_true", help=TRUST_HELP)
    options = parser.parse_args(argv)
    from voidrl import api, push_to_hub, save_pretrained

    agent = api.load(options.run, device="cpu", trust_code=options.trust_code)
    if not options.dry_run:
        address = push_to_hub(
            agent,
            options.repo_id,
            private=options.private,
            message=options.message,
            revision=options.revision,
            license=options.license,
        )
        print(address)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = save_pretrained(
            agent, Path(made) / "agent", license=options.license, repo_id=options.repo_id
        )
        for path in sorted(folder.iterdir()):
            print(f"{path.stat().st_size:>12}  {path.name}")
        print(f"\n{(folder / 'README.md').read_text('utf-8')}")
        print(
            f"Nothing was uploaded; without --dry-run this goes to {options.repo_id} on the Hugging Face Hub."
        )
