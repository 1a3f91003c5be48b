"""Files about the project agree with each other."""

import tomllib
from pathlib import Path

import pytest
import yaml

import voidrl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
YAML = [ROOT / "CITATION.cff", ROOT / ".readthedocs.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]


def read(path):
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_files_for_hosts_can_be_read(path):
    assert isinstance(read(path), dict)


def test_the_citation_names_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == voidrl.__version__ == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_the_oldest_and_the_newest_python_that_is_named_are_tested():
    versions = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: Python :: 3." in each]
    matrix = read(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == [versions[0], versions[-1]]
    assert PROJECT["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda path: path.stem)
def test_workflows_run_targets_of_the_makefile(path):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (job,) = read(path)["jobs"].values()
    (command,) = [s["run"] for s in job["steps"] if s.get("run", "").startswith("make ")]
    assert f"\n{command.split()[1]}: " in makefile
