"""Nothing grows while one process trains run after run: memory, descriptors, threads, processes."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("VOIDRL_SOAK_SECONDS", "180"))
# Allocators keep some pages; a leak of one replay, agent or connection per run is far more over the rounds.
GROWTH_KB = 8 << 10


@pytest.mark.faults
def test_nothing_grows(tmp_path):
    path = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "fault_soak.py", tmp_path, str(SECONDS)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=10 * SECONDS + 600)
    assert done.returncode == 0, done.stderr[-3000:]
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    settled = rounds[len(rounds) // 3 :]  # imports, caches and thread pools come first
    print(f"{len(rounds)} rounds, first {rounds[0]}, settled {settled[0]}, last {rounds[-1]}")
    for name in ("descriptors", "threads", "children", "zombies", "shared"):
        assert max(r[name] for r in settled[-3:]) <= max(r[name] for r in settled[:3]), (name, rounds)
    assert rounds[-1]["zombies"] == 0
    third = max(1, len(settled) // 3)
    first, last = (
        statistics.median(r["rss_kb"] for r in part) for part in (settled[:third], settled[-third:])
    )
    assert last - first < GROWTH_KB, (
        f"resident memory grew from {first} to {last} KB in {len(settled)} rounds"
    )
