"""The examples run as a user runs them, print what they promise, and leave nothing behind."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


STEPS = {
    "own_environment.py": 3000,
    "own_method.py": 3000,
}  # no more than their own, enough for what they promise


@pytest.fixture(scope="module")
def finish(tmp_path_factory):
    """Start all examples side by side; `finish(name)` is what one printed, without its progress."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    started = {}
    for name, steps in STEPS.items():
        folder = tmp_path_factory.mktemp("example")
        command = [sys.executable, str(EXAMPLES / name), str(steps)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started[name] = folder, subprocess.Popen(command, cwd=folder, env=env, text=True, **pipes)

    def finish(name):
        folder, process = started[name]
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert not list(folder.iterdir()), "an example keeps its runs in a temporary folder"
        return out

    yield finish
    for _, process in started.values():
        process.kill()
        process.communicate()


def test_pretraining_makes_a_users_own_task_learnable(finish):
    out = finish("own_environment.py")
    tuned, scratch = map(float, re.search(r": (\S+) fine-tuned, (\S+) trained from scratch", out).groups())
    assert scratch < 1  # random actions do not cross the corridor, so there is nothing to learn from
    assert 10 < tuned <= 34


def test_a_method_in_one_file_explores_more_than_random_actions(finish):
    out = finish("own_method.py")
    mine, random = map(ast.literal_eval, re.search(r"(\[.*\]) by RND, (\[.*\]) at random", out).groups())
    assert len(mine) == len(random) == 2
    assert sum(mine) > 1.1 * sum(random)


def test_an_environment_takes_fewer_than_forty_lines():
    assert len((EXAMPLES / "own_environment.py").read_text().splitlines()) < 40
