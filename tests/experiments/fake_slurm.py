"""A SLURM of one machine for tests: sbatch, srun, scontrol and sacct as small programs.

State is a file `STATE/ID` for each task. A process per task runs the batch script, again if it was requeued.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scontrol", "sacct")


def install(folder: Path) -> Path:
    """Make the commands; returns the folder to put into PATH. The folder next to it has the state."""
    bin_folder, state = folder / "bin", folder / "state"
    bin_folder.mkdir(parents=True)
    state.mkdir()
    for name in COMMANDS:
        path = bin_folder / name
        path.write_text(
            f"#!{sys.executable} -S\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"import fake_slurm\nfake_slurm.STATE = {str(state)!r}\nfake_slurm.main({name!r}, sys.argv[1:])\n"
        )
        path.chmod(0o755)
    return bin_folder


STATE = ""


def main(name: str, words: list[str]) -> None:
    with (Path(STATE) / "calls.log").open("a") as file:
        file.write(" ".join([name, *words]) + "\n")
    globals()[name](words)


def read(task: str) -> dict[str, str]:
    try:
        return dict(line.split("=", 1) for line in (Path(STATE) / task).read_text().splitlines())
    except FileNotFoundError:
        return {}


def write(task: str, **values: object) -> None:
    path = Path(STATE) / task
    text = "\n".join(f"{name}={value}" for name, value in {**read(task), **values}.items())
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def tasks() -> list[str]:
    return sorted(path.name for path in Path(STATE).iterdir() if re.fullmatch(r"\d+(_\d+)?", path.name))


def sbatch(words: list[str]) -> None:
    script = Path(words[0]).read_text()
    if "--partition=nowhere" in script:
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    number = str(max((int(task.partition("_")[0]) for task in tasks()), default=100) + 1)
    copy = Path(STATE) / f"{number}.sh"
    copy.write_text(script)
    array = re.search(r"^#SBATCH --array=0-(\d+)", script, re.MULTILINE)
    ids = [f"{number}_{i}" for i in range(int(array[1]) + 1)] if array else [number]
    for task in ids:
        write(task, state="PENDING")
    for task in ids:
        if os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            run(task, copy)
            os._exit(0)
    print(f"Submitted batch job {number}")


def run(task: str, script: Path) -> None:
    number, _, index = task.partition("_")
    env = {**os.environ, "SLURM_JOB_ID": number}
    if index:
        env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
    while read(task)["state"] == "PENDING":
        with subprocess.Popen(["bash", str(script)], env=env, start_new_session=True) as process:
            write(task, state="RUNNING", pid=process.pid, pgid=os.getpgid(process.pid))
            code = process.wait()
        if read(task)["state"] == "RUNNING":
            write(task, state="COMPLETED" if code == 0 else "FAILED", code=code)
        elif read(task)["state"] == "REQUEUED":
            write(task, state="PENDING", requeues=int(read(task).get("requeues", 0)) + 1)


def srun(words: list[str]) -> None:
    while words[0].startswith("--"):
        if words[0] in ("--output", "--error"):
            path = words[1].replace("%A", os.environ.get("SLURM_ARRAY_JOB_ID", ""))
            path = path.replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", "")).replace("%t", "0")
            path = path.replace("%j", os.environ["SLURM_JOB_ID"])
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            words = words[2:]
        else:
            words = words[1:]
    os.execvp(words[0], words)


def send(task: str, number: int) -> None:
    """To the processes of the step, as SLURM does, but not to the batch shell."""
    script = int(read(task)["pid"])
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if parent == script:
            os.kill(int(folder.name), number)


def scontrol(words: list[str]) -> None:
    action, task = words
    assert action == "requeue"
    write(task, state="REQUEUED")


def sacct(words: list[str]) -> None:
    wanted = [word for before, word in pairwise(words) if before == "-j"]
    print("JobID|State|NodeList")
    for task in tasks():
        if task.partition("_")[0] in wanted:
            print(f"{task}|{read(task)['state']}|node7")
