"""How long a report over many runs takes, and how large its page is.

python benchmarks/report_speed.py                  # 100 synthetic runs with 3000 rows of 30 numbers each
python benchmarks/report_speed.py --runs 400
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))
from synthetic_runs import write_many

LIMIT_SECONDS, LIMIT_BYTES = 20, 15_000_000


def main() -> None:
    """Write the runs, create the report in a separate process, and print time and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--keep", type=Path, help="keep runs and page in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        write_many(root / "runs", options.runs, options.rows)
        page = root / "report.html"
        command = [sys.executable, "-m", "voidrl.cli.main", "report", str(root / "runs"), "-o", str(page)]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        took = time.perf_counter() - began
        bytes_read = sum(path.stat().st_size for path in (root / "runs").rglob("metrics.jsonl"))
        size = page.stat().st_size
        print(f"{options.runs} runs, {bytes_read / 1e6:.0f} MB of metrics")
        print(f"time  {took:6.1f} s   (limit {LIMIT_SECONDS} s for 100 runs)")
        print(f"page  {size / 1e6:6.2f} MB  (limit {LIMIT_BYTES / 1e6:g} MB)")


if __name__ == "__main__":
    main()
