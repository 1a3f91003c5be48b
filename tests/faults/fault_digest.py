"""Print a digest of what a run has learned and logged, which is equal for equal runs."""

import hashlib
import json
import sys
from pathlib import Path


def content(run):
    """Hashes of the newest checkpoint's files, its counters, and the metrics without the clock."""
    newest = max((run / "checkpoints").glob("step_*"))
    manifest = json.loads((newest / "manifest.json").read_text())
    files = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    meta = {key: value for key, value in manifest["meta"].items() if key != "metrics_bytes"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in lines]
    return [files, meta, rows]


if __name__ == "__main__":
    print(hashlib.sha256(json.dumps(content(Path(sys.argv[1])), sort_keys=True).encode()).hexdigest())
