"""Atari: MsPacman explored without reward, by APT and by random actions.

Prints how many player positions and RAM states each has visited:

    python examples/atari.py [steps]
"""

import sys
import tempfile

import voidrl
from voidrl.runs.metrics import read_metrics

if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    config = {"warmup_steps": min(1000, steps // 2), "log.log_every_steps": 500}
    for method in ("random", "apt"):
        with tempfile.TemporaryDirectory() as runs:
            out, how = f"{runs}/{method}", {"preset": "atari-demo", "config": config}
            voidrl.pretrain("atari/ms_pacman", method, steps=steps, out=out, **how)
            row = read_metrics(out)[-1]
        counts = {name: int(row[name]) for name in row if name.startswith("coverage/")}
        print(f"{method}: {counts} after {row['step']} steps")
