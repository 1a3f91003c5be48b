"""An installed package lists and reports what a checkout does: its data files are in the wheel."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from voidrl.cli.listing import KINDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def tracked():
    """The files of the package that git tracks: what is ignored or not added never gets into a wheel."""
    done = subprocess.run(["git", "ls-files", "src/voidrl"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [Path(name).relative_to("src") for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def copy(files, folder):
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / name, folder / name)


def listed(folder, place):
    """Everything that `voidrl list` names, imported from a folder."""
    code = (
        "import voidrl, sys; from voidrl.cli.main import main; "
        "assert voidrl.__file__.startswith(sys.argv[1]), voidrl.__file__; "
        "sys.exit(main(['list']))"
    )
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()[1:]]
    return {kind: names.split(", ") for kind, _, names in rows}


def test_what_git_tracks_is_enough_to_list_everything(tracked, tmp_path):
    templates = {file.relative_to(SOURCE) for file in SOURCE.glob("voidrl/*/templates/*")}
    assert templates
    assert templates <= {*tracked}
    copy(tracked, tmp_path / "package")
    here = {kind: [str(row[0]) for row in listing().rows] for kind, listing in KINDS.items()}
    assert listed(tmp_path / "package", tmp_path) == here
    assert {"apt", "random"} <= {*here["methods"]}
    assert {"bbf", "sac"} <= {*here["presets"]}


@pytest.mark.slow  # pip fetches the build backend
def test_the_wheel_holds_every_file_and_lists_everything(tracked, tmp_path):
    copy(tracked, tmp_path / "source" / "src")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    project = tmp_path / "source" / "pyproject.toml"
    if "[project.urls]" not in (text := project.read_text("utf-8")):
        project.write_text(f'{text}\n[project.urls]\nRepository = "https://example.org/voidrl"\n', "utf-8")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", ".", "./source"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("hatchling cannot be fetched here")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        readme = archive.read(f"{wheel.name.split('-py3')[0]}.dist-info/METADATA").decode()
        archive.extractall(tmp_path / "installed")
    assert names == {name.as_posix() for name in tracked}
    links = re.findall(r"\]\(([^)]*)\)", readme)  # nothing relative, which would be broken on a package index
    assert any("/raw/HEAD/docs/images/" in link for link in links)
    assert all(link.startswith("https://") for link in links)
    assert listed(tmp_path / "installed", tmp_path)["experiments"]
