"""An oracle that we did not write: `ckpt-chaos` kills a run at its file events and judges what resumes.

It also cuts files in half (`torn`), and takes back everything that was not synced to the disk (`unsynced`).
LOST_WORK fails here too: a resume has to use the newest complete checkpoint. Its mode `term` is left out: a
stop by a signal adds a boundary between checkpoints, so that the result differs by design. "PLAN DRIFT" in
its table means that a temporary file carries another process id than in the run without a fault.
"""

import os
import shlex
import subprocess
import sys

import pytest
from fault_lab import HERE, TINY, environ

pytest.importorskip("ckpt_chaos")
POINTS = int(os.environ.get("VOIDRL_CHAOS_POINTS", "30"))


@pytest.mark.faults
def test_ckpt_chaos_finds_no_bad_moment(tmp_path):
    voidrl = f"{shlex.quote(sys.executable)} -m voidrl.cli.main"
    options = f"--steps 20 {TINY} --log.checkpoint-every-steps 10 --log.keep-last 9"
    train = f"{voidrl} pretrain fault_worlds:Slow {options} --out {{out}}"
    again = f"{train} || {voidrl} resume {{out}}"  # a run that was never born is simply started again
    command = [sys.executable, "-m", "ckpt_chaos", "run", "--work", tmp_path / "work"]
    command += ["--modes", "before,torn,unsynced", "--max-points", str(POINTS), "--jobs", "2"]
    command += ["--fail-on", "SILENT_DIVERGENCE,LOST_WORK"]
    command += ["--checkpoint-glob", "{out}/checkpoints/step_*", "--ckpt-ignore-size"]
    command += ["--step-regex", r"(?:resumed|complete) at step (\d+)"]
    command += ["--resume-cmd", shlex.join(["sh", "-c", again])]
    command += ["--result-cmd", f"{shlex.quote(sys.executable)} {HERE / 'fault_digest.py'} {{out}}"]
    command += ["--", *shlex.split(train)]
    done = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True)
    print(done.stdout[-8000:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "PASS" in done.stdout
    # Rows are on the disk before the checkpoint that counts them: no kill tears them, and damage is refused.
    refused = [line for line in done.stdout.splitlines() if line.startswith("#") and "HARD_FAIL" in line]
    assert all("metrics.jsonl [torn]" in line for line in refused), refused
