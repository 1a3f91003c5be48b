"""DMControl from states: a pendulum explored without reward, by APT and by random actions.

Prints the states that each visited, and the return of its policy on the task of swinging up:

    python examples/dmcontrol.py [steps]
"""

import sys
import tempfile

import voidrl
from voidrl.runs.metrics import read_metrics

CONFIG = {"env": {"num_envs": 4, "count_states": True}, "warmup_steps": 500, "log.log_every_steps": 500}

if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    for method in ("random", "apt"):
        with tempfile.TemporaryDirectory() as runs:
            out = f"{runs}/{method}"
            agent = voidrl.pretrain("dmc/pendulum", method, preset="cpu", steps=steps, config=CONFIG, out=out)
            row = read_metrics(out)[-1]
        counts = {name: int(row[name]) for name in row if name.startswith("coverage/")}
        score = voidrl.evaluate(agent, "dmc/pendulum_swingup", episodes=5).mean_return
        print(f"{method}: {counts} after {row['step']} steps, zero-shot return {score:.0f} of 1000")
