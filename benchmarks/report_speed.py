"""How long a report over many runs takes, and how large its page is.

python benchmarks/report_speed.py                  # 100 synthetic runs with 3000 rows of 30 numbers each
python benchmarks/report_speed.py --runs 400
python benchmarks/report_speed.py --small          # three short runs, with their videos and maps
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
SMALL_SECONDS = 10
MAZE = "voidrl/PixelMaze-v0?size=13&image_size=39"


def main() -> None:
    """Write the runs, create the report in a separate process, and print time and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--keep", type=Path, help="keep runs and page in this folder")
    parser.add_argument("--small", action="store_true", help="three runs that are trained first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        if options.small:
            train_three(root / "runs")
            options.runs, limit = 3, f"{SMALL_SECONDS} s"
        else:
            write_many(root / "runs", options.runs, options.rows)
            limit = f"{LIMIT_SECONDS} s for 100 runs"
        page = root / "report.html"
        command = [sys.executable, "-m", "voidrl.cli.main", "report", str(root / "runs"), "-o", str(page)]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        took = time.perf_counter() - began
        bytes_read = sum(path.stat().st_size for path in (root / "runs").rglob("metrics.jsonl"))
        size = page.stat().st_size
        print(f"{options.runs} runs, {bytes_read / 1e6:.0f} MB of metrics")
        print(f"time  {took:6.1f} s   (limit {limit})")
        print(f"page  {size / 1e6:6.2f} MB  (limit {LIMIT_BYTES / 1e6:g} MB)")


def train_three(root: Path) -> None:
    """Pre-train and fine-tune in a maze, and train in CartPole, for a few hundred steps each."""
    import voidrl

    config = {"updates_per_step": 0.1, "env.num_envs": 8, "warmup_steps": 100, "finetune.warmup_steps": 100}
    config |= {"learner.batch_size": 16, "representation.batch_size": 16}
    agent = voidrl.pretrain(MAZE, steps=400, config=config, out=root / "pretrain")
    voidrl.finetune(agent, f"{MAZE}&goal=far", steps=400, out=root / "finetune")
    voidrl.train("CartPole-v1", steps=400, config=config, out=root / "cartpole")


if __name__ == "__main__":
    main()
