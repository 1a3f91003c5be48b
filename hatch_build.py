"""The README on a package index: relative links lead into the repository that `project.urls` names."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")


class Readme(MetadataHookInterface):
    """Runs at each build; without an address of the repository the text stays as it is."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := metadata.get("urls", {}).get("Repository"):
            text = RELATIVE.sub(
                lambda m: f"{m[1]}[{m[2]}]({address}/{'raw' if m[1] else 'blob'}/HEAD/{m[3]})", text
            )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
