"""The process of a cell without a run: it ends as `stub.json` in the cell's folder says, start by start.

`{"codes": [75, 0]}`: the first process writes a checkpoint and ends with 75 when its pipe is closed, the
second one ends with 0 at once. A code of 75 waits for the pipe, `"75!"` does not, and `"9!"` kills itself.
"""

import json
import os
import signal
import sys
from pathlib import Path

job = json.loads(sys.stdin.buffer.readline())
folder = Path(job["root"], job["cell"])
starts = folder / "starts.txt"
with starts.open("a") as file:
    file.write(f"{os.getpid()} {signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN}\n")
count = len(starts.read_text().splitlines())
plan = json.loads((folder / "stub.json").read_text())
code = str(plan["codes"][min(count, len(plan["codes"])) - 1])
if plan.get("progress", True):
    (folder / "status.json").write_text(json.dumps({"checkpoint": 100 * count}))
print(f"start {count} of {job['cell']}")
if code == "75":
    while os.read(0, 1):
        pass
if code == "9!":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(code.rstrip("!")))
